"""Objectives over whole outputs: loss and gradient are the formulas, also by enumeration of all outputs."""

import itertools
import statistics
from typing import Any

import pytest
import torch
from torch import Tensor

from examples.objectives.brio import Brio, BrioConfig
from examples.objectives.group_relative import GroupRelative, GroupRelativeConfig
from examples.objectives.mbr_distillation import MbrDistillation, MbrDistillationConfig
from examples.objectives.minimum_risk import MinimumRisk, MinimumRiskConfig
from examples.objectives.preference import Cpo, CpoConfig, Dpo, DpoConfig, Preference
from examples.objectives.self_critical import SelfCritical, SelfCriticalConfig
from seqgen.extend import Batch, TrainingContext
from tests.examples.objectives import tiny


def assert_loss(criterion: Any, model: Any, batch: Batch, wanted: Tensor, **logged: float) -> dict[str, Any]:
    """The loss of a criterion, its gradient, and some of the values that it logs, which are returned."""
    loss, found = criterion.sequence_loss(model, batch)
    assert float(loss.detach()) == pytest.approx(float(wanted.detach()), abs=1e-10)
    tiny.assert_equal(tiny.gradient(model, loss), tiny.gradient(model, wanted))
    assert {name: float(found[name]) for name in logged} == pytest.approx(logged, abs=1e-8)
    return found


@pytest.mark.parametrize(
    "keys", [{}, {"alpha": 0.5}, {"length_normalized": True}, {"add_reference": True}, {"alpha": 0.0}]
)
def test_minimum_risk(keys: dict[str, Any]) -> None:
    """Over the candidates of beam search, which may be all outputs."""
    model, beam = tiny.model(), 3 if keys else len(tiny.outputs(3))
    criterion = MinimumRisk(MinimumRiskConfig(decode=tiny.decoding(beam=beam), **keys), tiny.task())
    batch, wanted = tiny.pairs(model), torch.zeros((), dtype=torch.float64)
    candidates = tiny.tokens_of(criterion.decode(model, batch))
    assert {len(outputs) for outputs in candidates} == {beam}
    for row, outputs in enumerate(candidates):
        reference = criterion.references(batch)[row].tolist()
        if criterion.cfg.add_reference and reference not in outputs:
            outputs.append(reference)
        scores = torch.stack([tiny.token_lprobs(model, batch, row, tokens).sum() for tokens in outputs])
        if criterion.cfg.length_normalized:
            scores = scores / torch.tensor([len(tokens) for tokens in outputs])
        weights = (criterion.cfg.alpha * scores).exp()
        risks = [1 - tiny.utility(criterion, batch, row, tokens) / 100 for tokens in outputs]
        wanted = wanted + (weights / weights.sum()) @ torch.tensor(risks, dtype=torch.float64)
    assert_loss(criterion, model, batch, wanted)


def critical(**keys: Any) -> SelfCritical:
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
def test_self_critical(samples: int) -> None:
    """Of real samples, of unequal lengths; their scores are those of the sampler."""
    criterion, model = critical(beam=samples, max_len=5), tiny.model()
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
    assert samples == 1 or {len(tokens) for row in tiny.tokens_of(found) for tokens in row} > {1, 5}
    assert_loss(criterion, model, batch, wanted, utility=utilities, greedy_utility=baselines)


PLAIN = {"divide_by_std": False, "length_normalized": False}


def grouped(beam: int, anchor: Any = None, longest: int = 3, **keys: Any) -> GroupRelative:
    """The criterion; ``anchor`` is the reference model, with a weight of 0.3."""
    cfg = GroupRelativeConfig(decode=tiny.decoding(**tiny.SAMPLING, beam=beam, max_len=longest), **keys)
    criterion = GroupRelative(cfg, tiny.task())
    if anchor is not None:
        criterion.anchor, cfg.beta = anchor, 0.3
    return criterion


@pytest.mark.parametrize("with_anchor", [False, True])
@pytest.mark.parametrize("keys", [{}, PLAIN, {"divide_by_std": False}, {"length_normalized": False}])
def test_group_relative(keys: dict[str, Any], with_anchor: bool) -> None:
    """Of real samples, of unequal lengths, token by token."""
    model = tiny.model()
    anchor = tiny.model(seed=1) if with_anchor else None
    criterion, batch = grouped(6, anchor, longest=5, **keys), tiny.pairs(model)
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
    assert_loss(criterion, model, batch, wanted)


def distilling(teacher: str = "", **keys: Any) -> MbrDistillation:
    decode = tiny.decoding(**{**tiny.SAMPLING, "beam": 4, "max_len": 6, **keys})
    return MbrDistillation(MbrDistillationConfig(decode=decode, teacher=teacher), tiny.task())


