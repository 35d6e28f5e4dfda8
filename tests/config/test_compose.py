"""Configuration: every key must exist and every value must fit, and nothing a user writes is ignored or misread."""

from dataclasses import dataclass
from typing import get_args

import pytest
from hypothesis import given, strategies as st

from seqgen.cli.keys import keys_of
from seqgen.cli.score import ScoreConfig
from seqgen.config import GenerateConfig, GenerationConfig, TrainConfig, option
from seqgen.config.compose import component_config, component_of_key, compose
from seqgen.config.values import from_dict, repeated, text_list, text_values, to_dict, value_text
from seqgen.core.errors import ConfigError
from seqgen.registry import COMBINATIONS, Registry
from tests.cli.test_help import SCHEMAS


def test_values_reach_their_fields() -> None:
    """In any order; one value is a list of one."""
    keys = ["model=transformer_tiny", "model.dropout=0.25", "dataset.max_tokens=null", "optimization.lr=[1e-3,2e-3]"]
    for overrides in (keys, keys[::-1]):
        cfg = compose(TrainConfig, [*overrides, "optimization.update_freq=4", f"common.seed={2**63 - 1}"])
        assert type(cfg.model).__name__ == "TransformerConfig"
        assert (cfg.model.dropout, cfg.dataset.max_tokens) == (0.25, None)
        assert (cfg.optimization.lr, cfg.optimization.update_freq) == ([1e-3, 2e-3], [4])
        assert cfg.common.seed == 2**63 - 1, "integers have 64 bits"


@pytest.mark.parametrize(
    "text", ["a=b", "null", "x,y", "~home", "f(1)", "Grüße", "a b", "'quoted'", "${oc.env:HOME}", "[1", ""]
)
def test_text_is_taken_literally(text: str) -> None:
    assert compose(GenerateConfig, [f"input={text}"]).input == text


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ('["Hund"]', ["Hund"]),
        ("[' a, b ' , c d ,e]", [" a, b ", "c d", "e"]),
        (r'["\n","a\tb","say \"x\"","\\n"]', ["\n", "a\tb", 'say "x"', "\\n"]),
        ('[""]', [""]),
        ("[]", []),
        ("[a,,b,]", ["a", "b"]),
        ("['s,'t,\"]", ["'s", "'t", '"']),  # quotes that are not around an item are text
        ('["a"b,don\'t]', ['"a"b', "don't"]),
    ],
)
def test_quoted_items_of_a_list(text: str, items: list[str]) -> None:
    assert compose(GenerateConfig, [f"generation.stop_strings={text}"]).generation.stop_strings == items


@given(st.lists(st.text("ab \\\"'\n,[]\t", min_size=1, max_size=6), max_size=3))
def test_lists_of_text_are_read_as_they_are_written(items: list[str]) -> None:
    assert text_values([f"path={text_list(items)}"], "path") == items


def test_keys_that_are_given_twice() -> None:
    assert repeated(["a=1", "b=2", "a=1", "c", "a=3"]) == ["a=1 is not used, because a=3 comes later"]


def test_a_components_own_key_is_above_its_default() -> None:
    assert component_of_key(GenerationConfig(processors=["a", "b"]), "processor.b.x.y")[1:] == ("b", "x.y")
    generation = GenerationConfig(components={"combination.weights": [0.5]})
    assert component_config(COMBINATIONS, "log", generation).weights == [0.5]
    assert component_config(COMBINATIONS, "log", GenerationConfig()).weights == []
    # also in a command that scores
    cfg = compose(ScoreConfig, ["combination.weights=[2,1]", "generation.combination=log", "path=[a,b]"])
    assert cfg.generation.components == {"combination.weights": [2.0, 1.0]}


@pytest.mark.parametrize("program", SCHEMAS)
def test_every_key_takes_its_default_and_its_limits_but_nothing_beyond(program: str) -> None:
    schema = SCHEMAS[program]
    plain = compose(schema, [])
    for key in keys_of(schema):
        assert compose(schema, [f"{key.name}={value_text(key.default)}"]) == plain, key.name
        step = 1 if int in (key.annotation, *get_args(key.annotation)) else 1e-6
        for limit, beyond in (("minimum", -step), ("maximum", step)):
            if (value := key.field.metadata.get(limit)) is not None:
                compose(schema, [f"{key.name}={value}"])
                with pytest.raises(ConfigError, match=f"{key.name}=.* its {limit}, {value}$"):
                    compose(schema, [f"{key.name}={value + beyond}"])


def test_round_trip_through_plain_values() -> None:
    cfg = compose(TrainConfig, ["model=transformer_tiny", "optimizer=sgd", "lr_scheduler=cosine", "common.seed=7"])
    plain = to_dict(cfg)
    assert plain["model"]["_name"] == "transformer"
    assert from_dict(TrainConfig, plain, "config.yaml") == cfg


def test_registry_refuses_a_second_owner_of_a_name_or_configuration() -> None:
    registry = Registry("thing", "thing")

    @dataclass
    class FirstConfig:
        size: int = option(1, "size")

    @dataclass
    class SecondConfig:
        size: int = option(1, "size")

    @registry.register("first", config=FirstConfig, presets={"first_big": FirstConfig(9)})
    class First: ...

    for name, config in (("first", SecondConfig), ("first_big", SecondConfig), ("second", FirstConfig)):
        with pytest.raises(ConfigError) as caught:

            @registry.register(name, config=config)
            class Second: ...

        assert str(caught.value).count("test_compose.py:") == 2  # both places are named
    assert registry.of(FirstConfig(3)).component is First
    assert registry.config("first_big") == FirstConfig(9)
    registry.config("first_big").size = 5
    assert registry.config("first_big") == FirstConfig(9)  # changing the copy does not change the preset
    with pytest.raises(ConfigError, match=r"did you mean 'first_big'.*choose one of: first, first_big"):
        registry.entry("frist_big")

    @registry.register("plain")  # it needs no configuration class
    class Plain: ...

    assert registry.of(registry.config("plain")).component is Plain
