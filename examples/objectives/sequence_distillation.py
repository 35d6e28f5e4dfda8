"""Sequence-level knowledge distillation of models or ensembles (Kim and Rush 2016, sections 3.2 and 3.3).

The teachers decode the source by beam search, as an ensemble whose probabilities are averaged, and the student ``p`` is
trained on the output ``z`` with the highest score, which approximates the expectation over all outputs::

    L_SEQ-KD = -log p(z | x)

With ``criterion.closest=true`` (sequence-level interpolation, section 3.3), ``z`` is the output of the beam that is
most similar to the reference: the one with the highest utility, for which the paper has smoothed BLEU. In both cases
``criterion.token_loss`` is the weight of the reference.

``seqgen-train common.user_dir=examples/objectives/sequence_distillation.py criterion=sequence_distillation
criterion.teachers=[runs/a,runs/b] criterion.closest=true criterion.decode.mbr=bleu run_dir=runs/student``

The teachers need the vocabularies of the student: train them with the same tokenizers. They decode in every update; for
many epochs, it is faster to decode the training data once by ``seqgen-generate``, and to train on the output.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from seqgen.extend import (
    Batch,
    ConfigError,
    EncoderDecoderModel,
    GenerationConfig,
    SequenceConfig,
    SequenceCriterion,
    Task,
    decode_option,
    option,
    register_criterion,
)


@dataclass
class SequenceDistillationConfig(SequenceConfig):
    """Options of sequence-level distillation."""

    decode: GenerationConfig = decode_option(beam=5)
    teachers: list[str] = option([], "runs or checkpoints of the teachers")
    closest: bool = option(False, "choose the output that is most similar to the reference")


@register_criterion("sequence_distillation", config=SequenceDistillationConfig)
class SequenceDistillation(SequenceCriterion):
    """The negative log-likelihood of an output of the teachers, logged as ``distillation``."""

    def __init__(self, cfg: SequenceDistillationConfig, task: Task):
        super().__init__(cfg, task)
        if not cfg.teachers:
            raise ConfigError(
                "criterion.teachers is empty, but distillation needs a trained model; set it to one or more runs or "
                "checkpoints, such as criterion.teachers=[runs/a,runs/b]"
            )
        self.teachers = [self.frozen(path) for path in cfg.teachers]

    def sequence_loss(self, model: EncoderDecoderModel, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        """See ``SequenceCriterion.sequence_loss``."""
        sources = [self.read_by(teacher, model, batch).source for teacher in self.teachers]
        outputs = self.decode(self.teachers, replace(batch, member_sources=sources))
        chosen = [0] * len(outputs)
        if self.cfg.closest:
            chosen = self.utilities(batch, outputs).argmax(1).tolist()
        targets = [[row[place]] for row, place in zip(outputs, chosen, strict=True)]
        loss = -self.rescore(model, batch, targets).lprobs.sum()
        return loss, {"distillation": loss.detach()}
