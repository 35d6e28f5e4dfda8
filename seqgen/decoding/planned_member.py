"""A member whose modules look up their functions once for a batch."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from seqgen.core.member import Member
from seqgen.core.model import EncoderDecoderModel
from seqgen.core.structures import Source
from seqgen.modules.step_plan import StepPlan
from seqgen.system.devices import turn_off_cudnn_attention


class PlannedMember(Member):
    """See ``Member``; a plan of its decoding steps is active while it computes.

    Attributes:
        plan: the functions of the modules, which are the same at every step.
    """

    def __init__(self, model: EncoderDecoderModel, source: Source, *arguments: Any):
        self.plan = StepPlan()
        if source.src_tokens.device.type == "cuda":
            turn_off_cudnn_attention()
        super().__init__(model, source, *arguments)

    def computing(self) -> AbstractContextManager[object]:
        """See ``Member.computing``."""
        return self.plan.active()
