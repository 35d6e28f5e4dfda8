"""Preference optimization with pairs of the model's own outputs: DPO (Rafailov et al. 2023) and CPO (Xu et al. 2024).

Of the outputs that a search finds for a source, the chosen one ``w`` has the highest utility with the reference, and
the rejected one ``l`` the lowest. Sentences whose outputs all have the same utility give no loss. With a frozen
reference model ``r``, the loss of direct preference optimization is (Rafailov et al. 2023, equation 7)::

    dpo:  -log sigmoid(beta * ((log p(w) - log r(w)) - (log p(l) - log r(l))))

Contrastive preference optimization has the uniform distribution in place of ``r``, which cancels, and the negative
log-likelihood of the chosen output, which keeps its probability from falling (Xu et al. 2024, section 3)::

    cpo:  -log sigmoid(beta * (log p(w) - log p(l))) - nll * log p(w)

``nll`` is 1 in the paper; for DPO it is 0 by default. DPO with an empty ``criterion.reference`` also uses the uniform
distribution. The papers find the pairs before training; here each update finds them with the current model.

``seqgen-train common.user_dir=examples/objectives/preference.py criterion=dpo criterion.reference=runs/base
checkpoint.finetune_from=runs/base run_dir=runs/dpo``; CPO has ``criterion=cpo`` and no ``criterion.reference``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from seqgen.extend import (
    Batch,
    EncoderDecoderModel,
    GenerationConfig,
    Hypothesis,
    SequenceConfig,
    SequenceCriterion,
    Task,
    decode_option,
    option,
    register_criterion,
)


@dataclass
class PreferenceConfig(SequenceConfig):
    """Options of both objectives."""

    decode: GenerationConfig = decode_option(beam=8)
    beta: float = option(0.1, "factor of the difference of log-probabilities", minimum=0)
    nll: float = option(0.0, "weight of the negative log-likelihood of the chosen output", minimum=0)
    add_reference: bool = option(False, "make the reference a candidate; no other one has a higher utility")


@dataclass
class DpoConfig(PreferenceConfig):
    """Options of direct preference optimization."""

    reference: str = option("", "run or checkpoint of the reference model; empty for the uniform distribution")


@dataclass
class CpoConfig(PreferenceConfig):
    """Options of contrastive preference optimization."""

    nll: float = option(1.0, "weight of the negative log-likelihood of the chosen output", minimum=0)


class Preference(SequenceCriterion):
    """The loss of pairs; a subclass sets what differs."""

    anchor: EncoderDecoderModel | None = None  # the reference model; none for the uniform distribution

    def sequence_loss(self, model: EncoderDecoderModel, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        """See ``SequenceCriterion.sequence_loss``."""
        found = self.decode(model, batch)
        candidates = self.with_references(batch, found) if self.cfg.add_reference else found
        utilities = self.utilities(batch, candidates)  # (N, K)
        pairs, differ = choose(candidates, utilities)
        lprobs = self.rescore(model, batch, pairs).lprobs  # (N, 2); also without a pair, so that ranks do the same
        margin = lprobs[:, 0] - lprobs[:, 1]
        if self.anchor is not None:
            read = self.read_by(self.anchor, model, batch)
            with torch.no_grad():
                others = self.rescore(self.anchor, read, pairs).lprobs
            margin = margin - (others[:, 0] - others[:, 1])
        losses = -logsigmoid(self.cfg.beta * margin) - self.cfg.nll * lprobs[:, 0]
        logged: dict[str, Tensor | float] = {"utility": utilities[:, 0].sum(), "pairs": differ.sum()}
        logged["preferred"] = (differ & (margin > 0)).sum()
        return (losses * differ).sum(), logged


def choose(candidates: list[list[Hypothesis]], utilities: Tensor) -> tuple[list[list[Hypothesis]], Tensor]:
    """The candidates of the highest and the lowest utility, and whether these differ ``(N,)``."""
    pairs, differ = [], []
    for row, values in zip(candidates, utilities.tolist(), strict=True):
        values = values[: len(row)]  # the others are padding
        pairs.append([row[values.index(max(values))], row[values.index(min(values))]])
        differ.append(max(values) > min(values))
    return pairs, torch.tensor(differ, device=utilities.device)


@register_criterion("dpo", config=DpoConfig)
class Dpo(Preference):
    """Direct preference optimization."""

    def __init__(self, cfg: DpoConfig, task: Task):
        super().__init__(cfg, task)
        self.anchor = self.frozen(cfg.reference) if cfg.reference else None


@register_criterion("cpo", config=CpoConfig)
class Cpo(Preference):
    """Contrastive preference optimization."""
