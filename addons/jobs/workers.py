"""Workers: they are given pieces, and report what happened.

In a worker, a line that fails does not take the other lines with it.
"""

from __future__ import annotations

import pickle
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, TypeAlias

import torch

from seqgen.config.user_files import import_modules, user_modules
from seqgen.extend import CheckpointError, ResourceError, UserError, out_of_memory

NOT_OF_LINES = (CheckpointError, ResourceError, OSError, ImportError)
"""Errors that are never those of a line: changed weights, a program that ends, a full disk, a file that is missing."""


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
        counts: what the line stages counted, by name.
    """

    outputs: list[str]
    failures: list[Failure] = field(default_factory=list)
    notes: list[tuple[int, str]] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Answers) -> Answers:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Answers(*(one + two for one, two in pairs))


class LineDecoder(Protocol):
    """Decodes lines in a worker; made once by the job's ``Builder``."""

    @property
    def fingerprint(self) -> str:
        """The hash of the models' files, which must be the same in all workers."""

    @property
    def notes(self) -> Sequence[str]:
        """Notes for the user on models and settings."""

    def decode(self, lines: Sequence[str], first: int, divisor: int) -> Answers:
        """Decode lines; any exception means that not all of them can be decoded together.

        Args:
            lines: the lines.
            first: number of the first one, from 0.
            divisor: batches are smaller by this factor, after memory ran out.
        """

    def blank(self, line: str, number: int, reason: str) -> str:
        """Format the output of a line without an answer.

        Args:
            line: the line.
            number: its number, from 0.
            reason: why there is no answer.
        """


Builder: TypeAlias = Callable[[int], LineDecoder]
"""Loads the models of a worker, given its number on its machine, from 0; it can be pickled, because it is sent to other
processes. It raises a ``UserError`` if no worker can load them."""


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


@dataclass(frozen=True)
class Ready:
    """A worker has loaded its models.

    Attributes:
        fingerprint: see ``LineDecoder``.
        notes: see ``LineDecoder``.
    """

    fingerprint: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Answered:
    """A worker has decoded a piece.

    Attributes:
        piece: the piece.
        answers: the outputs of its lines.
    """

    piece: Piece
    answers: Answers


@dataclass(frozen=True)
class Died:
    """A worker has died; another one is started in its place.

    Attributes:
        piece: what it was decoding; ``None`` if it had nothing to do.
        how: how it ended, such as "was ended by SIGKILL".
    """

    piece: Piece | None
    how: str


Event: TypeAlias = Ready | Answered | Died

STARTS = 5
"""Number of times in a row that a worker may die while it loads the models; then the job stops."""


def start_error(error: Exception) -> Exception:
    """The error of a worker that cannot load its models, such that it can be pickled.

    Args:
        error: what was raised and is being handled.
    """
    if isinstance(error, UserError):
        return UserError(str(error))
    if out_of_memory(error):
        return ResourceError(
            "memory ran out while a worker loaded the models; choose fewer workers (job.workers, "
            "ray.actors_per_node), or a machine with more memory"
        )
    return RuntimeError(f"a worker failed to load the models: {error!r}\n{traceback.format_exc()}")


class Decoding:
    """The work of a worker: load the models once, and decode pieces. Errors are returned, because they are sent.

    Args:
        modules: the user's modules, see ``import_modules``.
        build: makes the decoder, pickled.
        number: number of the worker on its machine.
    """

    def __init__(self, modules: Sequence[tuple[str, str]], build: bytes, number: int):
        self._modules, self._build, self._number = modules, build, number

    def start(self) -> Ready | Exception:
        """Load the models; return an error that can be pickled, if that fails."""
        try:
            import_modules(self._modules)
            build: Builder = pickle.loads(self._build)
            self._decoder = build(self._number)
        except Exception as error:
            return start_error(error)
        return Ready(self._decoder.fingerprint, tuple(self._decoder.notes))

    def decode(self, piece: Piece) -> Answers | ResourceError:
        """Decode a piece; return an error that is not one of its lines."""
        try:
            return answer(self._decoder, piece)
        except ResourceError as error:
            return error


class Workers(ABC):
    """The workers of a job. Each has ``ready``, whether it has loaded the models, and ``piece``, what it decodes.

    Args:
        build: makes the decoder of each worker.
    """

    kind: ClassVar[str]
    """One of the workers, for messages."""

    advice: ClassVar[str]
    """The end of the message if workers die while they load the models."""

    def __init__(self, build: Builder):
        self._arguments = user_modules(), pickle.dumps(build)
        self._workers: list[Any] = []
        self._failed_starts = 0

    def _waiting(self) -> list[Any]:
        return [worker for worker in self._workers if worker.ready and worker.piece is None]

    def free(self) -> bool:
        """True if a worker waits for a piece."""
        return bool(self._waiting())

    def give(self, piece: Piece) -> None:
        """Let a worker that waits decode a piece."""
        worker = self._waiting()[0]
        worker.piece = piece
        self._send(worker, piece)

    def _result(self, worker: Any, result: Any) -> Event:
        """Note what a worker has returned: that it is ready, or answers; an error is raised."""
        if isinstance(result, Exception):
            raise result
        if isinstance(result, Ready):
            worker.ready, self._failed_starts = True, 0
            return result
        piece, worker.piece = worker.piece, None
        return Answered(piece, result)

    def _died(self, worker: Any, how: str, starts: int) -> Died:
        """Note the death of a worker; an error is raised after ``starts`` deaths in a row before models are loaded."""
        if not worker.ready:
            self._failed_starts += 1
            if self._failed_starts >= starts:
                raise ResourceError(
                    f"{self._failed_starts} times in a row {self.kind} {how} while it loaded the models; {self.advice}"
                )
        return Died(worker.piece, how)

    @abstractmethod
    def _send(self, worker: Any, piece: Piece) -> None: ...

    @abstractmethod
    def wait(self, seconds: float) -> list[Event]:
        """Wait until something happens, at most some seconds.

        Args:
            seconds: the longest time.

        Returns:
            What has happened.

        Raises:
            UserError: the models cannot be loaded.
            ResourceError: workers die while they load the models.
        """

    @abstractmethod
    def close(self) -> None:
        """End all workers immediately."""
