"""Sequence generators for tests, made from plain values."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from seqgen.config import FastConfig, GenerationConfig
from seqgen.core.model import EncoderDecoderModel
from seqgen.decoding.combinations import LogProbabilityMean
from seqgen.extend import BeamSearch, Dictionary, ProbabilityMean, Resources, Search, SequenceGenerator, build_setup
from tests.scripted_model import Rule, ScriptedModel, dictionary

FAST = ("use_cache", "beam_indirection", "skip_log_softmax", "lazy_compaction", "cuda_graphs")
OBJECTS = ("search_strategy", "processors", "stopping", "observers", "need_attention")
KEYS = {"beam_size": "beam", "len_penalty": "length_penalty", "unk_penalty": "unkpen", "tokens_to_suppress": "suppress"}


def make_generator(models: Sequence[EncoderDecoderModel], words: Dictionary, **options: Any) -> SequenceGenerator:
    """A generator, by default for beam search with one beam.

    Args:
        models: the models.
        words: the target vocabulary.
        options: fields of ``GenerationConfig``, by its names or fairseq's; fields of ``FastConfig``; objects for
            ``build_setup``; ``average`` and ``weights`` of the members; and ``end_tokens``, ids.
    """
    fast = {name: options.pop(name) for name in FAST if name in options}
    if isinstance(fast.get("beam_indirection"), bool):
        fast["beam_indirection"] = "on" if fast["beam_indirection"] else "off"
    objects = {name: options.pop(name) for name in OBJECTS if name in options}
    objects["search_strategy"] = objects.get("search_strategy") or BeamSearch()
    mean = LogProbabilityMean if options.pop("average", "probability") == "log" else ProbabilityMean
    combination = options.pop("combination", None) or mean(options.pop("weights", ()))
    changes = {name: options.pop(name) for name in ("temperature", "early_stopping") if name in options}
    values = {"beam": 1, **{KEYS.get(name, name): value for name, value in options.items()}}
    if end_tokens := values.pop("end_tokens", ()):
        values["end_symbols"] = [words.symbol(token) for token in end_tokens]
    cfg, switches = GenerationConfig(**values), FastConfig(**fast)
    setup = build_setup(models, words, cfg, combination=combination, fast=switches, **objects)
    return SequenceGenerator(replace(setup, **changes))


def scripted_generator(
    rules: Sequence[Rule], search: Search, beam: int = 4, words: int = 5, **options: Any
) -> SequenceGenerator:
    """A generator of scripted models, whose outputs have at most five words."""
    options = {"max_len_b": 5, "min_len": 0, "beam_size": beam, **options}
    return make_generator([ScriptedModel(rule) for rule in rules], dictionary(words), search_strategy=search, **options)


def resources(words: Dictionary, encode: Any = None) -> Resources:
    """The resources from which components are built: a vocabulary, and ``encode`` of a tokenizer."""
    return Resources(words, encode)
