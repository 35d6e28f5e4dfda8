"""The members of an ensemble: the source that each reads, by name, and a member that plans its steps."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from typing import Any

from seqgen.core.errors import ConfigError
from seqgen.core.member import EMPTY, INPUT, Member, MemberSpec
from seqgen.core.model import EncoderDecoderModel
from seqgen.core.structures import Source
from seqgen.modules.step_plan import StepPlan
from seqgen.registry import MEMBER_SOURCES
from seqgen.system.devices import turn_off_cudnn_attention

_FIELD = re.compile(r"field([1-9]\d?)")


def input_of(member: MemberSpec) -> str:
    """The source that is encoded for a member: ``source``, or ``"input"`` if a subclass makes another source."""
    source = member.source
    return source if source == EMPTY or _FIELD.fullmatch(source) or MEMBER_SOURCES.find(source) else INPUT


def field_of(source: str) -> int:
    """The number ``N`` of ``"fieldN"``; 0 for any other source.

    Raises:
        ConfigError: ``source`` is not a valid source.
    """
    if source in (INPUT, EMPTY) or MEMBER_SOURCES.find(source) is not None:
        return 0
    if (found := _FIELD.fullmatch(source)) is None:
        raise ConfigError(
            f"generation.member_sources: {source!r} is not a source; a member reads input, empty, fieldN (the N-th "
            "tab-separated field of the line), or a source that is registered"
        )
    return int(found[1])


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
