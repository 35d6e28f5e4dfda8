"""Cross-entropy of logits, also fused with the projection that computes them.

Shapes: ``M`` target tokens in the batch that are not padding, ``V`` tokens in the vocabulary, ``C`` features.

The loss over the vocabulary takes a large part of a small model's training time. ``cross_entropy`` therefore does not
copy the logits: one buffer first has the logits, then their exponentials, then their gradient, which is thus known
after the forward pass; the backward pass only scales it.

Fused with the projection to the vocabulary, the logits of a batch are never all in memory: those of 1,024 target tokens
over a vocabulary of 32,128 take 131 MB. A chunk of rows at a time is computed, replaced by its gradient, and multiplied
to the gradients of features and weight.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from seqgen.core.decoder import Decoder
from seqgen.modules.linear import multiply

_CHUNK_ELEMENTS = 1 << 23
"""Logits per chunk of the matrix products: 32 MiB of float32; with fewer rows, the products are slower."""

_CACHED_ELEMENTS = 1 << 18
"""Logits per chunk of the loss: 1 MiB of float32, which fits into a core's cache."""

_LARGE = 1 << 22
"""Minimum number of logits for which the fused computation is faster than computing all logits at once."""

_LINEAR = frozenset({"AddmmBackward0", "MmBackward0", "_OneDNNLinearBackward"})
"""Autograd operations whose backward pass does not read their output, so that the output can be overwritten."""


