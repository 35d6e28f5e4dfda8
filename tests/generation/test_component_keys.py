"""Components by name and with keys of their own: the built-in ones use the mechanism that a user's do."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from seqgen.config.added_options import register_options
from seqgen.config.options import option
from seqgen.core.beam_search import BeamSearch
from seqgen.core.combinations import ProbabilityMean
from seqgen.core.errors import ConfigError
from seqgen.core.observers import Observer
from seqgen.core.processors import LogitsProcessor
from seqgen.core.rules import StoppingRule
from seqgen.core.setup import DecodingSetup
from seqgen.decoding.building import Resources
from seqgen.registry import (
    COMBINATIONS,
    LOGITS_PROCESSORS,
    MEMBER_SOURCES,
    OBSERVERS,
    SEARCHES,
    STOPPING_RULES,
    Registry,
    register_combination,
    register_logits_processor,
    register_member_source,
    register_observer,
    register_search,
    register_stopping_rule,
)
from seqgen.text.input_line import MemberSource
from seqgen.text.reranking import Reranker
from seqgen.text.results import Translation
from seqgen.text.translator import Translator
from tests.text_models import TEXTS, text_model


def outputs(translations: list[Translation]) -> list[list[tuple[list[int], float]]]:
    return [[(h.tokens.tolist(), pytest.approx(h.score, abs=1e-9)) for h in t.hypotheses] for t in translations]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"constraints": ""}, {"search": "beam"}),
        ({"sampling": True, "seed": 7}, {"search": "sampling", "seed": 7}),
    ],
)
def test_a_strategy_that_is_chosen_in_two_ways_is_the_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    translator = Translator(text_model(), beam=4, nbest=4, max_len_b=9, min_len=0)
    assert outputs(translator.translate(TEXTS, **one)) == outputs(translator.translate(TEXTS, **other))
    if "seed" in one:
        assert outputs(translator.translate(TEXTS, **one)) != outputs(translator.translate(TEXTS, **{**one, "seed": 8}))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"search": "diverse_beam", "search.grups": 2}, "unknown key 'grups'.*did you mean 'groups'"),
        ({"search": "diverse_beam", "search.groups": 0}, "groups=0 is below its minimum"),
        ({"search.groups": 2}, "does not name its search strategy|unknown key 'groups'"),
        ({"processor.variety.k": 3}, r"has no effect.*set generation\.processors=\[variety\]"),
        ({"serach.groups": 2}, "unknown key 'serach.groups'.*did you mean 'search'"),
        ({"search": "beem"}, "did you mean 'beam'"),
    ],
)
def test_keys_are_checked(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Translator(text_model()).translate(TEXTS, **keys)


def test_unknown_keys_are_refused_wherever_settings_are_read() -> None:
    translator = Translator(text_model())
    for keys in ({"search.groups": 2}, {"search": "diverse_beam", "search.grups": 2}, {"combination.wait": 1}):
        for read in (translator.settings, lambda **given: translator.resolve(given)):
            with pytest.raises(ConfigError, match=r"has no effect|unknown key"):
                read(**keys)
    with pytest.raises(ConfigError, match=r"unknown key 'wait'"):
        list(translator.score(["w1"], ["w1"], **{"combination.wait": 1}))
    of_object = {"rerank": Identity(), "reranker.ratio": 2}
    with pytest.raises(ConfigError, match=r"'reranker.ratio' has no effect on a component that is given as an object"):
        translator.translate(TEXTS, nbest=2, beam=2, **of_object)


def test_weights_of_the_combination_stay_if_its_default_is_named() -> None:
    translator = Translator([text_model(), text_model("fconv_tiny")], **{"combination.weights": [0.9, 0.1]})
    assert outputs(translator.translate(TEXTS, combination="probability")) == outputs(translator.translate(TEXTS))
    assert "combination.weights" not in translator.settings(combination="logit").components


def test_a_build_that_changes_its_configuration_changes_no_later_call() -> None:
    @register_combination("test_popping", config=WeightsConfig)
    class Popping(ProbabilityMean):
        @classmethod
        def build(cls, cfg: Any, resources: Resources) -> Popping:
            found.append(cfg.weights.pop())
            return cls()

    found: list[float] = []
    translator = Translator([text_model(), text_model("fconv_tiny")], combination="test_popping")
    try:
        for beam in (2, 3):
            translator.translate(["w1"], beam=beam, **{"combination.weights": [0.25, 0.75]})
        for beam in (2, 3):
            translator.translate(["w1"], beam=beam)
    finally:
        del COMBINATIONS._entries["test_popping"]
    assert found == [0.75, 0.75, 1.0, 1.0]


def test_components_of_every_kind_may_use_the_same() -> None:
    seen: dict[str, Resources] = {}

    class Kept:
        @classmethod
        def build(cls, cfg: Any, resources: Resources) -> Any:
            seen[f"{cls.__name__} {len(seen)}"] = resources
            return cls()

    kinds: list[tuple[Registry, Any, type]] = [
        (SEARCHES, register_search, BeamSearch),
        (LOGITS_PROCESSORS, register_logits_processor, LogitsProcessor),
        (STOPPING_RULES, register_stopping_rule, StoppingRule),
        (OBSERVERS, register_observer, Observer),
        (COMBINATIONS, register_combination, ProbabilityMean),
        (MEMBER_SOURCES, register_member_source, MemberSource),
    ]
    no_change = {
        "LogitsProcessor": lambda self, lprobs, context: lprobs,
        "StoppingRule": lambda self, tokens, context: tokens[:, 0] < 0,
        "MemberSource": lambda self, line, number: line,
    }
    for _, register, base in kinds:
        name = base.__name__
        register("test_kept")(type(name, (Kept, base), {"__call__": no_change[name]} if name in no_change else {}))
    one = text_model()
    translator = Translator(one, combination="test_kept", member_sources=["test_kept"], end_symbols=["w9"])
    lists = {key: ["test_kept"] for key in ("processors", "stopping_rules", "observers")}
    try:
        translator.translate(["w1"], search="test_kept", **lists)
        assert {name.split()[0] for name in seen} == {base.__name__ for *_, base in kinds}
        list(translator.score(["w1"], ["w2"]))
    finally:
        for registry, *_ in kinds:
            del registry._entries["test_kept"]
    assert len(seen) == len(kinds) + 2
    for name, resources in seen.items():
        tokenizer = one.task.target_tokenizer
        assert (resources.encode, resources.decode) == (tokenizer.encode, tokenizer.decode), name
        assert resources.source_dictionary is one.task.source_dictionary, name
        assert list(resources.extra_end_tokens) == [resources.dictionary.index("w9")], name
        assert resources.device == translator.device, name
        assert bool(resources.models) == name.startswith("MemberSource"), name


def test_an_empty_or_zero_value_of_a_key_is_applied_if_it_is_no_default(monkeypatch: pytest.MonkeyPatch) -> None:
    @register_options("generation")
    @dataclass
    class LimitOptions:
        test_limit: int = option(3, "a limit", setup=f"{__name__}:keep_limit")

    monkeypatch.setattr(sys.modules[__name__], "LIMITS", [])
    translator = Translator(text_model())
    for limit in (3, 0, 5):
        translator.translate(["w1"], test_limit=limit)
    assert LIMITS == [0, 5]


LIMITS: list[int] = []


def keep_limit(setup: DecodingSetup, limit: int, resources: Resources) -> DecodingSetup:
    LIMITS.append(limit)
    return setup


class Identity(Reranker):
    def __call__(self, translation: Translation, hypotheses: Sequence[Any]) -> list[float]:
        return [h.score for h in hypotheses]


@dataclass
class WeightsConfig:
    weights: list[float] = option([1.0], "weights")
