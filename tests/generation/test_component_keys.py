"""Components by name and with keys of their own: the built-in ones use the mechanism that a user's do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import pytest

from seqgen.config import option
from seqgen.errors import ConfigError
from seqgen.generation.component import Resources
from seqgen.generation.processors.base import LogitsProcessor
from seqgen.registry import COMBINATIONS, LOGITS_PROCESSORS, SEARCHES, register_logits_processor
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


@pytest.fixture
def picky() -> Iterator[None]:
    @dataclass
    class PickyConfig:
        least: int = option(1, "checked only", minimum=0)
        token: str = option("zz!", "a token")

    @register_logits_processor("picky", config=PickyConfig)
    class Picky(LogitsProcessor):
        @classmethod
        def build(cls, cfg: PickyConfig, resources: Resources) -> Self:
            resources.token(cfg.token)
            return cls()

    yield
    del LOGITS_PROCESSORS._entries["picky"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "processor.picky: 'zz!' is not in the target vocabulary"),
        ({"least": -1}, "least=-1 is below its minimum"),
        ({"leest": 1}, "unknown key 'leest'.*did you mean 'least'"),
    ],
)
def test_values_of_processors_are_checked(picky: None, values: dict[str, Any], words: str) -> None:
    keys = {"processors": ["picky"], **{f"processor.picky.{field}": value for field, value in values.items()}}
    with pytest.raises(ConfigError, match=words):
        Translator(text_model(), semantics="fairseq").translate(TEXTS, **keys)


def test_what_is_built_in_is_registered() -> None:
    assert {"beam", "greedy", "sampling", "exact"} <= set(SEARCHES.names())
    assert {"probability", "log", "product", "fusion"} <= set(COMBINATIONS.names())


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"search": "diverse_beam", "search.grups": 2}, "unknown key 'grups'.*did you mean 'groups'"),
        ({"search": "diverse_beam", "search.groups": 0}, "groups=0 is below its minimum"),
        ({"search": "diverse_beam", "search.groups": "two"}, "groups='two' should be a whole number"),
        ({"search.groups": 2}, "does not name its search strategy|unknown key 'groups'"),
        ({"processor.variety.k": 3}, r"has no effect.*set generation\.processors=\[variety\]"),
        ({"serach.groups": 2}, "unknown key 'serach.groups'.*did you mean 'search'"),
    ],
)
def test_keys_are_checked(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Translator(text_model()).translate(TEXTS, **keys)
