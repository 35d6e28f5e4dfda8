"""The loop of a job: parts are cut into pieces, decoded by workers, and written when all their pieces are there."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from seqgen.addons.jobs.folder import JobFolder
from seqgen.addons.jobs.source import Part, Plan, Source, cut, text_digest
from seqgen.addons.jobs.workers import Answered, Answers, Died, Piece, Ready, Workers
from seqgen.extend import DataError, LineProgress, NotedSignals, ResourceError

DEATHS = 2
"""Number of workers that may die while they decode a piece; it is then split, or given up if it is a single line."""
SPLIT = 16
"""Number of pieces into which such a piece is split."""
HOPELESS = 100
"""Number of lines that have failed, without one that was decoded, at which the job stops."""


class Job:
    """Decodes all parts that are not done.

    Args:
        folder: where parts are written; opened.
        source: the input.
        plan: how it is cut.
        fingerprint: hash of the models' files, which all workers must have.
        piece_lines: largest number of lines that a worker gets at a time.
        log: prints a message for the user.
        check: called often; raises an exception to stop the job.
    """

    def __init__(
        self,
        folder: JobFolder,
        source: Source,
        plan: Plan,
        fingerprint: str,
        piece_lines: int,
        log: Callable[[str], None],
        check: Callable[[], None],
    ):
        self.folder, self.source, self.plan = folder, source, plan
        self.fingerprint, self.piece_lines = fingerprint, piece_lines
        self.log, self.check = log, check
        self._notes: set[str] = set()
        self._decoded = self._failed = 0

    def undone(self) -> list[Part]:
        """The parts that are to be decoded."""
        return [part for part in self.plan.parts if part.index not in self.folder.done]

    def run(self, workers: Workers, progress: LineProgress) -> None:
        """Decode all parts that are not done, and write them.

        Args:
            workers: who decodes.
            progress: shows the progress.

        Raises:
            UserError: the models cannot be loaded, or a part cannot be written.
            DataError: the input has changed since the job was started.
            ResourceError: no line can be decoded, or workers cannot be started.
        """
        pieces = self._pieces()
        again: deque[Piece] = deque()  # of workers that have died
        running, at_end = 0, False
        self._decoded = self.folder.lines - self.folder.failed
        # of each part of which not all pieces are decoded, the answers of the others by their first line
        self._open: dict[int, dict[int, Answers]] = {}
        while True:
            self.check()
            while workers.free() and not (at_end and not again):
                piece = again.popleft() if again else next(pieces, None)
                if piece is None:
                    at_end = True
                else:
                    workers.give(piece)
                    running += 1
            if at_end and not again and not running:
                return
            for event in workers.wait(0.5):
                if isinstance(event, Ready):
                    self._greet(event)
                elif isinstance(event, Answered):
                    running -= 1
                    self._take(event, progress)
                elif event.piece is not None:
                    running -= 1
                    again.extend(self._after_death(event, event.piece))
                else:
                    self.log(f"a worker {event.how}; another one is started in its place")
            progress.tick()

    def _pieces(self) -> Iterator[Piece]:
        """The pieces of all parts that are not done; reads the input, and checks that it is still the same."""
        wanted = {part.index for part in self.undone()}
        size = self.plan.parts[0].lines if self.plan.parts else 1
        texts = cut(self.source.lines(), size)
        for part in self.plan.parts:
            lines = next(texts, [])
            self.check()
            if len(lines) != part.lines or (part.index in wanted and text_digest(lines) != part.digest):
                raise self._changed(part)
            if part.index in wanted:
                self._open[part.index] = {}
                for start in range(0, len(lines), self.piece_lines):
                    yield Piece(part.index, part.first + start, lines[start : start + self.piece_lines])
        if next(texts, None) is not None:
            raise self._changed(self.plan.parts[-1] if self.plan.parts else None)

    def _changed(self, part: Part | None) -> DataError:
        names = [name for name, _ in self.plan.files]
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        where = f" (about line {part.first + part.lines} of {self.plan.lines})" if part else ""
        return DataError(
            f"the input {shown} has changed while the job was running{where}; the outputs so far belong to the earlier "
            "input: restore it and run the same command again, or choose another job.folder"
        )

    def _greet(self, event: Ready) -> None:
        if event.fingerprint != self.fingerprint:
            raise DataError(
                "the files of the models have changed while the job was running, or are not the same on all machines; "
                "restore them and run the same command again"
            )
        for note in event.notes:
            if note not in self._notes:
                self._notes.add(note)
                self.log(note)

    def _take(self, event: Answered, progress: LineProgress) -> None:
        """Keep the answers of a piece, and write its part if it is complete."""
        answers, known, part = event.answers, self._open[event.piece.part], self.plan.parts[event.piece.part]
        known[event.piece.first] = answers
        lines, failed = len(answers.outputs), len(answers.failures)
        self._decoded, self._failed = self._decoded + lines - failed, self._failed + failed
        progress.advance(lines, failed)
        if self._failed >= HOPELESS and not self._decoded:
            failure = answers.failures[-1]
            raise ResourceError(
                f"the first {self._failed} lines all failed, so the job was stopped; line {failure.number}: "
                f"{failure.reason}"
            )
        if sum(len(some.outputs) for some in known.values()) == part.lines:
            del self._open[part.index]
            self.folder.write(part, sum((known[first] for first in sorted(known)), Answers([])))

    def _after_death(self, event: Died, piece: Piece) -> list[Piece]:
        """The pieces to decode after the death of a piece's worker: the same, smaller ones, or none."""
        piece = replace(piece, deaths=piece.deaths + 1)
        first, last = piece.first + 1, piece.first + len(piece.lines)
        lines = f"line {first}" if first == last else f"lines {first} to {last}"
        if piece.deaths < DEATHS:
            self.log(f"the worker that decoded {lines} {event.how}; another one decodes them again")
            return [piece]
        if first == last:
            self.log(f"{lines} is given up: the worker that decoded it {event.how}, {piece.deaths} times")
            return [replace(piece, reason=f"{piece.deaths} workers died while they decoded it: {event.how}")]
        self.log(f"the worker that decoded {lines} {event.how}; they are decoded in smaller pieces")
        size = -(-len(piece.lines) // SPLIT)
        return [
            Piece(piece.part, piece.first + start, some, deaths=DEATHS - 1 if len(some) > 1 else 0)
            for start, some in zip(itertools.count(0, size), cut(piece.lines, size), strict=False)
        ]


class JobStopped(Exception):
    """A signal has asked the job to stop."""


class Stop(NotedSignals):
    """Notes signals; ``check`` then raises. A second signal ends the process at once."""

    def check(self) -> None:
        """Raise an exception if a signal was received.

        Raises:
            JobStopped: a signal was received.
        """
        if self.received:
            raise JobStopped
