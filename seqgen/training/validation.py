"""Validation: the loss of a split, and scores of its decoded text."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch

from seqgen.config.values import DEFAULTS, to_dict
from seqgen.core.errors import ConfigError
from seqgen.core.model import EncoderDecoderModel
from seqgen.data.iterator import EpochIterator
from seqgen.task import ModelInMemory
from seqgen.text.translator import Translator
from seqgen.training.criteria import check_out, mean_scores, sum_outs

if TYPE_CHECKING:
    from seqgen.task import Task
    from seqgen.training.trainer import Trainer

SAMPLES = 5
"""Number of decoded sentences that are logged as text, for each part of the dataset."""


class Interrupted(Exception):
    """Training was asked to stop during validation."""


class Sample(NamedTuple):
    """A decoded sentence.

    Attributes:
        source: the input line.
        hypothesis: the output.
        reference: the reference; empty if there is none.
    """

    source: str
    hypothesis: str
    reference: str


@dataclass
class ValidationResult:
    """Scores of a validation.

    Attributes:
        scores: the scores by name.
        samples: some decoded sentences.
        rank: how the score that ranks checkpoints compares with earlier ones, in words; may be empty.
    """

    scores: dict[str, float]
    samples: list[Sample] = field(default_factory=list)
    rank: str = ""


def pick(scores: Mapping[str, float], metric: str) -> float:
    """The score that ranks checkpoints.

    Args:
        scores: the validation scores by name.
        metric: name of the score, in upper or lower case.

    Raises:
        ConfigError: validation does not compute it.
    """
    by_name = {name.lower(): value for name, value in scores.items()}
    if metric.lower() not in by_name:
        raise ConfigError(
            f"checkpoint.best_checkpoint_metric={metric} is not among the validation scores: {', '.join(by_name)}; for "
            "scores of decoded text set dataset.validate_decode to the number of sentences to decode (-1 for all)"
        )
    return by_name[metric.lower()]


class Validator:
    """Validates the trainer's model; see ``Trainer.evaluation``.

    Args:
        trainer: has the configuration, the task, the model and the process group.
        iterators: the batches of each part of the validation split, by the part's name; ``""`` is the whole split.
        should_stop: called between batches; if it returns true, validation raises ``Interrupted``.

    Raises:
        ConfigError: the metric that ranks checkpoints is not computed, or sentences of a split that has no source lines
            are to be decoded.
    """

    def __init__(self, trainer: Trainer, iterators: Mapping[str, EpochIterator], should_stop: Callable[[], bool]):
        self.trainer, self.iterators, self.should_stop = trainer, iterators, should_stop
        cfg = trainer.cfg.dataset
        self.split, self.decode_limit = cfg.valid_subset, cfg.validate_decode
        self._check_metric()
        if self.decode_limit:  # a task without source lines says so here, and not after an epoch
            for name in self.iterators:
                self._task(name).source_lines(self.split)

    def _task(self, part: str) -> Task:
        """The task of a part of the split; that of the whole split is named ``""``."""
        return self.trainer.task.part(part) if part else self.trainer.task

    def _check_metric(self) -> None:
        """Check before training that validation computes the metric that ranks checkpoints."""
        metric = self.trainer.cfg.checkpoint.best_checkpoint_metric
        names = list(self.trainer.task.metrics(["a"], ["a"])) if self.decode_limit else []
        decoded = [*names, *(f"{part}.{name}" for part in self.iterators for name in names)]
        if metric.lower() not in ("loss", *map(str.lower, decoded)):
            with self.trainer.evaluation() as model:
                pick(self._loss(model, batches=1) | dict.fromkeys(decoded, 0.0), metric)

    def validate(self) -> ValidationResult:
        """Compute all scores.

        Returns:
            The scores and some decoded sentences, the same in every rank.

        Raises:
            Interrupted: training was asked to stop.
        """
        with self.trainer.evaluation() as model:
            result = ValidationResult(self._loss(model))
            if self.decode_limit:
                self._decode(model, result)
        return result

    def _loss(self, model: EncoderDecoderModel, batches: int | None = None) -> dict[str, float]:
        """The loss of the split, and of each part of a mixture, such as ``de.loss`` for the part ``de``.

        Args:
            model: the model.
            batches: the number of batches of each part and rank; ``None`` for all.
        """
        total: dict[str, float] = {}
        by_part: dict[str, float] = {}
        for name, iterator in self.iterators.items():
            sums = self.trainer.group.sum(self._sums(model, iterator, batches))
            total = {key: total.get(key, 0.0) + value for key, value in sums.items()}
            if name:
                by_part |= {f"{name}.{key}": value for key, value in mean_scores(sums).items()}
        return mean_scores(total) | by_part

    @torch.no_grad()
    def _sums(self, model: EncoderDecoderModel, iterator: EpochIterator, batches: int | None) -> dict[str, float]:
        trainer = self.trainer
        iterator.epoch, iterator.consumed = 1, 0
        outs = []
        for batch in itertools.islice(iterator, batches):
            if batches is None:
                self._check_stop()
            with trainer.autocast():
                out = trainer.task.valid_step(batch.to(trainer.device), model, trainer.criterion)
            outs.append(check_out(trainer.criterion, out))
        return sum_outs(outs)[0]

    def _decode(self, model: EncoderDecoderModel, result: ValidationResult) -> None:
        """Decode the first sentences of each part and score them; add scores and samples to the result."""
        every: list[Sample] = []
        for name in self.iterators:
            samples = self._decode_part(model, name)
            if name:
                result.scores |= {f"{name}.{key}": value for key, value in self._metrics(samples).items()}
            result.samples += samples[:SAMPLES]
            every += samples
        result.scores |= self._metrics(every)

    def _metrics(self, samples: Sequence[Sample]) -> dict[str, float]:
        """The scores of decoded sentences; none if they have no references."""
        references = [sample.reference for sample in samples]
        if not any(references):
            return {}
        return self.trainer.task.metrics([sample.hypothesis for sample in samples], references)

    def _decode_part(self, model: EncoderDecoderModel, part: str) -> list[Sample]:
        """Decode the first sentences with the code of ``seqgen-generate``; each rank decodes its share."""
        trainer, group = self.trainer, self.trainer.group
        task = self._task(part)
        limit = None if self.decode_limit < 0 else self.decode_limit
        sources = list(itertools.islice(task.source_lines(self.split), limit))
        references = list(itertools.islice(task.references(self.split) or (), len(sources)))
        chosen = {key: value for key, value in to_dict(trainer.cfg.generation).items() if value != DEFAULTS[key]}
        decoding = Translator(ModelInMemory(trainer.task, model), **{**chosen, **task.decoding_settings()}).prepare()
        hypotheses = [""] * len(sources)
        share = range(group.rank, len(sources), group.world_size)
        buffer = max(trainer.cfg.generation.batch_size, 64)
        for translation in decoding.translate((sources[i] for i in share), buffer_size=buffer):
            self._check_stop()
            hypotheses[share[translation.id]] = translation.text
        for rank, gathered in enumerate(group.gather([hypotheses[i] for i in share])):
            hypotheses[rank :: group.world_size] = gathered
        shown = zip(sources, hypotheses, references or [""] * len(sources), strict=True)
        return [Sample(*row) for row in shown]

    def _check_stop(self) -> None:
        if self.trainer.group.world_size == 1 and self.should_stop():  # several ranks stop together, after validation
            raise Interrupted
