"""The demo: train three models on the built-in example, decode with each and with all together, print the scores.

It runs the seqgen commands and prints each of them; ``make demo`` or ``python examples/demo.py [FOLDER]`` starts it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table

RECIPE = (
    "dataset.max_tokens=1024",
    "lr_scheduler.warmup_updates=100",
    "optimization.ema_decay=0.99",
    "dataset.validate_interval=2",
)
"""Enough for this example; the defaults, which these keys and the options below replace, train longer."""
OPTIONS = {
    "fconv_tiny": ("optimization.lr=[2e-3]", "optimization.max_update=200"),
    "transformer_tiny": (
        "optimization.lr=[3e-3]",
        "optimization.max_update=180",
        "model.encoder_normalize_before=true",
        "model.decoder_normalize_before=true",
    ),
    "lstm_tiny": ("optimization.lr=[3e-3]", "optimization.max_update=105"),
}
ARCHITECTURES = {
    "fconv_tiny": "convolutions",
    "transformer_tiny": "a transformer",
    "lstm_tiny": "an LSTM, which is one file",
}
OWN_CODE = f"common.user_dir={os.path.relpath(Path(__file__).with_name('lstm.py'))}"
"""The file with the LSTM, which is not one of seqgen's models."""
PROGRAMS = Path(sys.executable).parent
"""The folder of the commands."""
ENSEMBLE = "all together"
GOAL = 60.0
"""Exact match in percent that each model must reach."""
INTRODUCTION = """The demo translates numbers from English to German ("two hundred and seven": "zweihundertsieben").

  1. It trains three small models of different architectures, each for 10 to 30 seconds.
  2. Each model translates 1,000 numbers that were not in its training text; then all three do, as an ensemble.
  3. It draws a page that shows how the ensemble chose the words of one translation.

Two to three minutes on two CPU cores. Ctrl-C stops it; the same command goes on. docs/words.md explains words.
"""


def run(command: str, *arguments: str, shows_progress: bool = False) -> str:
    """Print a command, run it, and return its standard output; its standard error is shown as it comes, or not at all.

    The command runs in its own session, so that Ctrl-C at the terminal does not reach it directly. A signal that stops
    the demo is passed on once, as SIGTERM. Training then saves a checkpoint, and the demo waits for its end.

    Raises:
        SystemExit: the command failed or was stopped; the command has printed the reason.
    """
    print(f"\n$ {shlex.join([command, *arguments])}", flush=True)
    with _passing_signals() as started:
        stderr = None if shows_progress else subprocess.PIPE
        process = subprocess.Popen(
            [PROGRAMS / command, *arguments], stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True
        )
        output, errors = started(process)
    if process.returncode:
        print(errors or "", end="", file=sys.stderr)
        sys.exit(f"demo: {command} ended with exit code {process.returncode}")
    return str(output)


@contextmanager
def _passing_signals() -> Iterator[Any]:
    """Pass signals that stop the demo on to the process that runs, wait for its end, then stop."""
    received: list[int] = []
    running: list[subprocess.Popen[str]] = []

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for process in running:
            process.terminate()

    def wait(process: subprocess.Popen[str]) -> tuple[str, str | None]:
        running.append(process)
        for _ in received:  # signals received while the process was started
            process.terminate()
        return process.communicate()

    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    kept = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]  # as nohup ignores SIGHUP
    before = {number: signal.signal(number, handle) for number in kept}
    try:
        yield wait
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        _stop(received[0])


def _stop(number: int) -> NoReturn:
    with suppress(OSError):  # after SIGHUP there may be no terminal
        print("demo: stopped; run the same command again to resume", file=sys.stderr)
    sys.exit(128 + number)


def decode(path: str, output: Path) -> dict[str, str]:
    """Translate the test split; return the scores that the command prints, by name."""
    report = run("seqgen-generate", OWN_CODE, f"path={path}", f"output={output}")
    return dict(re.findall(r"^(\w+) = ([\d.]+)", report, flags=re.MULTILINE))


def trained_seconds(folder: Path) -> float:
    """The training time of a run, with what it was trained before an interruption.

    Args:
        folder: the run folder.
    """
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return max(float(record["seconds"]) for record in records if record["event"] == "stop")


