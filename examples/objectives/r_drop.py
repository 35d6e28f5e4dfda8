"""R-Drop (Liang et al. 2021, "R-Drop: Regularized Dropout for Neural Networks").

Two forward passes have different dropout masks and give the distributions ``P1`` and ``P2`` of each target token ``y``.
The loss is the negative log-likelihood of both and the symmetric Kullback-Leibler divergence::

    L_NLL = -log P1(y) - log P2(y)
    L_KL  = 1/2 (KL(P1 || P2) + KL(P2 || P1))
    L     = L_NLL + alpha L_KL

In evaluation there is no dropout: both passes are the same, so one is computed, and the loss is twice the negative
log-likelihood. The paper uses ``alpha=5`` for translation, with label smoothing, which ``L_NLL`` then has.

``seqgen-train common.user_dir=examples/objectives/r_drop.py criterion=r_drop criterion.alpha=5
criterion.label_smoothing=0.1 model=transformer_tiny run_dir=runs/r_drop``
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seqgen.extend import Batch, Criterion, CriterionOut, EncoderDecoderModel, option, register_criterion, target_logits


@dataclass
class RDropConfig:
    """Options of R-Drop."""

    alpha: float = option(5.0, "weight of the divergence", minimum=0)
    label_smoothing: float = option(
        0.0, "probability distributed evenly over all tokens but the target", minimum=0, maximum=1
    )


@register_criterion("r_drop", config=RDropConfig)
class RDrop(Criterion):
    """Cross-entropy of two passes, and the divergence of their distributions, logged as ``kl``.

    ``nll_loss`` and ``correct`` are means of both passes.
    """

    def __call__(self, model: EncoderDecoderModel, batch: Batch) -> CriterionOut:
        """Compute the loss; see ``Criterion``."""
        pad = self.task.target_dictionary.pad()
        passes, nlls, correct = [], [], []
        for _ in range(2 if model.training else 1):
            logits, target = target_logits(model, batch, pad)  # (M, V), (M,)
            passes.append(model.get_normalized_probs(logits))
            nlls.append(-passes[-1].gather(1, target.unsqueeze(1)).sum())
            correct.append((logits.argmax(1) == target).sum())
        first, second = passes[0], passes[-1]
        # KL(P1 || P2) + KL(P2 || P1) = sum of (P1 - P2) (log P1 - log P2)
        kl = ((first.exp() - second.exp()) * (first - second)).sum() / 2
        nll = nlls[0] + nlls[-1]
        loss = nll + self.cfg.alpha * kl
        if self.cfg.label_smoothing:
            others = self.cfg.label_smoothing / (first.size(1) - 1)  # the probability of each other token
            uniform = -(first + second).sum()
            loss = loss - (self.cfg.label_smoothing + others) * nll + others * uniform
        logging: dict[str, Tensor | float] = {"nll_loss": nll.detach() / 2, "kl": kl.detach()}
        logging |= {"correct": torch.stack(correct).double().mean(), "ntokens": target.numel()}
        logging["nsentences"] = batch.ids.numel()
        return CriterionOut(loss, target.numel(), logging)
