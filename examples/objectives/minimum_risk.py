"""Minimum risk training (Shen et al. 2016; Edunov et al. 2018).

With candidates ``y`` from a search, their probabilities ``p(y|x)`` sharpened by ``alpha`` and renormalized over the
candidates, ``q(y) = p(y|x)^alpha / sum p(y'|x)^alpha``, the loss of a sentence is its expected risk (Shen et al. 2016;
without ``alpha`` in Edunov et al. 2018)::

    sum over y of q(y) * (1 - u(y) / 100)

``u`` is the utility with the reference that ``criterion.decode.mbr`` names. If all outputs are candidates and ``alpha``
is 1, this is the expected risk under the model.

``seqgen-train common.user_dir=examples/objectives/minimum_risk.py criterion=minimum_risk criterion.token_loss=0.02
checkpoint.finetune_from=runs/base run_dir=runs/risk``
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seqgen.extend import (
    Batch,
    EncoderDecoderModel,
    GenerationConfig,
    SequenceConfig,
    SequenceCriterion,
    decode_option,
    option,
    register_criterion,
)


@dataclass
class MinimumRiskConfig(SequenceConfig):
    """Options of minimum risk training."""

    decode: GenerationConfig = decode_option(beam=8)
    alpha: float = option(1.0, "exponent of the candidates' probabilities; small values make them equal", minimum=0)
    length_normalized: bool = option(False, "divide the log-probability of a candidate by its length (Edunov et al.)")
    add_reference: bool = option(False, "make the reference a candidate")


@register_criterion("minimum_risk", config=MinimumRiskConfig)
class MinimumRisk(SequenceCriterion):
    """The expected risk over the candidates, in place of the likelihood of the reference."""

    def sequence_loss(self, model: EncoderDecoderModel, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        """See ``SequenceCriterion.sequence_loss``."""
        candidates = self.decode(model, batch)
        if self.cfg.add_reference:
            candidates = self.with_references(batch, candidates)
        utilities = self.utilities(batch, candidates)  # (N, K)
        scored = self.rescore(model, batch, candidates)
        lprobs = scored.lprobs / scored.lengths.clamp(min=1) if self.cfg.length_normalized else scored.lprobs
        weights = (self.cfg.alpha * lprobs).masked_fill(~scored.present, -torch.inf).softmax(1)
        expected = (weights * utilities).sum(1)
        return (1 - expected / 100).sum(), {"utility": expected.detach().sum()}