def outputs_that_differ(folder: Path, names: Sequence[str]) -> list[dict[str, str]]:
    """Three lines that the ensemble translates as the reference, and as many models as possible do not.

    Args:
        folder: that of the demo.
        names: of the models; the ensemble's is ``ENSEMBLE``.

    Returns:
        For each line the texts by name, also ``input`` and ``reference``.
    """
    data = folder / next(iter(OPTIONS)) / "cache" / "number_names-test-en-de"
    files = {"input": data / "test.en", "reference": data / "test.de"}
    files |= {name: folder / f"{name.replace(' ', '_')}.txt" for name in names}
    texts = {name: file.read_text(encoding="utf-8").splitlines() for name, file in files.items()}
    rows = [dict(zip(texts, row, strict=True)) for row in zip(*texts.values(), strict=True)]
    good = [row for row in rows if row[ENSEMBLE] == row["reference"]]
    return sorted(good or rows, key=lambda row: sum(row[name] == row["reference"] for name in names))[:3]


def draw(folder: Path, path: str, line: str) -> Path:
    """Translate a line with the ensemble, and draw a page of the search."""
    trace, page = folder / "search.jsonl.gz", folder / "search.html"
    output = folder / "search.json"
    run("seqgen-generate", OWN_CODE, f"path={path}", line, f"output={output}", "format=json", f"trace={trace}")
    run("seqgen-show", str(trace), f"page={page}")
    return page


def show(scores: Mapping[str, Mapping[str, str]], seconds: Mapping[str, float], rows: list[dict[str, str]]) -> None:
    """Print the scores as a table, and some translations."""
    table = Table(title="1,000 numbers that are not in the training text")
    for column in ("model", "trained in", "exact match", "chrF"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for name, found in scores.items():
        time_taken = f"{seconds[name]:.0f} s" if name in seconds else ""
        table.add_row(name, time_taken, f"{found['exact_match']} %", found["chrf"])
    console = Console(width=110)
    console.print(table)
    for row in rows:
        print()
        for name, text in row.items():
            print(f"  {name:18}{text}{'' if name == 'input' or text == row['reference'] else '   (wrong)'}")


def main() -> None:
    """Run the demo; exit with code 1 if a model does not reach ``GOAL``, or the ensemble is not better than each."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("runs/demo")
    print(INTRODUCTION, flush=True)
    if any(folder.glob("*/checkpoints/*/")):
        print(f"{folder} has runs of an earlier demo, which are resumed; delete the folder to start again", flush=True)
    paths, scores = {name: str(folder / name) for name in OPTIONS}, {}
    for number, name in enumerate(OPTIONS, start=1):
        print(f"\nModel {number} of {len(OPTIONS)}: {ARCHITECTURES[name]}", flush=True)
        arguments = (f"run_dir={paths[name]}", f"model={name}", OWN_CODE, *RECIPE, *OPTIONS[name])
        run("seqgen-train", *arguments, shows_progress=True)
    paths[ENSEMBLE] = f"[{','.join(paths.values())}]"
    print("\nEach model translates, then all together, as an ensemble", flush=True)
    for name, path in paths.items():
        scores[name] = decode(path, folder / f"{name.replace(' ', '_')}.txt")
    rows = outputs_that_differ(folder, list(paths))
    page = draw(folder, paths[ENSEMBLE], rows[0]["input"])
    show(scores, {name: trained_seconds(folder / name) for name in OPTIONS}, rows)
    print(f"\nOpen {page} in a browser: how the search found the first of these translations, step by step.")
    words = [str(PROGRAMS / "seqgen-generate"), OWN_CODE, f"path={paths[ENSEMBLE]}", rows[-1]["input"]]
    print(f"Try:  {shlex.join(words)}")
    matches = {name: float(found["exact_match"]) for name, found in scores.items()}
    if min(matches.values()) < GOAL or matches[ENSEMBLE] <= max(matches[name] for name in OPTIONS):
        sys.exit(f"demo: a model has less than {GOAL} % exact match, or the ensemble is not better than each model")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # between two commands
        _stop(signal.SIGINT)
