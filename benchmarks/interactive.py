"""How long a person waits: for the first token of a line, for the whole line, and for a command that decodes one line.

    python -m benchmarks.interactive MODEL TEXT [--lines 50] [--beam 5] [--starts 5] [--threads 2]

MODEL is a path as in ``seqgen-generate path=``. Each line of TEXT is decoded by itself, greedily and with a beam. A
start is a whole ``seqgen-generate`` with the first line; beside it stands the import of PyTorch, which is part of it.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

import seqgen
from seqgen.system.devices import keep_freed_memory


class FirstToken:
    """A streamer that notes when the first token came.

    Attributes:
        time: when, in seconds of ``time.perf_counter``.
    """

    time: float | None = None

    def put(self, sentence: int, tokens: Sequence[int]) -> None:
        """See ``Streamer``."""
        self.time = self.time or time.perf_counter()

    def end(self, sentence: int) -> None:
        """See ``Streamer``; an output without a token ends at its end-of-sentence."""
        self.time = self.time or time.perf_counter()


def waits(translator: seqgen.Translator, lines: Sequence[str], beam: int) -> dict[str, list[float]]:
    """Decode each line by itself.

    Args:
        translator: the model.
        lines: the texts; the first one is decoded once more before, so that weights are prepared.
        beam: the beam of the second search.

    Returns:
        The seconds of each line until the first token and until the end of greedy search, and of beam search.
    """
    translator.translate(lines[:1])
    found: dict[str, list[float]] = {
        "greedy, first token": [],
        "greedy, whole line": [],
        f"beam {beam}, whole line": [],
    }
    first, greedy, wide = found.values()
    for line in lines:
        streamer, start = FirstToken(), time.perf_counter()
        translator.translate([line], streamer=streamer, beam=1)
        greedy.append(time.perf_counter() - start)
        first.append((streamer.time or time.perf_counter()) - start)
        start = time.perf_counter()
        translator.translate([line], beam=beam)
        wide.append(time.perf_counter() - start)
    return found


def starts(model: str, line: str, count: int, threads: int) -> dict[str, list[float]]:
    """Start ``import torch`` and the whole command with one line, alternating.

    Args:
        model: the model's path.
        line: the text; it is decoded with the model's own settings.
        count: how often each is started.
        threads: CPU threads of the command.

    Returns:
        The seconds of each start.
    """
    found: dict[str, list[float]] = {"import torch": [], "seqgen-generate, one line": []}
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "line")
        text.write_text(line + "\n", encoding="utf-8")
        decode = ["-m", "seqgen.cli.generate", f"path={model}", f"input={text}", f"output={folder}/output"]
        decode.append(f"common.threads={threads}")
        for _ in range(count):
            for seconds, arguments in zip(found.values(), (["-c", "import torch"], decode), strict=True):
                start = time.perf_counter()
                subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
                seconds.append(time.perf_counter() - start)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    for name, default in (("lines", 50), ("beam", 5), ("starts", 5), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    keep_freed_memory()
    lines = [line for line in given.text.read_text(encoding="utf-8").splitlines() if line.strip()][: given.lines]
    if not lines:
        parser.error(f"{given.text} has no line with text")
    print("| | ms, median | 95th percentile |\n|---|---|---|")
    for found in (
        waits(seqgen.Translator(given.model), lines, given.beam),
        starts(given.model, lines[0], given.starts, given.threads),
    ):
        for name, seconds in found.items():
            slow = sorted(seconds)[min(len(seconds) - 1, int(0.95 * len(seconds)))]
            print(f"| {name} | {1e3 * statistics.median(seconds):,.0f} | {1e3 * slow:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
