"""MBR distillation: the target is the candidate with the largest mean of plain chrF, and the loss is its likelihood."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from examples.objectives.mbr_distillation import MbrDistillation, MbrDistillationConfig
from tests.examples.objectives import tiny
from tests.examples.objectives.small import checked
from tests.examples.objectives.teachers import teachers

__all__ = ["teachers"]


def made(teacher: str = "", **keys: Any) -> MbrDistillation:
    decode = tiny.decoding(**{**tiny.SAMPLING, "beam": 4, "max_len": 6, **keys})
    return MbrDistillation(MbrDistillationConfig(decode=decode, teacher=teacher), tiny.task())


def best(outputs: list[list[int]]) -> list[int]:
    """By the double loop over all candidates."""
    texts = [tiny.text(tokens) for tokens in outputs]
    expected = [sum(tiny.chrf(output, other) for other in texts) / len(texts) for output in texts]
    return outputs[expected.index(max(expected))]


@pytest.mark.parametrize("with_teacher", [False, True])
def test_loss_and_gradient_are_those_of_the_best_candidate(with_teacher: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of samples of the model or of the teacher, which differ; the teacher is not trained."""
    model, teacher = tiny.model(), tiny.model(seed=1)
    monkeypatch.setattr(MbrDistillation, "frozen", lambda criterion, path: {"runs/large": teacher}[path])
    criterion, batch = made("runs/large" if with_teacher else ""), tiny.pairs(model)
    outputs = tiny.tokens_of(criterion.decode(teacher if with_teacher else model, batch))
    assert outputs != tiny.tokens_of(criterion.decode(model if with_teacher else teacher, batch))
    targets = [best(row) for row in outputs]
    assert targets != [row[0] for row in outputs]
    assert len({len(tokens) for tokens in targets}) > 1
    wanted = -torch.stack([tiny.token_lprobs(model, batch, row, targets[row]).sum() for row in range(3)]).sum()
    loss, logged = criterion.sequence_loss(model, batch)
    assert float(loss.detach()) == pytest.approx(float(wanted.detach()), abs=1e-10)
    utilities = sum(tiny.utility(criterion, batch, row, targets[row]) for row in range(3))
    assert float(logged["utility"]) == pytest.approx(utilities, abs=1e-8)
    tiny.assert_equal(tiny.gradient(model, loss), tiny.gradient(model, wanted))
    criterion.sequence_loss(model, batch)[0].backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is None for parameter in teacher.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("with_teacher", [False, True])
def test_invariants(with_teacher: bool, teachers: dict[str, str]) -> None:
    keys = [f"criterion.teacher={teachers['transformer']}"] if with_teacher else []
    assert "10 of 10" in checked("mbr_distillation", "criterion=mbr_distillation", "criterion.decode.max_len=6", *keys)
