"""Actor-critic training with clipped ratios, PPO (Schulman et al. 2017), of samples that are used several times.

``K`` outputs are sampled for each source. The reward of an output is its utility ``u`` with the reference, between 0
and 1. A critic ``V``, a linear function of the decoder's features, is trained to estimate it before each token ``t``.
With the critic that has seen the samples first, the advantage of a token is (Schulman et al. 2016, equation 16)::

    A_t = sum over l of decay ** l * d_(t+l)        d_t = V_(t+1) - V_t, with u in place of V after the last token

In each of ``criterion.optimizer_steps`` with the same samples, the loss of an output is (Schulman et al. 2017,
equations 7 and 9), where ``r_t`` is the probability of the token, divided by that in the first step::

    sum over t of (value_weight * (V_t - R_t) ** 2 - min(r_t * A_t, clip(r_t, 1 - clip, 1 + clip) * A_t))

``R_t = A_t + V_t`` of the first step, so that in the first step the gradient is that of ``A_t * log p(y_t)``. The end
that is forced at the maximum length is not counted. Dropout changes ``r_t``; ``model.dropout=0`` turns it off.

``seqgen-train common.user_dir=examples/objectives/actor_critic.py criterion=actor_critic criterion.optimizer_steps=4
model.dropout=0 checkpoint.finetune_from=runs/base run_dir=runs/actor_critic``
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seqgen.extend import (
    Batch,
    ConfigError,
    EncoderDecoderModel,
    GenerationConfig,
    Hypothesis,
    Rescored,
    SequenceConfig,
    SequenceCriterion,
    TargetPositions,
    Task,
    decode_option,
    option,
    register_criterion,
)


@dataclass
class ActorCriticConfig(SequenceConfig):
    """Options of actor-critic training."""

    decode: GenerationConfig = decode_option(beam=4, sampling=True)
    optimizer_steps: int = option(1, "optimizer steps with the same samples, which make one update", minimum=1)
    clip: float = option(0.2, "largest change of the probability of a token that has a gradient", minimum=0)
    decay: float = option(0.95, "lambda of the advantages; 1 for the utility minus the estimate", minimum=0, maximum=1)
    value_weight: float = option(0.5, "weight of the squared error of the critic", minimum=0)


@register_criterion("actor_critic", config=ActorCriticConfig)
class ActorCritic(SequenceCriterion):
    """The clipped policy gradient with the advantages that a critic estimates."""

    def __init__(self, cfg: ActorCriticConfig, task: Task):
        super().__init__(cfg, task)
        self.optimizer_steps = cfg.optimizer_steps

    @torch.no_grad()
    def begin_training(self, model: EncoderDecoderModel) -> None:
        """Make the critic.

        Raises:
            ConfigError: the model does not give the features of its decoder.
        """
        eos = torch.tensor([self.task.target_dictionary.eos()])
        one = self.task.collate([(0, eos, eos)], model).to(next(model.parameters()).device)
        features = TargetPositions(one, self.task.target_dictionary.pad()).features(model)
        if features is None:
            raise ConfigError(
                f"criterion=actor_critic needs the features of the decoder, and {type(model).__name__} computes its "
                "output by a forward of its own; choose another model"
            )
        self.module = nn.Linear(features.size(-1), 1)

    def sequence_loss(self, model: EncoderDecoderModel, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        """See ``SequenceCriterion.sequence_loss``."""
        samples: list[list[Hypothesis]] = self.keep(batch, "samples", lambda: self.decode(model, batch))
        utilities: Tensor = self.keep(batch, "utilities", lambda: self.utilities(batch, samples))  # (N, K)
        scored = self.rescore(model, batch, samples, features=True)
        assert scored.features is not None
        values = self.module(scored.features).squeeze(-1).to(scored.token_lprobs.dtype)  # (N, K, T)
        before = self.keep(batch, "before", lambda: self._first(scored, values.detach(), utilities / 100))
        lprobs, gains, returns = before
        ratios = (scored.token_lprobs - lprobs).exp()
        clipped = ratios.clamp(1 - self.cfg.clip, 1 + self.cfg.clip)
        errors = (values - returns).square()
        losses = (self.cfg.value_weight * errors - torch.minimum(ratios * gains, clipped * gains)) * scored.drawn
        counts, tokens = scored.present.sum(1), scored.drawn.sum((1, 2)).clamp(min=1)
        logged: dict[str, Tensor | float] = {"utility": (utilities.sum(1) / counts).sum()}
        for name, value in (("value_error", errors.detach()), ("clipped", ratios != clipped)):
            logged[name] = ((value * scored.drawn).sum((1, 2)) / tokens).sum()  # means over the tokens of a sentence
        return (losses.sum((1, 2)) / counts).sum(), logged

    def _first(self, scored: Rescored, values: Tensor, rewards: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``(N, K, T)`` log-probabilities, advantages and returns of the first optimizer step."""
        gains = advantages(values, rewards.to(values.dtype), scored.drawn, self.cfg.decay)
        return scored.token_lprobs.detach(), gains, gains + values


def advantages(values: Tensor, rewards: Tensor, drawn: Tensor, decay: float) -> Tensor:
    """``(N, K, T)`` advantages of the tokens that were ``drawn``, with rewards ``(N, K)``; 0 elsewhere."""
    last = drawn & (drawn.cumsum(-1) == drawn.sum(-1, keepdim=True))
    following = torch.where(last, rewards.unsqueeze(-1), values.roll(-1, -1))
    changes = (following - values) * drawn
    for step in range(changes.size(-1) - 2, -1, -1):
        changes[..., step] += decay * changes[..., step + 1]  # is 0 after the last token
    return changes
