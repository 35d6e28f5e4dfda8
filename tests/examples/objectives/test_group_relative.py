"""Group-relative policy optimization: expectations by enumeration, and the loss is the formula."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import Any

import pytest
import torch
from torch import Tensor

from examples.objectives.group_relative import GroupRelative, GroupRelativeConfig, advantages
from seqgen.errors import ConfigError
from tests.examples.objectives import tiny
from tests.examples.objectives.small import checked
from tests.examples.objectives.teachers import teachers

__all__ = ["teachers"]

PLAIN = {"divide_by_std": False, "length_normalized": False}


def made(beam: int, anchor: Any = None, longest: int = 3, **keys: Any) -> GroupRelative:
    """The criterion; ``anchor`` is the reference model, with a weight of 0.3."""
    cfg = GroupRelativeConfig(decode=tiny.decoding(**tiny.SAMPLING, beam=beam, max_len=longest), **keys)
    own = GroupRelative(cfg, tiny.task())
    if anchor is not None:
        own.anchor, cfg.beta = anchor, 0.3
    return own


def drawn(model: Any, batch: Any, row: int, longest: int) -> dict[tuple[int, ...], Tensor]:
    """The log-probability of each output whose end is forced at the maximum length."""
    outputs = tiny.outputs(longest)
    return {tuple(one): tiny.drawn_lprobs(model, batch, row, one, longest).sum() for one in outputs}


def test_the_expected_gradient_is_half_of_that_of_the_expected_risk() -> None:
    """With two samples and Dr. GRPO's options, summed over all 49 pairs of outputs."""
    own, model = made(2, longest=2, **PLAIN), tiny.model()
    for row in range(3):
        batch = tiny.pairs(model, [row])
        lprobs = drawn(model, batch, 0, 2)
        total = torch.zeros((), dtype=torch.float64)
        for first, second in itertools.product(lprobs, repeat=2):
            tiny.replace_decode(own, tiny.giving([[first, second]], longest=2))
            weight = (lprobs[first] + lprobs[second]).exp().detach()
            total = total + weight * own.sequence_loss(model, batch)[0]
        utilities = [tiny.utility(own, batch, 0, tokens) for tokens in lprobs]
        probabilities = torch.stack([*lprobs.values()]).exp()
        wanted = -(probabilities * torch.tensor(utilities, dtype=torch.float64)).sum() / 100
        tiny.assert_equal(tiny.gradient(model, total), tiny.gradient(model, wanted / 2))


def test_the_expected_estimate_is_the_divergence() -> None:
    """Of the distributions over outputs; with one sample, the advantage is 0 and only the divergence remains."""
    model, anchor = tiny.model(), tiny.model(seed=1)
    own = made(1, anchor, length_normalized=False)
    batch = tiny.pairs(model, [2])
    ours, others = (drawn(one, batch, 0, 3) for one in (model, anchor))
    total, logged = 0.0, 0.0
    for tokens, lprob in ours.items():
        tiny.replace_decode(own, tiny.giving([[tokens]]))
        loss, values = own.sequence_loss(model, batch)
        total += float((lprob.exp() * loss).detach())
        logged += float((lprob.exp() * values["kl"]).detach())
    wanted = sum(float((lprob.exp() * (lprob - others[tokens])).detach()) for tokens, lprob in ours.items())
    assert wanted > 0.01
    assert total == pytest.approx(0.3 * wanted, abs=1e-10)
    assert logged == pytest.approx(wanted, abs=1e-10)


@pytest.mark.parametrize("with_anchor", [False, True])
@pytest.mark.parametrize("keys", [{}, PLAIN, {"divide_by_std": False}, {"length_normalized": False}])
def test_the_loss_is_the_formula(keys: dict[str, Any], with_anchor: bool) -> None:
    """Of real samples, of unequal lengths, token by token."""
    model = tiny.model()
    anchor = tiny.model(seed=1) if with_anchor else None
    own, batch = made(6, anchor, longest=5, **keys), tiny.pairs(model)
    found = tiny.tokens_of(own.decode(model, batch))
    assert {len(tokens) for row in found for tokens in row} > {1, 5}
    wanted = torch.zeros((), dtype=torch.float64)
    for row, outputs in enumerate(found):
        utilities = [tiny.utility(own, batch, row, tokens) / 100 for tokens in outputs]
        for tokens, utility in zip(outputs, utilities, strict=True):
            advantage = utility - statistics.fmean(utilities)
            if own.cfg.divide_by_std:
                advantage /= statistics.pstdev(utilities) + 1e-4
            lprobs = tiny.drawn_lprobs(model, batch, row, tokens, 5)
            value = (advantage * lprobs).sum()
            if anchor is not None:
                ratio = (tiny.drawn_lprobs(anchor, batch, row, tokens, 5).detach() - lprobs).exp()
                value = value - 0.3 * (ratio - ratio.log() - 1).sum()
            wanted = wanted - value / (len(tokens) if own.cfg.length_normalized else 1) / len(outputs)
    loss, _ = own.sequence_loss(model, batch)
    assert float(loss.detach()) == pytest.approx(float(wanted.detach()), abs=1e-10)
    tiny.assert_equal(tiny.gradient(model, loss), tiny.gradient(model, wanted))


def test_advantages_of_rows_with_fewer_outputs() -> None:
    """Their mean and standard deviation are those of the outputs that are there."""
    rows = [[0.2, 0.6], [0.5, 0.1, 0.9], [0.3, 0.3, 0.7, 0.2]]
    present = torch.tensor([[place < len(row) for place in range(4)] for row in rows])
    rewards = torch.tensor([row + [0.0] * (4 - len(row)) for row in rows], dtype=torch.float64)
    for divide in (False, True):
        found = advantages(rewards, present, divide)
        assert not found[~present].any()
        for row, values in zip(rows, found.tolist(), strict=True):
            scale = statistics.pstdev(row) + 1e-4 if divide else 1.0
            assert values[: len(row)] == pytest.approx([(one - statistics.mean(row)) / scale for one in row])


@pytest.mark.parametrize("samples", [1, 3])
def test_equal_samples_have_no_gradient(samples: int) -> None:
    """Also one sample, whose deviation is 0, and with the same model as the reference; the others do not matter."""
    model = tiny.model()
    own, batch = made(samples, model), tiny.pairs(model)
    tiny.replace_decode(own, tiny.giving([[[4, 5, tiny.EOS]] * samples, [[5, tiny.EOS]] * samples, [[2]] * samples]))
    loss, logged = own.sequence_loss(model, batch)
    assert math.isfinite(float(loss.detach()))
    assert float(logged["kl"]) == 0
    tiny.assert_zero(tiny.gradient(model, loss), tolerance=1e-10)


@pytest.mark.parametrize("keys", [{"beta": 0.1}, {"reference": "runs/base"}])
def test_beta_and_reference_belong_together(keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="give both of them, or neither"):
        made(2, **keys)


def test_the_reference_is_loaded_and_not_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    model, anchor = tiny.model(), tiny.model(seed=1)
    monkeypatch.setattr(GroupRelative, "frozen", lambda own, path: {"runs/base": anchor}[path])
    own = made(2, reference="runs/base", beta=0.1)
    own.sequence_loss(model, tiny.pairs(model))[0].backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is None for parameter in anchor.parameters())
    assert any(parameter.grad is not None for parameter in model.parameters())


def test_invariants(teachers: dict[str, str]) -> None:
    keys = ["criterion.decode.max_len=6", "criterion.beta=0.1", f"criterion.reference={teachers['transformer']}"]
    assert "10 of 10" in checked("group_relative", "criterion=group_relative", *keys)
