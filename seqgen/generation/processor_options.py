"""Construction of the logits processors of a configuration, in the order in which they are applied."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from seqgen.config import GenerationConfig
from seqgen.data.dictionary import Dictionary
from seqgen.generation.compatibility import WARPERS, draws
from seqgen.generation.component import Resources, build, naming
from seqgen.generation.processors.base import LogitsProcessor
from seqgen.generation.rules import Rules
from seqgen.registry import LOGITS_PROCESSORS

FLAT_KEYS: dict[str, tuple[str, Callable[[GenerationConfig], dict[str, Any]]]] = {
    "unkpen": ("unknown_penalty", lambda cfg: {"penalty": cfg.unkpen}),
    "sequence_bias": ("sequence_bias", lambda cfg: {"biases": cfg.sequence_bias}),
    "encoder_repetition_penalty": (
        "encoder_repetition_penalty",
        lambda cfg: {"penalty": cfg.encoder_repetition_penalty},
    ),
    "repetition_penalty": ("repetition_penalty", lambda cfg: {"penalty": cfg.repetition_penalty}),
    "no_repeat_ngram_size": ("no_repeat_ngram", lambda cfg: {"size": cfg.no_repeat_ngram_size}),
    "encoder_no_repeat_ngram_size": (
        "encoder_no_repeat_ngram",
        lambda cfg: {"size": cfg.encoder_no_repeat_ngram_size},
    ),
    "bad_words": ("bad_words", lambda cfg: {"texts": cfg.bad_words}),
    "min_len": ("minimum_length", lambda cfg: {"min_len": cfg.min_len}),
    "min_total_len": ("minimum_length", lambda cfg: {"min_len": cfg.min_total_len, "counts_prompt": True}),
    "match_source_len": ("minimum_length", lambda cfg: {"min_len": sys.maxsize, "yields": True}),
    "prefix_trie": ("prefix_trie", lambda cfg: {"file": cfg.prefix_trie}),
    "forced_first": ("force_first", lambda cfg: {"token": cfg.forced_first}),
    "forced_last": ("force_last", lambda cfg: {"token": cfg.forced_last}),
    "remove_invalid": ("remove_invalid", lambda cfg: {}),
    "exponential_decay_factor": (
        "exponential_decay",
        lambda cfg: {"start": cfg.exponential_decay_start, "factor": cfg.exponential_decay_factor},
    ),
    "suppress": ("forbid", lambda cfg: {"tokens": cfg.suppress}),
    "suppress_at_begin": (
        "forbid_first",
        lambda cfg: {"tokens": cfg.suppress_at_begin, "step": 1 if cfg.forced_first else 0},
    ),
    "temperature": ("temperature", lambda cfg: {"temperature": cfg.temperature}),
    "sampling_topk": ("top_k", lambda cfg: {"k": cfg.sampling_topk}),
    "sampling_topp": ("top_p", lambda cfg: {"p": cfg.sampling_topp}),
    "min_p": ("min_p", lambda cfg: {"p": cfg.min_p}),
    "typical_p": ("typical", lambda cfg: {"mass": cfg.typical_p}),
    "epsilon_cutoff": ("epsilon", lambda cfg: {"epsilon": cfg.epsilon_cutoff}),
    "eta_cutoff": ("eta", lambda cfg: {"epsilon": cfg.eta_cutoff}),
    "renormalize": ("renormalize", lambda cfg: {}),
}
"""Keys of the ``generation`` group that select a processor: the processor's name and its configuration values."""

NEUTRAL = {**vars(GenerationConfig()), "min_len": 0}
"""Values of these keys with which no processor is made."""


def processors_from_config(cfg: GenerationConfig, rules: Rules, resources: Resources) -> list[LogitsProcessor]:
    """Build all processors of a configuration, in the order of the rules; warpers come last.

    Args:
        cfg: the configuration.
        rules: fairseq's or Hugging Face's.
        resources: the target vocabulary and its tokenizer.

    Returns:
        The processors of ``FLAT_KEYS``, and those that ``generation.processors`` names.

    Raises:
        ConfigError: a token or text is not in the vocabulary, a bias is not a number, or a name is not registered.
        DataError: the file of allowed outputs cannot be used.
    """
    defaults = _defaults(cfg, rules, resources)
    without_keys = replace(cfg, components={})

    def make(keys: Sequence[str]) -> list[LogitsProcessor]:
        found = []
        for key in keys:
            if getattr(cfg, key) != NEUTRAL[key]:
                name, values = FLAT_KEYS[key]
                flat = {**defaults.get(name, {}), **values(cfg)}
                with naming(f"generation.{key}"):
                    found.append(build(LOGITS_PROCESSORS, name, LogitsProcessor, without_keys, resources, **flat))
        return found

    registered = []
    for name in cfg.processors:
        entry = LOGITS_PROCESSORS.entry(name)
        with naming(f"processor.{name}"):
            flat = defaults.get(entry.name, {})
            registered.append(build(LOGITS_PROCESSORS, name, LogitsProcessor, cfg, resources, **flat))
    words = resources.dictionary
    processors = rules.order(make, cfg, registered, None if words.pad() == words.eos() else words.pad())
    if not draws(cfg):
        return [*processors, *make(("renormalize",))]
    temperature = () if rules.divides_by_temperature_first else ("temperature",)
    return [*processors, *make((*temperature, *WARPERS, "renormalize"))]


def _defaults(cfg: GenerationConfig, rules: Rules, resources: Resources) -> dict[str, dict[str, Any]]:
    """Configuration values whose defaults depend on the rules or on the strategy, by name of the processor."""
    # if the beams of a sentence compete, a warper must keep one token besides all end tokens
    competing = cfg.beam > 1 and cfg.search not in ("", "sampling")
    keep = {"keep": 2 + len(resources.extra_end_tokens) if competing else 1}
    return {
        "minimum_length": {"yields": rules.minimum_yields},
        "force_first": {"keep_score": rules.keeps_forced_score},
        **{FLAT_KEYS[key][0]: keep for key in WARPERS},
    }


def end_tokens_from_config(cfg: GenerationConfig, dictionary: Dictionary) -> list[int]:
    """The ids of the tokens that end an output, without repetitions, end-of-sentence first.

    Args:
        cfg: the configuration.
        dictionary: the target vocabulary.

    Raises:
        ConfigError: a token is not in the vocabulary.
    """
    with naming("generation.end_symbols"):
        further = map(Resources(dictionary).token, cfg.end_symbols)
        return list(dict.fromkeys([dictionary.eos(), *further]))
