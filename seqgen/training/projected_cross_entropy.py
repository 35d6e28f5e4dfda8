"""Projection to the vocabulary and cross-entropy, fused, so that the logits of a batch are never all in memory.

The logits of 1,024 target tokens over a vocabulary of 32,128 take 131 MB. Here, a chunk of rows at a time is computed,
replaced by its gradient in place, and multiplied to the gradients of features and weight. All gradients are thus known
after the forward pass; the backward pass only scales them.

Shapes: ``M`` target tokens, ``C`` features, ``V`` tokens in the vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from seqgen.decoder import Decoder
from seqgen.modules.linear import multiply

_CHUNK_ELEMENTS = 1 << 23
"""Logits per chunk of the matrix products: 32 MiB of float32; with fewer rows, the products are slower."""

_CACHED_ELEMENTS = 1 << 18
"""Logits per chunk of the loss: 1 MiB of float32, which fits into a core's cache."""

_LARGE = 1 << 22
"""Minimum number of logits for which the fused computation is faster than computing all logits at once."""


def projection_of(decoder: Decoder, features: Tensor) -> tuple[Tensor, Tensor] | None:
    """A decoder's output layer as one matrix product, if it is one and fusing it with the loss is faster.

    Args:
        decoder: the decoder.
        features: ``(M, C)`` the input of its output layer.

    Returns:
        Features ``(M, C)`` and a weight ``(V, C)`` such that the logits are ``features @ weight.T``; ``None`` if the
        logits should be computed by the output layer.
    """
    # a subclass may override output_layer and inherit an output_product that describes another output layer
    if _owner(decoder, "output_layer") is not _owner(decoder, "output_product"):
        return None
    product = decoder.output_product(features)
    if product is None or torch.is_autocast_enabled(features.device.type):
        return None
    features, weight = product
    fits = features.device.type == "cpu" and features.dtype == weight.dtype and features.dtype in _PRECISE
    return product if fits and features.size(0) * weight.size(0) >= _LARGE else None


_PRECISE = (torch.float32, torch.float64)


def _owner(decoder: Decoder, name: str) -> type:
    return next(cls for cls in type(decoder).__mro__ if name in vars(cls))


def projected_cross_entropy(
    features: Tensor, weight: Tensor, target: Tensor, label_smoothing: float = 0.0, z_loss: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute ``criteria.cross_entropy`` of the logits ``features @ weight.T``.

    Args:
        features: ``(M, C)``.
        weight: ``(V, C)``.
        target: ``(M,)`` int64.
        label_smoothing: see ``cross_entropy``.
        z_loss: see ``cross_entropy``.

    Returns:
        Three scalars: the loss (differentiable) and the negative log-likelihood in nats, and the number of correct
        predictions.
    """
    loss, nll, correct = _ProjectedCrossEntropy.apply(  # type: ignore[no-untyped-call]
        features, weight, target, label_smoothing, z_loss
    )
    return loss, nll, correct


class _ProjectedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, target: Tensor, label_smoothing: float, z_loss: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows, vocab = features.size(0), weight.size(0)
        wants_features, wants_weight = ctx.needs_input_grad[:2]
        grad_features = torch.empty_like(features) if wants_features else None
        grad_weight = torch.zeros_like(weight) if wants_weight else None
        sums = features.new_zeros(3)
        step = max(1, _CHUNK_ELEMENTS // vocab)
        for start in range(0, rows, step):
            part = slice(start, start + step)
            logits = multiply(features[part], weight)
            sums += loss_and_gradient_(logits, target[part], label_smoothing, z_loss)
            if grad_features is not None:
                grad_features[part] = multiply(logits, weight.t())
            if grad_weight is not None:
                grad_weight.addmm_(logits.t(), features[part])
        ctx.gradients = grad_features, grad_weight
        loss, nll, correct = sums.unbind()
        ctx.mark_non_differentiable(nll, correct)
        return loss, nll, correct

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise RuntimeError("backward was already called on this loss, which overwrote its gradient")
        if grad_loss != 1:
            gradients = [None if gradient is None else gradient.mul_(grad_loss) for gradient in gradients]
        return gradients[0], gradients[1], None, None, None


def loss_and_gradient_(logits: Tensor, target: Tensor, label_smoothing: float, z_loss: float) -> Tensor:
    """Replace logits by the gradient of their loss, in place; for the formulas, see ``criteria._FusedCrossEntropy``.

    Args:
        logits: ``(M, V)``; they are overwritten.
        target: ``(M,)`` int64.
        label_smoothing: see ``cross_entropy``.
        z_loss: see ``cross_entropy``.

    Returns:
        ``(3,)``: the loss, the negative log-likelihood and the number of correct predictions, summed over rows.
    """
    vocab = logits.size(1)
    b = label_smoothing / (vocab - 1) if vocab > 1 else 0.0
    a = 1.0 - label_smoothing - b
    sums = logits.new_zeros(3)
    step = max(1, _CACHED_ELEMENTS // vocab)
    for start in range(0, logits.size(0), step):
        z, t = logits[start : start + step], target[start : start + step, None]
        at_target, maximum = z.gather(1, t), z.amax(1, keepdim=True)
        logit_sum = z.sum(1, keepdim=True) if b else None
        exp_sum = z.sub_(maximum).exp_().sum(1, keepdim=True)
        lse = maximum + exp_sum.log()
        nll = lse - at_target
        loss = a * nll
        if z_loss:
            loss += z_loss * lse.square()
        if logit_sum is not None:
            loss += b * (vocab * lse - logit_sum)
        sums += torch.stack([loss.sum(), nll.sum(), (at_target >= maximum).sum()])
        z.mul_((1.0 + 2.0 * z_loss * lse) / exp_sum)
        if b:
            z.sub_(b)
        z.scatter_add_(1, t, at_target.new_full((1, 1), -a).expand_as(t))
    return sums
