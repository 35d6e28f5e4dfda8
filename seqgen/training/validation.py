"""Validation: loss over a split, and scores of its decoded text."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from seqgen.data.iterator import EpochIterator
from seqgen.data.pair_dataset import Dataset
from seqgen.errors import ConfigError
from seqgen.model import EncoderDecoderModel
from seqgen.training.scores import mean_scores, move_scalars

if TYPE_CHECKING:
    from seqgen.training.trainer import Trainer

SAMPLES = 5
"""Translations that are logged as text."""


class Interrupted(Exception):
    """Training was asked to stop while it validated."""


@dataclass(frozen=True)
class Sample:
    """A decoded sentence."""

    source: str
    hypothesis: str
    reference: str


@dataclass
class ValidationResult:
    """Scores by name, and some decoded sentences."""

    scores: dict[str, float]
    samples: list[Sample] = field(default_factory=list)


class Validator:
    """Validates the trainer's model; see ``Trainer.eval_model``.

    Args:
        trainer: knows the configuration, the task, the model and the processes.
        dataset: the validation split.
        should_stop: asked between batches; when it says yes, validation ends with ``Interrupted``.
    """

    def __init__(self, trainer: Trainer, dataset: Dataset, should_stop: Callable[[], bool] = lambda: False):
        self.trainer, self.should_stop = trainer, should_stop
        cfg = trainer.cfg.dataset
        self.split, self.decode_limit = cfg.valid_subset, cfg.validate_decode
        self.iterator = EpochIterator(
            dataset,
            lambda examples: trainer.task.collate(examples, trainer.model),
            max_tokens=cfg.max_tokens_valid or cfg.max_tokens,
            batch_size=cfg.batch_size_valid or cfg.batch_size,
            seed=trainer.cfg.common.seed,
            shuffle=False,
            rank=trainer.peers.rank,
            world_size=trainer.peers.world_size,
            even=False,
            num_workers=cfg.num_workers,
        )
        self._check_metric()

    def _check_metric(self) -> None:
        """Find out before training, not at the first validation, that a metric needs decoding."""
        metric = self.trainer.cfg.checkpoint.best_checkpoint_metric
        decoded = {name.lower() for name in self.trainer.task.metrics(["a"], ["a"])}
        if metric.lower() in decoded and not self.decode_limit:
            raise ConfigError(
                f"checkpoint.best_checkpoint_metric={metric} is a score of decoded text; say with "
                "dataset.validate_decode how many validation sentences to decode (-1 for all)"
            )

    def validate(self) -> ValidationResult:
        """Compute all scores, the same in every process.

        Raises:
            Interrupted: training was asked to stop.
        """
        model = self.trainer.eval_model
        model.eval()
        try:
            result = ValidationResult(self._loss(model))
            if self.decode_limit:
                self._decode(model, result)
        finally:
            model.train()
        return result

    @torch.no_grad()
    def _loss(self, model: EncoderDecoderModel) -> dict[str, float]:
        trainer = self.trainer
        self.iterator.epoch, self.iterator.consumed = 1, 0
        sums: dict[str, float] = {}
        for batch in self.iterator:
            self._check_stop()
            with trainer.autocast():
                out = trainer.task.valid_step(batch.to(trainer.device), model, trainer.criterion)
            row = {**out.logging, "loss": out.loss, "sample_size": float(out.sample_size)}
            for name, value in zip(row, move_scalars(list(row.values())), strict=True):
                sums[name] = sums.get(name, 0.0) + value
        return mean_scores(trainer.peers.sum(sums))

    def _decode(self, model: EncoderDecoderModel, result: ValidationResult) -> None:
        """Decode the first sentences with the code of ``seqgen-generate``, a share in each process, and score them."""
        from seqgen.translator import Translator

        trainer, peers = self.trainer, self.trainer.peers
        limit = None if self.decode_limit < 0 else self.decode_limit
        sources = list(itertools.islice(trainer.task.source_lines(self.split), limit))
        references = list(itertools.islice(trainer.task.references(self.split) or (), len(sources)))
        translator = Translator([trainer.task], [model], trainer.cfg.generation)
        hypotheses = [""] * len(sources)
        mine = range(peers.rank, len(sources), peers.world_size)
        buffer = max(trainer.cfg.generation.batch_size, 64)
        for translation in translator.translate((sources[i] for i in mine), buffer):
            self._check_stop()
            hypotheses[mine[translation.id]] = translation.text
        for rank, part in enumerate(peers.gather([hypotheses[i] for i in mine])):
            hypotheses[rank :: peers.world_size] = part
        if references:
            result.scores |= trainer.task.metrics(hypotheses, references)
        shown = zip(sources, hypotheses, references or [""] * len(sources), strict=True)
        result.samples = [Sample(*row) for row in itertools.islice(shown, SAMPLES)]

    def _check_stop(self) -> None:
        if self.trainer.peers.world_size == 1 and self.should_stop():  # several processes stop after the validation
            raise Interrupted
