"""The keys of protected spans and of checks of outputs; docs/paragraphs.md."""

from __future__ import annotations

from dataclasses import dataclass

from seqgen.config import CALL, INPUT, KEEPS_SCORES, NOT_IN_TRAINING, Requirement, decoding_key

_WHOLE = Requirement(lambda cfg: not cfg.member_sources, "changes what generation.member_sources divides; remove one")
_KEPT = "what outputs must keep: placeholders, tags, urls, numbers, code, signs, case, and texts of regular expressions"
_CHECKED = "mark outputs for review that are copies of the source, untranslated, much too short, or repeat themselves"


@dataclass
class ProtectOptions:
    """What an output must keep of its source, and what a bad one has."""

    protect: list[str] = decoding_key([], _KEPT, INPUT | KEEPS_SCORES | NOT_IN_TRAINING, _WHOLE)
    check_outputs: bool = decoding_key(False, _CHECKED, CALL | KEEPS_SCORES | NOT_IN_TRAINING)
