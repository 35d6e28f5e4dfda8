"""Training criteria: the loss of a batch.

Shapes: ``M`` target tokens in the batch that are not padding, ``V`` tokens in the vocabulary, ``C`` features. Padding
is not projected to the vocabulary, which takes a large part of a small model's training time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from numbers import Number
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from seqgen.checkpoints.loading import load_models
from seqgen.config import option
from seqgen.core.contract import Hooked, check_returned, contract_error
from seqgen.core.encoder import inputs_of
from seqgen.core.errors import ConfigError
from seqgen.core.model import EncoderDecoderModel
from seqgen.core.structures import Batch
from seqgen.registry import register_criterion
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
            fixed meanings (see ``mean_scores``); other values are logged divided by ``sample_size``.
    """

    loss: Tensor
    sample_size: int
    logging: dict[str, Tensor | float] = field(default_factory=dict)


def check_out(criterion: Any, out: Any) -> CriterionOut:
    """Check what a criterion returned.

    Args:
        criterion: the criterion, which is named if the result is wrong.
        out: what it returned.

    Raises:
        DecodingError: it is no ``CriterionOut``, the loss is not a scalar or has no gradient, or a logged value is not
            one number.
    """
    found = check_returned(criterion, "__call__", out, CriterionOut)
    check_returned(criterion, "__call__", found.logging, dict)
    check_returned(criterion, "__call__", found.loss, Tensor)
    for name, value in {"loss": found.loss, "sample_size": found.sample_size, **found.logging}.items():
        if not (isinstance(value, Number) or (isinstance(value, Tensor) and value.dim() == 0)):
            given = f"{tuple(value.shape)}; sum it" if hasattr(value, "shape") else f"{value!r}"
            raise contract_error(criterion, "__call__", f"must return one number as {name!r}, not {given}")
    if torch.is_grad_enabled() and not found.loss.requires_grad:
        raise contract_error(criterion, "__call__", "must return a loss with a gradient, computed from the weights")
    return found


def mean_scores(sums: Mapping[str, float]) -> dict[str, float]:
    """Divide sums over batches by the number of tokens.

    Args:
        sums: ``loss``, ``sample_size`` and the values that the criterion logs, by name; see ``CriterionOut``.

    Returns:
        ``loss`` in nats per unit of the sample size, ``nll_loss`` in nats per token, the perplexity ``ppl``
        (``exp(nll_loss)``), ``accuracy`` in percent of tokens, and other logged values divided by the sample size.
    """
    size = sums.get("sample_size", 0.0) or 1.0
    tokens = sums.get("ntokens", size) or 1.0
    scores = {"loss": sums.get("loss", 0.0) / size}
    nll = sums["nll_loss"] / tokens if "nll_loss" in sums else scores["loss"]
    scores["nll_loss"] = nll
    scores["ppl"] = math.exp(nll) if nll < 700 else math.inf
    if "correct" in sums:
        scores["accuracy"] = 100 * sums["correct"] / tokens
    known = {"loss", "sample_size", "nll_loss", "ntokens", "nsentences", "correct"}
    return scores | {name: value / size for name, value in sums.items() if name not in known}


def sum_outs(outs: Sequence[CriterionOut]) -> tuple[dict[str, float], list[float]]:
    """Sum the criterion's values over batches, with one transfer from the device.

    Args:
        outs: what the criterion returned for each batch.

    Returns:
        The sums by name: ``loss``, ``sample_size`` and the logged values; and the loss of each batch.
    """
    rows = [{**out.logging, "loss": out.loss, "sample_size": float(out.sample_size)} for out in outs]
    on_device = [value.detach().float() for row in rows for value in row.values() if isinstance(value, Tensor)]
    moved = iter(torch.stack(on_device).tolist() if on_device else [])
    sums, losses = {"loss": 0.0, "sample_size": 0.0}, []
    for row in rows:
        plain = {name: next(moved) if isinstance(value, Tensor) else float(value) for name, value in row.items()}
        losses.append(plain["loss"])
        for name, value in plain.items():
            sums[name] = sums.get(name, 0.0) + value
    return sums, losses


@dataclass(frozen=True)
class TrainingContext:
    """The state of training that a criterion may read; by default that of a single process before the first update.

    Attributes:
        update: number of updates made so far; the same for all batches of an update.
        whole_model: a context with the model that has all weights, for decoding with a model whose weights are sharded.
        passes: the number of passes through a model that this process makes, from the number that it needs; all
            processes make equally many if the weights are sharded.
        kept: what ``Criterion.keep`` keeps in this update; ``None`` in evaluation, where nothing is kept.
    """

    update: int = 0
    whole_model: Callable[[EncoderDecoderModel], AbstractContextManager[EncoderDecoderModel]] = nullcontext
    passes: Callable[[EncoderDecoderModel, int], int] = field(default=lambda model, needed: needed)
    kept: dict[Any, Any] | None = None


