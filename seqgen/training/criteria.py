"""Training criteria: the loss of a batch.

Shapes: ``M`` target tokens in the batch that are not padding, ``V`` tokens in the vocabulary, ``C`` features.

The loss over the vocabulary takes a large part of a small model's training time. It is therefore computed without
copying the logits: padding is not projected, and one buffer ``(M, V)`` first has the logits, then their exponentials,
then their gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from seqgen.config import option
from seqgen.decoder import Decoder, IncrementalDecoder
from seqgen.errors import ConfigError
from seqgen.model import EncoderDecoderModel
from seqgen.registry import register_criterion
from seqgen.structures import Batch
from seqgen.system.hooks import Hooked
from seqgen.training.projected_cross_entropy import projected_cross_entropy, projection_of

if TYPE_CHECKING:
    from seqgen.task import Task

_CHUNK_ELEMENTS = 1 << 18  # logits per chunk: 1 MiB of float32, which fits into a core's cache
_Z_LOSS_HELP = "weight of the z-loss, the squared log-sum-exp of the logits, added in training (T5: 1e-4)"
_LINEAR = frozenset({"AddmmBackward0", "MmBackward0", "_OneDNNLinearBackward"})
"""Autograd operations whose backward pass does not read their output, so that the output can be overwritten."""


@dataclass
class CriterionOut:
    """The loss of one batch.

    Attributes:
        loss: scalar in nats, summed over the batch.
        sample_size: the number by which loss and gradient of an update are divided: usually its target tokens.
        logging: values summed over the batch, by name. ``nll_loss``, ``ntokens``, ``nsentences`` and ``correct`` have
            fixed meanings (see ``scores.mean_scores``); other values are logged divided by ``sample_size``.
    """

    loss: Tensor
    sample_size: int
    logging: dict[str, Tensor | float] = field(default_factory=dict)


class Criterion(Hooked):
    """Base class: computes the loss of a batch. For a loss of your own, subclass it and register the subclass.

    Args:
        cfg: an instance of the configuration class that the criterion is registered with.
        task: the task, which has the target dictionary.
    """

    def __init__(self, cfg: Any, task: Task):
        self.cfg = cfg
        self.task = task

    def __call__(self, model: EncoderDecoderModel, batch: Batch) -> CriterionOut:
        """Compute the loss.

        Args:
            model: the model, in training or evaluation mode.
            batch: a batch with a target ``(N, T)``.

        Returns:
            The loss, summed over the batch, and the values to log.
        """
        raise NotImplementedError


@dataclass
class CrossEntropyConfig:
    """Options of ``cross_entropy``."""

    z_loss: float = option(0.0, _Z_LOSS_HELP, minimum=0)


@dataclass
class LabelSmoothedCrossEntropyConfig:
    """Options of ``label_smoothed_cross_entropy``."""

    label_smoothing: float = option(
        0.1, "probability distributed evenly over all tokens but the target", minimum=0, maximum=1
    )
    z_loss: float = option(0.0, _Z_LOSS_HELP, minimum=0)


@register_criterion("cross_entropy", config=CrossEntropyConfig)
class CrossEntropyCriterion(Criterion):
    """Negative log-likelihood of the target tokens, plus a z-loss in training; see ``cross_entropy``."""

    label_smoothing = 0.0

    def __call__(self, model: EncoderDecoderModel, batch: Batch) -> CriterionOut:
        """Compute the loss; see ``Criterion``.

        Raises:
            ValueError: the batch has no target.
            ConfigError: the batch is packed, which the model does not support.
        """
        kept = TargetPositions(batch, self.task.target_dictionary.pad())
        target, options = kept.target, (self.label_smoothing, self.cfg.z_loss if model.training else 0.0)
        features = kept.features(model) if _has_default_forward(model) else None
        product = None if features is None else projection_of(model.decoder, features)
        if product is not None:
            loss, nll, correct = projected_cross_entropy(*product, target, *options)
        else:
            logits = kept.logits(model) if features is None else model.decoder.output_layer(features)
            loss, nll, correct = cross_entropy(logits, target, *options)
        ntokens = target.numel()
        logging: dict[str, Tensor | float] = {"nll_loss": nll, "correct": correct, "ntokens": ntokens}
        logging["nsentences"] = batch.ids.numel()
        return CriterionOut(loss, ntokens, logging)


@register_criterion("label_smoothed_cross_entropy", config=LabelSmoothedCrossEntropyConfig)
class LabelSmoothedCrossEntropyCriterion(CrossEntropyCriterion):
    """Cross-entropy against a softened target (Szegedy et al. 2016, section 7); see ``cross_entropy``."""

    def __init__(self, cfg: LabelSmoothedCrossEntropyConfig, task: Task):
        super().__init__(cfg, task)
        self.label_smoothing = cfg.label_smoothing


def target_logits(model: EncoderDecoderModel, batch: Batch, pad: int) -> tuple[Tensor, Tensor]:
    """Compute the teacher-forced logits at the positions that are not padding.

    Args:
        model: the model.
        batch: a batch with a target ``(N, T)``.
        pad: id of padding in the target.

    Returns:
        Logits ``(M, V)`` and target ids ``(M,)`` int64, row by row.

    Raises:
        ValueError: the batch has no target.
    """
    kept = TargetPositions(batch, pad)
    if _has_default_forward(model):
        # the logits of model(...), but padding is removed before the projection to the vocabulary
        return model.decoder.output_layer(kept.features(model)), kept.target
    return kept.logits(model), kept.target


class TargetPositions:
    """The positions of a batch whose target is not padding, row by row.

    Args:
        batch: a batch with a target ``(N, T)``.
        pad: id of padding in the target.

    Attributes:
        target: ``(M,)`` int64 ids.

    Raises:
        ValueError: the batch has no target.
    """

    def __init__(self, batch: Batch, pad: int):
        if batch.target is None or batch.prev_output_tokens is None:
            raise ValueError("a criterion needs a batch with a target; this batch has only a source")
        target, lengths = batch.target.flatten(), batch.target_lengths
        if lengths is None:
            real = target != pad
        else:
            real = (torch.arange(batch.target.size(1), device=target.device) < lengths.unsqueeze(1)).flatten()
        self.kept = real.nonzero().squeeze(1)
        self.target = target if self.kept.numel() == target.numel() else target[self.kept]
        self.source, self.previous, self.segments = batch.source, batch.prev_output_tokens, batch.segments

    def features(self, model: EncoderDecoderModel) -> Tensor:
        """Compute the decoder's last features.

        Args:
            model: a model with the default ``forward``.

        Returns:
            ``(M, C)`` features.
        """
        packed: dict[str, Any] = {} if self.segments is None else {"segments": self.segments}
        encoder_out = model.encoder(self.source.src_tokens, self.source.src_lengths, **packed)
        features, _ = model.decoder.extract_features(self.previous, encoder_out, **packed)
        return _rows(features, self.kept)

    def logits(self, model: EncoderDecoderModel) -> Tensor:
        """Compute the logits by the model's own ``forward``.

        Args:
            model: the model.

        Returns:
            ``(M, V)`` logits.

        Raises:
            ConfigError: the batch is packed; a ``forward`` of the model's own does not get the segments.
        """
        if self.segments is not None:
            raise ConfigError(
                f"dataset.pack=true is not possible with {type(model).__name__}: its own forward, or that of its "
                "decoder, cannot keep the examples of a row apart; set dataset.pack=false"
            )
        return _rows(model(self.source.src_tokens, self.source.src_lengths, self.previous).logits, self.kept)


def _has_default_forward(model: EncoderDecoderModel) -> bool:
    """Whether a model's output is ``output_layer(extract_features(...))`` of its decoder."""
    return (
        type(model).forward is EncoderDecoderModel.forward
        and type(model.decoder).forward in (Decoder.forward, IncrementalDecoder.forward)
        and type(model.decoder).extract_features not in (Decoder.extract_features, IncrementalDecoder.extract_features)
    )


