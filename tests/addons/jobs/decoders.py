"""Decoders and workers for tests of jobs, without models: an output is its line in capital letters."""

import io
import itertools
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from seqgen.addons.jobs.folder import JobFolder, manifest_of
from seqgen.addons.jobs.job import Job
from seqgen.addons.jobs.source import Source, plan_parts
from seqgen.addons.jobs.workers import Answered, Answers, Died, Event, Piece, Ready, Workers, answer
from seqgen.extend import DecodingError, LineProgress
from tests.addons.jobs.models import write_lines

FINGERPRINT = "of the models"
TOKENS = 3
"""Tokens of each output."""


@dataclass
class Capitals:
    """Turns lines into capitals; some words stand for faults.

    Attributes:
        room: the largest batch that fits into memory; in a line with ``large``, no batch does.
        calls: number of lines and divisor of each call.
    """

    room: int = 1000
    fingerprint: str = FINGERPRINT
    notes: Sequence[str] = ("a note on the model",)
    calls: list[tuple[int, int]] = field(default_factory=list)

    def decode(self, lines: Sequence[str], first: int, divisor: int) -> Answers:
        self.calls.append((len(lines), divisor))
        time.sleep(0.1 * sum("slow" in line for line in lines))
        if any("kill" in line for line in lines):
            os.kill(os.getpid(), signal.SIGKILL)
        if any("nan" in line for line in lines):
            raise DecodingError("the scores are NaN")
        if any("large" in line for line in lines) or min(64, len(lines)) // divisor > self.room:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory")
        notes = [(first + i + 1, "the line is empty") for i, line in enumerate(lines) if not line]
        return Answers(outputs(lines, first), notes=notes, tokens=TOKENS * len(lines))

    def blank(self, line: str, number: int, reason: str) -> str:
        return "\n"


def capitals(number: int) -> Capitals:
    """What makes a decoder in each worker; see ``Builder``."""
    return Capitals()


@dataclass
class InlineWorkers(Workers):
    """Workers in this process that do one piece at a time.

    Attributes:
        decoder: the decoder.
        deaths: whether a worker dies with a piece, instead of decoding it.
        given: the pieces that were given to them.
    """

    decoder: Capitals = field(default_factory=Capitals)
    deaths: Callable[[Piece], bool] = lambda piece: False
    given: list[Piece] = field(default_factory=list)
    _queue: deque[Piece] = field(default_factory=deque)
    _greeted: bool = False

    def free(self) -> bool:
        return self._greeted and len(self._queue) < 2

    def give(self, piece: Piece) -> None:
        self.given.append(piece)
        self._queue.append(piece)

    def _send(self, worker: object, piece: Piece) -> None:
        raise NotImplementedError

    def wait(self, seconds: float) -> list[Event]:
        if not self._greeted:
            self._greeted = True
            return [Ready(self.decoder.fingerprint, tuple(self.decoder.notes))]
        if not self._queue:
            return [Died(None, "was ended by SIGKILL")]
        piece = self._queue.pop()  # not in the order in which they were given
        if not piece.reason and self.deaths(piece):
            return [Died(piece, "was ended by SIGKILL")]
        return [Answered(piece, answer(self.decoder, piece))]

    def close(self) -> None:
        pass


@dataclass
class Bench:
    """A job in a folder, for tests.

    Attributes:
        root: folder for input and job.
        part_lines: lines of each part.
        piece_lines: lines that a worker gets at a time.
        settings: settings of the manifest.
        models: the hash of each file of the models, likewise.
    """

    root: Path
    part_lines: int = 10
    piece_lines: int = 4
    settings: dict[str, int] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=lambda: {"model": "a"})
    messages: list[str] = field(default_factory=list)

    def write(self, lines: Sequence[str]) -> None:
        write_lines(self.root / "in.txt", lines)

    def job(self, check: Callable[[], None] = lambda: None) -> Job:
        source = Source((self.root / "in.txt",))
        plan = plan_parts(source, self.part_lines)
        folder = JobFolder(self.root / "job", ".txt")
        folder.open(manifest_of(self.settings, self.models, self.part_lines, plan, {}), plan.parts)
        return Job(folder, source, plan, FINGERPRINT, self.piece_lines, self.messages.append, check)

    def run(self, workers: Workers | None = None, job: Job | None = None) -> bytes:
        """Decode, merge, and write the ledger; return the merged output."""
        job = job or self.job()
        if job.undone():
            job.run(workers or InlineWorkers(), LineProgress(job.plan.lines, 0, 0, 0.0, self.messages.append))
        job.folder.write_errors()
        job.folder.merge(merged := io.BytesIO(), lambda: None)
        return merged.getvalue()


def outputs(lines: Sequence[str], first: int) -> list[str]:
    return [f"{number} {line.upper()}\n" for number, line in enumerate(lines, first)]


def expected(lines: Sequence[str], *failed: int) -> bytes:
    """The output; a line that fails has an empty one."""
    return "".join("\n" if number in failed else line for number, line in enumerate(outputs(lines, 0))).encode()


def numbered(count: int) -> list[str]:
    """Different lines, some of them empty."""
    words = itertools.cycle(["one", "two words", "", "ü \u2028 ß"])
    return [f"{word} {i}" if word else "" for i, word in zip(range(count), words, strict=False)]
