"""A training criterion: the focal loss (Lin et al. 2017, equation 4), with less weight on easy tokens.

``seqgen-train common.user_dir=examples/extending/criterion.py criterion=focal criterion.gamma=1.0
model=transformer_tiny run_dir=runs/focal``
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from seqgen.extend import Batch, Criterion, CriterionOut, EncoderDecoderModel, option, register_criterion, target_logits


@dataclass
class FocalConfig:
    """Configuration of the focal loss; its fields are the keys ``criterion.FIELD``."""

    gamma: float = option(2.0, "exponent of the weight (1 - p) of each token; 0 for cross-entropy", minimum=0)


@register_criterion("focal", config=FocalConfig)
class FocalCriterion(Criterion):
    """``-(1 - p)^gamma log p``, summed over target tokens, where ``p`` is the probability of the target token."""

    def __call__(self, model: EncoderDecoderModel, batch: Batch) -> CriterionOut:
        """Compute the loss.

        Args:
            model: the model.
            batch: a batch with a target.

        Returns:
            The loss in nats, a scalar summed over the ``M`` target tokens that are not padding, and what is logged.
        """
        logits, target = target_logits(model, batch, self.task.target_dictionary.pad())  # (M, V), (M,)
        lprobs = model.get_normalized_probs(logits).gather(1, target.unsqueeze(1)).squeeze(1)  # (M,)
        weights = (-lprobs.expm1()).clamp(min=1e-6) ** self.cfg.gamma  # at p = 1 the power may have no finite gradient
        logging: dict[str, Tensor | float] = {"nll_loss": -lprobs.sum().detach(), "ntokens": target.numel()}
        logging |= {"correct": (logits.argmax(1) == target).sum(), "nsentences": batch.ids.numel()}
        return CriterionOut(-(weights * lprobs).sum(), target.numel(), logging)
