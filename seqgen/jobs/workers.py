"""Workers: they are given pieces, and report what happened.

Those of ``engine=local`` are processes of this machine; one that dies is replaced.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeAlias

from seqgen.config.user_files import import_modules, user_modules
from seqgen.errors import ResourceError, UserError
from seqgen.jobs.line_decoder import Answers, Builder, Piece, answer
from seqgen.system.devices import out_of_memory
from seqgen.system.processes import STOPPING, Child, answering, receive_signals


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
        worker: name of the worker.
    """

    piece: Piece
    answers: Answers
    worker: str


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
    """Why a worker cannot load its models, as an error that can be pickled.

    Args:
        error: what was raised.
    """
    if isinstance(error, UserError):
        return UserError(str(error))
    if out_of_memory(error):
        return ResourceError(
            "memory ran out while a worker loaded the models; choose fewer workers (generation.workers, "
            "ray.actors_per_node), or a machine with more memory"
        )
    return RuntimeError(f"a worker failed to load the models: {error!r}\n{traceback.format_exc()}")


class Workers(Protocol):
    """The workers of a job."""

    def free(self) -> bool:
        """Whether a worker waits for a piece."""
        ...

    def give(self, piece: Piece) -> None:
        """Let a worker that waits decode a piece."""
        ...

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
        ...

    def close(self) -> None:
        """End all workers immediately."""
        ...


class _Process(Child):
    """A worker process.

    Args:
        number: number of the worker.
        build: makes its decoder.
    """

    def __init__(self, number: int, build: Builder):
        super().__init__(_work, (user_modules(), build, number), daemon=True)
        self.number = number
        self.ready = False
        self.piece: Piece | None = None


class LocalWorkers:
    """Processes of this machine; see ``Workers``.

    Args:
        build: makes the decoder of each process.
        count: number of processes.
    """

    def __init__(self, build: Builder, count: int):
        self._build = build
        self._failed_starts = 0
        self._processes: list[_Process] = []
        try:
            for number in range(count):
                self._processes.append(_Process(number, build))
        except BaseException:
            self.close()
            raise

    def free(self) -> bool:
        """Whether a process waits for a piece."""
        return any(one.ready and one.piece is None for one in self._processes)

    def give(self, piece: Piece) -> None:
        """Let a process that waits decode a piece."""
        one = next(one for one in self._processes if one.ready and one.piece is None)
        one.piece = piece
        with suppress(OSError):  # it may have just died, which ``wait`` will see
            one.pipe.send(piece)

    def wait(self, seconds: float) -> list[Event]:
        """Wait until something happens; see ``Workers``."""
        events: list[Event] = []
        for one in answering(self._processes, seconds):
            try:
                result = one.pipe.recv()
            except (EOFError, OSError):
                events.append(self._replace(one))
                continue
            if isinstance(result, Exception):
                raise result
            if isinstance(result, Ready):
                one.ready, self._failed_starts = True, 0
                events.append(result)
            elif one.piece is not None:
                events.append(Answered(one.piece, result, f"process {one.process.pid}"))
                one.piece = None
        return events

    def _replace(self, one: _Process) -> Died:
        """Start a process in place of one that has died."""
        how = one.ended(1.0)
        one.kill()
        if not one.ready:
            self._failed_starts += 1
            if self._failed_starts >= STARTS:
                raise ResourceError(
                    f"{STARTS} times in a row a worker {how} while it loaded the models; choose a smaller "
                    "generation.workers, or see the messages above"
                )
        self._processes[self._processes.index(one)] = _Process(one.number, self._build)
        return Died(one.piece, how)

    def close(self) -> None:
        """End all processes immediately; they have nothing that could be lost."""
        for one in self._processes:
            one.kill()


def _work(pipe: Connection, modules: Sequence[tuple[str, str]], build: Builder, number: int) -> None:
    """Main function of a process: load the models, and decode pieces until the pipe is closed."""
    for ignored in set(STOPPING) - {signal.SIGTERM}:
        signal.signal(ignored, signal.SIG_IGN)  # the job's own process ends this one
    receive_signals()
    try:
        import_modules(modules)
        decoder = build(number)
        _send(pipe, Ready(decoder.fingerprint, tuple(decoder.notes)))
    except Exception as error:
        _send(pipe, start_error(error))
        return
    while True:
        try:
            piece = pipe.recv()
        except EOFError:
            return
        try:
            _send(pipe, answer(decoder, piece))
        except ResourceError as error:
            _send(pipe, error)


def _send(pipe: Connection, result: Any) -> None:
    try:
        pipe.send(result)
    except OSError:  # the job has ended
        os._exit(1)
