"""``engine=local``: workers are processes of this machine; those that die are replaced."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from seqgen.addons.jobs.workers import STARTS, Builder, Decoding, Died, Event, Piece, Ready, Workers
from seqgen.extend import STOPPING, end_with


@contextmanager
def signals_wait() -> Iterator[None]:
    """Block these signals, here and in processes started meanwhile; those unblock them when they are ready."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # starting it later, with the first process, would unblock the signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Process:
    """A worker process, which ends when this one ends, and the pipe to it.

    Args:
        number: number of the worker.
        arguments: the first arguments of ``Decoding``, which are pickled.
    """

    def __init__(self, number: int, arguments: tuple[Any, ...]):
        self.number, self.ready = number, False
        self.piece: Piece | None = None
        context = multiprocessing.get_context("spawn")
        self.pipe, other_end = context.Pipe()
        self.process = context.Process(target=_work, args=(os.getpid(), other_end, *arguments, number), daemon=True)
        with signals_wait():
            self.process.start()
        other_end.close()  # only the process has this end now: if it dies, reading from the pipe raises EOFError

    def ended(self, seconds: float) -> str:
        """Wait for the end of the process, at most some seconds; return how it ended, for a message."""
        self.process.join(seconds)
        code = self.process.exitcode
        if code is None:
            return "did not answer"
        if code >= 0:
            return f"ended with exit code {code}"
        killed = -code == getattr(signal, "SIGKILL", 0)
        memory = ", which the operating system sends when memory runs out" if killed else ""
        return f"was ended by {signal.Signals(-code).name}{memory}"

    def kill(self) -> None:
        """Kill the process, if it has not ended."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


class LocalWorkers(Workers):
    """Processes of this machine; see ``Workers``.

    Args:
        build: makes the decoder of each process.
        count: number of processes.
    """

    kind = "a worker"
    advice = "choose a smaller job.workers, or see the messages above"

    def __init__(self, build: Builder, count: int):
        super().__init__(build)
        try:
            for number in range(count):
                self._workers.append(_Process(number, self._arguments))
        except BaseException:
            self.close()
            raise

    def _send(self, worker: _Process, piece: Piece) -> None:
        with suppress(OSError):  # it may have just died, which ``wait`` will see
            worker.pipe.send(piece)

    def wait(self, seconds: float) -> list[Event]:
        """Wait until something happens; see ``Workers``."""
        events: list[Event] = []
        ready = wait([one.pipe for one in self._workers], timeout=seconds)
        for one in [one for one in self._workers if one.pipe in ready]:
            try:
                result = one.pipe.recv()
            except (EOFError, OSError):
                events.append(self._replace(one))
            else:
                events.append(self._result(one, result))
        return events

    def _replace(self, one: _Process) -> Died:
        """Start a process instead of one that has died."""
        how = one.ended(1.0)
        one.kill()
        died = self._died(one, how, STARTS)
        self._workers[self._workers.index(one)] = _Process(one.number, self._arguments)
        return died

    def close(self) -> None:
        """End all processes immediately; they have nothing that could be lost."""
        for one in self._workers:
            one.kill()


def _work(parent: int, pipe: Connection, modules: Sequence[tuple[str, str]], build: bytes, number: int) -> None:
    """Main function of a process: load the models, and decode pieces until the pipe is closed."""
    end_with(parent)
    for ignored in {*STOPPING} - {signal.SIGTERM}:  # Ctrl-C and a closed terminal end the parent only
        signal.signal(ignored, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    decoding = Decoding(modules, build, number)
    result: Any = decoding.start()
    try:
        pipe.send(result)
        while isinstance(result, Ready):
            pipe.send(decoding.decode(pipe.recv()))
    except EOFError:
        return
    except OSError:  # the job has ended
        os._exit(1)
