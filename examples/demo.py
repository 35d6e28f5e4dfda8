"""The demo: train three models on the built-in example, decode with each and with all together, print the scores.

It runs the seqgen commands and prints each of them; ``make demo`` or ``python examples/demo.py [FOLDER]`` starts it.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
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
"""Enough for this example; the defaults, which these keys and the options below replace, train longer."""
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
    """Print a command, run it, and return its standard output.

    The command runs in its own session, so that Ctrl-C at the terminal does not reach it directly. A signal that stops
    the demo is passed on once, as SIGTERM. Training then saves a checkpoint, and the demo waits for its end.

    Raises:
        SystemExit: the command failed or was stopped; the command has printed the reason.
    """
    print(f"\n$ {command} {' '.join(arguments)}", flush=True)
    module = [sys.executable, "-m", COMMANDS[command]]
    with _passing_signals() as started:
        process = subprocess.Popen([*module, *arguments], stdout=subprocess.PIPE, text=True, start_new_session=True)
        output: str = started(process)
    if process.returncode:
        sys.exit(f"demo: {command} ended with exit code {process.returncode}")
    return output


@contextmanager
def _passing_signals() -> Iterator[Any]:
    """Pass signals that stop the demo on to the process that runs, wait for its end, then stop."""
    received: list[int] = []
    running: list[subprocess.Popen[str]] = []

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for process in running:
            process.terminate()

    def wait(process: subprocess.Popen[str]) -> str:
        running.append(process)
        for _ in received:  # signals received while the process was started
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
        print("demo: stopped; run the same command again to resume", file=sys.stderr)
    sys.exit(128 + number)


def decode(name: str, path: str, output: Path, reference: Path) -> dict[str, str]:
    """Decode the test split; return the scores and the speed that the commands print, by name.

    BLEU is computed on characters: most names are one word, and BLEU of words is 0 for outputs shorter than four words.
    """
    report = run("seqgen-generate", f"path={path}", f"output={output}", "generation.beam=5")
    print(report, end="")
    scores = run("seqgen-score", f"hypothesis={output}", f"reference={reference}", "tokenize=char")
    print(scores, end="")
    values = dict(re.findall(r"^(\w+) = ([\d.]+)", scores, flags=re.MULTILINE))
    speed = re.search(r"([\d.]+) sentences/s", report)
    return {"name": name, **values, "speed": speed.group(1) if speed else "?"}


def trained_seconds(folder: Path) -> float:
    """The training time of a run, with what it was trained before an interruption.

    Args:
        folder: the run folder.
    """
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return max(float(record["seconds"]) for record in records if record["event"] == "stop")


def main() -> None:
    """Run the demo; exit with code 1 if a model does not reach ``GOAL``."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("runs/demo")
    reference = folder / "fconv_tiny" / "cache" / "number_names-test-en-de" / "test.de"
    rows, seconds = [], {}
    if any(folder.glob("*/checkpoints/*/")):
        print(f"{folder} has runs of an earlier demo, which are resumed; delete the folder to start again", flush=True)
    for model in OPTIONS:
        run("seqgen-train", f"run_dir={folder / model}", f"model={model}", *RECIPE, *OPTIONS[model])
        seconds[model] = trained_seconds(folder / model)
        rows.append(decode(model, str(folder / model), folder / f"{model}.txt", reference))
    members = ",".join(str(folder / model) for model in OPTIONS)
    rows.append(decode("ensemble of all", f"[{members}]", folder / "ensemble.txt", reference))

    table = Table(title="number_names, English to German, 1,000 numbers that are not in the training text, beam 5")
    for column in ("model", "trained in", "exact match", "BLEU (characters)", "sentences/s", "run folder"):
        table.add_column(column, justify="left" if column in ("model", "run folder") else "right")
    for row in rows:
        name = row["name"]
        time_taken = f"{seconds[name]:.0f} s" if name in seconds else ""
        where = str(folder / name) if name in seconds else ""
        table.add_row(name, time_taken, f"{row['exact_match']} %", row.get("bleu", "0.00"), row["speed"], where)
    Console(width=110).print(table)
    print(f"TensorBoard: tensorboard --logdir {folder}")
    if any(float(row["exact_match"]) < GOAL for row in rows):
        sys.exit(f"a model has less than {GOAL} % exact match")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # between two commands
        _stop(signal.SIGINT)
