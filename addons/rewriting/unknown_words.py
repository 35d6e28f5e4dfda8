"""Replacement of unknown words in an output by the source words that they attend to, or by their translations.

Luong et al. 2015 and Jean et al. 2015; fairseq has it as ``--replace-unk``.
"""

from __future__ import annotations

import bisect
import itertools
import string
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import seqgen.extend as api

SOURCE = "source"
"""The value of ``generation.replace_unknown`` that copies source words."""

WORD_MARK = "▁"
"""The first character of a SentencePiece token that begins a word."""


@api.register_line_stage("unknown_words")
class UnknownWords(api.LineStage):
    """Replaces the unknown words of outputs.

    A target word that contains an unknown token is replaced as a whole. Its replacement is the source word at the
    position with the largest attention weight of the first unknown token.

    Args:
        task: encodes sources and decodes outputs.
        value: ``"source"``, or a file with a source word, a tab and a target word on each line; a source word that is
            not in the file is copied.

    Raises:
        ConfigError: the tokens are not words, and do not mark where words begin.
        DataError: the file cannot be read, or a line has no tab.
    """

    order = api.LineOrder.TEXT  # before rewriters, whose hypotheses have no attention
    key = "replace_unknown"

    def __init__(self, task: api.Task, value: str):
        self.task, self.tokenizer = task, task.target_tokenizer
        symbols = self.tokenizer.dictionary.symbols
        if not self.tokenizer.whole_words and not any(token.startswith(WORD_MARK) for token in symbols):
            raise api.ConfigError(
                f"generation.replace_unknown={value}: the tokens of the target vocabulary are not words and do not "
                "mark where words begin, so no word can be replaced; remove it"
            )
        self.translations = {} if value == SOURCE else read_translations(Path(value))

    @classmethod
    def build(cls, cfg: api.GenerationConfig, resources: api.Resources) -> UnknownWords:
        """See ``LineStage``."""
        return cls(resources.models[0].task, cfg.replace_unknown)

    def rewrite(self, lines: Sequence[api.InputLine], decoded: Sequence[api.DecodedLine], score: api.Score) -> None:
        """Replace the texts of hypotheses; see ``LineStage``."""
        unk = self.tokenizer.dictionary.unk()
        for line, (translation, found) in zip(lines, decoded, strict=True):
            for i, item in enumerate(found):
                if unk in item.tokens and item.alignment is not None:
                    found[i] = replace(item, text=self.text(item, line))
                elif unk in item.tokens and not item.origin:  # the text of a rewriter is kept
                    translation.notes.append("unknown words are not replaced: the model returns no attention weights")

    def text(self, hypothesis: api.Hypothesis, line: api.InputLine) -> str:
        """The text of a hypothesis with its unknown words replaced.

        Args:
            hypothesis: a hypothesis that has an alignment.
            line: the line.
        """
        assert hypothesis.alignment is not None
        dictionary, tail = self.tokenizer.dictionary, len(self.task.source_tokenizer.source_tokens().after)

        def position_of(text: str) -> int:
            return len(api.encode_source(self.task, text, line.languages)) - tail

        silent = {dictionary.pad(), dictionary.eos(), dictionary.bos()}
        tokens = [(i, token) for i, token in enumerate(hypothesis.tokens.tolist()) if token not in silent]
        parts = []
        for unknown, words in itertools.groupby(self._words(tokens), self._first_unknown):
            if unknown is None:
                parts.append(self.tokenizer.decode([token for word in words for _, token in word]))
            else:
                parts.append(self.translate(source_word(line.text, int(hypothesis.alignment[unknown]), position_of)))
        return " ".join(part for part in parts if part)

    def _words(self, tokens: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
        """Group positions and ids into words: ``▁a b ▁c`` has the words ``▁a b`` and ``▁c``."""
        words: list[list[tuple[int, int]]] = []
        for i, token in tokens:
            if self.tokenizer.whole_words or not words or self.tokenizer.dictionary.symbol(token).startswith(WORD_MARK):
                words.append([])
            words[-1].append((i, token))
        return words

    def _first_unknown(self, word: Sequence[tuple[int, int]]) -> int | None:
        """The position of the first unknown token of a word; ``None`` if it has none."""
        return next((i for i, token in word if token == self.tokenizer.dictionary.unk()), None)

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
    for number, line in enumerate(api.read_lines(path), start=1):
        source, tab, target = line.partition("\t")
        if not tab or not source.strip():
            raise api.DataError(
                f"generation.replace_unknown: {path}, line {number} is not SOURCE<tab>TARGET; correct or remove it"
            )
        found.setdefault(source.strip(), target.strip())
    return found
