"""The projection and the loss in one: the same as one after the other, in value and gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from seqgen.modules.linear import Linear
from seqgen.training import cross_entropy as module
from seqgen.training.criteria import (
    CrossEntropyConfig,
    CrossEntropyCriterion,
    LabelSmoothedCrossEntropyConfig,
    LabelSmoothedCrossEntropyCriterion,
    target_logits,
)
from seqgen.training.cross_entropy import cross_entropy, projected_cross_entropy, projection_of
from tests.model_zoo import ZOO, TinyTask, build
from tests.training.test_criteria import batch

FUSED = [name for name in ZOO if build(name).decoder.output_product(torch.zeros(1, 1)) is not None]


def inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    features = torch.randn(13, 5, dtype=dtype, requires_grad=True)
    weight = torch.randn(11, 5, dtype=dtype, requires_grad=True)
    return features, weight, torch.randint(0, 11, (13,))


def by_the_formula(logits: Tensor, target: Tensor, smoothing: float, z_loss: float) -> tuple[Tensor, Tensor, Tensor]:
    """Label smoothing as fairseq's (Szegedy et al., 2016) and the z-loss (Chowdhery et al., 2022), by autograd."""
    lprobs = logits.log_softmax(-1)
    other = smoothing / (logits.size(-1) - 1)
    nll = -lprobs.gather(-1, target[:, None]).sum()
    penalty = z_loss * logits.logsumexp(-1).square().sum()
    loss = (1 - smoothing - other) * nll - other * lprobs.sum() + penalty
    return loss, nll, (logits.argmax(-1) == target).sum().to(logits.dtype)


@pytest.mark.parametrize("options", [(0.0, 0.0), (0.1, 0.0), (0.0, 0.2), (0.3, 0.2)])
@pytest.mark.parametrize("chunks", [(11, 11), (40, 22), (1 << 20, 1 << 20)])
def test_equals_one_after_the_other(
    options: tuple[float, float], chunks: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHUNK_ELEMENTS", chunks[0])
    monkeypatch.setattr(module, "_CACHED_ELEMENTS", chunks[1])
    features, weight, target = inputs()
    bias = torch.randn(11, dtype=torch.float64, requires_grad=True)
    results = []
    for compute in (
        lambda: projected_cross_entropy(features, weight, bias, target, *options),
        lambda: cross_entropy(features @ weight.t() + bias, target, *options),
        lambda: by_the_formula(features @ weight.t() + bias, target, *options),
    ):
        loss, nll, correct = compute()
        results.append([loss.detach(), nll, correct, *torch.autograd.grad(3 * loss, [features, weight, bias])])
    for fused, apart, wanted in zip(*results, strict=True):
        torch.testing.assert_close(fused, wanted, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(apart, wanted, rtol=1e-12, atol=1e-12)


def test_float32_and_extreme_logits() -> None:
    features, weight, target = inputs(torch.float32)
    got = torch.autograd.grad(projected_cross_entropy(features, weight, None, target, 0.0, 0.0)[0], [features, weight])
    wanted = torch.autograd.grad(cross_entropy(features @ weight.t(), target)[0], [features, weight])
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    loss, _, _ = projected_cross_entropy(features * 1e18, weight * 1e18, None, target, 0.0, 0.0)
    assert torch.isfinite(loss)
    assert all(torch.isfinite(gradient).all() for gradient in torch.autograd.grad(loss, [features, weight]))


def test_without_gradient() -> None:
    features, weight, target = inputs()
    with torch.no_grad():
        loss, nll, _ = projected_cross_entropy(features, weight, None, target, 0.0, 0.0)
    assert loss == nll
    assert not loss.requires_grad
    frozen = projected_cross_entropy(features, weight.detach(), None, target, 0.0, 0.0)[0]
    torch.testing.assert_close(
        torch.autograd.grad(frozen, [features])[0],
        torch.autograd.grad(projected_cross_entropy(features, weight, None, target, 0.0, 0.0)[0], [features])[0],
    )


def test_a_second_backward_is_refused() -> None:
    features, weight, target = inputs()
    loss, _, _ = projected_cross_entropy(features, weight, None, target, 0.0, 0.0)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="overwrote its"):
        loss.backward()


@pytest.mark.parametrize("name", FUSED)
def test_criteria_give_the_same_by_either_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(name)
    results = []
    for large in (0, 1 << 40):
        monkeypatch.setattr(module, "_LARGE", large)
        for criterion in (
            CrossEntropyCriterion(CrossEntropyConfig(0.1), TinyTask()),
            LabelSmoothedCrossEntropyCriterion(LabelSmoothedCrossEntropyConfig(label_smoothing=0.2), TinyTask()),
        ):
            out = criterion(model, batch())
            fused = "Projected" in str(out.loss.grad_fn)
            assert fused == (large == 0)
            gradients = torch.autograd.grad(out.loss, list(model.parameters()), allow_unused=True)
            results.append([out.loss.detach(), out.logging["nll_loss"], out.logging["correct"], *gradients])
    for first, second in ((results[0], results[2]), (results[1], results[3])):
        for one, other in zip(first, second, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_there_are_models_with_such_an_output_layer() -> None:
    assert {"fconv_tiny", "t5_tiny", "transformer_tiny"} <= {*FUSED}
    assert len(FUSED) < len(ZOO)


def test_an_output_layer_of_ones_own_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LARGE", 0)
    model = build("transformer_tiny")
    features = torch.randn(3, 128, dtype=torch.float64)
    assert projection_of(model.decoder, features) is not None

    class Capped(type(model.decoder)):  # type: ignore[misc]
        def output_layer(self, features: Tensor) -> Tensor:
            return super().output_layer(features).tanh()

    model.decoder.__class__ = Capped
    assert projection_of(model.decoder, features) is None
    logits, target = target_logits(model, batch(), pad=1)
    wanted, _, _ = cross_entropy(logits, target)
    torch.testing.assert_close(CrossEntropyCriterion(CrossEntropyConfig(), TinyTask())(model, batch()).loss, wanted)


def test_the_projection_may_be_normalized() -> None:
    """A parametrized weight is that of now."""
    layer = nn.utils.parametrizations.weight_norm(Linear(5, 11, bias=False))
    features, _, target = inputs(torch.float32)
    loss, _, _ = projected_cross_entropy(features, layer.matrix(), None, target, 0.0, 0.0)
    gradients = torch.autograd.grad(loss, list(layer.parameters()))
    wanted = torch.autograd.grad(cross_entropy(layer(features), target)[0], list(layer.parameters()))
    for one, other in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
