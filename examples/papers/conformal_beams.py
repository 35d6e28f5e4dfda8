"""Conformal beams: a beam whose width differs by sentence and step, and that keeps the reference with a probability.

Deutschmann, Alberts and Rodríguez Martínez 2024, "Conformal Autoregressive Generation: Beam Search with Coverage
Guarantees", keep a candidate ``c`` of ``l`` tokens if its mean log-probability reaches a threshold:

    log p(c) / l >= t_l,    t_l = the k_l-th smallest mean of n_l references at l tokens,  k_l = floor(alpha (n_l + 1))

where ``n_l`` calibration references are above ``t_1 .. t_(l-1)``; ``t_l`` is ``-inf`` if ``k_l`` is 0, and a reference
shorter than ``l`` has its mean at its end. A new reference is kept at all lengths with probability ``product of
1 - k_l / (n_l + 1)`` or more, if ``generation.beam`` is never too small for what the thresholds keep.

``python examples/papers/conformal_beams.py path=[runs/a] source=DATA/val.en.gz target=DATA/val.de.gz alpha=0.01
file=thresholds.json``, then ``seqgen-generate common.user_dir=examples/papers/conformal_beams.py path=runs/a
input=test.en generation.beam=5 generation.nbest=5 generation.search=conformal search.file=thresholds.json``

Expect shorter n-best lists where the model is certain, and none where all candidates are dropped. Unlike in the paper,
a finished hypothesis is not compared with the thresholds of greater lengths: lists can be longer, not shorter. The rows
of dropped beams are still computed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch

from seqgen import load_models
from seqgen.extend import (
    BeamSearch,
    Candidates,
    CommonConfig,
    ConfigError,
    ReadingConfig,
    Resources,
    Scores,
    SequenceScorer,
    StepContext,
    TextModel,
    option,
    read_lines,
    register_search,
    run,
    set_up_device,
)


@dataclass
class ConformalConfig:
    """Configuration of conformal pruning; its fields are the keys ``search.FIELD``."""

    file: str = option("", "thresholds, by `python examples/papers/conformal_beams.py`", role="input_path")


@register_search("conformal", config=ConformalConfig)
class ConformalPruning(BeamSearch):
    """Beam search that drops candidates below ``thresholds``, one for each length; the last is that of longer ones."""

    can_merge = True

    def __init__(self, thresholds: Sequence[float]):
        super().__init__()
        self.thresholds = torch.tensor(thresholds, dtype=torch.float64)

    @classmethod
    def build(cls, cfg: Any, resources: Resources) -> Self:
        """Read the thresholds."""
        try:
            values = json.loads(Path(cfg.file).read_text(encoding="utf-8"))["thresholds"]
            return cls([-math.inf if value is None else float(value) for value in values])
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"search.file={cfg.file} is not a file of thresholds: {error}") from None

    def step(self, context: StepContext, scores: Scores) -> Candidates:
        """Choose as beam search does, ``(sentences, 2 * beam)``; then drop candidates below the threshold."""
        found = super().step(context, scores)
        steps = context.by_sentence(context.steps)[:, :1]  # (sentences, 1): those that joined the batch have fewer
        limits = self.thresholds.to(found.scores.device)[steps.clamp(max=len(self.thresholds) - 1)]
        dropped = found.scores.double() / (steps + 1) < limits
        return found.without(dropped)


def calibrate(values: Sequence[Sequence[float]], alpha: float) -> tuple[list[float], float]:
    """The threshold of each length, and the least probability that a new reference is kept at all lengths.

    Args:
        values: for each reference the log-probability of its first token, its first two tokens, ..., in nats.
        alpha: the share of references that may be dropped at each step.
    """
    longest = max(map(len, values))
    means = [[sums[min(n, len(sums) - 1)] / min(n + 1, len(sums)) for n in range(longest)] for sums in values]
    thresholds, coverage = [], 1.0
    for step in range(longest):
        dropped = math.floor(alpha * (len(means) + 1))
        threshold = sorted(row[step] for row in means)[dropped - 1] if dropped else -math.inf
        thresholds.append(threshold)
        coverage *= 1 - dropped / (len(means) + 1)
        means = [row for row in means if row[step] > threshold]
    return thresholds, coverage


@dataclass
class CalibrationConfig:
    """The keys of the command that calibrates the thresholds."""

    path: list[str] = option([], "run folders or checkpoints of the models")
    source: str = option("", "text file with the sources", role="input_path")
    target: str = option("", "text file with the reference of each source", role="input_path")
    alpha: float = option(0.01, "the share of references that may be dropped at each step", minimum=0, maximum=0.999)
    file: str = option("", "file to write; it must not exist", role="output_path")
    reading: ReadingConfig = field(default_factory=ReadingConfig)
    common: CommonConfig = field(default_factory=CommonConfig)


def write_thresholds(cfg: CalibrationConfig) -> None:
    """Calibrate the thresholds that a configuration describes."""
    if not (cfg.path and cfg.source and cfg.target and cfg.file) or Path(cfg.file).exists():
        raise ConfigError("set path=[RUN] source=FILE target=FILE file=FILE; the last one must not exist yet")
    models = load_models(cfg.path, set_up_device(cfg.common), cfg.reading)
    sources, targets = (list(read_lines(Path(file))) for file in (cfg.source, cfg.target))
    if len(sources) != len(targets) or not sources:
        raise ConfigError(f"source has {len(sources)} lines and target {len(targets)}; give one target for each source")
    values = cumulative_scores(models, list(zip(sources, targets, strict=True)))
    thresholds, coverage = calibrate(values, cfg.alpha)
    finite = [None if value == -math.inf else value for value in thresholds]
    Path(cfg.file).write_text(json.dumps({"coverage": coverage, "thresholds": finite}) + "\n", encoding="utf-8")
    print(f"{cfg.file}: thresholds of {len(finite)} lengths; the beams keep a reference with p >= {coverage:.3f}")


def cumulative_scores(models: Sequence[TextModel], pairs: Sequence[tuple[str, str]]) -> list[list[float]]:
    """The ensemble's log-probability of each prefix of each target, in nats; the models share their vocabularies."""
    task, model, values = models[0].task, models[0].model, []
    scorer = SequenceScorer([one.model for one in models], task.target_dictionary.pad(), task.target_dictionary.eos())
    for first in range(0, len(pairs), 64):
        examples = [
            (n, task.encode_source(s), task.encode_target(t)) for n, (s, t) in enumerate(pairs[first : first + 64])
        ]
        found = scorer.score(task.collate(examples, model).to(next(model.parameters()).device))
        values += [one.hypothesis.positional_scores.double().cumsum(0).tolist() for one in found]
    return values


if __name__ == "__main__":
    run(CalibrationConfig, write_thresholds, "writes the thresholds for generation.search=conformal.")
