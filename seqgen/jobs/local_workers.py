"""``engine=local``: workers are processes of this machine; one that dies is replaced."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from seqgen.config.user_files import import_modules, user_modules
from seqgen.errors import ResourceError
from seqgen.jobs.line_decoder import Builder, Piece, answer
from seqgen.jobs.workers import STARTS, Answered, Died, Event, Ready, start_error
from seqgen.system.processes import STOPPING, end_with, signals_wait


class _Process:
    """A worker process and the pipe to it.

    Args:
        number: number of the worker.
        build: makes its decoder.
    """

    def __init__(self, number: int, build: Builder):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=_work,
            args=(theirs, os.getpid(), user_modules(), build, number),
            name=f"seqgen-job-{number}",
            daemon=True,
        )
        with signals_wait():
            self.process.start()
        theirs.close()  # only the process has this end now: if it dies, reading from the pipe raises EOFError
        self.number = number
        self.ready = False
        self.piece: Piece | None = None

    def end(self) -> str:
        """End the process, if it has not ended; return how it ended."""
        self.process.join(1.0)
        how = _how(self.process.exitcode)
        self.process.kill()
        self.process.join()
        self.pipe.close()
        return how


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
        pipes = [one.pipe for one in self._processes]
        events: list[Event] = []
        for pipe in wait(pipes, timeout=seconds):
            one = self._processes[pipes.index(pipe)]  # type: ignore[arg-type]  # all objects are pipes
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
        how = one.end()
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
            one.process.kill()
        for one in self._processes:
            one.process.join()
            one.pipe.close()


def _how(code: int | None) -> str:
    if code is None:
        return "did not answer"
    if code >= 0:
        return f"ended with exit code {code}"
    memory = ", which the operating system sends when memory runs out" if -code == getattr(signal, "SIGKILL", 0) else ""
    return f"was ended by {signal.Signals(-code).name}{memory}"


def _work(pipe: Connection, parent: int, modules: Sequence[tuple[str, str]], build: Builder, number: int) -> None:
    """Main function of a process: load the models, and decode pieces until the pipe is closed."""
    for ignored in set(STOPPING) - {signal.SIGTERM}:
        signal.signal(ignored, signal.SIG_IGN)  # the job's own process ends this one
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    end_with(parent)
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
