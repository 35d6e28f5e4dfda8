"""Group-relative policy optimization: expectations by enumeration, and the loss is the formula."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
import torch
from torch import Tensor

from examples.objectives.group_relative import GroupRelative, GroupRelativeConfig
from tests.examples.objectives import tiny
from tests.examples.objectives.small import checked
from tests.examples.objectives.teachers import teachers

__all__ = ["teachers"]

PLAIN = {"divide_by_std": False, "length_normalized": False}


def made(beam: int, anchor: Any = None, longest: int = 3, **keys: Any) -> GroupRelative:
    """The criterion; ``anchor`` is the reference model, with a weight of 0.3."""
    cfg = GroupRelativeConfig(decode=tiny.decoding(**tiny.SAMPLING, beam=beam, max_len=longest), **keys)
    criterion = GroupRelative(cfg, tiny.task())
    if anchor is not None:
        criterion.anchor, cfg.beta = anchor, 0.3
    return criterion


def drawn(model: Any, batch: Any, row: int, longest: int) -> dict[tuple[int, ...], Tensor]:
    """The log-probability of each output whose end is forced at the maximum length."""
    outputs = tiny.outputs(longest)
    return {tuple(one): tiny.drawn_lprobs(model, batch, row, one, longest).sum() for one in outputs}


@pytest.mark.parametrize("with_anchor", [False, True])
@pytest.mark.parametrize("keys", [{}, PLAIN, {"divide_by_std": False}, {"length_normalized": False}])
def test_the_loss_is_the_formula(keys: dict[str, Any], with_anchor: bool) -> None:
    """Of real samples, of unequal lengths, token by token."""
    model = tiny.model()
    anchor = tiny.model(seed=1) if with_anchor else None
    criterion, batch = made(6, anchor, longest=5, **keys), tiny.pairs(model)
    found = tiny.tokens_of(criterion.decode(model, batch))
    assert {len(tokens) for row in found for tokens in row} > {1, 5}
    wanted = torch.zeros((), dtype=torch.float64)
    for row, outputs in enumerate(found):
        utilities = [tiny.utility(criterion, batch, row, tokens) / 100 for tokens in outputs]
        for tokens, utility in zip(outputs, utilities, strict=True):
            advantage = utility - statistics.fmean(utilities)
            if criterion.cfg.divide_by_std:
                advantage /= statistics.pstdev(utilities) + 1e-4
            lprobs = tiny.drawn_lprobs(model, batch, row, tokens, 5)
            value = (advantage * lprobs).sum()
            if anchor is not None:
                ratio = (tiny.drawn_lprobs(anchor, batch, row, tokens, 5).detach() - lprobs).exp()
                value = value - 0.3 * (ratio - ratio.log() - 1).sum()
            wanted = wanted - value / (len(tokens) if criterion.cfg.length_normalized else 1) / len(outputs)
    loss, _ = criterion.sequence_loss(model, batch)
    assert float(loss.detach()) == pytest.approx(float(wanted.detach()), abs=1e-10)
    tiny.assert_equal(tiny.gradient(model, loss), tiny.gradient(model, wanted))


@pytest.mark.slow
def test_invariants(teachers: dict[str, str]) -> None:
    keys = ["criterion.decode.max_len=6", "criterion.beta=0.1", f"criterion.reference={teachers['transformer']}"]
    assert "10 of 10" in checked("group_relative", "criterion=group_relative", *keys)
