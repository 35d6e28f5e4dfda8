"""Group-relative policy optimization, GRPO (Shao et al. 2024), with one update for each group of samples.

``K`` outputs ``y_1, ..., y_K`` are sampled for each source. The advantage of an output is its utility with the
reference, compared with the other samples of the group (Shao et al. 2024, section 4.1.2)::

    A_i = (u_i - mean of u) / (standard deviation of u + 1e-4)        u between 0 and 1

Each update samples anew, so that the ratio of probabilities in equation 3 of the paper is 1 and its clipping has no
effect. The gradient is then that of this loss, with the estimate of the KL divergence of equation 4, in which ``r`` is
the probability of the token ``t`` under the reference model, divided by that under the model::

    -1 / K * sum over i of 1 / |y_i| * sum over t of (A_i * log p(y_it) - beta * (r - log r - 1))

``divide_by_std=false length_normalized=false`` removes two biases, towards sources whose samples have similar
utilities and towards long outputs with a negative advantage (Dr. GRPO, Liu et al. 2025). Its expectation is
``(K - 1) / K`` times the gradient of the expected risk, under the conditions that self_critical.py names. The loss is a
surrogate; its value is not meaningful. The end that is forced at the maximum length is not counted.

``seqgen-train common.user_dir=examples/objectives/group_relative.py criterion=group_relative criterion.decode.beam=8
criterion.reference=runs/base criterion.beta=0.04 checkpoint.finetune_from=runs/base run_dir=runs/grpo``
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seqgen.extend import (
    Batch,
    ConfigError,
    EncoderDecoderModel,
    GenerationConfig,
    Hypothesis,
    Rescored,
    SequenceConfig,
    SequenceCriterion,
    Task,
    decode_option,
    option,
    register_criterion,
)


@dataclass
class GroupRelativeConfig(SequenceConfig):
    """Options of group-relative policy optimization."""

    decode: GenerationConfig = decode_option(beam=8, sampling=True)
    divide_by_std: bool = option(True, "divide advantages by the standard deviation of the group's utilities")
    length_normalized: bool = option(True, "divide the loss of an output by its length")
    beta: float = option(0.0, "weight of the KL divergence from the reference model", minimum=0)
    reference: str = option("", "run or checkpoint of the reference model; needed if beta is above 0")


@register_criterion("group_relative", config=GroupRelativeConfig)
class GroupRelative(SequenceCriterion):
    """The policy gradient with advantages relative to the other samples of the same source.

    Args:
        cfg: the options.
        task: the task.

    Raises:
        ConfigError: ``beta`` is given without ``reference``, or ``reference`` without ``beta``.
    """

    def __init__(self, cfg: GroupRelativeConfig, task: Task):
        super().__init__(cfg, task)
        if bool(cfg.reference) != (cfg.beta > 0):
            raise ConfigError(
                f"criterion.beta={cfg.beta:g} is the weight of the KL divergence from criterion.reference="
                f"{cfg.reference or '(none)'}; set both of them, or neither"
            )
        self.anchor = self.frozen(cfg.reference) if cfg.reference else None

    def sequence_loss(self, model: EncoderDecoderModel, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        """See ``SequenceCriterion.sequence_loss``."""
        samples = self.decode(model, batch)
        utilities = self.utilities(batch, samples)  # (N, K)
        scored = self.rescore(model, batch, samples)
        counts = scored.present.sum(1)
        values = advantages(utilities / 100, scored.present, self.cfg.divide_by_std).unsqueeze(-1) * scored.token_lprobs
        logged: dict[str, Tensor | float] = {"utility": (utilities.sum(1) / counts).sum()}
        if self.anchor is not None:
            read = self.read_by(self.anchor, model, batch)
            divergence = self._divergence(self.anchor, read, samples, scored) * scored.drawn  # (N, K, T)
            values = values - self.cfg.beta * divergence
            logged["kl"] = (divergence.detach().sum((1, 2)) / counts).sum()
        of_outputs = (values * scored.drawn).sum(-1)
        if self.cfg.length_normalized:
            of_outputs = of_outputs / scored.lengths.clamp(min=1)
        return -(of_outputs.sum(1) / counts).sum(), logged

    def _divergence(
        self, anchor: EncoderDecoderModel, batch: Batch, samples: list[list[Hypothesis]], scored: Rescored
    ) -> Tensor:
        """``(N, K, T)`` estimates of the KL divergence from the reference model; 0 after the end of an output."""
        with torch.no_grad():
            other = self.rescore(anchor.to(scored.token_lprobs), batch, samples).token_lprobs
        log_ratio = other - scored.token_lprobs
        return log_ratio.exp() - log_ratio - 1


def advantages(rewards: Tensor, present: Tensor, divide_by_std: bool) -> Tensor:
    """``(N, K)`` differences from the mean of each row, divided by its standard deviation if ``divide_by_std``."""
    counts = present.sum(1, keepdim=True)
    centered = (rewards - rewards.sum(1, keepdim=True) / counts).masked_fill(~present, 0)  # absent rewards are 0
    if not divide_by_std:
        return centered
    return centered / ((centered.square().sum(1, keepdim=True) / counts).sqrt() + 1e-4)