class Criterion(Hooked):
    """Base class: computes the loss of a batch. Subclass it and register the subclass to add a loss.

    Args:
        cfg: an instance of the configuration class that the criterion is registered with.
        task: the task, which has the target dictionary.

    Attributes:
        context: the state of training, which ``begin_update`` replaces.
        module: what has the parameters of the criterion; see ``begin_training``.
        optimizer_steps: the number of optimizer steps in an update, each with a new gradient of the same batches.
    """

    inputs: ClassVar[tuple[str, ...]] = ()
    """Names of the columns of examples that it reads in ``batch.source.inputs``; see ``Encoder.inputs``."""

    def __init__(self, cfg: Any, task: Task):
        self.cfg, self.task = cfg, task
        self.context = TrainingContext()
        self.module = nn.Module()
        self.optimizer_steps = 1

    @property
    def update(self) -> int:
        """Number of updates made so far; the same for all batches of an update."""
        return self.context.update

    def __call__(self, model: EncoderDecoderModel, batch: Batch) -> CriterionOut:
        """Compute the loss.

        Args:
            model: the model, in training or evaluation mode.
            batch: a batch with a target ``(N, T)``.

        Returns:
            The loss, summed over the batch, and the values to log.
        """
        raise NotImplementedError

    def frozen(self, path: str) -> EncoderDecoderModel:
        """Load a model that is not trained, such as the one where training began; it is on the CPU.

        Args:
            path: a run or checkpoint; one model with the vocabularies of the task.

        Raises:
            ConfigError: it has other vocabularies.
            UserError: it cannot be loaded.
        """
        (loaded, *others) = load_models([path])
        pairs = [(task.source_dictionary, task.target_dictionary) for task in (loaded.task, self.task)]
        if others or pairs[0] != pairs[1]:
            raise ConfigError(f"{path}: give one model that has the vocabularies of this run")
        return loaded.model.eval().requires_grad_(False)

    def read_by(self, frozen: EncoderDecoderModel, model: EncoderDecoderModel, batch: Batch) -> Batch:
        """A batch as a frozen model reads it, with its side of padding and its start token; the model is moved to it.

        Args:
            frozen: what ``frozen`` returned; it gets the device and the data type of ``model``.
            model: the model that is trained, for which the batch was made.
            batch: the batch.

        Raises:
            ConfigError: rows have several examples, which the frozen model cannot keep apart.
        """
        if batch.segments is not None and not frozen.supports_packing:
            raise ConfigError(f"{type(frozen).__name__} cannot read packed batches; set dataset.pack=false")
        frozen.to(next(model.parameters()))
        source, previous, eos = batch.source, batch.prev_output_tokens, self.task.target_dictionary.eos()
        if frozen.left_pad_source != model.left_pad_source:
            # a row of width 5 and length 3: columns 2 3 4 0 1 move it to the left, columns 3 4 0 1 2 to the right
            padding = (source.src_tokens.size(1) - source.src_lengths).unsqueeze(1)
            columns = torch.arange(source.src_tokens.size(1), device=padding.device)
            columns = (columns + (padding if model.left_pad_source else -padding)) % source.src_tokens.size(1)
            source = replace(source, src_tokens=source.src_tokens.gather(1, columns))
        if previous is not None and frozen.start_token(eos) != model.start_token(eos):
            first = torch.zeros_like(previous, dtype=torch.bool)
            first[:, 0] = True
            if batch.segments is not None:
                first[:, 1:] = batch.segments.target[:, 1:] != batch.segments.target[:, :-1]
            previous = previous.masked_fill(first, frozen.start_token(eos))
        return replace(batch, source=source, prev_output_tokens=previous)

    def begin_training(self, model: EncoderDecoderModel) -> None:
        """Set ``module`` if the criterion has parameters, such as a critic; by default it has none.

        They are trained like those of the model, with the same learning rate, and saved in checkpoints apart from the
        weights of the model. ``optimization.groups`` and observers find them as ``criterion.NAME``;
        ``optimization.freeze`` and ``optimization.ema_decay`` do not apply to them.

        Args:
            model: the model before training; ``checkpoint.finetune_from`` is loaded later. The module gets its device
                and data type.
        """

    def keep(self, batch: Batch, name: str, compute: Callable[[], Any]) -> Any:
        """A value that is the same in all optimizer steps of an update, such as the samples.

        Args:
            batch: the batch that it belongs to.
            name: distinguishes the values of a batch.
            compute: called in the first step; returns the value, without a gradient.

        Returns:
            What ``compute`` returned for this batch in the first step.
        """
        kept = {} if self.context.kept is None else self.context.kept
        key = name, *batch.ids.tolist()
        if key not in kept:
            kept[key] = compute()
        return kept[key]

    def begin_update(self, context: TrainingContext) -> None:
        """Receive the state of training; called before each update and each validation.

        Args:
            context: the state of training.
        """
        self.context = context

    def after_update(self, sums: Mapping[str, float]) -> None:
        """Change the criterion's state, such as a running mean, after each update. By default there is none.

        Nothing else may change it: all batches of an update, in all ranks, have the same state.

        Args:
            sums: ``loss``, ``sample_size`` and the logged values, summed over the batches of all ranks.
        """

    def state_dict(self) -> dict[str, Any]:
        """The state that is saved with the run: nested plain values and tensors; the same in all ranks."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that ``state_dict`` returned."""


