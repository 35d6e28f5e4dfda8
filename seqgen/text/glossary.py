"""Glossaries: source terms with the target terms that a translation must use."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from seqgen.core.errors import DataError
from seqgen.data.text import read_lines

Words: TypeAlias = tuple[str, ...]

_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""Characters of scripts without spaces between words: Thai, Lao, Burmese, Khmer, kana and Chinese characters."""


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
            sources, targets = (alternatives(column) for column in (*columns[:2], "")[:2])
            if not sources or not targets:
                raise DataError(
                    f"generation.glossary: {path}, line {number} is not SOURCE<tab>TARGET; correct or remove it"
                )
            for source in sources:
                known = self._terms.get(key := words_of(source), Term(source, ()))
                self._terms[key] = Term(known.source, tuple(dict.fromkeys([*known.targets, *targets])))
        if not self._terms:
            raise DataError(f"generation.glossary: {path} has no term; give lines SOURCE<tab>TARGET")
        self._lengths = {len(key) for key in self._terms}

    def find(self, text: str) -> list[Term]:
        """The terms that occur in a source as whole words, each as often as it occurs, in the order of the source.

        Of terms that overlap, the longest one counts. A term in lower case also matches words with capitals; a term
        with a capital must be written as in the glossary.

        Args:
            text: the source.
        """
        words = words_of(text)
        lower = tuple(map(str.lower, words))

        def known(start: int, stop: int) -> Term | None:
            return self._terms.get(words[start:stop]) or self._terms.get(lower[start:stop])

        return [term for span in _spans(len(words), self._lengths, known) if (term := known(*span))]


def met_terms(terms: Sequence[Term], text: str) -> list[bool]:
    """For each term of a source, whether a translation has one of its target terms as whole words.

    Args:
        terms: the terms; target terms that are demanded twice must occur twice.
        text: the translation.
    """
    words, left = words_of(text), Counter[tuple[str, ...]]()
    for targets in {term.targets for term in terms}:
        left[targets] = _occurrences(words, set(map(words_of, targets)))
    found = []
    for term in terms:
        found.append(left[term.targets] > 0)
        left[term.targets] -= 1
    return found


def alternatives(phrase: str) -> list[str]:
    r"""The alternatives of a phrase: ``a b|c`` gives ``a b`` and ``c``; in ``a\|b`` the bar is part of the text."""
    texts = (text.replace(r"\|", "|").strip() for text in re.split(r"(?<!\\)\|", phrase))
    return [text for text in texts if text]


def words_of(text: str) -> Words:
    """The words of a text: letters, digits and marks that follow one another; any other character is a word.

    Each character of a script without spaces between words is a word, too.

    Args:
        text: the text.
    """
    words, joins = list[str](), False
    for char in unicodedata.normalize("NFC", text):
        letter = unicodedata.category(char)[0] in "LMN" and not _UNSPACED.match(char)
        if letter and joins:
            words[-1] += char
        elif not char.isspace():
            words.append(char)
        joins = letter
    return tuple(words)


def _occurrences(words: Words, wanted: set[Words]) -> int:
    return len(_spans(len(words), set(map(len, wanted)), lambda start, stop: words[start:stop] in wanted))


def _spans(size: int, lengths: Collection[int], known: Callable[[int, int], object]) -> list[tuple[int, int]]:
    """The spans of a text that are known and do not overlap: the longest first, then the leftmost; in their order."""
    taken, chosen = set[int](), []
    for length in sorted(lengths, reverse=True):
        for start in range(size - length + 1):
            span = range(start, start + length)
            if known(start, start + length) and taken.isdisjoint(span):
                taken.update(span)
                chosen.append((start, start + length))
    return sorted(chosen)
