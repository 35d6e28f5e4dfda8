"""Constrained beam search and prefix constraints against transformers: tokens and scores of every hypothesis."""

import functools
import unittest.mock
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from seqgen.core.component import Phrase, Phrases
from seqgen.decoding.processors.tokens import PrefixConstraint
from seqgen.decoding.search.constrained import alternatives
from tests.huggingface_decoding import EOS, WORDS, Pair, assert_same, decode, original, sharp_model
from tests.huggingface_t5 import seqgen_model

pytestmark = pytest.mark.slow

transformers: Any = pytest.importorskip("transformers")

SOURCES = [(4, 5, 9, 7, EOS), (6, EOS), (3, 10, 9, 4, 6, 7, 8, EOS), (EOS,)]
PHRASES: list[list[Phrase]] = [
    [[5, 6]],
    [[8], [8], [3, 4, 7]],
    [[[4, 9, 3], [6, 2], [10]], [7]],
    [[2, 2, 3], [2, 5], [9, 6]],
]
sharp = functools.cache(sharp_model)

OPTIONS = [
    ({}, {}),
    ({"early_stopping": True}, {"early_stopping": "true"}),
    ({"early_stopping": "never", "length_penalty": 2.0}, {"early_stopping": "never", "length_penalty": 2.0}),
    ({"length_penalty": 0.0}, {"length_penalty": 0.0}),
    ({"length_penalty": -1.0, "early_stopping": "never"}, {"length_penalty": -1.0, "early_stopping": "never"}),
    ({"min_new_tokens": 8, "early_stopping": True}, {"min_len": 8, "early_stopping": "true"}),
    ({"max_new_tokens": 7}, {"max_len": 7}),
]


def contains(tokens: Sequence[int], phrases: Phrases) -> bool:
    """Whether the original finds all phrases."""
    state = transformers.generation.beam_constraints.ConstraintListState(constraints(phrases))
    state.reset(list(tokens))
    return bool(state.completed)


def constraints(phrases: Phrases) -> list[Any]:
    found = []
    for phrase in phrases:
        some = [list(own) for own in alternatives(phrase)]
        found.append(
            transformers.PhrasalConstraint(some[0]) if len(some) == 1 else transformers.DisjunctiveConstraint(some)
        )
    return found


def wanted(
    model: Any, source: Sequence[int], phrases: Phrases, max_new_tokens: int = 12, **options: Any
) -> tuple[list[Pair], bool]:
    """The original's hypotheses that have all phrases, and whether it has finished others.

    If several hypotheses are requested and fewer are active at the end, it also returns some that lack a phrase.
    Therefore one is requested, and the finished hypotheses are read from the scorer.
    """
    scorer, held = transformers.ConstrainedBeamSearchScorer, []
    finalize = scorer.finalize

    def listening(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = finalize(self, *args, **kwargs)
        held.extend(self._beam_hyps[0].beams)
        return found

    with unittest.mock.patch.object(scorer, "finalize", listening):
        values = {"constraints": constraints(phrases), "num_return_sequences": 1, "output_scores": False, **options}
        original(model, [source], max_new_tokens=max_new_tokens, **values)
    best = sorted(((tuple(tokens[1:].tolist()), score) for score, tokens, _ in held), key=lambda pair: -pair[1])
    found = [((*own, EOS)[:max_new_tokens], score) for own, score in best if score > -1e6]
    whole = [pair for pair in found if contains(pair[0], phrases)]
    return whole, len(whole) < len(found)


@pytest.mark.parametrize(("theirs", "ours"), OPTIONS, ids=[str(theirs) for theirs, _ in OPTIONS])
@pytest.mark.parametrize("beam", [2, 5])
def test_constrained_beam_search(beam: int, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """Each sentence with phrases of its own, in one batch; those that the original gives incomplete, here are none."""
    complete = 0
    for variant, seed in (("t5", 3), ("umt5", 0)):
        model = sharp(variant, seed)
        found = [wanted(model, *pair, num_beams=beam, **theirs) for pair in zip(SOURCES, PHRASES, strict=True)]
        keys = {"beam": beam, "constraints": "unordered", **ours}
        results = decode(seqgen_model(model), SOURCES, phrases=PHRASES, **keys)
        for phrases, (hypotheses, others), got in zip(PHRASES, found, results, strict=True):
            assert_same(got[: len(hypotheses)] if others else got, hypotheses)
            assert all(contains(tokens, phrases) for tokens, _ in got)
            complete += not others
    assert complete > 4  # of 8


@pytest.mark.parametrize("phrases", [[[[4, 9, 3], [4, 6], [10]]], [[[2, 3, 4], [2, 5, 4], [2, 5, 8]], [7, 7]]], ids=str)
def test_alternatives_that_begin_alike(phrases: Phrases, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the original, copies of such an alternative share the list of what is matched, which the test corrects."""

    def copy(constraint: Any, stateful: bool = False) -> Any:
        new = transformers.DisjunctiveConstraint(constraint.token_ids)
        if stateful:
            new.current_seq, new.completed = list(constraint.current_seq), constraint.completed
        return new

    monkeypatch.setattr(transformers.DisjunctiveConstraint, "copy", copy)
    for seed in range(3):
        model = sharp("t5", seed)
        results = decode(seqgen_model(model), SOURCES, phrases=[phrases] * 4, beam=4, constraints="unordered")
        for source, got in zip(SOURCES, results, strict=True):
            hypotheses, others = wanted(model, source, phrases, num_beams=4)
            assert_same(got[: len(hypotheses)] if others else got, hypotheses)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_prefix_constraint_by_a_function_of_the_sentence(groups: int) -> None:
    """Every sentence has words of its own, after each of which some others may follow."""

    def follows(sentence: int, written: Tensor) -> list[int]:
        step, last = len(written), int(written[-1])
        return [token for token in range(WORDS) if (token * 3 + last + sentence) % 4 != step % 2] or [EOS]

    model = sharp("t5", 1)
    theirs = {"num_beam_groups": 2, "diversity_penalty": 0.4} if groups > 1 else {"early_stopping": True}
    diverse = {"search": "diverse_beam", "components": {"search.groups": 2, "search.strength": 0.4}}
    ours = diverse if groups > 1 else {"early_stopping": "true"}
    wanted = original(model, SOURCES, num_beams=4, prefix_allowed_tokens_fn=follows, **theirs)
    got = decode(seqgen_model(model), SOURCES, processors=[PrefixConstraint(follows)], beam=4, **ours)
    for sentence, (mine, hypotheses) in enumerate(zip(got, wanted, strict=True)):
        assert_same(mine, hypotheses)
        for tokens, _ in mine:
            for step, token in enumerate(tokens):
                assert token in follows(sentence, torch.tensor([0, *tokens[:step]]))
