"""The projection to the vocabulary and the loss over it in one, so that the logits of a batch never all exist.

A batch of 1,024 target tokens has 131 MB of logits over 32,128 tokens. Here some rows of them at a time are computed,
turned into their gradient in place, and multiplied on, while they are in a processor's cache. The gradient is thereby
known after the forward pass; the backward pass has only to scale it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from seqgen.decoder import Decoder
from seqgen.modules.matrix_product import multiply

_CHUNK_ELEMENTS = 1 << 23
"""Logits computed at a time: 32 MiB of float32, fewer rows of which would make the matrix products slower."""

_CACHED_ELEMENTS = 1 << 18
"""Logits worked on at a time: 1 MiB of float32, which stays in a core's cache."""

_LARGE = 1 << 22
"""Minimum number of logits for which this is faster than computing all logits at once."""


def projection_of(decoder: Decoder, features: Tensor) -> tuple[Tensor, Tensor] | None:
    """A decoder's output layer as one matrix product, where it is one and it pays to fuse it with the loss.

    Args:
        decoder: the decoder.
        features: ``(M, C)`` what its output layer would be called with.

    Returns:
        Features ``(M, C)`` and a weight ``(V, C)`` whose product the logits are; ``None`` where the logits shall be
        computed as usual.
    """
    # A subclass may have an output layer of its own and inherit what says what it is.
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
    """What ``cross_entropy`` gives for the logits ``features @ weight.T``.

    Args:
        features: ``(M, C)``.
        weight: ``(V, C)``.
        target: ``(M,)`` int64.
        label_smoothing: see ``cross_entropy``.
        z_loss: likewise.

    Returns:
        The loss (differentiable), the negative log-likelihood, and the number of correct predictions.
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
    """Turn logits into the gradient of their loss, in place; for the formulas, see ``criteria._FusedCrossEntropy``.

    Args:
        logits: ``(M, V)``.
        target: ``(M,)`` int64.
        label_smoothing: see ``cross_entropy``.
        z_loss: likewise.

    Returns:
        ``(3,)`` the loss, the negative log-likelihood and the number of correct predictions, summed over rows.
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
