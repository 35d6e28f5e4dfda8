"""Components by name and with keys of their own: the built-in ones use the mechanism that a user's do."""

from __future__ import annotations

from typing import Any

import pytest

from seqgen.core.errors import ConfigError
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
