"""Tasks over text files: their splits, the folder of encoded text, and the base class for one shared vocabulary."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from seqgen.config import MOST_WORKERS, like, option
from seqgen.core.errors import ConfigError, nearest
from seqgen.data.columns import Column
from seqgen.data.combined_datasets import JoinedDataset, MixtureDataset
from seqgen.data.pair_dataset import PairDataset
from seqgen.data.text import find_files
from seqgen.data.tokenizers.base import Tokenizer, load_tokenizer
from seqgen.data.tokenizers.setup import TokenizerConfig, check_one_vocabulary, prepare_tokenizers, without_languages
from seqgen.system.files import CACHE
from seqgen.task import Task

SPLITS = ("train", "valid", "test")
"""The splits of a task's data."""


def check_split(split: str) -> None:
    """Check that a split exists.

    Args:
        split: its name.

    Raises:
        ConfigError: the name is not one of ``SPLITS``.
    """
    if split not in SPLITS:
        raise ConfigError(f"there is no split {split!r}; choose one of: {', '.join(SPLITS)}")


def missing_split(split: str, message: str) -> ConfigError:
    """The error for a split whose key is not set.

    Args:
        split: its name.
        message: the error in training; the split ``test`` is read in decoding only, when its key cannot be set.
    """
    if split == "test":
        return ConfigError("the model was trained without task.test; set input=FILE, or input=- for standard input")
    return ConfigError(message)


def split_value(cfg: Any, split: str, form: str) -> Any:
    """The value of a split's key.

    Args:
        cfg: the task's configuration.
        split: its name.
        form: what the value looks like, for the message.

    Raises:
        ConfigError: the split is unknown, or its key is not set.
    """
    check_split(split)
    if not (value := getattr(cfg, split)):
        raise missing_split(split, f"task.{split} is missing; set task.{split}={form}")
    return value


def split_files(cfg: Any, split: str) -> list[Path]:
    """The files of a split.

    Args:
        cfg: the task's configuration, with lists of files or wildcards as the values of the splits' keys.
        split: its name.

    Raises:
        ConfigError: the split is unknown, or its key is not set.
        DataError: a file does not exist.
    """
    return find_files(split_value(cfg, split, "FILE, or several as [FILE,FILE]"), f"task.{split}")


def cache_folder(cfg: Any, folder: Path) -> Path:
    """The folder of files that are made from the text and can be made again.

    Args:
        cfg: the task's configuration, with the key ``cache_dir``.
        folder: the run folder.
    """
    return Path(cfg.cache_dir) if cfg.cache_dir else folder / CACHE


@dataclass
class TextConfig(TokenizerConfig):
    """The tokenizer, and how text is encoded."""

    workers: int = option(
        0, "number of processes that encode text; 0 for one per core", minimum=0, maximum=MOST_WORKERS
    )
    cache_dir: str = option(
        "", "cache folder for encoded text, which several runs may share; empty for the run folder", role="output_path"
    )


@dataclass
class RawTextConfig(TextConfig):
    """The keys of tasks with one vocabulary."""

    tokenizer: str = like(TokenizerConfig, "tokenizer", "t5")


class TextTask(Task):
    """A task over text files, which are encoded once.

    The keys ``train``, ``valid`` and ``test`` have the files of the splits, unless a subclass has others.

    Args:
        cfg: the task's configuration.
        source_tokenizer: the tokenizer of the source.
        target_tokenizer: the tokenizer of the target.
        folder: the run folder.
    """

    def __init__(self, cfg: Any, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer, folder: Path):
        super().__init__(cfg, source_tokenizer, target_tokenizer)
        self.folder = folder
        declared = getattr(cfg, "columns", {})
        of_text = {name: load_tokenizer(folder / f"column_{name}") for name in declared if declared[name] == "text"}
        self.columns = {n: Column(n, kind, of_text.get(n), cfg.max_source_positions) for n, kind in declared.items()}

    @property
    def cache(self) -> Path:
        """The folder of encoded text; see ``cache_folder``."""
        return cache_folder(self.cfg, self.folder)

    def splits(self) -> list[str]:
        """The splits whose keys are set; those without a key, whose text the task makes itself, always exist."""
        return [split for split in SPLITS if getattr(self.cfg, split, True)]

    def restricted(self, attribute: str, name: str) -> Self:
        """A copy of a task of several parts that has only one of them.

        Args:
            attribute: the attribute with the list of parts, which have names: the plural of their noun.
            name: the name of the part.

        Raises:
            ConfigError: there is no such part.
        """
        parts = {part.name: part for part in getattr(self, attribute)}
        if name not in parts:
            noun, known = attribute.removesuffix("s"), ", ".join(parts)
            raise ConfigError(f"there is no {noun} {name!r}{nearest(name, parts)}; choose one of: {known}")
        restricted = copy.copy(self)
        restricted.datasets = {}
        setattr(restricted, attribute, [parts[name]])
        return restricted

    def combine(
        self, split: str, parts: Mapping[str, PairDataset], rates: Callable[[list[int]], Sequence[float]]
    ) -> JoinedDataset:
        """The dataset of a split of several parts: in training a mixture, else their concatenation.

        Args:
            split: its name.
            parts: the dataset of each part by its name.
            rates: returns the sampling rates of parts of given numbers of examples.
        """
        if split != "train":
            return JoinedDataset(parts)
        return MixtureDataset(parts, rates([len(part) for part in parts.values()]), self.cfg.epoch_size)


def _one_sided(tokenizer: Tokenizer) -> Tokenizer:
    """Refuse a tokenizer that reads sources and targets differently."""
    if tokenizer.target_side is not tokenizer:
        raise ConfigError("this tokenizer has other pieces for targets than for sources; use task=translation")
    return without_languages(tokenizer)


class RawTextTask(TextTask):
    """A task with one vocabulary; a subclass implements ``training_text`` and ``load_dataset``.

    Args:
        cfg: the task's configuration.
        tokenizer: the tokenizer of source and target.
        folder: the run folder.
    """

    def __init__(self, cfg: Any, tokenizer: Tokenizer, folder: Path):
        super().__init__(cfg, tokenizer, tokenizer, folder)

    @classmethod
    def setup_task(cls, cfg: Any, folder: Path) -> Self:
        """Make the task; see ``Task.setup_task``.

        Raises:
            ConfigError: a key of the tokenizer is not supported.
        """
        check_one_vocabulary(cfg)
        tokenizer, _ = prepare_tokenizers(cfg, folder, lambda _: cls.training_text(cfg, folder), _one_sided)
        return cls(cfg, tokenizer, folder)

    @classmethod
    def training_text(cls, cfg: Any, folder: Path) -> Iterable[str]:
        """The text from which a vocabulary is made.

        Args:
            cfg: the task's configuration.
            folder: the run folder.

        Returns:
            The lines.
        """
        raise NotImplementedError

    @classmethod
    def data_files(cls, cfg: Any, folder: Path, split: str) -> list[Path]:
        """The files of a split; see ``Task.data_files``."""
        return split_files(cfg, split)
