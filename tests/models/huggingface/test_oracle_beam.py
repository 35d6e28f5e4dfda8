"""Greedy and beam search by Hugging Face's rules against transformers: tokens and scores of every hypothesis."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from tests.huggingface_decoding import EOS, Pair, WrappedModel, assert_same, decode, original, sharp_model
from tests.huggingface_t5 import VARIANTS, seqgen_model

pytest.importorskip("transformers")

SOURCES = [(4, 5, 9, 7, EOS), (6, EOS), (3, 10, 9, 4, 6, 7, 8, EOS), (EOS,)]
sharp = functools.cache(sharp_model)


def assert_equal(variant: str, seed: int, theirs: dict[str, Any], ours: dict[str, Any], ends: tuple[int, ...]) -> None:
    """The wrapped original and seqgen's T5, in a batch; the original alone, for it stops a whole batch at once."""
    model = sharp(variant, seed)
    wanted = [original(model, [source], ends, **theirs)[0] for source in SOURCES]
    for decoded in (WrappedModel(model), seqgen_model(model)):
        for got, alone in zip(decode(decoded, SOURCES, ends=ends, **ours), wanted, strict=True):
            assert_same(got, alone)


OPTIONS = [
    ({}, {}),
    ({"early_stopping": True}, {"early_stopping": "true"}),
    ({"early_stopping": "never"}, {"early_stopping": "never"}),
    ({"length_penalty": 0.0}, {"length_penalty": 0.0}),
    ({"length_penalty": 2.0, "early_stopping": "never"}, {"length_penalty": 2.0, "early_stopping": "never"}),
    ({"length_penalty": 0.6, "early_stopping": True}, {"length_penalty": 0.6, "early_stopping": "true"}),
    ({"length_penalty": -1.0}, {"length_penalty": -1.0}),
    ({"length_penalty": -1.0, "early_stopping": "never"}, {"length_penalty": -1.0, "early_stopping": "never"}),
    ({"min_new_tokens": 5}, {"min_len": 5}),
    ({"min_length": 5}, {"min_len": 4}),
    ({"max_new_tokens": 3}, {"max_len": 3}),
    ({"max_new_tokens": 1}, {"max_len": 1}),
    ({"max_length": 6, "early_stopping": "never"}, {"max_len": 5, "early_stopping": "never"}),
]
ids = [str(theirs) for theirs, _ in OPTIONS]


@pytest.mark.parametrize(("theirs", "ours"), OPTIONS, ids=ids)
@pytest.mark.parametrize("beam", [2, 5])
def test_beam_search(beam: int, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    assert_equal("t5", beam, {"num_beams": beam, **theirs}, {"beam": beam, **ours}, (EOS,))


@pytest.mark.parametrize("ends", [(EOS, 7), (EOS, 3, 5, 9)])
@pytest.mark.parametrize("early_stopping", [False, True])
def test_several_tokens_end_an_output(early_stopping: bool, ends: tuple[int, ...]) -> None:
    theirs = {"num_beams": 3, "early_stopping": early_stopping, "min_new_tokens": 2}
    ours = {"beam": 3, "early_stopping": str(early_stopping).lower(), "min_len": 2}
    assert_equal("t5", 4, theirs, ours, ends)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("variant", list(VARIANTS))
def test_every_variant(variant: str, seed: int) -> None:
    assert_equal(variant, seed, {"num_beams": 4}, {"beam": 4}, (EOS,))


@pytest.mark.parametrize("seed", range(4))
def test_greedy_search(seed: int) -> None:
    assert_equal("t5", seed, {}, {"beam": 1}, (EOS,))
    assert_equal("t5_v1_1", seed, {"min_new_tokens": 3}, {"beam": 1, "min_len": 3}, (EOS, 7))


@pytest.mark.parametrize("seed", range(4))
def test_batches_of_the_original(seed: int) -> None:
    """At early_stopping=True the original, too, stops each sentence by itself, so that whole batches compare."""
    model = sharp("t5", seed)
    wanted = original(model, SOURCES, num_beams=4, early_stopping=True)
    for got, theirs in zip(decode(seqgen_model(model), SOURCES, beam=4, early_stopping="true"), wanted, strict=True):
        assert_same(got, theirs)


def test_the_models_are_worth_comparing() -> None:
    """Some hypotheses end early and some do not, of many lengths; and the best does not always come first."""
    found: list[list[Pair]] = []
    for seed in range(4):
        found += original(sharp("t5", seed), SOURCES, num_beams=4)
    lengths = {len(tokens) for hypotheses in found for tokens, _ in hypotheses}
    assert len(lengths) > 5, lengths
    last = [tokens[-1] for hypotheses in found for tokens, _ in hypotheses]
    assert 0.2 < last.count(EOS) / len(last) < 1.0