def cross_entropy(
    logits: Tensor, target: Tensor, label_smoothing: float = 0.0, z_loss: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropy with label smoothing and z-loss, summed over rows.

    With ``eps`` the label smoothing, ``p`` the softmax of the logits, ``t`` the target, ``e = eps / (V - 1)`` and
    ``log Z`` the log-sum-exp of the logits::

        loss = -(1 - eps) * log p[t] - e * sum(log p[j] for j != t) + z_loss * (log Z) ** 2

    The z-loss keeps ``log Z`` close to zero; it comes from Mesh TensorFlow, with which T5 was trained.

    Args:
        logits: ``(M, V)``; must not be used afterwards, since its memory may be overwritten.
        target: ``(M,)`` int64.
        label_smoothing: probability mass that is distributed over the ``V - 1`` tokens that are not the target.
        z_loss: weight of the squared ``log Z``.

    Returns:
        Three scalars, in float64 for float64 logits, else in float32: the loss in nats (differentiable), the negative
        log-likelihood of the targets in nats, and the number of rows whose target has the largest logit, ties included.
    """
    values: tuple[Tensor, Tensor, Tensor] = _CrossEntropy.apply(logits, target, label_smoothing, z_loss)  # type: ignore[no-untyped-call]
    return values


class _Loss(torch.autograd.Function):
    """A loss whose gradients are known after the forward pass.

    The last three arguments have none: the target, and the weights of the label smoothing and of the z-loss.
    """

    @staticmethod
    def results(ctx: Any, sums: Tensor, dtype: torch.dtype, *gradients: Tensor | None) -> tuple[Tensor, ...]:
        """Keep the gradients for the backward pass; return the three values of ``_losses``."""
        ctx.gradients, ctx.dtype = gradients, dtype
        loss, nll, correct = sums.unbind()
        ctx.mark_non_differentiable(nll, correct)
        return loss, nll, correct

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, ()
        if all(gradient is None for gradient in gradients):
            raise RuntimeError("backward was already called on this loss, which overwrote its gradient")
        if grad_loss.device.type != "cpu" or grad_loss != 1:
            gradients = [gradient if gradient is None else gradient.mul_(grad_loss) for gradient in gradients]
        return *(gradient if gradient is None else gradient.to(ctx.dtype) for gradient in gradients), None, None, None


class _CrossEntropy(_Loss):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, *weights: float) -> tuple[Tensor, ...]:
        wanted = ctx.needs_input_grad[0]
        buffer = _buffer(logits) if wanted else logits
        sums = _losses(buffer, target, wanted, *weights)
        return _Loss.results(ctx, sums, logits.dtype, buffer if wanted else None)


def _buffer(logits: Tensor) -> Tensor:
    """The buffer that is overwritten: the logits if no other operation reads them, else a copy in float32 or more."""
    dtype = torch.promote_types(logits.dtype, torch.float32)
    if logits.dtype != dtype:
        return logits.to(dtype)
    # detach() shares memory but not the version counter: safe only if the operation before does not save its output
    producer = logits.grad_fn
    while producer is not None and producer.name() in ("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0"):
        producer = producer.next_functions[0][0]
    owned = producer is not None and producer.name() in _LINEAR and logits.is_contiguous()
    return logits.detach() if owned else logits.detach().clone()


def projection_of(decoder: Decoder, features: Tensor) -> tuple[Tensor, Tensor, Tensor | None] | None:
    """A decoder's output layer as one matrix product, if it is one and fusing it with the loss is faster.

    Args:
        decoder: the decoder.
        features: ``(M, C)`` the input of its output layer.

    Returns:
        Features ``(M, C)``, weight ``(V, C)`` and bias ``(V,)`` or ``None``, such that the logits are ``features @
        weight.T + bias``; ``None`` if the logits should be computed by the output layer.
    """
    # a subclass may override output_layer and inherit an output_product that describes another output layer
    if _owner(decoder, "output_layer") is not _owner(decoder, "output_product"):
        return None
    product = decoder.output_product(features)
    if product is None or torch.is_autocast_enabled(features.device.type):
        return None
    features, weight, _ = product
    is_precise = features.dtype == weight.dtype and features.dtype in (torch.float32, torch.float64)
    is_large = features.size(0) * weight.size(0) >= _LARGE
    return product if features.device.type == "cpu" and is_precise and is_large else None


def _owner(decoder: Decoder, name: str) -> type:
    return next(cls for cls in type(decoder).__mro__ if name in vars(cls))


def projected_cross_entropy(
    features: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, label_smoothing: float, z_loss: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute ``cross_entropy`` of the logits ``features @ weight.T + bias``.

    Args:
        features: ``(M, C)``.
        weight: ``(V, C)``.
        bias: ``(V,)`` or ``None``.
        target: ``(M,)`` int64.
        label_smoothing: see ``cross_entropy``.
        z_loss: see ``cross_entropy``.

    Returns:
        Three scalars: the loss (differentiable) and the negative log-likelihood in nats, and the number of correct
        predictions.
    """
    values: tuple[Tensor, Tensor, Tensor] = _ProjectedCrossEntropy.apply(  # type: ignore[no-untyped-call]
        features, weight, bias, target, label_smoothing, z_loss
    )
    return values


class _ProjectedCrossEntropy(_Loss):
    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *weights: float
    ) -> tuple[Tensor, ...]:
        rows, vocab = features.size(0), weight.size(0)
        wanted = ctx.needs_input_grad
        grad_features = torch.empty_like(features) if wanted[0] else None
        grad_weight = torch.zeros_like(weight) if wanted[1] else None
        grad_bias = features.new_zeros(vocab) if wanted[2] else None
        sums = features.new_zeros(3)
        step = max(1, _CHUNK_ELEMENTS // vocab)
        for start in range(0, rows, step):
            part = slice(start, start + step)
            logits = multiply(features[part], weight, bias)
            sums += _losses(logits, target[part], True, *weights)
            if grad_features is not None:
                grad_features[part] = multiply(logits, weight.t())
            if grad_weight is not None:
                grad_weight.addmm_(logits.t(), features[part])
            if grad_bias is not None:
                grad_bias += logits.sum(0)
        return _Loss.results(ctx, sums, features.dtype, grad_features, grad_weight, grad_bias)


def _losses(logits: Tensor, target: Tensor, gradient: bool, label_smoothing: float, z_loss: float) -> Tensor:
    """Sum the losses of rows, and replace the logits by the gradient, in place.

    With ``b = eps / (V - 1)``, ``a = 1 - eps - b``, ``c`` the weight of the z-loss and ``lse = log Z``, the loss of a
    row ``z`` and its gradient are, since ``log p[j] = z[j] - lse`` and ``a + b * V = 1``::

        loss = a * (lse - z[t]) + b * (V * lse - sum(z)) + c * lse ** 2
        d loss / d z[j] = (1 + 2 * c * lse) * p[j] - a * [j = t] - b

    Args:
        logits: ``(M, V)``.
        target: ``(M,)`` int64.
        gradient: whether to overwrite the logits, which are float32 or float64 then.
        label_smoothing: see ``cross_entropy``.
        z_loss: see ``cross_entropy``.

    Returns:
        ``(3,)``: the loss, the negative log-likelihood and the number of correct predictions, summed over rows.
    """
    vocab = logits.size(1)
    b = label_smoothing / (vocab - 1) if vocab > 1 else 0.0
    a = 1.0 - label_smoothing - b
    dtype = torch.promote_types(logits.dtype, torch.float32)
    sums = torch.zeros(3, dtype=dtype, device=logits.device)
    step = max(1, _CACHED_ELEMENTS // vocab if logits.device.type == "cpu" else logits.size(0))
    for start in range(0, logits.size(0), step):
        z, t = logits[start : start + step], target[start : start + step, None]
        z = z if gradient else z.to(dtype, copy=True)
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
        if gradient:
            z.mul_((1.0 + 2.0 * z_loss * lse) / exp_sum)
            if b:
                z.sub_(b)
            z.scatter_add_(1, t, at_target.new_full((1, 1), -a).expand_as(t))
    return sums
