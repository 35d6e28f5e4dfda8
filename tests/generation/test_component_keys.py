"""Components by name and with keys of their own: the built-in ones use the mechanism that a user's do."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import pytest

from seqgen import registry
from seqgen.config import GenerationConfig
from seqgen.config.added_options import register_options
from seqgen.config.options import option
from seqgen.core.beam_search import BeamSearch
from seqgen.core.combinations import ProbabilityMean
from seqgen.core.member import MemberSpec
from seqgen.core.observers import Observer
from seqgen.core.processors import LogitsProcessor
from seqgen.core.rules import StoppingRule
from seqgen.core.setup import DecodingSetup
from seqgen.decoding.building import Resources
from seqgen.text.input_line import MemberSource
from seqgen.text.translator import Translator
from tests.text_models import text_model


def test_a_build_that_changes_its_configuration_changes_no_later_call() -> None:
    @registry.register_combination("test_popping", config=WeightsConfig)
    class Popping(ProbabilityMean):
        @classmethod
        def build(cls, cfg: Any, resources: Resources) -> Popping:
            found.append(cfg.weights.pop())
            return cls()

    found: list[float] = []
    translator = Translator([text_model(), text_model("fconv_tiny")], combination="test_popping", max_len=3)
    try:
        for beam in (2, 3):
            translator.translate(["w1"], beam=beam, **{"combination.weights": [0.25, 0.75]})
        for beam in (2, 3):
            translator.translate(["w1"], beam=beam)
    finally:
        del registry.COMBINATIONS._entries["test_popping"]
    assert found == [0.75, 0.75, 1.0, 1.0]


def test_components_of_every_kind_may_use_the_same() -> None:
    seen: dict[str, Resources] = {}

    class Kept:
        @classmethod
        def build(cls, cfg: Any, resources: Resources) -> Any:
            seen[f"{cls.__name__} {len(seen)}"] = resources
            return cls()

    same = {"__call__": lambda self, given, _: given}
    never = {"__call__": lambda self, tokens, _: tokens[:, 0] < 0}
    kinds: dict[registry.Registry, tuple[Any, type, dict[str, Any]]] = {
        registry.SEARCHES: (registry.register_search, BeamSearch, {}),
        registry.LOGITS_PROCESSORS: (registry.register_logits_processor, LogitsProcessor, same),
        registry.STOPPING_RULES: (registry.register_stopping_rule, StoppingRule, never),
        registry.OBSERVERS: (registry.register_observer, Observer, {}),
        registry.COMBINATIONS: (registry.register_combination, ProbabilityMean, {}),
        registry.MEMBER_SOURCES: (registry.register_member_source, MemberSource, same),
    }
    for register, base, methods in kinds.values():
        register("test_kept")(type(base.__name__, (Kept, base), methods))
    one = text_model()
    translator = Translator(one, combination="test_kept", member_sources=["test_kept"], end_symbols=["w9"], max_len=3)
    lists = {key: ["test_kept"] for key in ("processors", "stopping_rules", "observers")}
    try:
        translator.translate(["w1"], search="test_kept", **lists)
        assert {name.split()[0] for name in seen} == {base.__name__ for _, base, _ in kinds.values()}
        list(translator.score(["w1"], ["w2"]))
        one.task.build_generator([MemberSpec(one.model)], GenerationConfig(combination="test_kept"))
    finally:
        for kind in kinds:
            del kind._entries["test_kept"]
    assert len(seen) == len(kinds) + 3
    of_task = seen.pop(f"ProbabilityMean {len(kinds) + 2}").models
    assert [(each.task, each.model) for each in of_task] == [(one.task, one.model)]
    for name, resources in seen.items():
        tokenizer = one.task.target_tokenizer
        assert (resources.encode, resources.decode) == (tokenizer.encode, tokenizer.decode), name
        assert resources.source_dictionary is one.task.source_dictionary, name
        assert list(resources.extra_end_tokens) == [resources.dictionary.index("w9")], name
        assert resources.device == translator.device, name
        assert resources.models == [one], name
        assert resources.ensemble["member_sources"] == ["test_kept"], name


def test_an_empty_or_zero_value_of_a_key_is_applied_if_it_is_no_default(monkeypatch: pytest.MonkeyPatch) -> None:
    @register_options("generation")
    @dataclass
    class LimitOptions:
        test_limit: int = option(3, "a limit", setup=f"{__name__}:keep_limit")

    monkeypatch.setattr(sys.modules[__name__], "LIMITS", [])
    translator = Translator(text_model(), max_len=3)
    for limit in (3, 0, 5):
        translator.translate(["w1"], test_limit=limit)
    assert LIMITS == [0, 5]


LIMITS: list[int] = []


def keep_limit(setup: DecodingSetup, limit: int, resources: Resources) -> DecodingSetup:
    LIMITS.append(limit)
    return setup


@dataclass
class WeightsConfig:
    weights: list[float] = option([1.0], "weights")
