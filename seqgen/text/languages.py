"""The languages of each line, for models that translate between several."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqgen.config import GenerationConfig
from seqgen.core.errors import ConfigError, DataError
from seqgen.data.dictionary import Dictionary
from seqgen.data.tokenizers.languages import TargetLanguage
from seqgen.task import Task
from seqgen.text.members import TextModel

_FIELD = re.compile(r"field([1-9]\d?)")


class LineLanguages(NamedTuple):
    """The languages of one line.

    Attributes:
        source_lang: code of the source language; empty for the model's default.
        target_lang: code of the target language; empty for none.
    """

    source_lang: str = ""
    target_lang: str = ""


class LanguageReader:
    """Reads the languages of a line, which are the same for all lines or in a field of the line.

    Args:
        models: the models that read the line. Those without languages read the same text.
        cfg: ``source_lang`` and ``target_lang``: a code, ``fieldN``, or empty.

    Attributes:
        fixed: the languages that are the same for all lines.
        fields: by ``source_lang`` or ``target_lang``, the index of the field that has it.

    Raises:
        ConfigError: no model has languages, there is no such language, or a task encodes its sources itself.
    """

    def __init__(self, models: Sequence[TextModel], cfg: GenerationConfig):
        self.languages = models[0].task.source_tokenizer.languages
        self.fields: dict[str, int] = {}
        codes: dict[str, str] = {}
        for key in LineLanguages._fields:
            if not (name := str(getattr(cfg, key))):
                continue
            given = f"generation.{key}={name}"
            if self.languages is None and f"{{{key}}}" not in getattr(cfg, "prompt", ""):
                raise ConfigError(
                    f"{given} chooses a language, but the model has no languages to choose from; remove it"
                )
            if key == "source_lang" and self.languages is not None and not self.languages.source_lang:
                raise ConfigError(
                    f"{given} has no effect, because the model is not told the language of its source; remove it"
                )
            for task in (one.task for one in models if self.languages and not one.task.encodes_by_tokenizer):
                raise ConfigError(
                    f"generation.{key} cannot be used with a {type(task).__name__}, which encodes text in its own way; "
                    "remove it"
                )
            if found := _FIELD.fullmatch(name):
                self.fields[key] = int(found[1]) - 1
            else:
                # in the prompt of a model without languages, a name stands for itself
                codes[key] = self.languages.code(name, f"generation.{key}") if self.languages else name
        self.fixed = LineLanguages(**codes)

    def read(self, number: int, line: str) -> tuple[str, LineLanguages]:
        """Separate a line from the fields with its languages.

        With ``target_lang=field2``, the line ``a dog<tab>de`` has the text ``a dog`` and the target language ``de``.

        Args:
            number: number of the line, from 0.
            line: the line.

        Returns:
            The line without these fields, and its languages.

        Raises:
            DataError: the line has too few fields, or a field is not a language.
        """
        if not self.fields:
            return line, self.fixed
        fields, codes = line.split("\t"), dict[str, str]()
        for key, index in self.fields.items():
            where = f"line {number + 1}, generation.{key}=field{index + 1}"
            if index >= len(fields):
                count = f"{len(fields)} field{'s' if len(fields) > 1 else ''}"
                raise DataError(f"{where}: the line has only {count}; separate fields by tabs")
            try:
                codes[key] = (
                    self.languages.code(fields[index].strip(), where) if self.languages else fields[index].strip()
                )
            except ConfigError as error:
                raise DataError(str(error)) from None
        rest = [field for index, field in enumerate(fields) if index not in self.fields.values()]
        return "\t".join(rest), self.fixed._replace(**codes)

    def batch_tokens(self, languages: Sequence[LineLanguages]) -> dict[str, Any]:
        """The tokens of the target languages of a batch, if outputs begin with them or start from them.

        Args:
            languages: the languages of each line.

        Returns:
            ``first_tokens`` or ``start_tokens`` of ``Batch``, ``(N,)`` int64, by name.
        """
        fields = {TargetLanguage.FIRST: "first_tokens", TargetLanguage.START: "start_tokens"}
        named = [pair.target_lang for pair in languages if pair.target_lang]
        if self.languages is None or self.languages.target not in fields or not named:
            return {}
        return {fields[self.languages.target]: torch.tensor([self.languages.ids[code] for code in named])}

    def force_target(self, cfg: GenerationConfig, dictionary: Dictionary) -> GenerationConfig:
        """The configuration with a forced first token if outputs begin with that of the target language.

        Args:
            cfg: the configuration of decoding; its ``forced_first`` is the user's, not the model's.
            dictionary: the target vocabulary.

        Returns:
            The configuration with ``forced_first``. If each line names its language, batches have ``first_tokens``.

        Raises:
            ConfigError: the user forces another first token.
        """
        if not cfg.target_lang or self.languages is None or self.languages.target is not TargetLanguage.FIRST:
            return cfg
        if cfg.forced_first:
            raise ConfigError(
                f"generation.forced_first={cfg.forced_first} and generation.target_lang={cfg.target_lang} both "
                "determine the first token; remove one of them"
            )
        code = self.fixed.target_lang or next(iter(self.languages.ids))
        return replace(cfg, forced_first=dictionary.symbol(self.languages.ids[code]))


def encode_source(task: Task, text: str, languages: LineLanguages) -> Tensor:
    """Turn a source line into ids, as ``Task.encode_source`` does.

    Args:
        task: the task of a model, which may have no languages.
        text: the line.
        languages: its languages.
    """
    if task.source_tokenizer.languages is None or languages == LineLanguages():
        return task.encode_source(text)
    return task.encode_source_in(text, languages.source_lang, languages.target_lang)


def encode_target(task: Task, text: str, languages: LineLanguages) -> Tensor:
    """Turn a target line into ids, as ``Task.encode_target`` does.

    Args:
        task: the task of a model.
        text: the line.
        languages: the languages of the pair.
    """
    if not languages.target_lang:
        return task.encode_target(text)
    return torch.tensor(task.target_tokenizer.encode_target(text, languages.target_lang))
