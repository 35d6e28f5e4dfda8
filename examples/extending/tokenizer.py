"""A tokenizer of lower-cased words. The token ``<capital>`` precedes each word that began with a capital letter.

A task makes its tokenizer. The task of this file, ``cased_translation``, is translation with this tokenizer:
``seqgen-train common.user_dir=examples/extending/tokenizer.py task=cased_translation model=transformer_tiny
task.source_lang=en task.target_lang=de task.train=DATA/train task.valid=DATA/val run_dir=runs/cased``
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from seqgen.extend import (
    Dictionary,
    Tokenizer,
    TranslationConfig,
    TranslationTask,
    load_tokenizer,
    register_task,
    register_tokenizer,
    save_tokenizer,
    write_settings,
)

CAPITAL = "<capital>"


@register_tokenizer("cased_words")
class CasedWordTokenizer(Tokenizer):
    """``Der Hund`` becomes ``<capital> der <capital> hund``, so that ``Hund`` and ``hund`` share an embedding."""

    def encode(self, text: str) -> list[int]:
        """Turn one line into ids, without end-of-sentence."""
        marked = ((CAPITAL, word.lower()) if word[0].isupper() else (word,) for word in text.split())
        return [self.dictionary.index(token) for tokens in marked for token in tokens]

    def decode(self, ids: Sequence[int]) -> str:
        """Turn ids into text."""
        tokens = [self.dictionary.symbol(index) for index in ids]
        after_mark = [False, *(token == CAPITAL for token in tokens)]  # for each token: whether it follows a mark
        pairs = zip(tokens, after_mark, strict=False)
        return " ".join(word.capitalize() if marked else word for word, marked in pairs if word != CAPITAL)

    def fingerprint(self) -> str:
        """A hash that changes whenever ``encode`` would give other ids."""
        return f"cased_words:{self.dictionary.fingerprint()}"

    def save(self, folder: Path) -> None:
        """Write the dictionary, and the registered name, which selects the class when the tokenizer is loaded."""
        write_settings(folder, {"tokenizer": "cased_words"})
        self.dictionary.save(folder / "dictionary.json")

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Self:
        """Read a tokenizer that ``save`` has written."""
        return cls(Dictionary.load(folder / "dictionary.json"))


@dataclass
class CasedTranslationConfig(TranslationConfig):
    """Configuration of the task; it has the keys of translation, ``task.FIELD``."""


@register_task("cased_translation", config=CasedTranslationConfig)
class CasedTranslationTask(TranslationTask):
    """Translation with one vocabulary of cased words for both languages."""

    @classmethod
    def setup_task(cls, cfg: TranslationConfig, folder: Path) -> Self:
        """Make the tokenizer from the training text, or read it from the run folder."""
        home = folder / "tokenizer"
        if not home.is_dir():
            files = cls.find_files(cfg, folder, "train")
            lines = (line for side in (0, 1) for line in files.lines(side))
            counts = Counter(word.lower() for line in lines for word in line.split())
            words = Dictionary.from_counts({CAPITAL: sum(counts.values()), **counts}, cfg.vocab_size)
            save_tokenizer(CasedWordTokenizer(words), home)
        tokenizer = load_tokenizer(home)
        return cls(cfg, tokenizer, tokenizer, folder)
