"""Settings for all tests, and which tests need an add-on that is not installed."""

import ast
import functools
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

import seqgen.models
import seqgen.tasks  # noqa: F401  # declares what the tests name, so that each test file also runs alone
from seqgen.config.added_options import _decorate_again
from seqgen.config.generation import KEYS_OF_ADDONS, Options
from seqgen.config.values import DEFAULTS
from seqgen.registry import MissingAddonError
from tests.browser import browser  # noqa: F401  # fixtures of all tests
from tests.commands import data, runs  # noqa: F401
from tests.training_runs import lab  # noqa: F401

# The tensors of the tests are so small that a second thread makes them slower, above all on a busy machine.
torch.set_num_threads(1)

# The same examples in every run, and no time limit for an example, since a busy machine could exceed it.
settings.register_profile("seqgen", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("seqgen")

# Processes that tests start inherit ignored signals, as in `make test &` and under nohup, but not handlers.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

ROOT = Path(__file__).parent.parent


@functools.cache
def imported(file: Path) -> frozenset[str]:
    """The names that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update((node.module, *(f"{node.module}.{alias.name}" for alias in node.names)))
    return frozenset(found)


def addons_of(test: Path) -> set[str]:
    """The add-ons that a test needs: that of its folder, and those that it or a module of the checkout imports."""
    parts = test.relative_to(ROOT / "tests").parts
    found, files = {parts[1]} if parts[0] == "addons" and len(parts) > 2 else set(), [test]
    for file in files:  # grows
        for name in imported(file):
            if name.startswith("seqgen.addons."):
                found.add(name.split(".")[2])
            module = (ROOT / name.replace(".", "/")).with_suffix(".py")
            if name.startswith(("tests.", "examples.")) and module.is_file() and module not in files:
                files.append(module)
    return found


def is_installed(addon: str) -> bool:
    return find_spec(f"seqgen.addons.{addon}") is not None


def of_installed(keys: Iterable[str]) -> set[str]:
    """The keys without those that add-ons declare which are not installed."""
    return {key for key in keys if key not in KEYS_OF_ADDONS or is_installed(KEYS_OF_ADDONS[key][0])}


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out the tests of add-ons that are not installed: no test needs a condition of its own."""
    is_test = collection_path.suffix == ".py" and collection_path.name.startswith("test_")
    return True if is_test and not all(map(is_installed, addons_of(collection_path))) else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Skip a test that runs the command of an add-on which is not installed."""
    try:
        yield
    except MissingAddonError as error:
        pytest.skip(str(error))


pytest_runtest_setup = pytest_runtest_call


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say at the end why tests were skipped, so that a user knows which references they were not compared with."""
    skipped = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", [])]
    for reason, count in Counter(skipped).most_common():
        terminalreporter.write_line(f"{count} not run: {reason.removeprefix('Skipped: ')}")


@pytest.fixture(autouse=True)
def added_keys_are_forgotten() -> Iterator[None]:
    """Keys that a user's file adds in a test do not get into the runs that later tests write."""
    bases, defaults = Options.__bases__, {**DEFAULTS}
    yield
    if Options.__bases__ != bases:
        Options.__bases__ = bases
        _decorate_again()
        DEFAULTS.clear()
        DEFAULTS.update(defaults)
