"""Components by name and with keys of their own: the built-in ones use the mechanism that a user's do."""

from __future__ import annotations

from typing import Any

import pytest

from seqgen.errors import ConfigError
from seqgen.generation.processors.base import LogitsProcessor
from seqgen.registry import COMBINATIONS, LOGITS_PROCESSORS, SEARCHES, STOPPING_RULES
from seqgen.text.results import Translation
from seqgen.text.translator import Translator
from tests.text_models import TEXTS, text_model


def outputs(translations: list[Translation]) -> list[list[tuple[list[int], float]]]:
    return [[(h.tokens.tolist(), pytest.approx(h.score, abs=1e-9)) for h in t.hypotheses] for t in translations]


@pytest.mark.parametrize(
    ("flat", "own"),
    [
        ({"no_repeat_ngram_size": 2}, {"processors": ["no_repeat_ngram"], "processor.no_repeat_ngram.size": 2}),
        (
            {"repetition_penalty": 1.7},
            {"processors": ["repetition_penalty"], "processor.repetition_penalty.penalty": 1.7},
        ),
        ({"diverse_beam_groups": 2, "diverse_beam_strength": 0.9}, {"search": "diverse_beam", "search.strength": 0.9}),
        ({"diversity_rate": 0.4}, {"search": "diverse_siblings", "search.rate": 0.4}),
        ({"constraints": ""}, {"search": "beam"}),
        (
            {"sampling": True, "sampling_topk": 3, "seed": 7},
            {"search": "sampling", "search.seed": 7, "processors": ["top_k"], "processor.top_k.k": 3},
        ),
    ],
)
def test_flat_keys_and_own_keys_are_the_same(flat: dict[str, Any], own: dict[str, Any]) -> None:
    translator = Translator(text_model(), beam=4, nbest=4, max_len_b=9, min_len=0)
    assert outputs(translator.translate(TEXTS, **flat)) == outputs(translator.translate(TEXTS, **own))
    plain = outputs(translator.translate(TEXTS))
    assert (outputs(translator.translate(TEXTS, **own)) == plain) == (own == {"search": "beam"}), (
        "the keys do something"
    )


def test_what_is_built_in_is_registered() -> None:
    assert {"beam", "greedy", "sampling", "exact"} <= set(SEARCHES.names())
    assert {"probability", "log", "product", "fusion"} <= set(COMBINATIONS.names())
    assert {"no_repeat_ngram", "top_p", "eta", "temperature"} <= set(LOGITS_PROCESSORS.names())
    assert "time_limit" in STOPPING_RULES.names()
    for entry in LOGITS_PROCESSORS.entries():
        if entry.component.__module__.startswith("seqgen."):
            assert issubclass(entry.component, LogitsProcessor)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"search": "diverse_beam", "search.grups": 2}, "unknown key 'grups'.*did you mean 'groups'"),
        ({"search": "diverse_beam", "search.groups": 0}, "groups=0 is below its minimum"),
        ({"search": "diverse_beam", "search.groups": "two"}, "groups='two' should be int"),
        ({"search.groups": 2}, "does not name its search strategy|unknown key 'groups'"),
        ({"processor.top_k.k": 3}, r"has no effect.*set generation\.processors=\[top_k\]"),
        ({"serach.groups": 2}, "unknown key 'serach.groups'.*did you mean 'search'"),
    ],
)
def test_keys_are_checked(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Translator(text_model()).translate(TEXTS, **keys)
