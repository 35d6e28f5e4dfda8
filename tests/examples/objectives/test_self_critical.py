"""Self-critical training: the expected gradient is that of the expected risk, and the loss is the formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from examples.objectives.self_critical import SelfCritical, SelfCriticalConfig
from seqgen.core.structures import Batch
from seqgen.training.criteria import TrainingContext
from tests.examples.objectives import tiny
from tests.examples.objectives.small import checked


def made(**keys: Any) -> SelfCritical:
    return SelfCritical(SelfCriticalConfig(decode=tiny.decoding(**{**tiny.SAMPLING, **keys})), tiny.task())


def greedy(model: Any, batch: Batch, row: int, longest: int = 3) -> list[int]:
    """The most probable token at each step, from the probabilities of all tokens."""
    found: list[int] = []
    while len(found) < longest - 1 and tiny.EOS not in found:
        tokens = [token for token in range(len(tiny.WORDS)) if token != tiny.PAD]
        scores = [float(tiny.token_lprobs(model, batch, row, [*found, token])[-1].detach()) for token in tokens]
        found.append(tokens[scores.index(max(scores))])
    return found if tiny.EOS in found else [*found, tiny.EOS]


@pytest.mark.parametrize("samples", [1, 6])
def test_the_loss_is_the_formula(samples: int) -> None:
    """Of real samples, of unequal lengths; their scores are those of the sampler."""
    criterion, model = made(beam=samples, max_len=5), tiny.model()
    criterion.begin_update(TrainingContext(2))
    batch = tiny.pairs(model)
    found = criterion.decode(model, batch)
    wanted, utilities, baselines = torch.zeros((), dtype=torch.float64), 0.0, 0.0
    for row, hypotheses in enumerate(found):
        assert len(hypotheses) == samples
        baselines += (baseline := tiny.utility(criterion, batch, row, greedy(model, batch, row, 5)))
        for one in hypotheses:
            tokens = one.tokens.tolist()
            lprobs, value = tiny.drawn_lprobs(model, batch, row, tokens, 5), tiny.utility(criterion, batch, row, tokens)
            torch.testing.assert_close(one.positional_scores[: len(lprobs)], lprobs.detach(), rtol=0, atol=1e-10)
            utilities += value / samples
            wanted = wanted - (value - baseline) / 100 * lprobs.sum() / samples
    loss, logged = criterion.sequence_loss(model, batch)
    assert samples == 1 or {len(tokens) for row in tiny.tokens_of(found) for tokens in row} > {1, 5}
    assert float(loss.detach()) == pytest.approx(float(wanted.detach()), abs=1e-10)
    assert float(logged["utility"]) == pytest.approx(utilities, abs=1e-8)
    assert float(logged["greedy_utility"]) == pytest.approx(baselines, abs=1e-8)
    tiny.assert_equal(tiny.gradient(model, loss), tiny.gradient(model, wanted))


@pytest.mark.slow
def test_invariants() -> None:
    assert "10 of 10" in checked("self_critical", "criterion=self_critical", "criterion.decode.max_len=6")
