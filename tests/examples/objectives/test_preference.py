"""DPO and CPO: the loss and its gradient are the formulas, computed by plain passes over the pair of each sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from examples.objectives.preference import Cpo, CpoConfig, Dpo, DpoConfig, Preference
from seqgen.core.structures import Batch
from tests.examples.objectives import tiny
from tests.examples.objectives.small import checked
from tests.examples.objectives.teachers import teachers

__all__ = ["teachers"]

CANDIDATES = [[[4, 5, tiny.EOS], [tiny.EOS], [5, tiny.EOS]], [[6, tiny.EOS], [4, 6, tiny.EOS]], [[tiny.EOS]]]
"""Of the last sentence there is only one."""

OBJECTIVES: dict[str, tuple[type[Preference], dict[str, Any]]] = {
    "uniform": (Dpo, {}),
    "dpo": (Dpo, {"reference": "runs/base"}),
    "dpo with keys": (Dpo, {"reference": "runs/base", "beta": 0.7, "nll": 0.3, "add_reference": True}),
    "cpo": (Cpo, {}),
    "cpo with keys": (Cpo, {"nll": 0.2, "beta": 0.5, "add_reference": True}),
}


@pytest.fixture
def anchor(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The reference model, which a run would be loaded from."""
    model = tiny.model(seed=1)
    monkeypatch.setattr(Preference, "frozen", lambda criterion, path: {"runs/base": model}[path])
    return model


def made(objective: str, beam: int = 4) -> Any:
    kind, keys = OBJECTIVES[objective]
    schema: Any = DpoConfig if kind is Dpo else CpoConfig
    build: Any = kind
    return build(schema(decode=tiny.decoding(beam=beam), **keys), tiny.task())


def formula(
    criterion: Any, model: Any, anchor: Any, batch: Batch, row: int, outputs: list[list[int]]
) -> tuple[Tensor, bool]:
    """The loss of one sentence, and whether it has a pair."""
    reference = criterion.references(batch)[row].tolist()
    if criterion.cfg.add_reference and reference not in outputs:
        outputs = [*outputs, reference]
    utilities = [tiny.utility(criterion, batch, row, tokens) for tokens in outputs]
    if max(utilities) == min(utilities):
        return torch.zeros((), dtype=torch.float64), False
    chosen, rejected = (outputs[utilities.index(pick(utilities))] for pick in (max, min))
    of_chosen, of_rejected = (tiny.token_lprobs(model, batch, row, tokens).sum() for tokens in (chosen, rejected))
    margin = of_chosen - of_rejected
    if isinstance(criterion, Dpo) and criterion.cfg.reference:
        others = [tiny.token_lprobs(anchor, batch, row, tokens).sum().detach() for tokens in (chosen, rejected)]
        margin = (of_chosen - others[0]) - (of_rejected - others[1])
    loss = (1 + (-criterion.cfg.beta * margin).exp()).log()
    return loss - criterion.cfg.nll * of_chosen, True


@pytest.mark.parametrize("candidates", [None, CANDIDATES], ids=["search", "given"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_loss_and_gradient_are_the_formula(objective: str, candidates: Any, anchor: Any) -> None:
    criterion, model = made(objective), tiny.model()
    batch = tiny.pairs(model)
    if candidates is not None:
        tiny.replace_decode(criterion, tiny.giving(candidates))
    outputs = tiny.tokens_of(criterion.decode(model, batch))
    found = [formula(criterion, model, anchor, batch, row, outputs[row]) for row in range(3)]
    wanted = torch.stack([loss for loss, _ in found]).sum()
    loss, logged = criterion.sequence_loss(model, batch)
    assert float(loss.detach()) == pytest.approx(float(wanted.detach()), abs=1e-10)
    tiny.assert_equal(tiny.gradient(model, loss), tiny.gradient(model, wanted))
    first = sum(tiny.utility(criterion, batch, row, outputs[row][0]) for row in range(3))
    assert float(logged["utility"]) == pytest.approx(first, abs=1e-8)
    assert int(logged["pairs"]) == sum(differ for _, differ in found) >= 1
    assert 0 <= int(logged["preferred"]) <= int(logged["pairs"])
    criterion.sequence_loss(model, batch)[0].backward()
    assert all(parameter.grad is None for parameter in anchor.parameters())


@pytest.mark.usefixtures("anchor")
@pytest.mark.parametrize("objective", ["dpo", "cpo"])
@pytest.mark.parametrize("candidates", [[[5, tiny.EOS]] * 3, [[6, tiny.EOS]]], ids=["equal", "one"])
def test_equal_utilities_give_no_loss(objective: str, candidates: list[list[int]]) -> None:
    """The loss still has a gradient, of zeros, so that each rank makes a backward pass."""
    criterion, model = made(objective), tiny.model()
    tiny.replace_decode(criterion, tiny.giving([candidates] * 3))
    loss, logged = criterion.sequence_loss(model, tiny.pairs(model))
    assert float(loss.detach()) == int(logged["pairs"]) == 0
    assert loss.requires_grad
    tiny.assert_zero(tiny.gradient(model, loss))


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["dpo", "cpo"])
def test_invariants(objective: str, teachers: dict[str, str]) -> None:
    keys = [f"criterion.reference={teachers['transformer']}"] if objective == "dpo" else []
    assert "10 of 10" in checked("preference", f"criterion={objective}", "criterion.decode.max_len=6", *keys)
