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


def takes_seed(cfg: GenerationConfig) -> bool:
    """Whether the search strategy takes its seed from the configuration; one of the user's own has its own."""
    return cfg.search in DRAWING or (cfg.sampling and not cfg.search)


def writes_one(cfg: GenerationConfig) -> bool:
    """Whether the search strategy writes one output whatever the beam."""
    return cfg.search in ("greedy", "contrastive")


def _stops_early(cfg: GenerationConfig) -> bool:
    """Whether beams compete until enough of them have finished, by Hugging Face's rules."""
    if not cfg.search:
        return cfg.beam > 1 or bool(cfg.constraints)
    return cfg.search not in ("greedy", "sampling", "contrastive", "exact", "stochastic_beam")


def max_len_b(cfg: GenerationConfig) -> int:
    """The limit that ``max_len_b`` sets; its default is lifted to a greater ``max_len`` that is given alone."""
    given = (cfg.max_len_a, cfg.max_len_b) != (GenerationConfig.max_len_a, GenerationConfig.max_len_b)
    return cfg.max_len_b if given else max(cfg.max_len, cfg.max_len_b)


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
        lambda cfg, semantics: draws(cfg),
        "narrows what is drawn, and nothing is drawn; give generation.sampling=true, or leave it out",
    ),
    Need(
        ("temperature",),
        lambda cfg, semantics: semantics == "fairseq" or draws(cfg),
        "has an effect on sampling alone by Hugging Face's rules; give generation.sampling=true, or leave it out",
    ),
    Need(
        ("seed",),
        lambda cfg, semantics: takes_seed(cfg),
        "has no effect, since no search strategy that takes it draws at random; give generation.sampling=true, or "
        "leave it out",
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
        lambda cfg, semantics: cfg.search == "contrastive",
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
        lambda cfg, semantics: cfg.beam > 1 and not writes_one(cfg),
        "compares hypotheses, and there is one; give generation.beam of 2 or more, and no greedy or contrastive "
        "search, which write one whatever the beam",
    ),
    Need(
        ("beam",),
        lambda cfg, semantics: cfg.beam == 1 or not writes_one(cfg),
        "has no effect, since greedy and contrastive search write one output whatever the beam; leave it out, or "
        "choose another search",
    ),
    Need(
        ("diversity_rate",),
        lambda cfg, semantics: cfg.diversity_rate >= 0,
        "is below 0 and has no effect; give a rate above 0, or leave it out",
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
        ("early_stopping",),
        lambda cfg, semantics: _stops_early(cfg),
        "says when a sentence has enough of several hypotheses that compete, and here none do; leave it out",
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
        lambda cfg, semantics: cfg.min_len < 2 or not cfg.match_source_len,
        "has no effect with generation.match_source_len=true; leave one out",
    ),
    Need(
        ("min_len",),
        lambda cfg, semantics: not cfg.max_len or cfg.min_len <= cfg.max_len,
        "is more than generation.max_len allows; lower the one or raise the other",
    ),
    Need(
        ("min_len",),
        lambda cfg, semantics: cfg.max_len_a > 0 or cfg.match_source_len or cfg.min_len <= max_len_b(cfg),
        "is more than generation.max_len_b allows; lower the one or raise the other",
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
