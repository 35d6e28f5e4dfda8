"""The protocol of a loaded model, and the languages of each line, for models that translate between several."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from seqgen.config import GenerationConfig
from seqgen.core.errors import ConfigError, DataError
from seqgen.core.model import EncoderDecoderModel
from seqgen.data.tokenizers.languages import Languages, TargetLanguage
from seqgen.task import Task, other_languages

_FIELD = re.compile(r"field([1-9]\d?)")
KEYS = ("source_lang", "target_lang")


class TextModel(Protocol):
    """A model and its task, as ``load_model`` returns them."""

    @property
    def task(self) -> Task:
        """Encodes and decodes text."""

    @property
    def model(self) -> EncoderDecoderModel:
        """The model."""

    @property
    def generation(self) -> Mapping[str, Any]:
        """The model's decoding settings, by the names of ``GenerationConfig``'s fields."""


@dataclass(frozen=True)
class LineLanguages:
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

    Raises:
        ConfigError: no model has languages, there is no such language, or a task encodes its sources itself.
    """

    def __init__(self, models: Sequence[TextModel], cfg: GenerationConfig):
        self.languages = models[0].task.source_tokenizer.languages
        names = {key: str(getattr(cfg, key)) for key in KEYS if getattr(cfg, key)}
        self._fields = {key: int(found[1]) - 1 for key, name in names.items() if (found := _FIELD.fullmatch(name))}
        codes: dict[str, str] = {}
        for key, name in names.items():
            languages = _needed(self.languages, key, name)
            if key not in self._fields:
                codes[key] = languages.code(name, f"generation.{key}")
        self.fixed = LineLanguages(**codes)
        if names:
            for model in models:
                if not model.task.encodes_by_tokenizer:
                    raise ConfigError(
                        f"generation.{next(iter(names))} cannot be used with a {type(model.task).__name__}, which "
                        "encodes text in its own way; remove it"
                    )

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
        if not self._fields or self.languages is None:
            return line, self.fixed
        fields, codes = line.split("\t"), dict[str, str]()
        for key, index in self._fields.items():
            where = f"line {number + 1}, generation.{key}=field{index + 1}"
            if index >= len(fields):
                count = f"{len(fields)} field{'s' if len(fields) > 1 else ''}"
                raise DataError(f"{where}: the line has only {count}; separate fields by tabs")
            try:
                codes[key] = self.languages.code(fields[index].strip(), where)
            except ConfigError as error:
                raise DataError(str(error)) from None
        rest = [field for index, field in enumerate(fields) if index not in self._fields.values()]
        return "\t".join(rest), replace(self.fixed, **codes)

    def by_line(self, key: str) -> bool:
        """True if each line has a field with this language.

        Args:
            key: ``source_lang`` or ``target_lang``.
        """
        return key in self._fields

    def target_token(self, languages: LineLanguages, role: TargetLanguage) -> int | None:
        """The token of the target language, if it has this role in the output; see ``InputLine``."""
        if self.languages is None or self.languages.target is not role or not languages.target_lang:
            return None
        return self.languages.ids[languages.target_lang]


def tokens_of(ids: Sequence[int | None]) -> Tensor | None:
    """One token for each sentence, ``(N,)`` int64; ``None`` if the sentences have none.

    Args:
        ids: the token of each sentence.
    """
    known = [index for index in ids if index is not None]
    return torch.tensor(known) if known else None


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


def begins_with_language(task: Task) -> bool:
    """True if outputs begin with the token of their language."""
    languages = task.source_tokenizer.languages
    return languages is not None and languages.target is TargetLanguage.FIRST


def force_target_language(cfg: GenerationConfig, task: Task) -> GenerationConfig:
    """Force the first token of outputs if it is that of the target language.

    Args:
        cfg: the configuration of decoding; its ``forced_first`` is the user's, not the model's.
        task: the first model's task.

    Returns:
        The configuration with ``forced_first``. If each line names its language, batches have ``first_tokens``.

    Raises:
        ConfigError: the model has no languages, or the user forces another first token.
    """
    if not cfg.target_lang:
        return cfg
    languages = _needed(task.source_tokenizer.languages, "target_lang", cfg.target_lang)
    if not begins_with_language(task):
        return cfg
    if cfg.forced_first:
        raise ConfigError(
            f"generation.forced_first={cfg.forced_first} and generation.target_lang={cfg.target_lang} both determine "
            "the first token; remove one of them"
        )
    by_line = _FIELD.fullmatch(cfg.target_lang)
    code = next(iter(languages.ids)) if by_line else languages.code(cfg.target_lang, "generation.target_lang")
    return replace(cfg, forced_first=task.target_dictionary.symbol(languages.ids[code]))


def check_languages(members: Sequence[TextModel]) -> None:
    """Refuse an ensemble of models of different languages.

    Args:
        members: the models.

    Raises:
        ConfigError: they translate different pairs of languages.
    """
    first = members[0].task.language_pair
    for number, member in enumerate(members[1:], start=2):
        if other_languages(first, member.task.language_pair):
            raise ConfigError(
                f"model 1 translates {'-'.join(first)}, and model {number} {'-'.join(member.task.language_pair)}; an "
                "ensemble has one pair of languages, unless generation.member_sources says what each model reads, such "
                f"as [{','.join(['input'] * len(members))}]"
            )


def note_if_language_unset(cfg: GenerationConfig, model: TextModel) -> str | None:
    """A note for the user if nothing determines the language of the output.

    Args:
        cfg: the configuration of decoding.
        model: the model.
    """
    languages = model.task.source_tokenizer.languages
    if languages is None or cfg.target_lang or cfg.forced_first or languages.in_text:
        return None
    start_token = model.model.start_token(model.task.target_dictionary.eos())
    if languages.target is TargetLanguage.START and start_token in languages.ids.values():
        return None
    return (
        f"the model has {len(languages.ids)} languages; it chooses that of the output itself unless you set "
        "generation.target_lang=CODE"
    )


def _needed(languages: Languages | None, key: str, value: str) -> Languages:
    if languages is None:
        raise ConfigError(
            f"generation.{key}={value} chooses a language, but the model has no languages to choose from; remove it"
        )
    if key == "source_lang" and not languages.source_lang:
        raise ConfigError(
            f"generation.source_lang={value} has no effect, because the model is not told the language of its source; "
            "remove it"
        )
    return languages
