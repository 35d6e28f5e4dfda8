"""A line stage: gives each translation the numbers of its source that it lacks, and counts them.

``seqgen-generate common.user_dir=examples/extending/line_stage.py path=runs/a input=test.en format=json``
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from seqgen.extend import InputLine, LineOrder, LineStage, Translation, register_line_stage


@register_line_stage("numbers")
class NumbersStage(LineStage):
    """Adds ``translation.lacking``, the numbers of the source that the output does not have."""

    order = LineOrder.RESULTS

    def write(self, line: InputLine, translation: Translation) -> Translation:
        """Compare the numbers; see ``LineStage``."""
        found = re.findall(r"\d+", translation.text)
        return translation.with_extra("lacking", [each for each in re.findall(r"\d+", line.text) if each not in found])

    def joined(self, whole: Translation, parts: Sequence[Translation]) -> Translation:
        """List the numbers that any sentence of a line lacks; see ``LineStage``."""
        return whole.with_extra("lacking", [each for part in parts for each in part.lacking])

    def record(self, translation: Translation) -> Mapping[str, Any]:
        """List the numbers in JSON; see ``LineStage``."""
        return {"lacking": lacking} if (lacking := translation.extras.get("lacking")) else {}

    def counts(self, translation: Translation) -> Mapping[str, int]:
        """Count the numbers; see ``LineStage``."""
        return {"lacking": len(translation.lacking)}

    @classmethod
    def summary(cls, sums: Mapping[str, int]) -> str:
        """Say how many numbers are missing; see ``LineStage``."""
        return f"numbers of the sources that outputs lack: {sums['lacking']}" if sums["lacking"] else ""
