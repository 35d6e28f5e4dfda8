"""The faults: changes of the text of one file that an engineer could make. ``faults.yaml`` lists them by file."""

import re
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Fault:
    """A small change of one file that makes the code wrong.

    Attributes:
        file: the file, relative to the root of the repository.
        reason: what is wrong then, in one line.
        before: text that occurs exactly once in the file.
        after: what replaces it.
        tests: the tests that should fail, as arguments of pytest: test files, or single tests of them.
    """

    file: str
    reason: str
    before: str
    after: str
    tests: list[str]

    def objection(self) -> str:
        """Why the fault cannot be planted; empty if it can."""
        path = ROOT / self.file
        count = path.read_text(encoding="utf-8").count(self.before) if path.is_file() else 0
        if count != 1:
            return f"{self.file}: {self.before!r} occurs {count} times; update the fault ({self.reason})"
        missing = [test for test in self.tests if not _is_there(test)]
        return f"{self.file}: no test {missing[0]} ({self.reason})" if missing else ""

    def plant(self, root: Path) -> None:
        """Change the file below ``root``."""
        path = root / self.file
        path.write_text(path.read_text(encoding="utf-8").replace(self.before, self.after), encoding="utf-8")


def _is_there(test: str) -> bool:
    """True if an argument of pytest names a file, or a function or class in a file."""
    file, _, name = test.partition("::")
    if not (ROOT / file).is_file():
        return False
    last = name.partition("[")[0].rpartition("::")[2]
    text = (ROOT / file).read_text(encoding="utf-8")
    return not last or re.search(rf"(def|class) {last}\b|\b{last} = refusals\(", text) is not None


FAULTS = [
    Fault(file, **{**one, "tests": one["tests"] if isinstance(one["tests"], list) else [one["tests"]]})
    for file, found in yaml.safe_load(Path(__file__).with_name("faults.yaml").read_text(encoding="utf-8")).items()
    if not file.startswith("addons/") or (ROOT / file).parent.is_dir()  # an add-on that is not there has no faults
    for one in found
]
