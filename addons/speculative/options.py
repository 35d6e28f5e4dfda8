"""The keys of speculative decoding."""

from __future__ import annotations

from dataclasses import dataclass

from seqgen.config import CONSTRAINS, FILES, KEEPS_SCORES, MODEL, NOT_IN_TRAINING, Requirement, decoding_key

_UNCONSTRAINED = Requirement(
    lambda cfg: not cfg.is_constrained, "drafts tokens, which {keys} exclude; choose one", CONSTRAINS
)


@dataclass
class DraftOptions:
    """What drafts tokens, and how many."""

    draft: str = decoding_key(
        "",
        "speculative decoding: run or checkpoint of a smaller model that drafts tokens for this one",
        FILES | KEEPS_SCORES | NOT_IN_TRAINING,
        Requirement(lambda cfg: cfg.prompt_lookup == 0, "and generation.prompt_lookup both draft; choose one"),
        _UNCONSTRAINED,
        role="input_path",
    )
    draft_tokens: int = decoding_key(
        5,
        "speculative decoding: number of tokens drafted at a time",
        MODEL | KEEPS_SCORES,
        Requirement(
            lambda cfg: cfg.draft or cfg.prompt_lookup > 0,
            "has no effect without a draft; set generation.draft or generation.prompt_lookup, or remove it",
        ),
        minimum=1,
    )
    prompt_lookup: int = decoding_key(
        0,
        "n-gram drafter: maximum length of the output's last n-gram that is searched in the source; the tokens that "
        "follow it there are the draft; 0 for off",
        MODEL | KEEPS_SCORES,
        _UNCONSTRAINED,
        minimum=0,
    )
