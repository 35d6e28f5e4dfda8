"""Which keys of the ``generation`` group go together; the others are refused with the reason."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from seqgen.config import GenerationConfig
from seqgen.errors import ConfigError

DRAWING = ("sampling", "beam_sampling", "stochastic_beam")
"""The built-in strategies that draw at random."""

NOT_DRAWING = (
    "beam", "greedy", "diverse_beam", "diverse_siblings", "constrained", "contrastive", "exact"
)  # fmt: skip
"""The built-in strategies that do not."""


def draws(cfg: GenerationConfig) -> bool:
    """Whether a configuration asks for something to be drawn at random."""
    return cfg.sampling or cfg.search in DRAWING


def of_a_user(cfg: GenerationConfig) -> bool:
    """Whether the search strategy is none of the built-in ones, so that nobody knows what it reads."""
    return cfg.search not in ("", *DRAWING, *NOT_DRAWING)


class Need(NamedTuple):
    """Some keys that mean nothing without others.

    Attributes:
        keys: names of fields; one counts as given where its value is not the default.
        met: whether a configuration, under some semantics, has what they need.
        sentence: what they need, after "generation.KEY=VALUE ".
    """

    keys: tuple[str, ...]
    met: Callable[[GenerationConfig, str], bool]
    sentence: str


CUTOFFS = ("sampling_topk", "sampling_topp", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")

NEEDS = (
    Need(
        CUTOFFS,
        lambda cfg, semantics: draws(cfg) or of_a_user(cfg),
        "narrows what is drawn, and nothing is drawn; give generation.sampling=true, or leave it out",
    ),
    Need(
        ("temperature",),
        lambda cfg, semantics: semantics == "fairseq" or draws(cfg) or of_a_user(cfg),
        "has an effect on sampling alone by Hugging Face's rules; give generation.sampling=true, or leave it out",
    ),
    Need(
        ("sampling",),
        lambda cfg, semantics: cfg.search not in NOT_DRAWING,
        "draws at random, and the strategy that generation.search names does not; choose one",
    ),
    Need(
        ("sampling",),
        lambda cfg, semantics: cfg.diverse_beam_groups < 1 and cfg.diversity_rate <= 0 and not cfg.constraints,
        "is one search strategy, and generation.diverse_beam_groups, diversity_rate and constraints are others; "
        "choose one",
    ),
    Need(
        ("diverse_beam_strength",),
        lambda cfg, semantics: cfg.diverse_beam_groups > 0,
        "has no effect without generation.diverse_beam_groups; give both or neither",
    ),
    Need(
        ("penalty_alpha", "contrastive_topk"),
        lambda cfg, semantics: cfg.search == "contrastive" or of_a_user(cfg),
        "belongs to contrastive search; give generation.search=contrastive, or leave it out",
    ),
    Need(
        ("draft_tokens",),
        lambda cfg, semantics: bool(cfg.draft) or cfg.prompt_lookup > 0,
        "has no effect without a draft; give generation.draft or generation.prompt_lookup, or leave it out",
    ),
    Need(
        ("draft",),
        lambda cfg, semantics: cfg.prompt_lookup == 0,
        "and generation.prompt_lookup both draft; choose one",
    ),
    Need(
        ("mbr",),
        lambda cfg, semantics: cfg.beam > 1 and cfg.search not in ("greedy", "contrastive"),
        "compares hypotheses, and there is one; give generation.beam of 2 or more, and no greedy or contrastive "
        "search, which write one whatever the beam",
    ),
    Need(
        ("exponential_decay_start",),
        lambda cfg, semantics: cfg.exponential_decay_factor != 1,
        "has no effect without generation.exponential_decay_factor; give both or neither",
    ),
    Need(
        ("early_stopping",),
        lambda cfg, semantics: semantics == "huggingface",
        "belongs to Hugging Face's rules; give generation.semantics=huggingface, or leave it out",
    ),
    Need(
        ("forced_last",),
        lambda cfg, semantics: semantics == "huggingface",
        "belongs to Hugging Face's rules, and by fairseq's every output ends with end-of-sentence; give "
        "generation.semantics=huggingface, or leave it out",
    ),
    Need(
        ("lenpen", "length_penalty"),
        lambda cfg, semantics: not cfg.unnormalized,
        "has no effect with generation.unnormalized=true; leave one out",
    ),
    Need(
        ("max_len_a", "max_len_b"),
        lambda cfg, semantics: not cfg.match_source_len,
        "has no effect with generation.match_source_len=true; leave one out",
    ),
    Need(
        ("min_len",),
        lambda cfg, semantics: not cfg.max_len or cfg.min_len <= cfg.max_len,
        "is more than generation.max_len allows; lower the one or raise the other",
    ),
    Need(
        ("nbest",),
        lambda cfg, semantics: cfg.nbest <= cfg.beam,
        "hypotheses are more than generation.beam keeps; lower the one or raise the other",
    ),
    Need(
        ("nbest",),
        lambda cfg, semantics: cfg.search != "greedy",
        "hypotheses are more than the one that greedy search writes; choose another search",
    ),
)
"""What is refused, in the order in which it is looked for."""


def check_combinations(cfg: GenerationConfig, semantics: str = "") -> None:
    """Refuse keys that exclude each other, or of which one means nothing without another.

    Args:
        cfg: the configuration.
        semantics: ``"fairseq"`` or ``"huggingface"``; if not given, what the configuration says, or else fairseq.

    Raises:
        ConfigError: the first such combination, the reason and the remedy.
    """
    semantics = semantics or cfg.semantics or "fairseq"
    neutral = dataclasses.asdict(GenerationConfig())
    for need in NEEDS:
        for key in need.keys:
            value = getattr(cfg, key)
            if value != neutral[key] and not need.met(cfg, semantics):
                shown = str(value).lower() if isinstance(value, bool) else value
                raise ConfigError(f"generation.{key}={shown} {need.sentence}")
