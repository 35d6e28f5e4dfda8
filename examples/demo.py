"""The demo: train three models on the built-in example, decode with each and with all together, print the scores.

It types the commands that a user would type; ``make demo`` runs it.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table

RECIPE = (
    "dataset.max_tokens=1024",
    "lr_scheduler.warmup_updates=300",
    "optimization.ema_decay=0.99",
    "dataset.validate_interval=2",
)
"""Enough for this example; without it and the options below, training takes the defaults and longer."""
OPTIONS = {
    "fconv_tiny": ("optimization.lr=[2e-3]", "optimization.max_update=700"),
    "transformer_tiny": (
        "optimization.lr=[3e-3]",
        "optimization.max_update=800",
        "model.encoder_normalize_before=true",
        "model.decoder_normalize_before=true",
    ),
    "t5_tiny": (
        "optimization.lr=[3e-3]",
        "optimization.max_update=800",
        "lr_scheduler.warmup_updates=150",
        "model.feed_forward_proj=gated-gelu",
        "model.tie_word_embeddings=false",
        "model.dropout_rate=0",
    ),
}
COMMANDS = {f"seqgen-{name}": f"seqgen.cli.{name}" for name in ("train", "generate", "score")}
GOAL = 95.0
"""Exact match in percent that each model must reach."""


def run(command: str, *arguments: str) -> str:
    """Show a command, run it, and return what it wrote to standard output.

    The command has a session of its own, so that Ctrl-C does not reach it from the terminal too: what stops the demo is
    passed on once as SIGTERM, upon which training saves, and the demo waits for that.

    Raises:
        SystemExit: the command failed or was stopped; it has said why.
    """
    print(f"\n$ {command} {' '.join(arguments)}", flush=True)
    module = [sys.executable, "-m", COMMANDS[command]]
    with _passing_signals() as started:
        process = subprocess.Popen([*module, *arguments], stdout=subprocess.PIPE, text=True, start_new_session=True)
        output = started(process)
    if process.returncode:
        sys.exit(f"demo: {command} ended with exit code {process.returncode}")
    return output


@contextmanager
def _passing_signals() -> Iterator[Any]:
    """Pass the signals that stop the demo on to a process, wait for its end, and then stop."""
    received: list[int] = []
    running: list[subprocess.Popen[str]] = []

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for process in running:
            process.terminate()

    def wait(process: subprocess.Popen[str]) -> str:
        running.append(process)
        for _ in received:  # what came while the process was started
            process.terminate()
        return process.communicate()[0]

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
        print("demo: stopped; the same command continues where it was", file=sys.stderr)
    sys.exit(128 + number)


def decode(name: str, path: str, output: Path, reference: Path) -> dict[str, str]:
    """Decode the test split; return the scores and the speed that the commands report.

    Most names are one word, for which BLEU is 0 by definition: it counts sequences of four. So characters are counted.
    """
    report = run("seqgen-generate", f"path={path}", f"output={output}", "generation.beam=5")
    print(report, end="")
    scores = run("seqgen-score", f"hypothesis={output}", f"reference={reference}", "tokenize=char")
    print(scores, end="")
    values = dict(re.findall(r"^(\w+) = ([\d.]+)", scores, flags=re.MULTILINE))
    speed = re.search(r"([\d.]+) sentences/s", report)
    return {"name": name, **values, "speed": speed.group(1) if speed else "?"}


def main() -> None:
    """Run the demo; exit with 1 where a model does not reach the goal."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("runs/demo")
    reference = folder / "fconv_tiny" / "cache" / "number_names-test-en-de" / "test.de"
    rows, seconds = [], {}
    for model in OPTIONS:
        start = time.perf_counter()
        run("seqgen-train", f"run_dir={folder / model}", f"model={model}", *RECIPE, *OPTIONS[model])
        seconds[model] = time.perf_counter() - start
        rows.append(decode(model, str(folder / model), folder / f"{model}.txt", reference))
    members = ",".join(str(folder / model) for model in OPTIONS)
    rows.append(decode("ensemble of all", f"[{members}]", folder / "ensemble.txt", reference))

    table = Table(title="number_names, English to German, 1,000 numbers that no model has seen, beam 5")
    for column in ("model", "trained in", "exact match", "BLEU (characters)", "sentences/s", "run folder"):
        table.add_column(column, justify="left" if column in ("model", "run folder") else "right")
    for row in rows:
        name = row["name"]
        time_taken = f"{seconds[name]:.0f} s" if name in seconds else ""
        where = str(folder / name) if name in seconds else ""
        table.add_row(name, time_taken, f"{row['exact_match']} %", row["bleu"], row["speed"], where)
    Console(width=110).print(table)
    print(f"TensorBoard: tensorboard --logdir {folder}")
    if any(float(row["exact_match"]) < GOAL for row in rows):
        sys.exit(f"a model stayed below {GOAL} % exact match")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # between two commands
        _stop(signal.SIGINT)
