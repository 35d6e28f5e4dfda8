"""BRIO (Liu, Liu, Radev and Neubig 2022, "BRIO: Bringing Order to Abstractive Summarization"): candidates with a higher
utility become more probable.

The candidates of a source are ordered by their utility with the reference, ``S_1`` the best. With scores ``f(S)``, the
loss of a sentence is a margin loss of all pairs::

    sum over i < j of max(0, f(S_j) - f(S_i) + (j - i) margin),    f(S) = sum_t log p(s_t | S_<t, x) / |S|^alpha

Pairs of equal utility are left out. ``criterion.token_loss=w`` adds the cross-entropy of the reference: the paper's
``gamma`` is ``(1 - w) / w``. Unlike in the paper, candidates are decoded in each update.

``seqgen-train common.user_dir=examples/objectives/brio.py criterion=brio criterion.token_loss=0.02
criterion.decode.search=diverse_beam checkpoint.finetune_from=runs/base run_dir=runs/brio``
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seqgen.config import GenerationConfig, option
from seqgen.extend import (
    Batch,
    EncoderDecoderModel,
    SequenceConfig,
    SequenceCriterion,
    decode_option,
    register_criterion,
)


@dataclass
class BrioConfig(SequenceConfig):
    """Options of BRIO."""

    decode: GenerationConfig = decode_option(beam=8)
    margin: float = option(0.001, "difference of scores for each rank between two candidates", minimum=0)
    alpha: float = option(1.0, "exponent of the length in the score", minimum=0)


@register_criterion("brio", config=BrioConfig)
class Brio(SequenceCriterion):
    """The margin loss of ranked candidates."""

    def sequence_loss(self, model: EncoderDecoderModel, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        """See ``SequenceCriterion.sequence_loss``."""
        candidates = self.decode(model, batch)
        scored, utilities = self.rescore(model, batch, candidates), self.utilities(batch, candidates)  # (N, K)
        utilities, order = utilities.masked_fill(~scored.present, -1.0).sort(dim=1, descending=True, stable=True)
        scores = (scored.lprobs / scored.lengths.clamp(min=1).to(scored.lprobs) ** self.cfg.alpha).gather(1, order)
        margins = self.cfg.margin * torch.arange(order.size(1)).to(scores)
        losses = (scores + margins).unsqueeze(1) - (scores + margins).unsqueeze(2)  # (N, i, j)
        pairs = (utilities.unsqueeze(2) > utilities.unsqueeze(1)) & (utilities >= 0).unsqueeze(1)
        return (losses.clamp(min=0) * pairs).sum(), {"utility": utilities[:, 0].sum()}
