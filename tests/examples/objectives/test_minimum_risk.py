"""Minimum risk training: the loss is the paper's formula, and with all outputs as candidates the expected risk."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from examples.objectives.minimum_risk import MinimumRisk, MinimumRiskConfig
from seqgen.core.structures import Batch
from tests.examples.objectives import tiny


def made(beam: int, **keys: Any) -> tuple[MinimumRisk, Any, Batch]:
    """The criterion, a model in float64, and pairs of unequal lengths."""
    model = tiny.model()
    criterion = MinimumRisk(MinimumRiskConfig(decode=tiny.decoding(beam=beam), **keys), tiny.task())
    return criterion, model, tiny.pairs(model)


def test_all_candidates_give_the_expected_risk_by_enumeration() -> None:
    """Loss and gradient, for 43 outputs, whose probabilities sum to one but for the mass of longer outputs."""
    outputs = tiny.outputs(3)
    criterion, model, batch = made(len(outputs))
    loss, logged = criterion.sequence_loss(model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    gradient = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    wanted = torch.zeros((), dtype=torch.float64)
    for row in range(batch.num_sentences):
        probabilities = torch.stack([tiny.token_lprobs(model, batch, row, tokens).sum() for tokens in outputs]).exp()
        utilities = [tiny.utility(criterion, batch, row, tokens) for tokens in outputs]
        expected = sum(p * u for p, u in zip(probabilities, utilities, strict=True)) / probabilities.sum()
        wanted = wanted + 1 - expected / 100
    wanted.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == pytest.approx(float(wanted.detach()), abs=1e-10)
    assert float(logged["utility"]) == pytest.approx(100 * (3 - float(wanted.detach())), abs=1e-8)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(gradient[name], parameter.grad, rtol=0, atol=1e-8)


@pytest.mark.parametrize("keys", [{"alpha": 0.5}, {"length_normalized": True}, {"add_reference": True}, {"alpha": 0.0}])
def test_the_loss_is_the_formula(keys: dict[str, Any]) -> None:
    """Over the candidates of beam search, with each option."""
    criterion, model, batch = made(3, **keys)
    wanted = 0.0
    candidates = [[one.tokens.tolist() for one in row] for row in criterion.decode(model, batch)]
    for row, outputs in enumerate(candidates):
        reference = criterion.references(batch)[row].tolist()
        if criterion.cfg.add_reference and reference not in outputs:
            outputs.append(reference)
        scores = [float(tiny.token_lprobs(model, batch, row, tokens).sum().detach()) for tokens in outputs]
        if criterion.cfg.length_normalized:
            scores = [score / len(tokens) for score, tokens in zip(scores, outputs, strict=True)]
        weights = (
            torch.tensor([criterion.cfg.alpha * score for score in scores], dtype=torch.float64).softmax(0).tolist()
        )
        risks = [1 - tiny.utility(criterion, batch, row, tokens) / 100 for tokens in outputs]
        wanted += sum(weight * risk for weight, risk in zip(weights, risks, strict=True))
    assert float(criterion.sequence_loss(model, batch)[0].detach()) == pytest.approx(wanted, abs=1e-10)
