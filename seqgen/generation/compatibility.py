"""Compatibility of the keys of the ``generation`` group: combinations that contradict each other are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from seqgen.config import GenerationConfig
from seqgen.config.generation import WARPER, keys_with
from seqgen.config.values import to_dict, value_text
from seqgen.errors import ConfigError
from seqgen.generation.rules import DRAWING, draws, rules_named

NOT_DRAWING = (
    "beam", "greedy", "diverse_beam", "diverse_siblings", "constrained", "contrastive", "exact", "marian"
)  # fmt: skip
"""The built-in strategies that draw no random numbers."""


NEUTRAL = to_dict(GenerationConfig())
"""The defaults."""


def restricting(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are not the defaults, without a ``min_len`` of 0: it only forbids less than the default."""
    changed = {key: value for key, value in values.items() if value != NEUTRAL.get(key, value)}
    return {key: value for key, value in changed.items() if (key, value) != ("min_len", 0)}


def takes_seed(cfg: GenerationConfig) -> bool:
    """Whether the search strategy uses ``generation.seed``; a user's own strategy has a seed key of its own."""
    return cfg.search in DRAWING or (cfg.sampling and not cfg.search)


def writes_one(cfg: GenerationConfig) -> bool:
    """Whether the search strategy generates a single output, whatever the beam."""
    return cfg.search in ("greedy", "contrastive")


def _stops_early(cfg: GenerationConfig) -> bool:
    """Whether several hypotheses compete until enough have finished, so that ``early_stopping`` has an effect."""
    if not cfg.search:
        return cfg.beam > 1 or bool(cfg.constraints)
    return cfg.search not in ("greedy", "sampling", "contrastive", "exact", "stochastic_beam", "marian")


def max_len_b(cfg: GenerationConfig) -> int:
    """The effective ``max_len_b``: its default is raised to ``max_len`` if that is larger and given alone."""
    given = (cfg.max_len_a, cfg.max_len_b) != (GenerationConfig.max_len_a, GenerationConfig.max_len_b)
    return cfg.max_len_b if given else max(cfg.max_len, cfg.max_len_b)


class Need(NamedTuple):
    """A requirement of some keys on the other keys.

    Attributes:
        keys: names of fields; a key counts as given if ``restricting`` has it.
        met: whether a configuration meets the requirement.
        sentence: the error message without its beginning "generation.KEY=VALUE ".
    """

    keys: tuple[str, ...]
    met: Callable[[GenerationConfig], bool]
    sentence: str


