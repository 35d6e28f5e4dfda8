"""The faults of ``make mutants`` can still be planted."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.mutants.fault import ROOT, Fault
from tests.mutants.faults import FAULTS

PARTS = ("seqgen/generation/", "seqgen/modules/", "seqgen/training/", "seqgen/data/", "seqgen/checkpoints/", "models/")


def test_each_fault_can_be_planted() -> None:
    assert [objection for fault in FAULTS if (objection := fault.objection())] == []
    assert all(sum(fault.file.startswith(part) for fault in FAULTS) >= 5 for part in PARTS)
    for fault in FAULTS:  # a fault that cannot be imported would be found by any test
        ast.parse((ROOT / fault.file).read_text(encoding="utf-8").replace(fault.before, fault.after), fault.reason)
    assert len({(fault.file, fault.before, fault.after) for fault in FAULTS}) == len(FAULTS) >= 80


def test_what_the_pages_say_of_them() -> None:
    page, makefile = ((ROOT / name).read_text(encoding="utf-8") for name in ("docs/architecture.md", "Makefile"))
    (stated,) = re.findall(r"makes about (\d+) small faults", page)
    assert abs(int(stated) - len(FAULTS)) <= 0.1 * len(FAULTS)
    for word in re.findall(r"make mutants ONLY=([\w.]+)", page + makefile):
        assert any(fault.file.endswith(f"/{word}") for fault in FAULTS), word


def test_a_fault_that_no_longer_fits_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("a = 1\nb = 1\n")
    (tmp_path / "test_code.py").write_text("def test_a() -> None: ...")

    def objection(before: str, test: str = "test_code.py") -> str:
        return Fault("code.py", before, "a = 2", "a is 2", (test,)).objection(tmp_path)

    assert objection("a = 1") == ""
    assert "occurs 0 times" in objection("a = 3")
    assert "occurs 2 times" in objection("= 1")
    assert objection("a = 1", "test_code.py::test_a[x]") == ""
    assert "no test test_code.py::test_b" in objection("a = 1", "test_code.py::test_b")
    assert "no test other.py" in objection("a = 1", "other.py::test")
    Fault("code.py", "a = 1", "a = 2", "a is 2", ()).plant(tmp_path)
    assert (tmp_path / "code.py").read_text() == "a = 2\nb = 1\n"
