"""Minimum risk training: the loss is the paper's formula, and with all outputs as candidates the expected risk."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from sacrebleu.metrics import CHRF
from torch import Tensor

from examples.objectives.minimum_risk import MinimumRisk, MinimumRiskConfig
from seqgen.config import GenerationConfig
from seqgen.data.tokenizers.base import WhitespaceTokenizer
from seqgen.lab.checks.kinds import new_model, small_transformer
from seqgen.lab.checks.subject import Ids, tiny_dictionary
from seqgen.structures import Batch
from seqgen.task import Task

WORDS = tiny_dictionary(3)
EOS, PAD = WORDS.eos(), WORDS.pad()


def made(beam: int, **keys: Any) -> tuple[MinimumRisk, Any, Batch]:
    """The criterion, a model in float64, and pairs of unequal lengths."""
    tokenizer = WhitespaceTokenizer(WORDS)
    cfg = MinimumRiskConfig(decode=GenerationConfig(mbr="chrf", beam=beam, max_len=3, min_len=0), **keys)
    model = new_model(small_transformer(), WORDS).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.4)
    batch = Ids.of(model, WORDS, len(WORDS)).batch([4, 1, 3], None, [2, 3, 1], seed=3)
    return MinimumRisk(cfg, Task(None, tokenizer, tokenizer)), model, batch


def all_outputs() -> list[list[int]]:
    """The outputs of at most 3 tokens."""
    words = [token for token in range(len(WORDS)) if token not in (EOS, PAD)]
    return [[EOS], *([one, EOS] for one in words), *([one, two, EOS] for one in words for two in words)]


def lprob(model: Any, batch: Batch, row: int, tokens: list[int]) -> Tensor:
    source, length = batch.source, int(batch.source.src_lengths[row])
    previous = torch.tensor([[EOS, *tokens[:-1]]])
    logits = model(source.src_tokens[row, None, :length], torch.tensor([length]), previous).logits[0]
    return torch.stack([logits[step].log_softmax(-1)[token] for step, token in enumerate(tokens)]).sum()


def utility(own: MinimumRisk, batch: Batch, row: int, tokens: list[int]) -> float:
    text, reference = (own.task.decode(one) for one in (torch.tensor(tokens), own.references(batch)[row]))
    return float(CHRF().sentence_score(text, [reference]).score)


def test_all_candidates_give_the_expected_risk_by_enumeration() -> None:
    """Loss and gradient, for 43 outputs, whose probabilities sum to one but for the mass of longer outputs."""
    outputs = all_outputs()
    own, model, batch = made(len(outputs))
    loss, logged = own.sequence_loss(model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    gradient = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    wanted = torch.zeros((), dtype=torch.float64)
    for row in range(batch.num_sentences):
        probabilities = torch.stack([lprob(model, batch, row, tokens) for tokens in outputs]).exp()
        utilities = [utility(own, batch, row, tokens) for tokens in outputs]
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
    own, model, batch = made(3, **keys)
    wanted = 0.0
    candidates = [[one.tokens.tolist() for one in row] for row in own.decode(model, batch)]
    for row, outputs in enumerate(candidates):
        reference = own.references(batch)[row].tolist()
        if own.cfg.add_reference and reference not in outputs:
            outputs.append(reference)
        scores = [float(lprob(model, batch, row, tokens).detach()) for tokens in outputs]
        if own.cfg.length_normalized:
            scores = [score / len(tokens) for score, tokens in zip(scores, outputs, strict=True)]
        weights = torch.tensor([own.cfg.alpha * score for score in scores], dtype=torch.float64).softmax(0).tolist()
        risks = [1 - utility(own, batch, row, tokens) / 100 for tokens in outputs]
        wanted += sum(weight * risk for weight, risk in zip(weights, risks, strict=True))
    assert float(own.sequence_loss(model, batch)[0].detach()) == pytest.approx(wanted, abs=1e-10)
    assert not own.is_expected_risk


def test_one_candidate_has_no_gradient() -> None:
    own, model, batch = made(1)
    loss, _ = own.sequence_loss(model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())
    assert replace(own.cfg) == own.cfg
