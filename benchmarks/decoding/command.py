"""Commands that translate a file, measured as whole processes, including start-up."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.decoding.process import WorkerError, environment
from seqgen.metrics import text_scores

SAME_TEXTS = 0.98
"""Minimum share of equal outputs in float32; fewer cannot be explained by ties."""


@dataclass
class Command:
    """A command and its figures.

    Attributes:
        model: name of the model; commands with the same model are compared.
        name: name of the toolkit or its variant.
        format: dtype.
        argv: makes the command line from the input file and the output file.
        seconds: wall time of the whole command, for each round.
        start_up: wall time with a text of one line, for each round.
        processor_seconds: CPU time of all threads, for each round.
        peak_bytes: peak memory of the process, for each round.
        same: fraction of the outputs that equal those of the first command with this model.
        bleu: BLEU of the outputs.
    """

    model: str
    name: str
    format: str
    argv: Callable[[Path, Path], list[str]] = field(repr=False)
    seconds: list[float] = field(default_factory=list)
    start_up: list[float] = field(default_factory=list)
    processor_seconds: list[float] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)
    same: float | None = None
    bleu: float | None = None

    def run(self, source: Path, output: Path, threads: int) -> tuple[float, float, int]:
        """Decode a file.

        Returns:
            Wall time and CPU time in seconds, and peak memory in bytes.

        Raises:
            WorkerError: the command failed.
        """
        argv = self.argv(source, output)
        log = output.with_suffix(".log")
        start = time.perf_counter()
        with log.open("w") as file:
            process = subprocess.Popen(argv, stdout=file, stderr=subprocess.STDOUT, env=environment(threads))
            _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said = [line for line in log.read_text().split("\n") if line.strip()]
            raise WorkerError(f"{' '.join(argv)} failed: {said[-1] if said else 'it printed nothing'}")
        return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024

    def starts(self, line: Path, output: Path, threads: int) -> bool:
        """Whether the command supports its dtype.

        Raises:
            WorkerError: the command failed in float32.
        """
        try:
            self.run(line, output, threads)
        except WorkerError as error:
            if self.format == "float32":
                raise
            print(f"{self.model} by {self.name} in {self.format} is left out: {error}", file=sys.stderr)
            return False
        return True

    def measure(self, files: tuple[Path, Path], output: Path, threads: int) -> None:
        """Decode the whole text and one line of it.

        Args:
            files: the text, and its first line.
            output: file to write the translation of the text to.
            threads: number of threads of the matrix libraries.
        """
        self.start_up.append(self.run(files[1], output.with_name("one.txt"), threads)[0])
        seconds, processor, peak = self.run(files[0], output, threads)
        self.seconds.append(seconds)
        self.processor_seconds.append(processor)
        self.peak_bytes.append(peak)

    def speed(self, sentences: int, whole: bool) -> float | None:
        """Sentences per second, by the medians over the rounds.

        Args:
            sentences: number of sentences in the text.
            whole: whether to include the start-up, which includes reading the weights.

        Returns:
            The speed; ``None`` if it was not measured, or if the command takes no longer than its start-up.
        """
        seconds = statistics.median(self.seconds) - (0 if whole else statistics.median(self.start_up))
        return sentences / seconds if seconds > 0 else None

    def record(self, sentences: int) -> dict[str, Any]:
        """All figures, for JSON."""
        names = ("model", "name", "format", "seconds", "start_up", "processor_seconds", "peak_bytes", "same", "bleu")
        speeds = {"whole": self.speed(sentences, True), "without_start_up": self.speed(sentences, False)}
        return {**{name: getattr(self, name) for name in names}, **speeds}


def compare_commands(
    commands: Sequence[Command],
    lines: Sequence[str],
    references: Sequence[str],
    folder: Path,
    rounds: int,
    threads: int,
) -> list[str]:
    """Measure commands with one model, alternating in each round; the figures are added to the commands.

    Args:
        commands: the commands; the first is seqgen in float32.
        lines: the text.
        references: its translation.
        folder: folder for input and output files.
        rounds: number of measurements of each command.
        threads: number of threads of the matrix libraries.

    Returns:
        Messages on float32 commands of which too many outputs differ from those of the first.

    Raises:
        WorkerError: a command failed.
    """
    files = folder / "text.txt", folder / "line.txt"
    files[0].write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files[1].write_text(f"{lines[0]}\n", encoding="utf-8")
    output, first = folder / "output.txt", []
    able = [command for command in commands if command.starts(files[1], output, threads)]
    for number in range(rounds):
        for command in able:
            command.measure(files, output, threads)
            print(f"round {number + 1} of {rounds}: {command.model} by {command.name}", file=sys.stderr, flush=True)
            if number == 0:
                texts = output.read_text(encoding="utf-8").split("\n")[:-1]
                first = first or texts
                command.same = sum(a == b for a, b in zip(texts, first, strict=True)) / len(first)
                command.bleu = text_scores(texts, references)["bleu"].value
    return [
        f"{command.name} does not agree with seqgen in float32: {command.model}: {command.same:.1%} of the outputs are "
        "the same"
        for command in able
        if command.format == "float32" and (command.same or 0) < SAME_TEXTS
    ]


def table(commands: Sequence[Command], sentences: int) -> str:
    """A table of the figures, one line for each command."""
    lines = [
        f"{'':<42} {'s':>7} {'start':>6} {'sent./s':>8} {'same':>6} {'BLEU':>6} {'peak MB':>8} | {'whole':>6} "
        f"{'rest':>6}"
    ]
    first = {command.model: command for command in reversed(commands)}
    for command in commands:
        ours = first[command.model]
        ratios = [_ratio(ours.speed(sentences, whole), command.speed(sentences, whole)) for whole in (True, False)]
        cells = [
            f"{command.model}: {command.name}, {command.format}".ljust(42),
            _cell(statistics.median(command.seconds) if command.seconds else None, 7, 1),
            _cell(statistics.median(command.start_up) if command.start_up else None, 6, 1),
            _cell(command.speed(sentences, False), 8, 1),
            " " * 6 if command.same is None else f"{command.same:6.1%}",
            _cell(command.bleu, 6, 2),
            _cell(max(command.peak_bytes) / 1e6 if command.peak_bytes else None, 8, 0),
            "|",
            *(_cell(ratio, 6, 2) for ratio in ratios),
        ]
        lines.append(" ".join(cells).rstrip())
    legend = """
s: seconds of the whole command; start: seconds with a text of one line. sent./s: without start-up. Right of the bar:
the speed of seqgen in float32 divided by the speed in this line, with start-up (whole) and without (rest)."""
    return "\n".join(lines) + "\n" + legend


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs if ours and theirs else None


def _cell(value: float | None, width: int, digits: int) -> str:
    return " " * width if value is None else f"{value:{width}.{digits}f}"