def _rows(values: Tensor, kept: Tensor) -> Tensor:
    flat = values.flatten(0, 1)  # (N, T, C) -> (N * T, C)
    return flat if kept.numel() == flat.size(0) else flat.index_select(0, kept)


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
    fused = _FusedCrossEntropy.apply(logits, target, label_smoothing, z_loss)  # type: ignore[no-untyped-call]
    loss, nll, correct = fused
    return loss, nll, correct


class _FusedCrossEntropy(torch.autograd.Function):
    """Label-smoothed cross-entropy with z-loss whose forward and backward share one ``(M, V)`` buffer.

    With ``a = 1 - eps - e``, ``b = e``, ``c`` the weight of the z-loss and ``lse = log Z``, the loss of a row ``z`` and
    its gradient are, since ``log p[j] = z[j] - lse`` and ``a + b * V = 1``::

        loss = a * (lse - z[t]) + b * (V * lse - sum(z)) + c * lse ** 2
        d loss / d z[j] = (1 + 2 * c * lse) * p[j] - a * [j = t] - b

    The forward pass leaves ``exp(z - max)`` in the buffer; the backward pass scales it and subtracts ``a`` and ``b``.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, label_smoothing: float, z_loss: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        vocab = logits.size(1)
        b = label_smoothing / (vocab - 1) if vocab > 1 else 0.0
        a = 1.0 - label_smoothing - b
        dtype = torch.promote_types(logits.dtype, torch.float32)
        needs_grad = ctx.needs_input_grad[0]
        buffer = _buffer(logits, dtype, needs_grad)
        rows = logits.size(0)
        at_target = torch.empty(rows, dtype=dtype, device=logits.device)
        maximum, exp_sum, logit_sum = torch.empty_like(at_target), torch.empty_like(at_target), None
        if b:
            logit_sum = torch.empty_like(at_target)
        step = _chunk_rows(logits)
        scratch = None if needs_grad else torch.empty(min(step, rows), vocab, dtype=dtype, device=logits.device)
        for start in range(0, rows, step):
            part = slice(start, min(start + step, rows))
            z = buffer[part]
            torch.gather(z, 1, target[part, None], out=at_target[part, None])
            torch.amax(z, 1, out=maximum[part])
            if logit_sum is not None:
                torch.sum(z, 1, out=logit_sum[part])
            shifted = torch.sub(z, maximum[part, None], out=z if scratch is None else scratch[: z.size(0)])
            torch.sum(shifted.exp_(), 1, out=exp_sum[part])
        lse = maximum + exp_sum.log()
        nll = (lse - at_target).sum()
        loss = a * nll
        if logit_sum is not None:
            loss = loss + b * (vocab * lse - logit_sum).sum()
        if z_loss:
            loss = loss + z_loss * lse.square().sum()
            exp_sum = exp_sum / (1.0 + 2.0 * z_loss * lse)  # exp(z[j] - max) / exp_sum is now (1 + 2 * c * lse) * p[j]
        correct = (at_target >= maximum).sum().to(dtype)
        ctx.save_for_backward(target, exp_sum)
        ctx.buffer, ctx.a, ctx.b, ctx.dtype = (buffer if needs_grad else None), a, b, logits.dtype
        ctx.mark_non_differentiable(nll, correct)
        return loss, nll, correct

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor, None, None, None]:
        target, exp_sum = ctx.saved_tensors
        grad, ctx.buffer = ctx.buffer, None
        if grad is None:
            raise RuntimeError("backward was already called on this loss, which overwrote its buffer")
        scale = grad_loss / exp_sum
        at_target = (-ctx.a * grad_loss).expand(exp_sum.size(0), 1)
        step = _chunk_rows(grad)
        for start in range(0, grad.size(0), step):
            part = slice(start, start + step)
            p = grad[part].mul_(scale[part, None])
            if ctx.b:
                p.sub_(ctx.b * grad_loss)
            p.scatter_add_(1, target[part, None], at_target[part])
        return grad.to(ctx.dtype), None, None, None


def _buffer(logits: Tensor, dtype: torch.dtype, needs_grad: bool) -> Tensor:
    """The buffer that the forward pass overwrites: the logits if no other operation reads them, else a copy."""
    if logits.dtype != dtype:
        return logits.to(dtype)
    # detach() shares memory but not the version counter: safe only if the operation before does not save its output
    producer = logits.grad_fn
    while producer is not None and producer.name() in ("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0"):
        producer = producer.next_functions[0][0]
    owned = producer is not None and producer.name() in _LINEAR and logits.is_contiguous()
    return logits.detach() if owned or not needs_grad else logits.detach().clone()


def _chunk_rows(logits: Tensor) -> int:
    """Number of rows per chunk: as many as fit into the cache on a CPU, all of them on an accelerator."""
    return max(1, _CHUNK_ELEMENTS // logits.size(1)) if logits.device.type == "cpu" else max(1, logits.size(0))