@dataclass
class CrossEntropyConfig:
    """Options of ``cross_entropy``."""

    z_loss: float = option(
        0.0, "weight of the z-loss, the squared log-sum-exp of the logits, added in training (T5: 1e-4)", minimum=0
    )


@dataclass
class LabelSmoothedCrossEntropyConfig(CrossEntropyConfig):
    """Options of ``label_smoothed_cross_entropy``."""

    label_smoothing: float = option(
        0.1, "probability distributed evenly over all tokens but the target", minimum=0, maximum=1
    )


@register_criterion("cross_entropy", config=CrossEntropyConfig)
class CrossEntropyCriterion(Criterion):
    """Negative log-likelihood of the target tokens, plus a z-loss in training; see ``cross_entropy``."""

    def __call__(self, model: EncoderDecoderModel, batch: Batch) -> CriterionOut:
        """Compute the loss; see ``Criterion``.

        Raises:
            ValueError: the batch has no target.
            ConfigError: the batch is packed, which the model does not support.
        """
        kept = TargetPositions(batch, self.task.target_dictionary.pad())
        options = getattr(self.cfg, "label_smoothing", 0.0), self.cfg.z_loss if model.training else 0.0
        features = kept.features(model)
        product = None if features is None else projection_of(model.decoder, features)
        if product is not None:
            loss, nll, correct = projected_cross_entropy(*product, kept.target, *options)
        else:
            loss, nll, correct = cross_entropy(kept.logits(model, features), kept.target, *options)
        ntokens, nsentences = kept.target.numel(), batch.ids.numel()
        return CriterionOut(
            loss, ntokens, {"nll_loss": nll, "correct": correct, "ntokens": ntokens, "nsentences": nsentences}
        )


@register_criterion("label_smoothed_cross_entropy", config=LabelSmoothedCrossEntropyConfig)
class LabelSmoothedCrossEntropyCriterion(CrossEntropyCriterion):
    """Cross-entropy against a softened target (Szegedy et al. 2016, section 7); see ``cross_entropy``."""


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
    return kept.logits(model, kept.features(model)), kept.target


class TargetPositions:
    """The positions of a batch whose target is not padding, row by row.

    Args:
        batch: a batch with a target ``(N, T)``.
        pad: id of padding in the target.

    Attributes:
        target: ``(M,)`` int64 ids.
        kept: ``(M,)`` int64 indices into the flattened ``(N * T,)`` positions.

    Raises:
        ValueError: the batch has no target.
    """

    def __init__(self, batch: Batch, pad: int):
        if batch.target is None or batch.prev_output_tokens is None:
            raise ValueError("a criterion needs a batch with a target; this batch has only a source")
        target, lengths = batch.target, batch.target_lengths
        if lengths is None:
            real = target != pad
        else:
            real = torch.arange(target.size(1), device=target.device) < lengths.unsqueeze(1)
        self.kept = real.flatten().nonzero().squeeze(1)
        self.target = _rows(target, self.kept)
        self.source, self.previous, self.segments = batch.source, batch.prev_output_tokens, batch.segments

    def features(self, model: EncoderDecoderModel) -> Tensor | None:
        """Compute the decoder's last features.

        Args:
            model: the model.

        Returns:
            ``(M, C)`` features; ``None`` for a model that is not composed, see ``has_default_forward``.
        """
        if not has_default_forward(model):
            return None
        packed: dict[str, Any] = {} if self.segments is None else {"segments": self.segments}
        encoder_out = self.source.encoder_out
        if encoder_out is None:
            inputs = inputs_of(model.encoder, self.source)
            encoder_out = model.encoder(self.source.src_tokens, self.source.src_lengths, **packed, **inputs)
        features, _ = model.decoder.extract_features(self.previous, encoder_out, **packed)
        return _rows(features, self.kept)

    def logits(self, model: EncoderDecoderModel, features: Tensor | None) -> Tensor:
        """Compute the logits from features without padding, or by the model's ``forward``.

        Args:
            model: the model.
            features: what ``features`` returned.

        Returns:
            ``(M, V)`` logits.

        Raises:
            ConfigError: the batch is packed; the model's ``forward`` does not get the segments.
        """
        if features is not None:
            return model.decoder.output_layer(features)
        if self.segments is not None:
            raise ConfigError(
                f"dataset.pack=true is not possible with {type(model).__name__}: its own forward, or that of its "
                "decoder, cannot keep the examples of a row apart; set dataset.pack=false"
            )
        source, inputs = self.source, inputs_of(model.encoder, self.source)
        return _rows(model(source.src_tokens, source.src_lengths, self.previous, **inputs).logits, self.kept)


def has_default_forward(model: EncoderDecoderModel) -> bool:
    """True if a model's output is ``output_layer(extract_features(...))`` of its decoder."""
    return model.is_composed and model.decoder.is_composed


def _rows(values: Tensor, kept: Tensor) -> Tensor:
    flat = values.flatten(0, 1)  # (N, T, C) -> (N * T, C)
    return flat if kept.numel() == flat.size(0) else flat.index_select(0, kept)
