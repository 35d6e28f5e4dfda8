"""``python -m tests.mutants [WORD ...]``: plant each fault in a copy of the code, and run tests that should find it.

With words, only the faults are planted whose file, reason or tests contain one of them. The exit code is 0 if at least
95 % of the faults are found and all of them can be planted.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.mutants.faults import FAULTS, ROOT, Fault

WANTED = 0.95
"""The share of the faults that must be found."""

SECONDS = 120
"""A mutant whose tests take longer counts as found: most likely it does not end."""

JOBS = 2
_NOT_COPIED = shutil.ignore_patterns(".*", "build", "runs", "*.egg-info")

PRELOADED = ("torch", "numpy", "pytest", "hypothesis", "hydra", "sentencepiece", "tokenizers")
"""Libraries that are imported once: each mutant is a fork of this process, and imports only seqgen and the tests."""

OPTIONS = ("-x", "-q", "-n", "0", "-m", "not slow and not nightly", "-p", "no:cacheprovider", "--tb=short")


class Run:
    """A run of fast tests in a copy of the repository, in a process of its own, until the first test fails.

    Args:
        fault: the fault to plant; ``None`` for none.
        tests: arguments of pytest.
        limit: time limit in seconds.

    Attributes:
        found_by: the test that failed; empty if all passed.
        error: why there is no result, for example that a test does not exist; empty if there is one.
        seconds: time of the tests.
        printed: what pytest printed.
    """

    def __init__(self, fault: Fault | None, tests: Sequence[str], limit: float):
        self.fault, self.limit, self.begin = fault, limit, time.monotonic()
        self.found_by = self.error = self.printed = ""
        self.folder = tempfile.TemporaryDirectory(prefix="mutant-")
        root = Path(shutil.copytree(ROOT, Path(self.folder.name, "copy"), ignore=_NOT_COPIED))
        if fault is not None:
            fault.plant(root)
        self.output = Path(self.folder.name, "output")
        context = multiprocessing.get_context("fork")
        self.process: BaseProcess = context.Process(target=_run_tests, args=(root, tests, self.output))
        self.process.start()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begin

    @property
    def is_done(self) -> bool:
        """True if the tests have ended, or time is up."""
        return not self.process.is_alive() or self.seconds > self.limit

    def finish(self) -> Run:
        """Note the result of the tests, which are ended if they still run."""
        if is_late := self.process.is_alive() and self.limit < float("inf"):
            self.process.kill()
        self.process.join()
        if self.output.is_file():
            self.printed = self.output.read_text(encoding="utf-8", errors="replace")
        self.folder.cleanup()
        code = self.process.exitcode or 0
        failed = re.search(r"^(?:FAILED|ERROR) tests/(\S+)", self.printed, re.MULTILINE)
        if is_late or code < 0:
            self.found_by = "the time limit" if is_late else f"signal {-code}"
        elif code == 1 and failed:
            self.found_by = failed[1]
        elif code:
            self.error = f"pytest ended with {code}"
        return self

    @property
    def verdict(self) -> str:
        """One word, or several for an error."""
        return self.error or ("killed" if self.found_by else "survived")


def _run_tests(root: Path, tests: Sequence[str], output: Path) -> None:
    """Run pytest in a copy of the repository; the exit code is pytest's."""
    written = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(written, 1)
    os.dup2(written, 2)
    os.chdir(root)
    os.environ["PYTHONPATH"] = str(root)
    sys.path[:] = [str(root), *(path for path in sys.path if path and Path(path) != ROOT)]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "seqgen")]:
        del sys.modules[name]
    importlib.invalidate_caches()
    import seqgen

    if Path(seqgen.__file__).parent.parent != root:
        sys.exit(f"the tests of a copy import {seqgen.__file__}")
    import pytest

    code = int(pytest.main([*OPTIONS, *tests]))
    sys.stdout.flush()
    os._exit(code)


def runs_of(faults: Sequence[Fault]) -> Iterator[Run]:
    """Plant each fault in a copy of its own and run its tests, ``JOBS`` faults at a time."""
    waiting, running = list(faults), list[Run]()
    while waiting or running:
        while waiting and len(running) < JOBS:
            fault = waiting.pop(0)
            running.append(Run(fault, fault.tests, SECONDS))
        for run in [run for run in running if run.is_done]:
            running.remove(run)
            yield run.finish()
        time.sleep(0.05)


def main(words: Sequence[str]) -> int:
    """Plant the chosen faults, and print what became of them; return the exit code."""
    if objections := [objection for fault in FAULTS if (objection := fault.objection())]:
        print("\n".join(objections), file=sys.stderr)
        return 1
    chosen = [f for f in FAULTS if not words or any(w in " ".join((f.file, f.reason, *f.tests)) for w in words)]
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    for name in (*PRELOADED, "transformers.generation.utils"):
        importlib.import_module(name)
    killed, others = 0, list[str]()
    for run in runs_of(chosen):
        line = f"{run.verdict:9} {run.seconds:4.0f} s  {run.fault.file}: {run.fault.reason}"
        print(f"{line}  [{run.found_by}]" if run.found_by else line, flush=True)
        killed += bool(run.found_by)
        others += [] if run.found_by else [line]
    share = f"{100 * killed / max(1, len(chosen)):.1f} %"
    print(f"\n{killed} of {len(chosen)} faults were found: {share}", *others, sep="\n")
    without = Run(None, sorted({test for fault in chosen for test in fault.tests}), float("inf")).finish()
    if without.verdict != "survived":
        print(f"without a fault, a test fails ({without.verdict}):\n{without.printed}")
    return 0 if killed >= WANTED * len(chosen) and without.verdict == "survived" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
