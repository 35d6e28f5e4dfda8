"""Distillation of minimum Bayes risk decoding, or MBR finetuning (Finkelstein and Freitag 2024).

The output of an expensive search becomes the training target, so that a cheap search finds it later. ``K`` candidates
are sampled for each source, from the model itself or from a frozen teacher. The target is the candidate with the
highest expected utility, in which all candidates are the references (Finkelstein and Freitag 2024, section 2)::

    y* = argmax over y_i of 1 / K * sum over j of u(y_i, y_j)
    loss = -log p(y*|x)

A text that was sampled several times counts several times as a reference. The references of the training data are used
only for the utility that is logged, or with ``criterion.token_loss``. The paper samples with epsilon 0.02 and decodes
before training; here each update decodes, by default with the current model.

``seqgen-train common.user_dir=examples/objectives/mbr_distillation.py criterion=mbr_distillation
criterion.decode.epsilon_cutoff=0.02 criterion.teacher=runs/large run_dir=runs/distilled``
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from seqgen.extend import (
    Batch,
    EncoderDecoderModel,
    GenerationConfig,
    SequenceConfig,
    SequenceCriterion,
    Task,
    decode_option,
    expected_utilities,
    option,
    register_criterion,
)


@dataclass
class MbrDistillationConfig(SequenceConfig):
    """Options of the distillation of minimum Bayes risk decoding."""

    decode: GenerationConfig = decode_option(beam=16, sampling=True)
    teacher: str = option("", "run or checkpoint of the model that is sampled; empty for the model that is trained")


@register_criterion("mbr_distillation", config=MbrDistillationConfig)
class MbrDistillation(SequenceCriterion):
    """The negative log-likelihood of the candidate with the highest expected utility.

    Args:
        cfg: the options.
        task: the task.
    """

    def __init__(self, cfg: MbrDistillationConfig, task: Task):
        super().__init__(cfg, task)
        self.teacher = self.frozen(cfg.teacher) if cfg.teacher else None

    def sequence_loss(self, model: EncoderDecoderModel, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        """See ``SequenceCriterion.sequence_loss``."""
        sampled, read, targets = model, batch, []
        if self.teacher is not None:
            sampled, read = self.teacher, self.read_by(self.teacher, model, batch)
        samples = self.decode(sampled, read)
        texts = [[self.task.decode(one.tokens) for one in candidates] for candidates in samples]
        lines = [*zip(self.source_texts(batch), texts, strict=True)]
        for candidates, expected in zip(samples, expected_utilities(lines, self.utility), strict=True):
            targets.append([candidates[expected.index(max(expected))]])
        loss = -self.rescore(model, batch, targets).lprobs.sum()
        return loss, {"utility": self.utilities(batch, targets).sum()}
