"""Sequence generators for tests, made from plain values instead of objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seqgen.config import DebugConfig
from seqgen.data.dictionary import Dictionary
from seqgen.generation.component import Resources
from seqgen.generation.ensemble.combinations import Guidance, LogProbabilityMean, ProbabilityMean
from seqgen.generation.ensemble.member import EMPTY, MemberSpec
from seqgen.generation.finished import Ranking
from seqgen.generation.rules import rules_named
from seqgen.generation.search.base import Search
from seqgen.generation.sequence_generator import SequenceGenerator
from seqgen.model import EncoderDecoderModel
from tests.scripted_model import Rule, ScriptedModel, dictionary

DEBUG = ("use_cache", "beam_table", "skip_log_softmax", "lazy_compaction")


def make_generator(models: Sequence[EncoderDecoderModel], words: Dictionary, **options: Any) -> SequenceGenerator:
    """A generator; ``options`` are its arguments, or values from which its object arguments are made.

    These are ``semantics``, the fields of ``DebugConfig`` and ``Ranking``, ``average`` and ``weights`` of the members,
    and ``guidance_scale``.
    """
    debug = {name: options.pop(name) for name in DEBUG if name in options}
    if isinstance(debug.get("beam_table"), bool):
        debug["beam_table"] = "on" if debug["beam_table"] else "off"
    kind, coverage = options.pop("length_penalty", "power"), options.pop("coverage_penalty", 0.0)
    options["ranking"] = Ranking(options.pop("normalize_scores", True), options.pop("len_penalty", 1.0), kind, coverage)
    mean = LogProbabilityMean if options.pop("average", "probability") == "log" else ProbabilityMean
    combination = options.pop("combination", None) or mean(options.pop("weights", ()))
    members: list[Any] = list(models)
    if (scale := options.pop("guidance_scale", 1.0)) != 1:
        members += [MemberSpec(model, EMPTY, companion=True) for model in models]
        combination = Guidance(combination, scale)
    return SequenceGenerator(
        members,
        words,
        rules=rules_named(options.pop("semantics", "")),
        combination=combination,
        debug=DebugConfig(**debug),
        **options,
    )


def scripted_generator(
    rules: Sequence[Rule], search: Search, beam: int = 4, words: int = 5, **options: Any
) -> SequenceGenerator:
    """A generator of scripted models, whose outputs have at most five words."""
    options = {"max_len_b": 5, "min_len": 0, "beam_size": beam, **options}
    return make_generator([ScriptedModel(rule) for rule in rules], dictionary(words), search_strategy=search, **options)


def resources(words: Dictionary, encode: Any = None) -> Resources:
    """The resources from which components are built: a vocabulary, and ``encode`` of a tokenizer."""
    return Resources(words, encode)
