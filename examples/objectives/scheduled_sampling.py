"""Scheduled sampling (Bengio et al. 2015) for models that compute all positions at once (Mihaylova and Martins 2019).

A trained model sees its own outputs in decoding, so it should also see some of them in training. Two passes compute the
loss::

    first pass     P1(. | y_<t, x) for all positions t, without gradients;  z_t ~ P1, or z_t = argmax P1
    mixing         each decoder input y_t stays with probability e_i, and is replaced by z_t otherwise
    second pass    loss = -sum over t of log P(y_t | mixed_<t, x)

``e_i`` decreases with the number ``i`` of updates (Bengio et al., section 2.4); the start token is never replaced::

    linear             e_i = max(minimum, k - slope * i)      k <= 1
    exponential        e_i = max(minimum, k ** i)             k < 1
    inverse_sigmoid    e_i = max(minimum, k / (k + exp(i / k)))    k >= 1

The trainer seeds torch's random numbers for each batch, so that a resumed run mixes the same tokens. In evaluation the
loss is the cross-entropy.

``seqgen-train common.user_dir=examples/objectives/scheduled_sampling.py criterion=scheduled_sampling
criterion.decay=linear criterion.k=1.0 criterion.slope=1e-5 criterion.minimum=0.5 run_dir=runs/scheduled``
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seqgen.extend import (
    Batch,
    ConfigError,
    Criterion,
    CriterionOut,
    EncoderDecoderModel,
    TargetPositions,
    Task,
    cross_entropy,
    option,
    register_criterion,
    target_logits,
)

_LARGEST = {"linear": 1.0, "exponential": math.nextafter(1, 0), "inverse_sigmoid": math.inf}


@dataclass
class ScheduledSamplingConfig:
    """Options of scheduled sampling."""

    decay: str = option(
        "inverse_sigmoid", "how the probability of a reference token decreases", choices=tuple(_LARGEST)
    )
    k: float = option(3000.0, "parameter of the decay; for decay=linear the first probability", minimum=0)
    slope: float = option(1e-5, "decrease in each update; only of decay=linear", minimum=0)
    minimum: float = option(0.0, "the smallest probability of a reference token", minimum=0, maximum=1)
    choice: str = option("sample", "the tokens of the first pass", choices=("sample", "argmax"))


@register_criterion("scheduled_sampling", config=ScheduledSamplingConfig)
class ScheduledSampling(Criterion):
    """Cross-entropy after a decoder input that has tokens of the model; logs ``reference``, the probability ``e_i``."""

    def __init__(self, cfg: ScheduledSamplingConfig, task: Task):
        super().__init__(cfg, task)
        least = 1.0 if cfg.decay == "inverse_sigmoid" else 0.0
        if not least <= cfg.k <= _LARGEST[cfg.decay]:
            limit = "at least 1" if least else "at most 1" if cfg.decay == "linear" else "below 1"
            raise ConfigError(
                f"criterion.k={cfg.k:g} must be {limit} for criterion.decay={cfg.decay}; change one of them"
            )

    @property
    def reference_probability(self) -> float:
        """The probability ``e_i`` of a reference token in this update."""
        k, update = self.cfg.k, self.update
        if self.cfg.decay == "linear":
            value = k - self.cfg.slope * update
        elif self.cfg.decay == "exponential":
            value = k**update
        else:
            value = k / (k + math.exp(min(update / k, 700.0)))
        return float(max(self.cfg.minimum, value))

    def __call__(self, model: EncoderDecoderModel, batch: Batch) -> CriterionOut:
        """Compute the loss; see ``Criterion``."""
        share = self.reference_probability if model.training else 1.0
        if share < 1:
            batch = replace(batch, prev_output_tokens=self.mixed_inputs(model, batch, share))
        logits, target = target_logits(model, batch, self.task.target_dictionary.pad())
        loss, nll, correct = cross_entropy(logits, target)
        logging: dict[str, Tensor | float] = {"nll_loss": nll, "correct": correct, "ntokens": target.numel()}
        logging |= {"nsentences": batch.ids.numel(), "reference": share * target.numel()}
        return CriterionOut(loss, target.numel(), logging)

    @torch.no_grad()
    def mixed_inputs(self, model: EncoderDecoderModel, batch: Batch, share: float) -> Tensor:
        """The first pass, and the decoder input ``(N, T)`` whose reference tokens stay with probability ``share``."""
        pad, previous = self.task.target_dictionary.pad(), batch.prev_output_tokens
        kept = TargetPositions(batch, pad)
        assert previous is not None
        probs = model.get_normalized_probs(kept.logits(model, kept.features(model)), log_probs=False)  # (M, V)
        probs[:, pad] = 0  # a model may treat padding among its inputs in its own way
        chosen = probs.argmax(1) if self.cfg.choice == "argmax" else torch.multinomial(probs, 1).squeeze(1)
        replaced = torch.rand(previous.shape, device=previous.device)[:, 1:] >= share
        if batch.segments is not None:  # start tokens of the examples in a row are not replaced
            replaced &= batch.segments.target[:, 1:] == batch.segments.target[:, :-1]
        predicted = previous.flatten().index_copy(0, kept.kept, chosen).view_as(previous)  # z_t at column t
        mixed = previous.clone()
        mixed[:, 1:] = torch.where(replaced, predicted[:, :-1], previous[:, 1:])
        return mixed
