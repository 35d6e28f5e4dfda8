"""The loss over the vocabulary: the lean computation equals the plain formula, in value and in gradient."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqgen.core.structures import Batch, Source
from seqgen.training import cross_entropy as losses
from seqgen.training.criteria import (
    CrossEntropyConfig,
    CrossEntropyCriterion,
    LabelSmoothedCrossEntropyConfig,
    LabelSmoothedCrossEntropyCriterion,
    TargetPositions,
    target_logits,
)
from seqgen.training.cross_entropy import cross_entropy
from tests.model_zoo import ZOO, TinyTask, build


def plain(logits: Tensor, target: Tensor, smoothing: float) -> Tensor:
    """Fairseq's definition, written down as it is read."""
    lprobs = logits.log_softmax(-1)
    nll = -lprobs.gather(1, target[:, None]).sum()
    smooth = -lprobs.sum()
    eps_i = smoothing / (logits.size(1) - 1)
    return (1 - smoothing - eps_i) * nll + eps_i * smooth


def test_by_hand() -> None:
    logits = torch.tensor([[1.0, 3.0, 4.0]]).log()  # probabilities 1/8, 3/8, 4/8
    loss, nll, correct = cross_entropy(logits.clone(), torch.tensor([1]), 0.2)
    assert nll.item() == pytest.approx(math.log(8 / 3))
    assert loss.item() == pytest.approx(0.8 * math.log(8 / 3) + 0.1 * math.log(8) + 0.1 * math.log(2))
    assert correct.item() == 0
    assert cross_entropy(logits.clone(), torch.tensor([2]))[2].item() == 1


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("chunk", [1, 40, 1 << 18])
def test_equals_the_plain_formula(smoothing: float, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "_CACHED_ELEMENTS", chunk)
    torch.manual_seed(0)
    features = torch.randn(13, 5, dtype=torch.float64, requires_grad=True)
    layer = nn.Linear(5, 11, dtype=torch.float64)
    target = torch.randint(0, 11, (13,))
    gradients = []
    for compute in (plain, lambda *args: cross_entropy(*args)[0]):
        loss = compute(layer(features) * 1.0, target, smoothing)
        gradients.append((loss.detach(), *torch.autograd.grad(3 * loss, [features, *layer.parameters()])))
    # straight from the linear layer, whose memory is used again
    loss, nll, correct = cross_entropy(layer(features), target, smoothing)
    gradients.append((loss.detach(), *torch.autograd.grad(3 * loss, [features, *layer.parameters()])))
    for wanted, *others in zip(*gradients, strict=True):
        for got in others:
            torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
    logits = layer(features)
    torch.testing.assert_close(nll, F.cross_entropy(logits, target, reduction="sum"))
    assert correct == (logits.argmax(1) == target).sum()


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_gradient_equals_finite_differences(smoothing: float) -> None:
    torch.manual_seed(1)
    logits = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0, 5, 2, 2])
    (gradient,) = torch.autograd.grad(cross_entropy(logits, target, smoothing)[0], logits)
    for index in range(logits.numel()):
        step = torch.zeros(24, dtype=torch.float64)
        step[index] = 1e-5
        up, down = (cross_entropy(logits.detach() + s * step.view(4, 6), target, smoothing)[0] for s in (1, -1))
        assert gradient.flatten()[index].item() == pytest.approx(((up - down) / 2e-5).item(), abs=1e-8)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [1, 1 << 18])
