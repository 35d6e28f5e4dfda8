"""R-Drop (examples/objectives/r_drop.py) against its formulas, with the dropout masks of the same random numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from examples.objectives.r_drop import RDrop, RDropConfig
from seqgen.core.model import EncoderDecoderModel
from seqgen.core.structures import Batch
from seqgen.training.criteria import CriterionOut
from tests.examples.objectives.small import (
    PAIRS,
    TASK,
    batch_of,
    checked,
    plain_lprobs,
    plain_nll,
    same_gradients,
    student,
)

TOKENS = sum(len(target) for _, target in PAIRS)


def compute(criterion: RDrop, model: EncoderDecoderModel, batch: Batch) -> CriterionOut:
    torch.manual_seed(11)
    return criterion(model, batch)


def two_passes(model: EncoderDecoderModel, batch: Batch) -> list[Tensor]:
    """``(N, T, V)`` log-probabilities of two calls of the model."""
    assert batch.prev_output_tokens is not None
    torch.manual_seed(11)
    source = batch.source
    calls = [model(source.src_tokens, source.src_lengths, batch.prev_output_tokens) for _ in range(2)]
    return [call.logits.log_softmax(-1) for call in calls]


@pytest.mark.parametrize(("alpha", "smoothing"), [(0.0, 0.0), (5.0, 0.0), (1.5, 0.2)])
def test_training(alpha: float, smoothing: float) -> None:
    model = student(dropout=0.4).train()
    batch = batch_of(model)
    out = compute(RDrop(RDropConfig(alpha, smoothing), TASK), model, batch)
    first, second = two_passes(model, batch)
    assert (first - second).abs().max() > 0.1
    size, nlls, losses, kls, correct = first.size(-1), [], [], [], 0.0
    for row, (_, target) in enumerate(PAIRS):
        for t, token in enumerate(target):
            one, two = first[row, t], second[row, t]
            for lprobs in (one, two):
                nlls.append(-lprobs[token])
                others = [-lprobs[other] for other in range(size) if other != token]
                losses.append(-(1 - smoothing) * lprobs[token] + smoothing / (size - 1) * sum(others))
                correct += 0.5 * (int(lprobs.argmax()) == token)
            kls.append(0.5 * (one.exp() * (one - two)).sum() + 0.5 * (two.exp() * (two - one)).sum())
    wanted = torch.stack(losses).sum() + alpha * torch.stack(kls).sum()
    same_gradients(model, out.loss, wanted)
    assert float(out.logging["nll_loss"]) == pytest.approx(torch.stack(nlls).sum().item() / 2)
    assert float(out.logging["kl"]) == pytest.approx(torch.stack(kls).sum().item())
    assert out.logging["kl"] > 0.1
    assert out.logging["correct"] == correct
    assert (out.sample_size, out.logging["ntokens"], out.logging["nsentences"]) == (TOKENS, TOKENS, len(PAIRS))


def test_evaluation_is_twice_the_cross_entropy() -> None:
    model = student(dropout=0.4)
    state = torch.get_rng_state()
    out = RDrop(RDropConfig(), TASK)(model, batch_of(model))
    assert torch.equal(torch.get_rng_state(), state)
    nll = plain_nll(model)
    same_gradients(model, out.loss, 2 * nll)
    assert out.logging["kl"] == 0
    assert float(out.logging["nll_loss"]) == pytest.approx(nll.item())
    assert out.logging["correct"] == sum(
        (plain_lprobs(model, *pair).argmax(1) == torch.tensor(pair[1])).sum() for pair in PAIRS
    )


@pytest.mark.slow
@pytest.mark.parametrize("keys", ["", "criterion.label_smoothing=0.1"])
def test_invariants(keys: str) -> None:
    assert "7 of 7" in checked("r_drop", "criterion=r_drop", *keys.split())
