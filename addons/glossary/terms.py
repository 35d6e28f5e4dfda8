"""Glossaries: source terms with the target terms that a translation must use."""

from __future__ import annotations

import heapq
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from seqgen.extend import DataError, read_lines, split_alternatives

Words: TypeAlias = tuple[str, ...]

_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""Characters of scripts without spaces between words: Thai, Lao, Burmese, Khmer, kana and Chinese characters."""

_PIECE = re.compile(r"\s+|\S{1,100}[^\w\s]{,100}")
"""Pieces of a text that are normalized alone; only of more than 100 combining marks, some are in the next piece."""

_END = ""
"""The key that a node of a tree has where a phrase ends; no word is empty."""


@dataclass(frozen=True)
class Term:
    """A term of a source, for which the translation must have one of several target terms.

    Attributes:
        source: the source term, as in the glossary.
        targets: the target terms, which are alternatives.
    """

    source: str
    targets: tuple[str, ...]


class Glossary:
    """The terms of a file.

    Each line has a source term, a tab and a target term; further columns are not read. In both columns, ``a|b`` is two
    terms. The targets of a source term on several lines are alternatives. Blank lines, lines that begin with ``#``, and
    a first line ``source<tab>target`` are not terms.

    Args:
        path: the file.

    Raises:
        DataError: the file cannot be read, a line has another form, or there is no term.
    """

    def __init__(self, path: Path):
        self._terms: dict[Words, Term] = {}
        for number, line in enumerate(read_lines(path), start=1):
            if not line.strip() or line.startswith("#"):
                continue
            columns = [column.strip() for column in line.split("\t")]
            if not self._terms and [column.lower() for column in columns[:2]] == ["source", "target"]:
                continue
            sources, targets = (split_alternatives(column) for column in (*columns[:2], "")[:2])
            if not sources or not targets:
                raise DataError(
                    f"generation.glossary: {path}, line {number} is not SOURCE<tab>TARGET; correct or remove it"
                )
            for source in sources:
                known = self._terms.get(key := words_of(source), Term(source, ()))
                self._terms[key] = Term(known.source, tuple(dict.fromkeys([*known.targets, *targets])))
        if not self._terms:
            raise DataError(f"generation.glossary: {path} has no term; give lines SOURCE<tab>TARGET")
        self._tree = _tree(self._terms)

    def find(self, text: str) -> list[Term]:
        """The terms that occur in a source as whole words, each as often as it occurs, in the order of the source.

        Of terms that overlap, the longest one counts. A term in lower case also matches words with capitals; a term
        with a capital must be written as in the glossary.

        Args:
            text: the source.
        """
        words = words_of(text)
        lower = tuple(map(str.lower, words))
        spans = (slice(*span) for span in _spans({words, lower}, self._tree))
        return [self._terms.get(words[span]) or self._terms[lower[span]] for span in spans]


def match_terms(terms: Sequence[Term], text: str) -> tuple[list[bool], list[str]]:
    """Assign to each term of a source an occurrence of one of its target terms as whole words of a translation.

    Args:
        terms: the terms.
        text: the translation.

    Returns:
        For each term whether it is met; the target terms that occur once more. One in lower case also occurs with
        capitals, and every one in a text in capitals.
    """
    case = str.lower if text.isupper() else str
    words, forms = words_of(case(text)), [[words_of(case(target)) for target in term.targets] for term in terms]
    lower, known = tuple(map(str.lower, words)), {*chain.from_iterable(forms)}
    spans = (slice(*span) for span in _spans({words, lower}, _tree(known)))
    left = Counter(words[span] if words[span] in known else lower[span] for span in spans)
    met = [False] * len(terms)
    for index in sorted(range(len(terms)), key=lambda index: sum(left[form] for form in forms[index])):
        form = next((form for form in forms[index] if left[form]), ())
        met[index] = left[form] > 0
        left[form] -= met[index]
    return met, [" ".join(form) for form in +left]


def words_of(text: str) -> Words:
    """The words of a text: letters, digits and marks that follow one another; any other character is a word.

    Each character of a script without spaces between words is a word, too.

    Args:
        text: the text.
    """
    # normalization takes quadratic time in the length of a run of combining marks
    normalized = "".join(unicodedata.normalize("NFC", piece) for piece in _PIECE.findall(text))
    return tuple("".join(char if _joins(char) else f" {char} " for char in normalized).split())


def _joins(char: str) -> bool:
    """True for a character that forms a word with such characters beside it."""
    return unicodedata.category(char)[0] in "LMN" and not _UNSPACED.match(char)


def _tree(phrases: Iterable[Words]) -> dict[str, Any]:
    """The phrases as nested mappings by their words."""
    tree: dict[str, Any] = {}
    for words in phrases:
        node = tree
        for word in words:
            node = node.setdefault(word, {})
        node[_END] = True
    return tree


def _spans(forms: Collection[Words], tree: dict[str, Any]) -> list[tuple[int, int]]:
    """The spans of a text that are phrases and do not overlap: the longest first, then the leftmost; in their order.

    Args:
        forms: the text in several forms, such as in lower case, each with as many words.
        tree: the phrases.
    """
    taken = bytearray(len(next(iter(forms))))

    def longest(start: int) -> int:
        length = 0
        for words in forms:
            node = tree
            for position in range(start, len(words)):
                node = node.get(words[position], {})
                if taken[position] or not node:
                    break
                if _END in node:
                    length = max(length, position + 1 - start)
        return length

    waiting = [(-length, start) for start in range(len(taken)) if (length := longest(start))]
    heapq.heapify(waiting)
    chosen = []
    while waiting:
        negative, start = heapq.heappop(waiting)
        length = longest(start)  # of the words that are not taken meanwhile
        if length == -negative:
            taken[start : start + length] = bytes([1]) * length
            chosen.append((start, start + length))
        elif length:
            heapq.heappush(waiting, (-length, start))
    return sorted(chosen)
