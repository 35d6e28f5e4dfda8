"""The base class of all readers that are fuzzed."""

from __future__ import annotations

import os
import random
import shutil
from abc import ABC, abstractmethod
from pathlib import Path

from tests.fuzzing.sandbox import SECONDS, Failure, Sandbox


class Reader(ABC):
    """A reader of seqgen, with a generator of inputs and a check of what it reads.

    Args:
        scratch: a folder for intact inputs.
    """

    name = ""
    cases = 10_000
    """Cases of ``make fuzz``."""
    seconds = SECONDS
    fast_cases = 150
    """Cases in the fast tests; the rest of 300 are in the slow ones."""

    def __init__(self, scratch: Path):
        self.scratch = scratch

    @abstractmethod
    def write(self, folder: Path, canary: Path, rng: random.Random) -> None:
        """Write one input.

        Args:
            folder: an empty folder.
            canary: a file that malicious inputs should try to create.
            rng: all choices come from it.
        """

    @abstractmethod
    def read(self, folder: Path) -> None:
        """Read the input.

        Args:
            folder: the folder.

        Raises:
            Wrong: the result is not the right one.
            UserError: the input cannot be used.
        """


class Bench:
    """Runs the cases of a reader.

    Args:
        kind: the class of the reader.
        root: an empty folder.
    """

    def __init__(self, kind: type[Reader], root: Path):
        self.sandbox = Sandbox(root / "sandbox")
        (root / "scratch").mkdir()
        self.reader = kind(root / "scratch")

    def case(self, number: int, seed: int = 0) -> str | None:
        """Run one case.

        Args:
            number: its number; the same number and seed give the same input.
            seed: the seed.

        Returns:
            The sentence with which the input was refused; ``None`` if it was read correctly.

        Raises:
            Failure: see ``Sandbox.run``; the message has the command that repeats the case.
        """
        clear(self.sandbox.folder)
        rng = random.Random(f"{self.reader.name} {seed} {number}")
        self.reader.write(self.sandbox.folder, self.sandbox.canary, rng)
        try:
            return self.sandbox.run(lambda: self.reader.read(self.sandbox.folder), self.reader.seconds)
        except Failure as failure:
            failure.add_note(f"repeat it with: {repeat(self.reader.name, seed, number)}")
            raise


def repeat(name: str, seed: int, number: int) -> str:
    """The command that runs one case again."""
    return f"python -m tests.fuzzing reader={name} seed={seed} first={number} cases=1"


def clear(folder: Path) -> None:
    """Remove what a folder contains."""
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)


def link(original: Path, folder: Path) -> None:
    """Copy a folder by hard links; a file that is to be changed must be replaced by a new one."""
    shutil.copytree(original, folder, copy_function=os.link, dirs_exist_ok=True)


def replace(path: Path, content: bytes) -> None:
    """Write a file without changing one that has hard links."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)