def test_z_loss_equals_the_plain_formula(smoothing: float, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "_CACHED_ELEMENTS", chunk)
    torch.manual_seed(3)
    logits = (torch.randn(9, 7, dtype=torch.float64) * 3).requires_grad_()
    target = torch.randint(0, 7, (9,))
    wanted = plain(logits, target, smoothing) + 0.3 * logits.logsumexp(-1).square().sum()
    loss, nll, _ = cross_entropy(logits, target, smoothing, 0.3)
    torch.testing.assert_close(loss, wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(nll, F.cross_entropy(logits, target, reduction="sum"))
    gradients = [torch.autograd.grad(2 * value, logits)[0] for value in (loss, wanted)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


def test_z_loss_by_hand() -> None:
    logits = torch.tensor([[1.0, 3.0, 4.0]]).log()  # Z = 8
    loss, nll, _ = cross_entropy(logits, torch.tensor([1]), 0.0, 1e-2)
    assert loss.item() == pytest.approx(math.log(8 / 3) + 1e-2 * math.log(8) ** 2)
    assert nll.item() == pytest.approx(math.log(8 / 3))


def test_z_loss_belongs_to_training() -> None:
    model = build("transformer_tiny")
    bare, with_z = (CrossEntropyCriterion(CrossEntropyConfig(z), TinyTask()) for z in (0.0, 0.1))
    assert with_z(model, batch()).loss == bare(model, batch()).loss
    for module in model.modules():
        module.training = module is model  # the criterion asks the model; without dropout the logits stay the same
    logits, _ = target_logits(model, batch(), pad=1)
    z = 0.1 * logits.logsumexp(-1).square().sum()
    torch.testing.assert_close(with_z(model, batch()).loss, bare(model, batch()).loss + z)


class Squashed(nn.Module):
    """An output layer whose backward reads its own output, which must therefore survive the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 7, dtype=torch.float64)

    def forward(self, features: Tensor) -> Tensor:
        return self.linear(features).tanh()


def test_an_output_that_its_layer_still_needs_is_left_alone() -> None:
    torch.manual_seed(2)
    layer, target = Squashed(), torch.tensor([1, 6])
    features = torch.randn(2, 5, dtype=torch.float64)
    wanted = torch.autograd.grad(plain(layer(features), target, 0.1), list(layer.parameters()))
    got = torch.autograd.grad(cross_entropy(layer(features), target, 0.1)[0], list(layer.parameters()))
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_without_gradient_the_logits_stay() -> None:
    logits = torch.randn(3, 5)
    before = logits.clone()
    with torch.no_grad():
        cross_entropy(logits, torch.tensor([0, 1, 2]), 0.1)
    assert torch.equal(logits, before)


def test_a_second_backward_is_refused() -> None:
    layer = nn.Linear(3, 4)
    loss, _, _ = cross_entropy(layer(torch.ones(2, 3)), torch.tensor([0, 1]))
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="overwrote its"):
        loss.backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_summed_in_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    logits = torch.randn(64, 300).to(dtype).requires_grad_()
    target = torch.randint(0, 300, (64,))
    loss, _, _ = cross_entropy(logits, target, 0.1)
    wanted = plain(logits.float(), target, 0.1)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=0)
    assert torch.autograd.grad(loss, logits)[0].dtype == dtype


def test_extreme_logits_stay_finite() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e30, 0.0, 1.0]], requires_grad=True)
    loss, _, _ = cross_entropy(logits, torch.tensor([0, 2]))
    assert torch.isfinite(torch.autograd.grad(loss, logits)[0]).all()


def batch(pad: int = 1, eos: int = 2) -> Batch:
    target = torch.tensor([[5, 6, eos, pad], [7, 8, 9, eos], [eos, pad, pad, pad]])
    shifted = torch.cat([torch.full((3, 1), eos), target[:, :-1].masked_fill(target[:, :-1] == eos, pad)], 1)
    source = Source(torch.tensor([[4, 5, eos], [6, eos, pad], [7, 8, eos]]), torch.tensor([3, 2, 3]))
    return Batch(torch.arange(3), source, shifted, target, ntokens=8)


@pytest.mark.parametrize("name", list(ZOO))
def test_padding_is_left_out_before_the_projection(name: str) -> None:
    model = build(name)
    with torch.no_grad():
        logits, target = target_logits(model, batch(), pad=1)
        whole = model(batch().source.src_tokens, batch().source.src_lengths, batch().prev_output_tokens).logits
    real = batch().target != 1
    assert torch.equal(target, batch().target[real])
    torch.testing.assert_close(logits, whole[real], rtol=1e-12, atol=1e-12)


def test_lengths_say_which_tokens_are_padding() -> None:
    """With the lengths of the targets, the id of padding is a token like any other."""
    rows = torch.tensor([[5, 1, 1], [1, 6, 7]])
    known = Batch(torch.arange(2), batch().source, rows, rows, target_lengths=torch.tensor([2, 3]))
    kept = TargetPositions(known, pad=1)
    assert kept.target.tolist() == [5, 1, 1, 6, 7]
    assert kept.kept.tolist() == [0, 1, 3, 4, 5]


def test_a_model_with_a_forward_of_its_own_is_called() -> None:
    model = build("fconv_tiny")

    class Doubled(type(model)):  # type: ignore[misc]
        def forward(self, *args: Tensor) -> object:
            out = super().forward(*args)
            return out._replace(logits=2 * out.logits)

    with torch.no_grad():
        once, _ = target_logits(model, batch(), pad=1)
        model.__class__ = Doubled
        twice, _ = target_logits(model, batch(), pad=1)
    torch.testing.assert_close(twice, 2 * once)


def test_the_criteria_count_tokens_and_sentences() -> None:
    model = build("transformer_tiny")
    smoothed = LabelSmoothedCrossEntropyCriterion(LabelSmoothedCrossEntropyConfig(label_smoothing=0.1), TinyTask())
    out = smoothed(model, batch())
    bare = CrossEntropyCriterion(CrossEntropyConfig(), TinyTask())(model, batch())
    assert out.sample_size == out.logging["ntokens"] == 8
    assert out.logging["nsentences"] == 3
    torch.testing.assert_close(out.logging["nll_loss"], bare.loss.detach())
    assert out.loss.requires_grad


def test_a_batch_without_target_is_refused() -> None:
    source = Source(torch.tensor([[4, 2]]), torch.tensor([2]))
    with pytest.raises(ValueError, match="needs a batch with a target"):
        target_logits(build("fconv_tiny"), Batch(torch.tensor([0]), source), pad=1)
