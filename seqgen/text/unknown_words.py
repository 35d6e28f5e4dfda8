"""Replacement of unknown words in an output by the source words that they attend to, or by their translations.

Luong et al. 2015 and Jean et al. 2015; fairseq has it as ``--replace-unk``.
"""

from __future__ import annotations

import bisect
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from seqgen.core.errors import ConfigError, DataError
from seqgen.core.structures import Hypothesis
from seqgen.data.text import read_lines
from seqgen.data.tokenizers.base import Tokenizer

SOURCE = "source"
"""The value of ``generation.replace_unknown`` that copies source words."""

WORD_MARK = "▁"
"""The first character of a SentencePiece token that begins a word."""


@dataclass(frozen=True)
class UnknownWords:
    """Decodes an output and replaces its unknown words.

    A target word that contains an unknown token is replaced as a whole. Its replacement is the source word at the
    position with the largest attention weight of the first unknown token.

    Attributes:
        tokenizer: the target tokenizer.
        translations: target words by source words; a source word without an entry is copied.
    """

    tokenizer: Tokenizer
    translations: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_setting(cls, value: str, tokenizer: Tokenizer) -> UnknownWords:
        """Make it from ``generation.replace_unknown``.

        Args:
            value: ``"source"``, or a file with a source word, a tab and a target word on each line.
            tokenizer: the target tokenizer.

        Raises:
            ConfigError: the tokens are not words, and do not mark where words begin.
            DataError: the file cannot be read, or a line has no tab.
        """
        if not tokenizer.whole_words and not any(token.startswith(WORD_MARK) for token in tokenizer.dictionary.symbols):
            raise ConfigError(
                f"generation.replace_unknown={value}: the tokens of the target vocabulary are not words and do not "
                "mark where words begin, so no word can be replaced; remove it"
            )
        return cls(tokenizer, {} if value == SOURCE else read_translations(Path(value)))

    def text(self, hypothesis: Hypothesis, source: str, position_of: Callable[[str], int]) -> str:
        """The text of a hypothesis.

        Args:
            hypothesis: a hypothesis; unknown words are replaced if it has an alignment.
            source: the source line.
            position_of: maps a prefix of the source to its number of tokens.

        Returns:
            The text with unknown words replaced.
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
        """Group positions and ids into words: ``▁a b ▁c`` has the words ``▁a b`` and ``▁c``."""
        words: list[list[tuple[int, int]]] = []
        for i, token in tokens:
            if self.tokenizer.whole_words or not words or self.tokenizer.dictionary.symbol(token).startswith(WORD_MARK):
                words.append([])
            words[-1].append((i, token))
        return words

    def translate(self, word: str) -> str:
        """Translate a source word, keeping the punctuation around it: with ``Ei`` for ``egg``, ``egg,`` is ``Ei,``."""
        core = word.strip(string.punctuation)
        if word in self.translations or core not in self.translations:
            return self.translations.get(word, word)
        return word.replace(core, self.translations[core], 1)


def source_word(source: str, position: int, position_of: Callable[[str], int]) -> str:
    """Find the word of a source line that contains a token position.

    Args:
        source: the line.
        position: position of a token, from 0.
        position_of: maps a prefix of the line to its number of tokens. With ``ab c`` in tokens ``▁a b ▁c``,
            ``ab`` has 2 and ``ab c`` has 3, so that positions 0 and 1 belong to ``ab``.

    Returns:
        The word; the last one for a position behind it, such as that of end-of-sentence.
    """
    words = source.split()
    number = bisect.bisect_right(range(len(words)), position, key=lambda i: position_of(" ".join(words[: i + 1])))
    return words[min(number, len(words) - 1)]


def read_translations(path: Path) -> dict[str, str]:
    """Read a dictionary file: each line has a source word, a tab and a target word.

    Args:
        path: the file.

    Returns:
        Target words by source words; for a source word on several lines, the first line is used.

    Raises:
        DataError: the file cannot be read, or a line does not have this form.
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
