"""The most probable tokens of each output token are those of the scorer, which computes its scores without search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from seqgen.core.errors import ConfigError
from seqgen.core.model import EncoderDecoderModel
from seqgen.core.structures import Hypothesis
from seqgen.decoding.scorer import SequenceScorer
from seqgen.decoding.search.huggingface import HuggingFaceDiverseBeam
from tests.generators import make_generator
from tests.scripted_model import ScriptedModel, batch_of, dictionary, random_rule
from tests.strategy_zoo import decode

WORDS = 5
V = WORDS + 4
SOURCES = [(4, 5, 6, 2), (7, 2), (8, 4, 4, 5, 6, 7, 2)]


def models(count: int = 1) -> list[EncoderDecoderModel]:
    return [ScriptedModel(random_rule(V, seed)) for seed in range(count)]


def distributions(members: Sequence[EncoderDecoderModel], source: tuple[int, ...], tokens: list[int]) -> Tensor:
    """``(T, V)`` the scorer's log-probability of each token after each beginning of an output."""
    targets = [[*tokens[:t], token] for t in range(len(tokens)) for token in range(V)]
    width = len(tokens)
    # a filled-up position does not change what is before it
    target = torch.tensor([[*row, *[2] * (width - len(row))] for row in targets])
    previous = torch.cat([torch.full((len(targets), 1), 2), target[:, :-1]], dim=1)
    batch = replace(batch_of([source] * len(targets)), target=target, prev_output_tokens=previous)
    scored = SequenceScorer(members, 1, 2).score(batch, [len(row) for row in targets])
    return torch.stack([one.hypothesis.positional_scores[-1] for one in scored]).view(width, V)


def assert_top(hypothesis: Hypothesis, lprobs: Tensor, count: int) -> None:
    """The top tokens are the best of ``lprobs``, ``(T, V)``; where there are fewer than ``count``, others have none."""
    tokens, scores = hypothesis.top_tokens, hypothesis.top_scores
    assert tokens is not None
    assert scores is not None
    assert tokens.shape == scores.shape == (len(hypothesis.tokens), count)
    best = lprobs.topk(min(count, lprobs.size(1)))
    torch.testing.assert_close(scores[:, : lprobs.size(1)], best.values, atol=1e-10, rtol=0)
    assert (scores[:, lprobs.size(1) :] == -torch.inf).all()
    possible = best.values > -torch.inf
    assert tokens[:, : lprobs.size(1)][possible].tolist() == best.indices[possible].tolist()


OPTIONS: list[dict[str, Any]] = [
    {},
    {"skip_log_softmax": False, "lazy_compaction": False},
    {"semantics": "huggingface", "early_stopping": "never", "len_penalty": 0.3},
    {"semantics": "huggingface", "beam_size": 1},
    {"normalize_scores": False, "beam_size": 2},
]


@pytest.mark.parametrize("count", [1, 3, V + 2])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_those_of_beam_search_are_the_scorers(options: dict[str, Any], count: int) -> None:
    for members in (models(), models(2)):
        values = {"beam_size": 4, "max_len": 6, "min_len": 0, "top_tokens": count, **options}
        generator = make_generator(members, dictionary(WORDS), **values)
        found = generator.generate(batch_of(SOURCES))
        assert options.get("beam_size") == 1 or len({len(one.tokens) for some in found for one in some}) > 1
        for source, hypotheses in zip(SOURCES, found, strict=True):
            for hypothesis in hypotheses:
                lprobs = distributions(members, source, hypothesis.tokens.tolist())
                if generator.setup.forces_end:  # fairseq forbids padding, and forces end-of-sentence at the maximum
                    lprobs[:, 1] = -torch.inf
                    lprobs[5:, torch.arange(V) != 2] = -torch.inf
                assert_top(hypothesis, lprobs, count)


@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
@pytest.mark.parametrize("name", ["beam", "greedy", "sampling", "beam_sampling", "diverse_siblings", "marian"])
def test_the_chosen_token_is_among_all_tokens_with_its_score(name: str, semantics: str) -> None:
    """With processors, as in ``positional_scores``."""
    keys = {"semantics": semantics, "min_len": 2, "tokens_to_suppress": ["w1"], "top_tokens": V}
    for hypotheses in decode(name, models(), batch_of(SOURCES), WORDS, **keys):
        for one in hypotheses:
            assert one.top_tokens is not None
            assert one.top_scores is not None
            places = (one.top_tokens == one.tokens.unsqueeze(1)).int().argmax(1, keepdim=True)
            assert torch.equal(one.top_tokens.gather(1, places).squeeze(1), one.tokens)
            if name != "diverse_siblings":  # penalties of strategies are no part of a distribution
                chosen = one.top_scores.gather(1, places).squeeze(1)
                torch.testing.assert_close(chosen, one.positional_scores, atol=1e-6, rtol=0, check_dtype=False)
            assert (one.top_scores[one.top_tokens == 5] == -torch.inf).all(), "w1 is suppressed"


def test_a_strategy_that_processes_itself() -> None:
    search = HuggingFaceDiverseBeam(2, 0.5)
    keys = {"semantics": "huggingface", "search_strategy": search, "beam_size": 4, "max_len": 5, "min_len": 0}
    generator = make_generator(models(), dictionary(WORDS), tokens_to_suppress=["w1"], top_tokens=V, **keys)
    for source, hypotheses in zip(SOURCES, generator.generate(batch_of(SOURCES)), strict=True):
        for hypothesis in hypotheses:
            lprobs = distributions(models(), source, hypothesis.tokens.tolist())
            lprobs[:, 5] = -torch.inf
            assert_top(hypothesis, lprobs, V)


def test_strategies_with_a_loop_of_their_own_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"generation\.top_tokens=2 is not supported by ContrastiveSearch"):
        decode("contrastive", models(), batch_of(SOURCES), WORDS, top_tokens=2)
