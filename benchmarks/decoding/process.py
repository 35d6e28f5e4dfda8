"""How the measuring process starts workers, sends them requests and reads their answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from benchmarks.decoding.worker import Answer, Request, Worker

ROOT = Path(__file__).resolve().parents[2]


class WorkerError(Exception):
    """A worker did not start, or a request failed."""


class WorkerHandle(Protocol):
    """A started worker, in this process or another one.

    Attributes:
        failed: whether a request has failed; the worker is then not used again.
    """

    failed: bool

    def answer(self, request: Request) -> Answer:
        """See ``Worker.answer``."""
        ...

    def close(self) -> None:
        """End the worker."""
        ...


class InProcessWorker:
    """A worker that runs in this process, so that a profiler sees its work.

    Args:
        make: makes the worker.

    Raises:
        WorkerError: ``make`` fails.
    """

    def __init__(self, make: Callable[[], Worker]):
        self.failed = False
        try:
            self.worker = make()
        except Exception as error:  # ``WorkerProcess`` reports every failure to start in this way, too
            raise WorkerError(f"{type(error).__name__}: {error}") from None

    def answer(self, request: Request) -> Answer:
        """See ``Worker.answer``."""
        return self.worker.answer(request)

    def close(self) -> None:
        """Does nothing."""


class WorkerProcess:
    """A worker in a process of its own.

    Args:
        python: the Python interpreter of the toolkit's environment.
        module: the worker's module in this package.
        arguments: see ``worker.parser``.
        threads: number of threads of the matrix libraries.
        root: the checkout from which the worker and seqgen are imported.

    Raises:
        WorkerError: the worker does not start.
    """

    def __init__(self, python: str, module: str, arguments: Sequence[str], threads: int, root: Path = ROOT):
        self.failed = False
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # ``close`` closes it
        command = [python, "-m", f"benchmarks.decoding.{module}", *arguments, "--threads", str(threads)]
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                text=True,
                env=environment(threads, root),
            )
        except OSError as error:
            raise WorkerError(f"cannot run {python}: {error.strerror or error}") from None
        try:
            print(f"{self._read()['ready']} is ready", file=sys.stderr)
        except WorkerError:
            self.close()
            raise

    def answer(self, request: Request) -> Answer:
        """See ``Worker.answer``.

        Raises:
            WorkerError: the request failed, or the process has ended.
        """
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise WorkerError(self._exit_message()) from None
        return self._read()

    def _read(self) -> Answer:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise WorkerError(self._exit_message())
        answer: Answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def _exit_message(self) -> str:
        self.process.wait()
        self.errors.seek(0)
        lines = self.errors.read().split("\n")
        last_line = next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
        return f"the worker ended with exit code {self.process.returncode}: {last_line}"

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.communicate()
        self.errors.close()


def environment(threads: int, root: Path = ROOT) -> dict[str, str]:
    """The environment variables of a worker: threads, no network, and imports from ``root``."""
    further = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    # with PYTHONSAFEPATH, `python -m` does not import from the current folder, which may be another checkout
    checkout = {"PYTHONPATH": str(root), "PYTHONSAFEPATH": "1"}
    return {**os.environ, **further, **checkout, "HF_HUB_OFFLINE": "1"}
