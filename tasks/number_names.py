"""The built-in example: translation of number names from one language to another.

"four thousand two hundred and seventeen" becomes "viertausendzweihundertsiebzehn". The text is generated, so that
nothing is downloaded. It does not depend on the seed.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass
from pathlib import Path

from num2words import CONVERTER_CLASSES

from seqgen.config import like, option
from seqgen.data.text import ParallelFiles
from seqgen.registry import register_task
from seqgen.system.files import new_folder
from seqgen.tasks.raw_text import cache_folder, check_split
from seqgen.tasks.translation import ParallelTextConfig, ParallelTextTask, check_languages

LIMIT = 100_000
"""All numbers are below this limit; above it, the generated English names are unnatural."""

ALWAYS_TRAIN = 100
"""Smaller numbers are always in the training data, because many of their names are irregular."""

VALID_SIZE, TEST_SIZE = 500, 1000
"""Numbers of pairs of the validation and test data."""

LANGUAGES = ("cs", "da", "de", "en", "es", "fi", "fr", "hu", "it", "nl", "no", "pl", "pt", "ro", "ru", "sv", "tr", "uk")


@dataclass
class NumberNamesConfig(ParallelTextConfig):
    """The languages, and the amount of text."""

    source_lang: str = option("en", "source language", choices=LANGUAGES)
    target_lang: str = option("de", "target language", choices=LANGUAGES)
    train_size: int = option(20_000, "number of training pairs", minimum=ALWAYS_TRAIN, maximum=90_000)
    vocab_size: int = like(ParallelTextConfig, "vocab_size", 200)
    hard_vocab_limit: bool = like(ParallelTextConfig, "hard_vocab_limit", False)
    spm_type: str = like(ParallelTextConfig, "spm_type", "bpe")
    workers: int = like(ParallelTextConfig, "workers", 1)


@register_task("number_names", config=NumberNamesConfig)
class NumberNamesTask(ParallelTextTask):
    """Translation of the names of numbers below 100,000 between two of ``LANGUAGES``."""

    @classmethod
    def find_files(cls, cfg: NumberNamesConfig, folder: Path, split: str) -> ParallelFiles:
        """Find the files of a split; they are generated if they do not exist.

        Args:
            cfg: the task's configuration.
            folder: the run folder.
            split: ``train``, ``valid`` or ``test``.

        Raises:
            ConfigError: the split is unknown, or both languages are the same.
            UserError: the files cannot be written.
        """
        check_split(split)
        check_languages(cfg)
        size = f"-{cfg.train_size}" if split == "train" else ""
        home = cache_folder(cfg, folder) / f"number_names-{split}{size}-{cfg.source_lang}-{cfg.target_lang}"
        languages = (cfg.source_lang, cfg.target_lang)
        if not home.is_dir():
            with new_folder(home) as temporary:
                for language in languages:
                    text = "".join(f"{name}\n" for name in number_names(split_numbers(split, cfg.train_size), language))
                    (temporary / f"{split}.{language}").write_bytes(text.encode())
        source, target = (home / f"{split}.{language}" for language in languages)
        return ParallelFiles([source], [target])


def split_numbers(split: str, train_size: int) -> list[int]:
    """The numbers of a split. They are the same in every run, and no number is in two splits.

    Args:
        split: ``train``, ``valid`` or ``test``.
        train_size: number of training pairs; it does not change the other splits.

    Returns:
        The numbers, in the order of the lines.
    """
    numbers = list(range(ALWAYS_TRAIN, LIMIT))
    random.Random("number_names").shuffle(numbers)
    held_out = VALID_SIZE + TEST_SIZE
    if split == "valid":
        return numbers[:VALID_SIZE]
    if split == "test":
        return numbers[VALID_SIZE:held_out]
    return [*range(ALWAYS_TRAIN), *numbers[held_out : held_out + train_size - ALWAYS_TRAIN]]


def number_names(numbers: list[int], language: str) -> list[str]:
    """The names of numbers, without commas.

    Args:
        numbers: the numbers, below ``LIMIT``.
        language: one of ``LANGUAGES``.

    Returns:
        The name of each number.
    """
    # To split a number, the library tries the names of all powers of ten, from 10^600 down. A converter that has only
    # the names of numbers up to 10 * LIMIT is ten times faster.
    converter = copy.copy(CONVERTER_CLASSES[language])
    if getattr(converter, "cards", None):
        converter.cards = {value: name for value, name in converter.cards.items() if value <= LIMIT * 10}
    return [converter.to_cardinal(number).replace(",", "") for number in numbers]
