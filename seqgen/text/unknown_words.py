"""Replacing unknown words of an output by the source words that they attend to, or by those of a dictionary.

Luong et al. 2015 and Jean et al. 2015; the work of fairseq's ``--replace-unk``.
"""

from __future__ import annotations

import bisect
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from seqgen.data.text import read_lines
from seqgen.data.tokenizers.base import Tokenizer, WhitespaceTokenizer
from seqgen.errors import ConfigError, DataError
from seqgen.structures import Hypothesis

SOURCE = "source"
"""The value of ``generation.replace_unknown`` that takes source words as they are."""

WORD_MARK = "▁"
"""What the pieces of SentencePiece that begin a word begin with."""


@dataclass(frozen=True)
class UnknownWords:
    """Writes an output with its unknown words replaced.

    A target word with an unknown piece is replaced as a whole, by the source word that holds the position which its
    first unknown piece attends to most.

    Attributes:
        tokenizer: the target's.
        translations: target words by source words; a source word that is not there stands for itself.
    """

    tokenizer: Tokenizer
    translations: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_setting(cls, value: str, tokenizer: Tokenizer) -> UnknownWords:
        """Make it from ``generation.replace_unknown``.

        Args:
            value: ``"source"``, or a file with a source word, a tab and a target word on each line.
            tokenizer: the target's.

        Raises:
            ConfigError: the tokenizer's pieces are no words, and do not say where words begin.
            DataError: the file cannot be read, or a line has no tab.
        """
        if not isinstance(tokenizer, WhitespaceTokenizer) and not any(
            token.startswith(WORD_MARK) for token in tokenizer.dictionary.symbols
        ):
            raise ConfigError(
                f"generation.replace_unknown={value}: the target vocabulary has no words and does not mark where they "
                "begin, so that none can be replaced; leave it out"
            )
        return cls(tokenizer, {} if value == SOURCE else read_translations(Path(value)))

    def text(self, hypothesis: Hypothesis, source: str, position_of: Callable[[str], int]) -> str:
        """The text of a hypothesis.

        Args:
            hypothesis: with an alignment.
            source: the source line.
            position_of: how many tokens a beginning of the source has.
        """
        dictionary = self.tokenizer.dictionary
        silent = {dictionary.pad(), dictionary.eos(), dictionary.bos()}
        tokens = [(i, token) for i, token in enumerate(hypothesis.tokens.tolist()) if token not in silent]
        parts: list[str] = []
        known: list[int] = []
        for word in self._words(tokens):
            unknown = [i for i, token in word if token == dictionary.unk()]
            if not unknown or hypothesis.alignment is None:
                known += [token for _, token in word]
                continue
            parts += [self.tokenizer.decode(known)] if known else []
            known = []
            parts.append(self.translate(source_word(source, int(hypothesis.alignment[unknown[0]]), position_of)))
        parts += [self.tokenizer.decode(known)] if known else []
        return " ".join(part for part in parts if part)

    def _words(self, tokens: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
        """Positions and ids word by word: ``▁a b ▁c`` are the words ``▁a b`` and ``▁c``."""
        whole = isinstance(self.tokenizer, WhitespaceTokenizer)
        words: list[list[tuple[int, int]]] = []
        for i, token in tokens:
            if whole or not words or self.tokenizer.dictionary.symbol(token).startswith(WORD_MARK):
                words.append([])
            words[-1].append((i, token))
        return words

    def translate(self, word: str) -> str:
        """What stands for a source word; punctuation around it stays: with ``Ei`` for ``egg``, ``egg,`` is ``Ei,``."""
        core = word.strip(string.punctuation)
        if word in self.translations or core not in self.translations:
            return self.translations.get(word, word)
        return word.replace(core, self.translations[core], 1)


def source_word(source: str, position: int, position_of: Callable[[str], int]) -> str:
    """The word of a source line that a token position belongs to.

    Args:
        source: the line.
        position: of a token, from 0.
        position_of: how many tokens a beginning of the line has. With ``ab c`` in pieces ``▁a b ▁c``, ``ab`` has 2 and
            ``ab c`` has 3, so that positions 0 and 1 belong to ``ab``.
    """
    words = source.split()
    number = bisect.bisect_right(range(len(words)), position, key=lambda i: position_of(" ".join(words[: i + 1])))
    return words[min(number, len(words) - 1)]


def read_translations(path: Path) -> dict[str, str]:
    """Read a file with a source word, a tab and a target word on each line; of a word given twice, the first counts.

    Raises:
        DataError: the file cannot be read, or a line is not of that form.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), start=1):
        source, tab, target = line.partition("\t")
        if not tab or not source.strip():
            raise DataError(
                f"generation.replace_unknown: {path}, line {number} is not SOURCE<tab>TARGET; correct or remove it"
            )
        found.setdefault(source.strip(), target.strip())
    return found
