"""Every key of the ``generation`` group, together with every search strategy.

It changes something, or is refused, or is listed here with the reason why it may change nothing.
"""

import sys
from dataclasses import dataclass, fields
from typing import Any

import pytest

from seqgen import GenerationConfig, Translator, registry
from seqgen.config.added_options import register_options
from seqgen.config.generation import KEYS_OF_ADDONS, keys_tagged
from seqgen.config.options import SPEED, option
from seqgen.core.combinations import ProbabilityMean
from seqgen.core.errors import ConfigError, DecodingError
from seqgen.core.processors import LogitsProcessor
from seqgen.extend import BeamSearch, DecodingSetup, MemberSource, MemberSpec, Observer, Resources, StoppingRule
from seqgen.registry import SEARCHES
from tests.text_models import text_model

LINES = ["w1 w5 w8", "w2\tw3 w4\tw6", "w3 w3 w17 w3"]

STRATEGIES: dict[str, dict[str, Any]] = {
    "beam": {"beam": 4, "nbest": 4},
    "beam 1": {"beam": 1},
    "greedy": {"search": "greedy"},
    "sampling": {"sampling": True, "beam": 4, "nbest": 4},
    "beam_sampling": {"search": "beam_sampling", "beam": 4, "nbest": 4},
    "diverse_beam": {"search": "diverse_beam", "beam": 4, "nbest": 4},
    "diverse_siblings": {"search": "diverse_siblings", "beam": 4, "nbest": 4},
    "constrained": {"constraints": "unordered", "beam": 4, "nbest": 4},
    "contrastive": {"search": "contrastive"},
    "marian": {"search": "marian", "beam": 4, "nbest": 4},
}

COMMON = "w10"
"""A word that many of the outputs have."""

VALUES: dict[str, Any] = {
    "beam": 7, "nbest": 2, "max_len_a": 2.0, "max_len_b": 3, "max_len": 2, "min_len": 4, "min_total_len": 4,
    "match_source_len": True, "early_stopping": "true", "end_symbols": [COMMON], "stop_strings": [COMMON],
    "max_time": 1e-9, "normalize_scores": False, "length_penalty": 0.1, "length_penalty_form": "wu",
    "coverage_penalty": 2.0, "temperature": 3.0, "unkpen": -9.0, "suppress": [COMMON], "suppress_at_begin": [COMMON],
    "forced_first": "w9", "forced_last": "w9", "bad_words": [COMMON], "sequence_bias": ["w9=6.0"],
    "no_repeat_ngram_size": 1, "encoder_no_repeat_ngram_size": 1, "repetition_penalty": 9.0,
    "encoder_repetition_penalty": 9.0, "exponential_decay_start": 1, "exponential_decay_factor": 3.0,
    "guidance_scale": 3.0, "renormalize": True, "constraints": "ordered", "sampling": True, "top_k": 2, "top_p": 0.3,
    "min_p": 0.5, "typical_p": 0.2, "epsilon_cutoff": 0.2, "eta_cutoff": 0.5, "seed": 3, "mbr": "chrf",
    "dtype": "bfloat16",
}  # fmt: skip
"""For each key a value that should change the outputs above."""

BESIDE: dict[str, dict[str, Any]] = {
    "encoder_no_repeat_ngram_size": {"sequence_bias": ["w1=4.0", "w2=4.0", "w3=4.0"]},
    "early_stopping": {"length_penalty": 5.0, "max_len_b": 12},
    "min_len": {"sequence_bias": ["</s>=3.0"]},
    "min_total_len": {"sequence_bias": ["</s>=3.0"]},
    "renormalize": {"suppress": [COMMON]},
    "exponential_decay_start": {"exponential_decay_factor": 3.0},
}
"""Further keys that a key needs so that it can change an output here."""

ELSEWHERE = {
    "semantics": "it is in every case here",
    "search": "it is what the strategies here are chosen by",
    "stopping_rules": "names of the user's own classes (test_stopping.py)",
    "processors": "names of the user's own classes (test_processors_setup.py)",
    "observers": "names of the user's own classes; they never change an output",
    "combination": "names of registered classes (test_combinations.py)",
    "member_sources": "what each model of an ensemble reads (test_translator_members.py)",
    "components": "keys of components, each tested where it is defined",
    "rerank": "names of the user's own classes (test_rerank.py)",
    "remove_invalid": "acts on damaged scores, which no sound model gives (test_processors.py)",
    "top_tokens": "changes no output (test_search.py)",
    "source_lang": "needs a multilingual model (test_languages.py)",
    "target_lang": "needs a multilingual model (test_languages.py)",
}
"""Keys that are not tried here, and why."""

HARMLESS: dict[str, tuple[str, ...]] = {
    "beam": ("beam 1", "diverse_siblings"),  # a wider search may find the same
    "renormalize": ("sampling", "greedy", "beam 1", "contrastive"),  # their probabilities sum to one without it
    "sampling": ("beam_sampling",),  # says once more that something is drawn
}
"""For each key, the strategies whose outputs it may leave unchanged."""


def outputs(cfg: dict[str, Any]) -> list[Any]:
    """The texts, tokens and scores of each line."""
    dtype = {"dtype": cfg.pop("dtype")} if "dtype" in cfg else {}
    found = Translator(text_model(), **dtype).translate(LINES, **cfg, **dtype)
    return [[(h.text, h.tokens.tolist(), round(h.score, 6)) for h in line.hypotheses] for line in found]


@pytest.mark.parametrize(
    ("name", "semantics"),
    [
        pytest.param(name, semantics, marks=[] if (name, semantics) == ("greedy", "fairseq") else pytest.mark.nightly)
        for name in STRATEGIES
        for semantics in ("fairseq", "huggingface")
    ],
)
def test_no_key_is_ignored(name: str, semantics: str) -> None:
    base = {"semantics": semantics, "max_len_b": 6, "min_len": 0, **STRATEGIES[name]}
    plain: dict[str, list[Any]] = {}
    ignored = []
    for key, value in VALUES.items():
        if key in STRATEGIES[name] and key not in ("beam", "nbest", "max_len_b"):
            continue  # it makes the strategy what it is
        beside = {k: v for k, v in BESIDE.get(key, {}).items() if k not in STRATEGIES[name]}
        try:
            changed = outputs({**base, **beside, key: value})
        except (ConfigError, DecodingError):
            continue
        if str(beside) not in plain:
            plain[str(beside)] = outputs({**base, **beside})
        if changed == plain[str(beside)]:
            ignored.append(key)
    assert [key for key in ignored if name not in HARMLESS.get(key, ())] == []
    for key in keys_tagged(SPEED):
        assert outputs({**base, key: 1}) == plain[str({})], key


def test_every_key_and_every_strategy_is_tried() -> None:
    """Those of add-ons are tried by the tests of each add-on."""
    keys = [*VALUES, *keys_tagged(SPEED), *ELSEWHERE]
    assert sorted(keys) == sorted({field.name for field in fields(GenerationConfig)} - {*KEYS_OF_ADDONS})
    built_in = {entry.name for entry in SEARCHES.entries() if entry.component.__module__.startswith("seqgen.")}
    assert built_in <= set(STRATEGIES)


# --- components by name and with keys of their own


def test_a_build_that_changes_its_configuration_changes_no_later_call() -> None:
    @registry.register_combination("test_popping", config=WeightsConfig)
    class Popping(ProbabilityMean):
        @classmethod
        def build(cls, cfg: Any, resources: Resources) -> Any:
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
