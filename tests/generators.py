"""Sequence generators for tests, made from plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from seqgen.config import DebugConfig, GenerationConfig
from seqgen.data.dictionary import Dictionary
from seqgen.generation.component import Resources
from seqgen.generation.ensemble.combinations import LogProbabilityMean, ProbabilityMean
from seqgen.generation.options import build_setup
from seqgen.generation.search.beam import BeamSearch
from seqgen.generation.sequence_generator import SequenceGenerator
from seqgen.model import EncoderDecoderModel

DEBUG = ("use_cache", "beam_table", "skip_log_softmax", "lazy_compaction")
OBJECTS = ("search_strategy", "processors", "stopping", "observers", "need_attention")
KEYS = {"beam_size": "beam", "len_penalty": "lenpen", "unk_penalty": "unkpen", "tokens_to_suppress": "suppress"}


def make_generator(models: Sequence[EncoderDecoderModel], words: Dictionary, **options: Any) -> SequenceGenerator:
    """A generator, by default for beam search with one beam.

    Args:
        models: the models.
        words: the target vocabulary.
        options: fields of ``GenerationConfig``, by its names or fairseq's; fields of ``DebugConfig``; objects for
            ``build_setup``; ``average`` and ``weights`` of the members; and ``end_tokens``, ids.
    """
    debug = {name: options.pop(name) for name in DEBUG if name in options}
    if isinstance(debug.get("beam_table"), bool):
        debug["beam_table"] = "on" if debug["beam_table"] else "off"
    objects = {name: options.pop(name) for name in OBJECTS if name in options}
    objects["search_strategy"] = objects.get("search_strategy") or BeamSearch()
    mean = LogProbabilityMean if options.pop("average", "probability") == "log" else ProbabilityMean
    combination = options.pop("combination", None) or mean(options.pop("weights", ()))
    changes = {name: options.pop(name) for name in ("temperature", "early_stopping") if name in options}
    values = {"beam": 1, **{KEYS.get(name, name): value for name, value in options.items()}}
    if not values.pop("normalize_scores", True):
        values["unnormalized"] = True
    if end_tokens := values.pop("end_tokens", ()):
        values["end_symbols"] = [words.symbol(token) for token in end_tokens]
    cfg, switches = GenerationConfig(**values), DebugConfig(**debug)
    setup = build_setup(models, words, cfg, combination=combination, debug=switches, **objects)
    return SequenceGenerator(replace(setup, **changes))


def resources(words: Dictionary, encode: Any = None) -> Resources:
    """What components are built from: a vocabulary, and ``encode`` of a tokenizer."""
    return Resources(words, encode)