NEEDS = (
    Need(
        keys_with(WARPER),
        draws,
        "truncates the distribution for sampling, which is not in use; give generation.sampling=true, or leave it out",
    ),
    Need(
        ("seed",),
        takes_seed,
        "has no effect, because the search strategy does not use it; give generation.sampling=true, or leave it out",
    ),
    Need(
        ("sampling",),
        lambda cfg: cfg.search not in NOT_DRAWING,
        "draws at random, and the strategy that generation.search names does not; choose one",
    ),
    Need(
        ("sampling",),
        lambda cfg: not cfg.constraints,
        "is one search strategy, and generation.constraints is another; choose one",
    ),
    Need(
        ("constraints",),
        lambda cfg: cfg.search in ("", "constrained"),
        "is constrained search, and generation.search names another strategy; choose one",
    ),
    Need(
        ("constraints",),
        lambda cfg: cfg.beam > 1,
        "with one beam would begin every output with the phrases; set generation.beam to 2 or more",
    ),
    Need(
        ("draft_tokens",),
        lambda cfg: bool(cfg.draft) or cfg.prompt_lookup > 0,
        "has no effect without a draft; give generation.draft or generation.prompt_lookup, or leave it out",
    ),
    Need(("draft",), lambda cfg: cfg.prompt_lookup == 0, "and generation.prompt_lookup both draft; choose one"),
    Need(
        ("shortlist",),
        lambda cfg: not cfg.prefix_trie,
        "and generation.prefix_trie both limit the tokens, and together they may allow no output; choose one",
    ),
    Need(
        ("input_split_lang",),
        lambda cfg: bool(cfg.input_split),
        "has no effect without generation.input_split; give both or neither",
    ),
    Need(
        ("input_split",),
        lambda cfg: (
            cfg.input_split == "note" or not (cfg.nbest > 1 or cfg.constraints or cfg.members or cfg.certificate)
        ),
        "gives one output of the whole line, without generation.nbest, generation.constraints, generation.members and "
        "generation.certificate; leave one out",
    ),
    Need(("rerank",), lambda cfg: not cfg.mbr, "and generation.mbr both rank the hypotheses; choose one"),
    Need(
        ("certificate",),
        lambda cfg: not (cfg.mbr or cfg.rerank),
        "is about the order of scores, and generation.mbr or generation.rerank changes it; choose one",
    ),
    Need(
        ("mbr", "rerank"),
        lambda cfg: cfg.beam > 1 and not writes_one(cfg),
        "compares hypotheses, but only one is generated; set generation.beam to 2 or more, and do not use greedy or "
        "contrastive search, which ignore the beam",
    ),
    Need(
        ("beam",),
        lambda cfg: cfg.beam == 1 or not writes_one(cfg),
        "has no effect, because greedy and contrastive search generate one output whatever the beam; leave it out, or "
        "choose another search",
    ),
    Need(
        ("exponential_decay_start",),
        lambda cfg: cfg.exponential_decay_factor != 1,
        "has no effect without generation.exponential_decay_factor; give both or neither",
    ),
    Need(
        ("early_stopping",),
        _stops_early,
        "determines when enough competing hypotheses have finished, and here none compete; leave it out",
    ),
    Need(
        ("lenpen", "length_penalty"),
        lambda cfg: not cfg.unnormalized,
        "has no effect with generation.unnormalized=true; leave one out",
    ),
    Need(
        ("max_len_a", "max_len_b", "min_total_len", "min_len"),
        lambda cfg: not cfg.match_source_len,
        "has no effect with generation.match_source_len=true; leave one out",
    ),
    Need(
        ("min_len",),
        lambda cfg: not cfg.max_len or cfg.min_len <= cfg.max_len,
        "is more than generation.max_len allows; decrease it, or increase generation.max_len",
    ),
    Need(
        ("min_len",),
        lambda cfg: cfg.max_len_a > 0 or cfg.match_source_len or cfg.min_len <= max_len_b(cfg),
        "is more than generation.max_len_b allows; decrease it, or increase generation.max_len_b",
    ),
    Need(
        ("nbest",),
        lambda cfg: cfg.nbest <= cfg.beam,
        "is more than generation.beam; decrease it, or increase generation.beam",
    ),
    Need(
        ("nbest",),
        lambda cfg: cfg.search != "greedy",
        "is more than 1, but greedy search generates one hypothesis; choose another search",
    ),
)
"""All requirements, in the order in which they are checked."""


def check_compatible(cfg: GenerationConfig) -> None:
    """Refuse keys that exclude each other, or that have no effect without another key or under the rules in use.

    Args:
        cfg: the configuration.

    Raises:
        ConfigError: names the first such key, the reason and what to do.
    """
    for key, reason in incompatible(cfg):
        raise ConfigError(f"generation.{key}={value_text(getattr(cfg, key))} {reason}")


def incompatible(cfg: GenerationConfig) -> Iterator[tuple[str, str]]:
    """Find the keys that ``check_compatible`` refuses.

    Args:
        cfg: the configuration.

    Yields:
        Pairs of a key and the reason.
    """
    given = restricting(to_dict(cfg))
    for need in NEEDS:
        for key in need.keys:
            if key in given and not need.met(cfg):
                yield key, need.sentence
    rules = rules_named(cfg.semantics)
    for key in given:
        if reason := rules.objection(cfg, key):
            yield key, reason