def best(outputs: list[list[int]]) -> list[int]:
    """By the double loop over all candidates."""
    texts = [tiny.text(tokens) for tokens in outputs]
    expected = [sum(tiny.chrf(output, other) for other in texts) / len(texts) for output in texts]
    return outputs[expected.index(max(expected))]


@pytest.mark.parametrize("with_teacher", [False, True])
def test_mbr_distillation(with_teacher: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss is that of the candidate with the largest mean of chrF; the teacher, if there is one, is not trained."""
    model, teacher = tiny.model(), tiny.model(seed=1)
    monkeypatch.setattr(MbrDistillation, "frozen", lambda criterion, path: {"runs/large": teacher}[path])
    criterion, batch = distilling("runs/large" if with_teacher else ""), tiny.pairs(model)
    outputs = tiny.tokens_of(criterion.decode(teacher if with_teacher else model, batch))
    assert outputs != tiny.tokens_of(criterion.decode(model if with_teacher else teacher, batch))
    targets = [best(row) for row in outputs]
    assert targets != [row[0] for row in outputs]
    assert len({len(tokens) for tokens in targets}) > 1
    wanted = -torch.stack([tiny.token_lprobs(model, batch, row, targets[row]).sum() for row in range(3)]).sum()
    utilities = sum(tiny.utility(criterion, batch, row, targets[row]) for row in range(3))
    assert_loss(criterion, model, batch, wanted, utility=utilities)
    criterion.sequence_loss(model, batch)[0].backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is None for parameter in teacher.parameters())


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


def preferring(objective: str) -> Any:
    kind, keys = OBJECTIVES[objective]
    schema: Any = DpoConfig if kind is Dpo else CpoConfig
    return kind(schema(decode=tiny.decoding(beam=4), **keys), tiny.task())


def preference_loss(
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
def test_preference(objective: str, candidates: Any, anchor: Any) -> None:
    criterion, model = preferring(objective), tiny.model()
    batch = tiny.pairs(model)
    if candidates is not None:
        criterion.decode = tiny.giving(candidates)
    outputs = tiny.tokens_of(criterion.decode(model, batch))
    found = [preference_loss(criterion, model, anchor, batch, row, outputs[row]) for row in range(3)]
    wanted = torch.stack([loss for loss, _ in found]).sum()
    first = sum(tiny.utility(criterion, batch, row, outputs[row][0]) for row in range(3))
    pairs = sum(differ for _, differ in found)
    logged = assert_loss(criterion, model, batch, wanted, utility=first, pairs=pairs)
    assert pairs >= 1
    assert 0 <= int(logged["preferred"]) <= int(logged["pairs"])
    criterion.sequence_loss(model, batch)[0].backward()
    assert all(parameter.grad is None for parameter in anchor.parameters())


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_brio(alpha: float) -> None:
    """Over all pairs of candidates, some with equal utilities, of sentences with three, two and one of them."""
    criterion = Brio(BrioConfig(decode=tiny.decoding(), margin=0.3, alpha=alpha), tiny.task())
    model, wanted = tiny.model(), torch.zeros((), dtype=torch.float64)
    batch, criterion.decode = tiny.pairs(model), tiny.giving([[*CANDIDATES[0], [6, tiny.EOS]], *CANDIDATES[1:]])  # type: ignore[method-assign]
    for row, outputs in enumerate(tiny.tokens_of(criterion.decode(model, batch))):
        ranked = sorted(outputs, key=lambda tokens: -tiny.utility(criterion, batch, row, tokens))
        for (i, better), (j, worse) in itertools.combinations(enumerate(ranked), 2):
            if tiny.utility(criterion, batch, row, better) > tiny.utility(criterion, batch, row, worse):
                scores = [tiny.token_lprobs(model, batch, row, y).sum() / len(y) ** alpha for y in (better, worse)]
                wanted = wanted + (scores[1] - scores[0] + 0.3 * (j - i)).clamp(min=0)
    assert_loss(criterion, model, batch, wanted)


@pytest.mark.usefixtures("anchor")
@pytest.mark.parametrize("objective", ["dpo", "cpo"])
@pytest.mark.parametrize("candidates", [[[5, tiny.EOS]] * 3, [[6, tiny.EOS]]], ids=["equal", "one"])
def test_equal_utilities_give_no_preference(objective: str, candidates: list[list[int]]) -> None:
    """The loss still has a gradient, of zeros, so that each rank makes a backward pass."""
    criterion, model = preferring(objective), tiny.model()
    criterion.decode = tiny.giving([candidates] * 3)
    loss, logged = criterion.sequence_loss(model, tiny.pairs(model))
    assert float(loss.detach()) == int(logged["pairs"]) == 0
    assert loss.requires_grad
    assert not any(value.any() for value in tiny.gradient(model, loss).values())
