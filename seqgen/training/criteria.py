"""Training criteria: the loss of a batch.

Shapes: ``M`` target tokens in the batch that are not padding, ``V`` tokens in the vocabulary, ``C`` features.

The loss over the vocabulary takes a large part of a small model's training time. Padding is therefore not projected,
and ``cross_entropy`` does not copy the logits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from seqgen.config import like, option
from seqgen.decoder import Decoder, IncrementalDecoder
from seqgen.errors import ConfigError
from seqgen.model import EncoderDecoderModel
from seqgen.registry import register_criterion
from seqgen.structures import Batch
from seqgen.system.hooks import Hooked
from seqgen.training.cross_entropy import cross_entropy, projected_cross_entropy, projection_of

if TYPE_CHECKING:
    from seqgen.task import Task


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

    z_loss: float = option(
        0.0, "weight of the z-loss, the squared log-sum-exp of the logits, added in training (T5: 1e-4)", minimum=0
    )


@dataclass
class LabelSmoothedCrossEntropyConfig:
    """Options of ``label_smoothed_cross_entropy``."""

    label_smoothing: float = option(
        0.1, "probability distributed evenly over all tokens but the target", minimum=0, maximum=1
    )
    z_loss: float = like(CrossEntropyConfig, "z_loss")


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
