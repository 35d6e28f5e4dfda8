"""The key of lists of probable tokens, see ``top_tokens``."""

from __future__ import annotations

from dataclasses import dataclass

from seqgen.config.options import CALL, KEEPS_SCORES, NEEDS_STEPS, NOT_IN_TRAINING, decoding_key


@dataclass
class TopTokensOptions:
    """The most probable tokens at each position."""

    top_tokens: int = decoding_key(
        0,
        "number of most probable tokens that are listed with their probabilities for each output token; 0 for none",
        CALL | KEEPS_SCORES | NEEDS_STEPS | NOT_IN_TRAINING,
        minimum=0,
        maximum=1000,
    )
