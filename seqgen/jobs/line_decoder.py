"""Decoding inside a worker: a line that fails does not take the other lines with it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from seqgen.errors import CheckpointError, ResourceError
from seqgen.system.devices import out_of_memory

NOT_OF_LINES = (CheckpointError, OSError, ImportError)
"""Errors that are never those of a line: weights that were changed, a full disk, a file or a server that is missing."""


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


class LineDecoder(Protocol):
    """Decodes lines in a worker; made once by the job's ``Builder``."""

    @property
    def fingerprint(self) -> str:
        """The hash of the models' files, which must be the same in all workers."""

    @property
    def notes(self) -> Sequence[str]:
        """What the user should know about models and settings."""

    def decode(self, lines: Sequence[str], first: int, divisor: int) -> Answers:
        """Decode lines; any exception means that not all of them can be decoded together.

        Args:
            lines: the lines.
            first: number of the first one, from 0.
            divisor: batches are smaller by this factor, after memory ran out.
        """

    def blank(self, line: str, number: int, reason: str) -> str:
        """What is written for a line without an answer.

        Args:
            line: the line.
            number: its number, from 0.
            reason: why there is no answer.
        """


class Builder(Protocol):
    """Makes the decoder of a worker; it can be pickled, because it is sent to other processes."""

    def __call__(self, number: int) -> LineDecoder:
        """Load the models.

        Args:
            number: number of the worker on its machine, from 0.

        Raises:
            UserError: they cannot be loaded; no worker can do its work then.
        """


@dataclass(frozen=True)
class Piece:
    """Lines that a worker decodes at a time: a part or, after workers have died, some of its lines.

    Attributes:
        part: number of the part.
        first: number of the first line in the whole input, from 0.
        lines: the lines.
        deaths: how many workers have died while they decoded the piece.
        reason: why the lines are not decoded but get no answer; empty to decode them.
    """

    part: int
    first: int
    lines: list[str]
    deaths: int = 0
    reason: str = ""


def answer(decoder: LineDecoder, piece: Piece) -> Answers:
    """Decode a piece; lines that cannot be decoded are among the failures.

    Args:
        decoder: the worker's decoder.
        piece: the lines.

    Raises:
        ResourceError: decoding has failed for a reason that is not one of the lines.
        SystemExit: the device can be used by new processes only.
    """
    start = time.perf_counter()
    if piece.reason:
        given = [_failed(decoder, line, piece.first + i, piece.reason) for i, line in enumerate(piece.lines)]
        answers = sum(given, Answers([]))
    else:
        answers = _decoded(decoder, piece.lines, piece.first, 1)
    return replace(answers, seconds=time.perf_counter() - start)


def _decoded(decoder: LineDecoder, lines: list[str], first: int, divisor: int) -> Answers:
    """Decode lines; after an error each half alone, in smaller batches if memory ran out, down to single lines."""
    try:
        return decoder.decode(lines, first, divisor)
    except NOT_OF_LINES as error:
        raise ResourceError(f"{_reason(error)}; remove the cause and run the same command again to continue") from None
    except Exception as error:
        # only the text is kept: the error refers to the frames of the decoder, whose tensors must be freed before
        # the halves are decoded
        full, reason = out_of_memory(error), _reason(error)
    if "CUDA error" in reason:  # not even another line can be decoded in this process
        raise SystemExit(reason)
    if full and torch.cuda.is_available():
        torch.cuda.empty_cache()
    if len(lines) == 1:
        return _failed(decoder, lines[0], first, reason)
    half, smaller = (len(lines) + 1) // 2, 2 * divisor if full else divisor
    return _decoded(decoder, lines[:half], first, smaller) + _decoded(decoder, lines[half:], first + half, smaller)


def _failed(decoder: LineDecoder, line: str, number: int, reason: str) -> Answers:
    return Answers([decoder.blank(line, number, reason)], [Failure(number + 1, line, reason)])


def _reason(error: Exception) -> str:
    if out_of_memory(error):
        return "memory ran out, also in a batch of this line alone"
    message = " ".join(str(error).split())[:500]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
