"""The form in which a model reads a line: stand-ins for spans, plain signs, small letters; and back."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence

from seqgen.addons.protect.spans import Span

# by plain sign: the signs of a source for which it stands, itself included, and where it can stand for them
SIGNS = {
    '"': ('["“”„‟«»″]', '"'),
    "'": ("['‘’‚‛‹›′]", "'"),
    "-": (r"(?<!\w)-(?!\w)|[–—‒―•]", r"(?<!\w)-(?!\w)|(?<=\d)-(?=\d)"),
}
_BETWEEN = r"(?<=[^\W\d])[–—](?=[^\W\d])"  # a dash that would become a hyphen
TYPOGRAPHIC = frozenset("“”„‟«»″‘’‚‛‹›′–—‒―•")
STAND_INS = 3
_SYLLABLES = ("Zor", "Quin", "Vel", "Brim", "Tark", "Plo"), ("blax", "tor", "dak", "mund")


def stand_ins(kind: int, text: str) -> Iterator[str]:
    """Texts that models copy, and that do not occur in a text.

    Args:
        kind: 1 for numbers, 2 for numbers in brackets, 3 for words: the best first, see docs/paragraphs.md.
        text: the text.
    """
    numbers = (str(1000 + (6391 + 873 * i) % 9000) for i in range(3000))
    words = map("".join, itertools.product(*_SYLLABLES))
    found = {1: numbers, 2: (f"[{i}]" for i in range(1, 1000)), 3: words}[kind]
    return (each for each in found if each not in text)


def casing(text: str) -> Callable[[str], str] | None:
    """What gives an output the capitals of a source; ``None`` if the source is neither in capitals nor a title.

    Args:
        text: the source without its spans.
    """
    words = re.findall(r"[^\W\d_]{4,}", text)
    if len(text.split()) > 1 and text.isupper() and sum(map(str.isalpha, text)) > 3:
        return str.upper
    return _titled if len(words) > 2 and all(map(str.istitle, words)) else None


def _titled(text: str) -> str:
    return re.sub(r"(?<!\w)\w(?=\w{3})", lambda found: found[0].upper(), text)


class Form:
    """How a model reads a line.

    Args:
        source: the line.
        spans: its spans, not many, because they are searched for in each part of an output.
        marks: for each span the text in its place: its own, or a stand-in.
        lacks: whether the vocabulary lacks a sign.
        cased: whether the model reads capitals as small letters.

    Attributes:
        text: what the model reads.
    """

    def __init__(
        self, source: str, spans: Sequence[Span], marks: Sequence[str], lacks: Callable[[str], bool], cased: bool
    ):
        self.source, self.spans, self.marks, self.text = source, spans, marks, ""
        starts, ends = [*(span.start for span in spans), len(source)], [0, *(span.end for span in spans)]
        pieces = [source[end:start] for end, start in zip(ends, starts, strict=True)]
        self.case = casing(" 1 ".join(pieces)) if cased else None
        found = {plain: re.findall(signs, "\0".join(pieces)) for plain, (signs, _) in SIGNS.items()}
        self.signs = {plain: signs for plain, signs in found.items() if any(map(lacks, signs))}
        self.added = list[tuple[str, str]]()  # the neighbours of each span from which a blank separates a stand-in
        for piece, span, mark in itertools.zip_longest(pieces, spans, marks):
            for plain in self.signs:
                piece = re.sub(SIGNS[plain][0], plain, re.sub(_BETWEEN, r" \g<0> ", piece) if plain == "-" else piece)
            if self.case:
                piece = piece.lower() if self.text else piece.capitalize()
            self.text += piece
            if span is not None:
                beside = self.text[-1:], source[span.end : span.end + 1]
                spaced = mark != span.text and mark.isalnum()
                left, right = (each if spaced and each.strip() else "" for each in beside)
                self.added.append((left, right))
                self.text += " " * bool(left) + mark + " " * bool(right)

    def _parts(self, output: str) -> list[str]:
        """An output, divided at the marks, which have odd indices."""
        marks = sorted({*self.marks}, key=len, reverse=True)
        whole = [rf"(?<!\w){mark}(?!\w)" if mark.isalnum() else re.escape(mark) for mark in marks]
        return re.split(f"({'|'.join(whole)})", output) if marks else [output]

    def holds(self, output: str) -> bool:
        """Whether an output has each stand-in once."""
        found, pairs = self._parts(output)[1::2], zip(self.spans, self.marks, strict=True)
        return all(found.count(mark) == 1 for span, mark in pairs if mark != span.text)

    def restored(self, output: str) -> str:
        """An output with the spans in place of the marks, with the signs and the capitals of the source.

        Args:
            output: what the model wrote.
        """
        parts, spans = self._parts(output), dict(zip(self.marks, zip(self.spans, self.added, strict=True), strict=True))
        for index in range(1, len(parts), 2):
            span, (left, right) = spans[parts[index]]
            before, after = parts[index - 1], parts[index + 1]
            # a blank that was added is removed, unless the span would touch a word and did not in the source
            if left and before.endswith(" ") and (left.isalnum() or not before[-2:-1].isalnum()):
                parts[index - 1] = before[:-1]
            if right and after.startswith(" ") and (right.isalnum() or not after[1:2].isalnum()):
                parts[index + 1] = after[1:]
            parts[index] = span.text
        parts[::2] = map(self.case or str, parts[::2])
        for plain, signs in self.signs.items():
            put = itertools.cycle(signs)
            parts[::2] = [_replaced(SIGNS[plain][1], put, part) for part in parts[::2]]
        return "".join(parts)


def _replaced(pattern: str, signs: Iterator[str], text: str) -> str:
    return re.sub(pattern, lambda _: next(signs), text)
