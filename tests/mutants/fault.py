"""A fault that an engineer could make: one change of the text of a file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Fault:
    """A small change of one file that makes the code wrong.

    Attributes:
        file: the file, relative to the root of the repository.
        before: text that occurs exactly once in the file.
        after: what replaces it.
        reason: what is wrong then, in one line.
        tests: the tests that should fail, as arguments of pytest: test files, or single tests of them.
    """

    file: str
    before: str
    after: str
    reason: str
    tests: tuple[str, ...]

    def objection(self, root: Path = ROOT) -> str:
        """Why the fault cannot be planted; empty if it can."""
        path = root / self.file
        count = path.read_text(encoding="utf-8").count(self.before) if path.is_file() else 0
        if count != 1:
            return f"{self.file}: {self.before!r} occurs {count} times; update the fault ({self.reason})"
        if self.before == self.after:
            return f"{self.file}: {self.before!r} is replaced by itself ({self.reason})"
        missing = [test for test in self.tests if not _is_there(root, test)]
        return f"{self.file}: no test {missing[0]} ({self.reason})" if missing or not self.tests else ""

    def plant(self, root: Path) -> None:
        """Change the file below ``root``."""
        path = root / self.file
        path.write_text(path.read_text(encoding="utf-8").replace(self.before, self.after), encoding="utf-8")


def _is_there(root: Path, test: str) -> bool:
    """Whether an argument of pytest names a file, or a function or class in a file."""
    file, _, name = test.partition("::")
    if not (root / file).is_file():
        return False
    last = name.partition("[")[0].rpartition("::")[2]
    return not last or re.search(rf"(def|class) {last}\b", (root / file).read_text(encoding="utf-8")) is not None
