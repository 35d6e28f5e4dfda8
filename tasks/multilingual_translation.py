"""Translation between several pairs of languages with one model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch

from seqgen.config import like, option
from seqgen.core.errors import ConfigError, DataError, nearest
from seqgen.core.model import EncoderDecoderModel
from seqgen.core.structures import Batch
from seqgen.data.combined_datasets import JoinedDataset, mixing_rates
from seqgen.data.pair_dataset import Example, PairDataset
from seqgen.data.text import ParallelFiles, find_parallel, read_lines
from seqgen.data.tokenizers.base import Tokenizer
from seqgen.data.tokenizers.language_tokens import with_languages
from seqgen.data.tokenizers.languages import AddedTokens, Languages, TargetLanguage
from seqgen.data.tokenizers.setup import check_one_vocabulary, prepare_tokenizers
from seqgen.registry import register_task
from seqgen.tasks.raw_text import split_value
from seqgen.tasks.translation import ParallelTextConfig, ParallelTextTask, TranslationConfig


@dataclass
class MultilingualTranslationConfig(ParallelTextConfig):
    """The pairs, their files, and how the model is told the languages."""

    pairs: list[str] = option([], "SOURCE-TARGET: pairs of file name endings to train on, such as [en-de,de-en]")
    train: str = option(
        "",
        "training text: path without the endings .SOURCE and .TARGET; {pair} in it is replaced by the pair, such as "
        "en-de, or by the reverse pair",
    )
    valid: str = option("", "validation text, in the same form")
    test: str = option("", "test text, in the same form")
    columns: dict[str, Any] = like(TranslationConfig, "columns")
    languages: list[str] = option(
        [],
        "ENDING=CODE: code of a language, such as de=deu_Latn, where the tokenizer has another code than the file "
        "name ending",
    )
    language_token: str = option(
        "",
        "source: sources begin with the token of the target language; target: sources and targets begin with the "
        "tokens of their own languages; empty for the tokenizer's convention, or source if it has no languages",
        choices=("", "source", "target"),
    )
    temperature: float = option(
        1.5, "a pair is sampled in proportion to its size to the power of 1 / temperature", minimum=0.01
    )
    epoch_size: int = option(0, "examples per epoch; 0 for the number of examples of all pairs", minimum=0)


class Pair(NamedTuple):
    """A pair of languages.

    Attributes:
        name: its name, which is also the prefix of its scores.
        endings: the file name endings of source and target.
        codes: the codes of both languages.
    """

    name: str
    endings: tuple[str, str]
    codes: tuple[str, str]


@register_task("multilingual_translation", config=MultilingualTranslationConfig)
class MultilingualTranslationTask(ParallelTextTask):
    """Translation between several pairs of languages, which are told apart by tokens of languages.

    Args:
        cfg: the task's configuration.
        source_tokenizer: the tokenizer of sources, which has a token for each language.
        target_tokenizer: that of targets; another one only for a Marian.
        folder: the run folder.

    Attributes:
        pairs: the pairs.
    """

    cfg: MultilingualTranslationConfig

    def __init__(
        self, cfg: MultilingualTranslationConfig, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer, folder: Path
    ):
        super().__init__(cfg, source_tokenizer, target_tokenizer, folder)
        assert source_tokenizer.languages is not None
        self.languages: Languages = source_tokenizer.languages
        self.pairs = _pairs(cfg)

    @classmethod
    def setup_task(cls, cfg: MultilingualTranslationConfig, folder: Path) -> Self:
        """Make the task; see ``Task.setup_task``.

        Raises:
            ConfigError: a pair is not valid, or a key of the tokenizer is not supported.
        """
        pairs = _pairs(cfg)
        check_one_vocabulary(cfg)

        def text(sides: Sequence[int | str]) -> Iterable[str]:
            files = [_files(cfg, pair, "train") for pair in pairs]
            for each in files:
                each.check()
            # a file of several pairs is read once
            return read_lines([*dict.fromkeys(path for each in files for side in sides for path in each.of(side))])

        def complete(made: Tokenizer) -> Tokenizer:
            return with_languages(made, [pair.codes for pair in pairs], cfg.language_token)

        return cls(cfg, *prepare_tokenizers(cfg, folder, text, complete), folder)

    @classmethod
    def data_files(cls, cfg: MultilingualTranslationConfig, folder: Path, split: str) -> list[Path]:
        """The files of all pairs, each once; see ``Task.data_files``."""
        return list(dict.fromkeys(path for pair in _pairs(cfg) for path in _files(cfg, pair, split).all()))

    def part(self, name: str) -> Self:
        """The task restricted to one pair; see ``Task.part``."""
        return self.restricted("pairs", name)

    def decoding_settings(self) -> dict[str, str]:
        """The languages of the only pair; see ``Task.decoding_settings``."""
        if len(self.pairs) > 1:
            return {}
        source, target = self.pairs[0].codes
        return {"target_lang": target, **({"source_lang": source} if self.languages.source_lang else {})}

    def files(self, split: str) -> ParallelFiles:
        """The files of the only pair.

        Raises:
            ConfigError: there are several pairs.
        """
        if len(self.pairs) > 1:
            names = ", ".join(pair.name for pair in self.pairs)
            raise ConfigError(
                f"the run has several pairs; set input=FILE, or choose one by dataset.gen_source=PAIR: {names}"
            )
        return _files(self.cfg, self.pairs[0], split)

    def load_dataset(self, split: str) -> JoinedDataset:
        """Load a split of all pairs, and encode it; see ``Task.load_dataset``."""
        parts: dict[str, PairDataset] = {}
        for pair in self.pairs:
            files, added = _files(self.cfg, pair, split), self.added_tokens(pair)
            parts[pair.name] = self.encode(split, files, added, pair.endings, f"{split}.{pair.name}")
        return self.combine(split, parts, lambda sizes: mixing_rates(sizes, self.cfg.temperature))

    def added_tokens(self, pair: Pair) -> tuple[AddedTokens, AddedTokens]:
        """The tokens that are added to each source and each target of a pair.

        If the token of the target language is the start token of the decoder (mBART), it is the first one of the target
        here, and ``collate`` moves it.

        Args:
            pair: the pair.
        """
        source, target = pair.codes
        of_target = self.target_tokenizer.target_tokens(target)
        if self.languages.target is TargetLanguage.START:
            of_target = of_target._replace(before=[self.languages.ids[target], *of_target.before])
        return self.source_tokenizer.source_tokens(source, target), of_target

    def collate(self, examples: Sequence[tuple[Any, ...]], model: EncoderDecoderModel) -> Batch:
        """Collate examples into a batch; see ``Task.collate`` and ``added_tokens``.

        With the start token L, targets ``[L a b e]`` become::

            prev_output_tokens  L a b
            target              a b e
        """
        targets = [target for _, _, target, *_ in examples if target is not None]
        if self.languages.target is not TargetLanguage.START or len(targets) < len(examples):
            return super().collate(examples, model)
        shorter = [Example(*one)._replace(target=target[1:]) for one, target in zip(examples, targets, strict=True)]
        batch = super().collate(shorter, model)
        assert batch.prev_output_tokens is not None
        starts = torch.stack([target[:1] for target in targets])
        return replace(batch, prev_output_tokens=torch.cat([starts, batch.prev_output_tokens[:, 1:]], dim=1))


def _pairs(cfg: MultilingualTranslationConfig) -> list[Pair]:
    """Read the keys ``pairs`` and ``languages``.

    Raises:
        ConfigError: they are not valid.
    """
    if not cfg.pairs:
        raise ConfigError("task.pairs is missing; set it to the pairs of languages, such as task.pairs=[en-de,de-en]")
    if len(set(cfg.pairs)) < len(cfg.pairs):
        raise ConfigError(f"task.pairs=[{','.join(cfg.pairs)}] names a pair twice; remove one")
    endings = [tuple(name.split("-")) for name in cfg.pairs]
    for name, both in zip(cfg.pairs, endings, strict=True):
        if len(both) != 2 or not all(both) or both[0] == both[1]:
            raise ConfigError(f"task.pairs: {name!r} is not of the form SOURCE-TARGET, such as en-de")
    codes, known = {}, list(dict.fromkeys(chain.from_iterable(endings)))
    for item in cfg.languages:
        ending, _, code = item.partition("=")
        if not code:
            raise ConfigError(f"task.languages: {item!r} is not of the form ENDING=CODE, such as de=deu_Latn")
        if ending not in known:
            raise ConfigError(f"task.languages: no pair has the file name ending {ending!r}{nearest(ending, known)}")
        codes[ending] = code
    return [
        Pair(name, (source, target), (codes.get(source, source), codes.get(target, target)))
        for name, (source, target) in zip(cfg.pairs, endings, strict=True)
    ]


def _files(cfg: MultilingualTranslationConfig, pair: Pair, split: str) -> ParallelFiles:
    """The files of a pair.

    Raises:
        ConfigError: the split is unknown or its key is not set.
        DataError: the files do not exist.
    """
    source, target = pair.endings
    given: str = split_value(cfg, split, f"PREFIX of the files PREFIX.{source} and PREFIX.{target}")
    names = dict.fromkeys(given.replace("{pair}", name) for name in (pair.name, f"{target}-{source}"))
    problems: list[DataError] = []
    for prefix in names:
        try:
            key, optional = f"task.{split}", split == "test"
            return find_parallel(prefix, source, target, key=key, optional=optional, names=cfg.columns)
        except DataError as error:
            problems.append(error)
    raise problems[0]
