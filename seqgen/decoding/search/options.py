"""The keys of search: beam, strategy and sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from seqgen.config.options import (
    CONSTRAINED,
    CONSTRAINS,
    KEEPS_SCORES,
    MODEL,
    NOT_IN_TRAINING,
    STRATEGY,
    WARPER,
    WHOLE_LINE,
    Requirement,
    decoding_key,
)

WIDEST = 1 << 16
"""Largest beam: the scores of a vocabulary of 32,000 tokens then have 8 GiB."""

_SAMPLES = Requirement(
    lambda cfg: cfg.is_stochastic,
    "truncates the distribution for sampling, which is not in use; set generation.sampling=true, or remove it",
)


def _warper(default: float, help: str, minimum: float = 0, **declaration: Any) -> Any:
    """Declare a key that truncates the distribution; see ``option``."""
    return decoding_key(default, help, MODEL | WARPER, _SAMPLES, minimum=minimum, **declaration)


@dataclass
class BeamOptions:
    """How many hypotheses are searched and returned, and by whose rules."""

    semantics: str = decoding_key(
        "",
        "toolkit whose rules decide when hypotheses are finished and how they are ranked; empty for huggingface with "
        "models in Hugging Face's layout, else fairseq",
        MODEL | KEEPS_SCORES,
        choices=("", "fairseq", "huggingface"),
    )
    beam: int = decoding_key(
        5,
        "beam size: hypotheses kept at each step; 1 for greedy search",
        MODEL | KEEPS_SCORES,
        Requirement(
            lambda cfg: cfg.beam == 1 or not cfg.declared("generates_one", False),
            "has no effect, because greedy and contrastive search generate one output whatever the beam; "
            "remove it, or choose another search",
        ),
        minimum=1,
        maximum=WIDEST,
        limit_from_files=1000,
        other_names=("num_beams",),
    )
    nbest: int = decoding_key(
        1,
        "number of hypotheses returned per sentence",
        MODEL | WHOLE_LINE | KEEPS_SCORES | NOT_IN_TRAINING,
        Requirement(
            lambda cfg: cfg.nbest <= cfg.beam, "is more than generation.beam; decrease it, or increase generation.beam"
        ),
        Requirement(
            lambda cfg: cfg.search != "greedy",
            "is more than 1, but greedy search generates one hypothesis; choose another search",
        ),
        minimum=1,
        limit_from_files=1000,
        other_names=("num_return_sequences",),
    )


@dataclass
class StrategyOptions:
    """The search strategy, and phrases that outputs must contain."""

    search: str = decoding_key(
        "", "search strategy, by name; empty for the one selected by constraints or sampling, else beam search", MODEL
    )
    constraints: str = decoding_key(
        "",
        "every output must contain the phrases that follow tabs in its input line, in this order (ordered) or in any "
        "order (unordered); a|b requires one of two phrases",
        MODEL | STRATEGY | CONSTRAINS | WHOLE_LINE | NOT_IN_TRAINING,
        *CONSTRAINED,
        choices=("", "ordered", "unordered"),
    )


@dataclass
class SamplingOptions:
    """Sampling, and the warpers that truncate the distribution."""

    sampling: bool = decoding_key(
        False,
        "sample tokens at random; with search=beam_sampling, sample the candidates of beam search",
        MODEL,
        Requirement(
            lambda cfg: cfg.declared("is_stochastic", None) is not False,
            "draws at random, and the strategy that generation.search names does not; choose one",
        ),
        other_names=("do_sample",),
    )
    top_k: int = _warper(
        0, "top-k: sample from the k most probable tokens; 0 for all tokens", other_names=("sampling_topk",)
    )
    top_p: float = _warper(
        1.0,
        "top-p: sample from the smallest set of tokens with this total probability",
        maximum=1,
        other_names=("sampling_topp",),
    )
    min_p: float = _warper(0.0, "sample from tokens with at least min_p times the highest probability", maximum=1)
    typical_p: float = _warper(
        1.0,
        "typical sampling: sample from the most typical tokens with this total probability",
        minimum=1e-6,
        maximum=1,
    )
    epsilon_cutoff: float = _warper(0.0, "sample from tokens with at least this probability", maximum=1)
    eta_cutoff: float = _warper(
        0.0, "eta sampling: as epsilon_cutoff, but the threshold is lower where the entropy is high", maximum=1
    )
    seed: int = decoding_key(
        1,
        "seed of sampling; random numbers depend only on the seed, the line number and the step",
        MODEL | STRATEGY | KEEPS_SCORES,
        Requirement(
            lambda cfg: cfg.uses_seed,
            "has no effect, because the search strategy does not use it; set generation.sampling=true, or remove it",
        ),
        minimum=0,
    )
