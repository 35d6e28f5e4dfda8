"""Base class of tasks whose source and target share one vocabulary."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from seqgen.config import option
from seqgen.data.tokenizers.base import Tokenizer
from seqgen.data.tokenizers.setup import TokenizerConfig, prepare_tokenizer
from seqgen.errors import ConfigError
from seqgen.files import CACHE
from seqgen.task import Task

SPLITS = ("train", "valid", "test")


@dataclass
class RawTextConfig(TokenizerConfig):
    """Where text is encoded, and how."""

    tokenizer: str = option(
        "t5",
        "t5 (SentencePiece with sentinels), bytes, pretrained (from a folder), sentencepiece, whitespace",
        choices=("t5", "bytes", "pretrained", "sentencepiece", "whitespace"),
    )
    workers: int = option(0, "number of processes that encode text; 0 for one per core", minimum=0)
    cache_dir: str = option("", "cache folder for encoded text, which several runs may share; empty for the run folder")


class RawTextTask(Task):
    """Text of one vocabulary; a subclass says which text the vocabulary is made from, and implements ``load_dataset``.

    Args:
        cfg: the task's configuration.
        tokenizer: of source and target.
        folder: the run folder.
    """

    def __init__(self, cfg: Any, tokenizer: Tokenizer, folder: Path):
        super().__init__(cfg, tokenizer, tokenizer)
        self.folder = folder

    @classmethod
    def setup_task(cls, cfg: Any, folder: Path) -> Self:
        """Make the task ready; see ``Task.setup_task``.

        Raises:
            ConfigError: a key of the tokenizer does not fit such a task.
        """
        if not cfg.joined_dictionary:
            raise ConfigError("this task has one vocabulary for source and target; set task.joined_dictionary=true")
        if cfg.subword_sampling:
            raise ConfigError("task.subword_sampling is for tasks over parallel text; remove it")
        return cls(cfg, prepare_tokenizer(cfg, folder, lambda: cls.training_text(cfg, folder)), folder)

    @classmethod
    def training_text(cls, cfg: Any, folder: Path) -> Iterable[str]:
        """The text that a vocabulary is made from.

        Args:
            cfg: the task's configuration.
            folder: the run folder.
        """
        raise NotImplementedError

    @property
    def cache(self) -> Path:
        """The folder of what is made from the text and can be made again."""
        return Path(self.cfg.cache_dir) if self.cfg.cache_dir else self.folder / CACHE


def check_split(split: str) -> None:
    """Check that a split exists.

    Raises:
        ConfigError: it is not.
    """
    if split not in SPLITS:
        raise ConfigError(f"there is no split {split!r}; there are: {', '.join(SPLITS)}")
