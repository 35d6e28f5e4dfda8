"""The faults of ``make mutants`` can still be planted."""

import ast
import re

from tests.mutants.faults import FAULTS, ROOT

PARTS = ("core", "decoding", "modules", "training", "data", "checkpoints")
PLACES = (*(f"seqgen/{part}/" for part in PARTS), "models/")


def test_each_fault_can_be_planted() -> None:
    assert [objection for fault in FAULTS if (objection := fault.objection())] == []
    assert all(sum(fault.file.startswith(part) for fault in FAULTS) >= 5 for part in PLACES)
    for fault in FAULTS:  # a fault that cannot be imported would be found by any test
        ast.parse((ROOT / fault.file).read_text(encoding="utf-8").replace(fault.before, fault.after), fault.reason)
    assert len({(fault.file, fault.before, fault.after) for fault in FAULTS}) == len(FAULTS)


def test_the_words_of_the_pages_choose_faults() -> None:
    texts = "".join((ROOT / name).read_text(encoding="utf-8") for name in ("docs/architecture.md", "Makefile"))
    for word in re.findall(r"make mutants ONLY=([\w.]+)", texts):
        assert any(fault.file.endswith(f"/{word}") for fault in FAULTS), word
