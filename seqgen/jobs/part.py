"""Parts: consecutive lines of the input, each found again by the hash of its text."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from seqgen.jobs.source import Source


@dataclass(frozen=True)
class Part:
    """A part of the input.

    Attributes:
        index: number of the part, from 0.
        first: number of its first line in the whole input, from 0.
        lines: number of its lines.
        digest: hash of the lines' text.
    """

    index: int
    first: int
    lines: int
    digest: str

    def key(self, settings: str) -> str:
        """The hash of everything that the outputs depend on.

        Args:
            settings: hash of the settings and models.
        """
        return hashlib.sha256(f"{settings} {self.first} {self.lines} {self.digest}".encode()).hexdigest()


@dataclass(frozen=True)
class Plan:
    """How an input is cut into parts.

    Attributes:
        parts: the parts, in order; one entry for each ``part_lines`` lines, which is all that grows with the input.
        files: each file with the number of its lines.
    """

    parts: list[Part]
    files: list[tuple[str, int]]

    @property
    def lines(self) -> int:
        """Number of lines of the whole input."""
        return self.parts[-1].first + self.parts[-1].lines if self.parts else 0


def text_digest(lines: Iterable[str]) -> str:
    """Hash lines; a line may contain any character."""
    total = hashlib.sha256()
    for line in lines:
        content = line.encode("utf-8", "surrogatepass")
        total.update(b"%d:" % len(content))
        total.update(content)
    return total.hexdigest()


def cut(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    """Cut lines into lists of ``size`` lines; the last one can be shorter."""
    lines = iter(lines)
    while some := list(itertools.islice(lines, size)):
        yield some


def plan_parts(source: Source, size: int, check: Callable[[], None] = lambda: None) -> Plan:
    """Read the whole input once, and cut it into parts; errors in it are found before anything is decoded.

    Args:
        source: the input.
        size: lines of each part.
        check: called after each part; may raise an exception to stop.

    Raises:
        DataError: a file cannot be read, or a line has no text.
    """
    counts = [0] * len(source.files)

    def counted(place: int, file: Path) -> Iterator[str]:
        for line in source.lines_of(file):
            counts[place] += 1
            yield line

    parts: list[Part] = []
    first = 0
    every = itertools.chain.from_iterable(counted(place, file) for place, file in enumerate(source.files))
    for lines in cut(every, size):
        parts.append(Part(len(parts), first, len(lines), text_digest(lines)))
        first += len(lines)
        check()
    return Plan(parts, [(str(file), count) for file, count in zip(source.files, counts, strict=True)])


@dataclass(frozen=True)
class Failure:
    """A line that could not be decoded.

    Attributes:
        number: number of the line in the whole input, from 1.
        text: the line.
        reason: what went wrong.
    """

    number: int
    text: str
    reason: str


@dataclass(frozen=True)
class Answers:
    """The outputs of consecutive lines.

    Attributes:
        outputs: for each line what is written, ``\\n`` included.
        failures: the lines without an answer.
        notes: number of a line, from 1, and what the user should know about its output.
        tokens: number of generated tokens.
        seconds: how long the worker decoded.
    """

    outputs: Sequence[str]
    failures: Sequence[Failure] = ()
    notes: Sequence[tuple[int, str]] = ()
    tokens: int = 0
    seconds: float = 0.0

    def __add__(self, other: Answers) -> Answers:
        return Answers(
            [*self.outputs, *other.outputs],
            [*self.failures, *other.failures],
            [*self.notes, *other.notes],
            self.tokens + other.tokens,
            self.seconds + other.seconds,
        )
