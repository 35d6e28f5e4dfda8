"""A task in one file: dates in words to dates in digits, with a tokenizer of characters.

The source "the 3rd of March 1987" has the target "1987-03-03". The task generates its text::

    seqgen-train common.user_dir=examples/dates.py task=dates model=transformer_tiny run_dir=runs/dates
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from seqgen.config import option
from seqgen.data.dictionary import Dictionary
from seqgen.data.text import ParallelFiles
from seqgen.data.tokenizers.base import Tokenizer, load_tokenizer, register_tokenizer, save_tokenizer, write_settings
from seqgen.registry import register_task
from seqgen.system.files import new_folder
from seqgen.tasks.text_files import cache_folder, check_split
from seqgen.tasks.translation import ParallelTextConfig, ParallelTextTask

SIZES = {"train": 8000, "valid": 500, "test": 500}
"""Number of pairs in each split."""


@register_tokenizer("letters")
class LetterTokenizer(Tokenizer):
    """Each character is a token, spaces included."""

    def encode(self, text: str) -> list[int]:
        """Turn text into ids, without end-of-sentence."""
        return [self.dictionary.index(letter) for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        """Turn ids into text."""
        return "".join(self.dictionary.symbol(index) for index in ids)

    def fingerprint(self) -> str:
        """A hash that changes whenever ``encode`` would give other ids."""
        return f"letters:{self.dictionary.fingerprint()}"

    def save(self, folder: Path) -> None:
        """Write what ``load`` reads, and the registered name, by which the class is found again."""
        write_settings(folder, {"tokenizer": "letters"})
        self.dictionary.save(folder / "dictionary.json")

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Self:
        """Read what ``save`` wrote."""
        return cls(Dictionary.load(folder / "dictionary.json"))


@dataclass
class DatesConfig(ParallelTextConfig):
    """Configuration of the task; its fields are the keys ``task.FIELD``."""

    first_year: int = option(1900, "first year of the dates", minimum=1, maximum=9999)
    last_year: int = option(2099, "last year of the dates", minimum=1, maximum=9999)
    workers: int = option(1, "number of processes that encode text; 0 for one per core", minimum=0)


@register_task("dates", config=DatesConfig)
class DatesTask(ParallelTextTask):
    """Dates in words to dates in digits."""

    @classmethod
    def setup_task(cls, cfg: DatesConfig, folder: Path) -> Self:
        """Make the tokenizer, or read it from the run folder.

        Args:
            cfg: the configuration.
            folder: the run folder; a resumed or finished run has the tokenizer in it.
        """
        home = folder / "tokenizer"
        if not home.is_dir():
            letters = Dictionary()
            for letter in sorted({letter for day in _days(cfg, "train") for letter in _words(day) + _digits(day)}):
                letters.add_symbol(letter)
            save_tokenizer(LetterTokenizer(letters), home)
        tokenizer = load_tokenizer(home)
        return cls(cfg, tokenizer, tokenizer, folder)

    @classmethod
    def find_files(cls, cfg: DatesConfig, folder: Path, split: str) -> ParallelFiles:
        """Write the text of a split into the cache folder, unless it exists.

        Args:
            cfg: the configuration.
            folder: the run folder.
            split: ``train``, ``valid`` or ``test``.
        """
        check_split(split)
        home = cache_folder(cfg, folder) / f"dates-{split}-{cfg.first_year}-{cfg.last_year}"
        if not home.is_dir():
            with new_folder(home) as temporary:
                days = _days(cfg, split)
                (temporary / "words").write_text("".join(f"{_words(day)}\n" for day in days), encoding="utf-8")
                (temporary / "digits").write_text("".join(f"{_digits(day)}\n" for day in days), encoding="utf-8")
        return ParallelFiles([home / "words"], [home / "digits"])


def _days(cfg: DatesConfig, split: str) -> list[datetime.date]:
    """The days of a split: the same in every run, and in no other split."""
    first = datetime.date(cfg.first_year, 1, 1)
    numbers = list(range((datetime.date(cfg.last_year, 12, 31) - first).days + 1))
    random.Random("dates").shuffle(numbers)
    splits = list(SIZES)
    start = sum(SIZES[earlier] for earlier in splits[: splits.index(split)])
    return [first + datetime.timedelta(days=number) for number in numbers[start : start + SIZES[split]]]


def _words(day: datetime.date) -> str:
    ending = "th" if 10 <= day.day % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(day.day % 10, "th")
    return f"the {day.day}{ending} of {day:%B} {day.year}"


def _digits(day: datetime.date) -> str:
    return day.isoformat()
