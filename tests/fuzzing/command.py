"""Runs the cases of all readers in processes of their own, which may crash; see the package."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.fuzzing.reader import Bench, Reader, repeat
from tests.fuzzing.readers import READERS
from tests.fuzzing.sandbox import SECONDS, Failure

STUCK = 6 * SECONDS
"""Seconds after which a process is killed in which a case runs: code outside Python is not interrupted by a signal."""


@dataclass
class Summary:
    """What happened to the cases of a reader."""

    name: str
    right: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)

    def add(self, kind: str, text: str) -> None:
        if kind == "right":
            self.right += 1
        elif kind == "refused":
            self.refused[text] += 1
        else:
            self.failed.append(text)

    def __str__(self) -> str:
        refused = sum(self.refused.values())
        cases = self.right + refused + len(self.failed)
        return f"{self.name}: {cases} cases, {self.right} right, {refused} refused, {len(self.failed)} failed"


def work(kind: type[Reader], numbers: range, seed: int, pipe: Connection) -> None:
    """Run cases and send the result of each; run in a process of its own."""
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with tempfile.TemporaryDirectory(prefix="fuzzing-") as root:
        bench = Bench(kind, Path(root))
        for number in numbers:
            try:
                refusal = bench.case(number, seed)
                pipe.send((number, "right" if refusal is None else "refused", refusal or ""))
            except Failure as failure:
                pipe.send((number, "failed", "\n".join([str(failure), *failure.__notes__])))
            except Exception:
                pipe.send((number, "failed", f"the test itself fails: {traceback.format_exc()}"))
    pipe.send((numbers.stop, "end", ""))


def fuzz(kind: type[Reader], numbers: range, seed: int, summary: Summary) -> None:
    """Run cases; if one kills its process, or is stuck, the others run in a new one."""
    context = multiprocessing.get_context("spawn")
    while numbers:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=work, args=(kind, numbers, seed, sender))
        process.start()
        sender.close()
        result: Any = None
        try:
            while receiver.poll(STUCK):
                number, result, text = receiver.recv()
                numbers = range(number + (result != "end"), numbers.stop)
                if result == "end":
                    break
                summary.add(result, text)
                if result == "failed":
                    print(f"{summary.name}: {text}\n", flush=True)
        except EOFError:
            pass
        if numbers and result != "end":
            process.kill()
            process.join()
            text = f"crash: the process ended with {process.exitcode}, or was stuck and killed\n"
            summary.add("failed", text + repeat(summary.name, seed, numbers.start))
            print(f"{summary.name}: {summary.failed[-1]}\n", flush=True)
            numbers = range(numbers.start + 1, numbers.stop)
        process.join()


def main(arguments: Sequence[str]) -> int:
    """Read the arguments, run the readers, print a line for each.

    Args:
        arguments: see the package.

    Returns:
        The exit code: 1 if a case failed.
    """
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    options = {"reader": ",".join(READERS), "cases": "", "seed": "0", "first": "0", "show": "0"}
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key not in options:
            print(f"{argument}: the keys are {', '.join(options)}; the readers are {', '.join(READERS)}")
            return 2
        options[key] = value
    first, failed = int(options["first"]), 0
    for name in options["reader"].split(","):
        summary = Summary(name)
        cases = int(options["cases"] or READERS[name].cases)
        fuzz(READERS[name], range(first, first + cases), int(options["seed"]), summary)
        print(summary, flush=True)
        for text, count in summary.refused.most_common(int(options["show"])):
            print(f"  {count} x {text}")
        failed += len(summary.failed)
    return int(failed > 0)
