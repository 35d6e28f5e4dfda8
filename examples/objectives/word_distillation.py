"""Word-level knowledge distillation of models or ensembles (Kim and Rush 2016, sections 2.2 and 3.1).

The teachers ``q_1, ..., q_n`` read the reference prefix, as the student ``p`` does. Their mean distribution ``q`` is
the target (the paper has one teacher), interpolated with the reference by ``alpha``::

    L_WORD-KD = -sum over t and v of q(v | y_<t, x) log p(v | y_<t, x)
    L         = (1 - alpha) L_NLL + alpha L_WORD-KD

With a ``temperature`` ``T``, the logits of teachers and student are divided by ``T`` in ``L_WORD-KD``, which is then
multiplied by ``T ** 2``, so that its gradient has the same scale (Hinton, Vinyals and Dean 2015, section 2).

``seqgen-train common.user_dir=examples/objectives/word_distillation.py criterion=word_distillation
criterion.teachers=[runs/a,runs/b] criterion.alpha=0.5 run_dir=runs/student``

The teachers need the vocabularies of the student: train them with the same tokenizers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seqgen.extend import (
    Batch,
    ConfigError,
    Criterion,
    CriterionOut,
    EncoderDecoderModel,
    Task,
    option,
    register_criterion,
    target_logits,
)


@dataclass
class WordDistillationConfig:
    """Options of word-level distillation."""

    teachers: list[str] = option([], "runs or checkpoints of the teachers")
    alpha: float = option(0.5, "weight of the teachers' distribution; the reference has the rest", minimum=0, maximum=1)
    temperature: float = option(1.0, "divides the logits; above 1, improbable tokens count more", minimum=0.01)


@register_criterion("word_distillation", config=WordDistillationConfig)
class WordDistillation(Criterion):
    """Cross-entropy with the mean distribution of the teachers, logged as ``distillation``, and with the reference."""

    def __init__(self, cfg: WordDistillationConfig, task: Task):
        super().__init__(cfg, task)
        if not cfg.teachers:
            raise ConfigError(
                "criterion.teachers is empty, but distillation needs a trained model; set it to one or more runs or "
                "checkpoints, such as criterion.teachers=[runs/a,runs/b]"
            )
        self.teachers = [self.frozen(path) for path in cfg.teachers]

    def __call__(self, model: EncoderDecoderModel, batch: Batch) -> CriterionOut:
        """Compute the loss; see ``Criterion``."""
        logits, target = target_logits(model, batch, self.task.target_dictionary.pad())  # (M, V), (M,)
        nll = -model.get_normalized_probs(logits).gather(1, target.unsqueeze(1)).sum()
        lprobs = model.get_normalized_probs(logits / self.cfg.temperature)
        distilled = -(self.teachers_probs(model, batch) * lprobs).sum() * self.cfg.temperature**2
        loss = (1 - self.cfg.alpha) * nll + self.cfg.alpha * distilled
        logging: dict[str, Tensor | float] = {"nll_loss": nll.detach(), "distillation": distilled.detach()}
        logging |= {"correct": (logits.argmax(1) == target).sum(), "ntokens": target.numel()}
        logging["nsentences"] = batch.ids.numel()
        return CriterionOut(loss, target.numel(), logging)

    @torch.no_grad()
    def teachers_probs(self, model: EncoderDecoderModel, batch: Batch) -> Tensor:
        """``(M, V)`` mean of the teachers' probabilities at the target positions."""
        pad, found = self.task.target_dictionary.pad(), []
        for teacher in self.teachers:
            logits, _ = target_logits(teacher, self.read_by(teacher, model, batch), pad)
            found.append(teacher.get_normalized_probs(logits / self.cfg.temperature, log_probs=False))
        return torch.stack(found).mean(0)
