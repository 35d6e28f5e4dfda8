"""Scores of a run: means over batches, which of two is better, and the file of the last and the best ones."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqgen.errors import ConfigError
from seqgen.system.files import write_atomically

_LOWER_IS_BETTER = ("loss", "ppl", "ter", "wer", "cer", "error")


def lower_is_better(metric: str) -> bool:
    """Whether lower values of a metric are better, by its name: losses, perplexities and error rates."""
    return metric.lower().endswith(_LOWER_IS_BETTER)


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
            f"checkpoint.best_checkpoint_metric={metric} is not among the validation scores: {', '.join(by_name)}; "
            "scores of decoded text need dataset.validate_decode to be set"
        )
    return by_name[metric.lower()]


def mean_scores(sums: Mapping[str, float]) -> dict[str, float]:
    """Divide sums over batches by the number of tokens.

    Args:
        sums: ``loss``, ``sample_size`` and the values that the criterion logs, by name; see ``CriterionOut``.

    Returns:
        ``loss`` in nats per unit of the sample size, ``nll_loss`` in nats per token, the perplexity ``ppl``
        (``exp(nll_loss)``), ``accuracy`` in percent of tokens, and other logged values divided by the sample size.
    """
    size = sums.get("sample_size", 0.0) or 1.0
    tokens = sums.get("ntokens", size) or 1.0
    scores = {"loss": sums.get("loss", 0.0) / size}
    nll = sums["nll_loss"] / tokens if "nll_loss" in sums else scores["loss"]
    scores["nll_loss"] = nll
    scores["ppl"] = math.exp(nll) if nll < 700 else math.inf
    if "correct" in sums:
        scores["accuracy"] = 100 * sums["correct"] / tokens
    known = {"loss", "sample_size", "nll_loss", "ntokens", "nsentences", "correct"}
    return scores | {name: value / size for name, value in sums.items() if name not in known}


def move_scalars(tensors: Sequence[Tensor | float]) -> list[float]:
    """Copy scalars from the device to the host in one transfer.

    Args:
        tensors: tensors of one element, or plain numbers.

    Returns:
        The values, in order.
    """
    on_device = [value.detach().float() for value in tensors if isinstance(value, Tensor)]
    moved = iter(torch.stack(on_device).tolist() if on_device else [])
    return [next(moved) if isinstance(value, Tensor) else float(value) for value in tensors]


SCORES = "scores.json"
_FIELDS = ("event", "time", "update", "epoch")


class ScoresFile:
    """Writes ``scores.json`` from the validation records of the log, so that both agree even after a kill.

    The file has ``metric``, the name of the score that ranks checkpoints; ``best`` and ``last``, each with ``update``,
    ``epoch``, ``time`` and ``scores`` by name; and ``signatures``, the sacreBLEU signatures by score name.

    Args:
        run: the run's folder.
        metric: name of the score that ranks checkpoints.
        signatures: sacreBLEU signatures by score name.
    """

    def __init__(self, run: Path, metric: str, signatures: Mapping[str, str]):
        self.path, self.metric, self.signatures = run / SCORES, metric, signatures
        self.best: dict[str, Any] | None = None
        self.last: dict[str, Any] | None = None

    def add(self, record: Mapping[str, Any]) -> None:
        """Add a validation record of the log, which becomes ``last``, and ``best`` if its score is better."""
        scores = {name: value for name, value in record.items() if name not in _FIELDS}
        self.last = {name: record.get(name) for name in _FIELDS[1:]} | {"scores": scores}
        if self._rank(self.last) > self._rank(self.best):
            self.best = self.last

    def _rank(self, entry: dict[str, Any] | None) -> float:
        """The score that ranks a validation, negated if lower is better; ``-inf`` if it has no such score."""
        scores = {} if entry is None else entry["scores"]
        value = {name.lower(): score for name, score in scores.items()}.get(self.metric.lower())
        if not isinstance(value, int | float):
            return -math.inf
        return -value if lower_is_better(self.metric) else value

    def write(self) -> None:
        """Write the file; without validation records, remove it."""
        if self.last is None:
            self.path.unlink(missing_ok=True)
            return
        names = self.last["scores"]
        kinds = {name: self.signatures.get(name.rpartition(".")[2]) for name in names}  # of "de.bleu": "bleu"
        content = {
            "metric": self.metric,
            "best": self.best,
            "last": self.last,
            "signatures": {name: signature for name, signature in kinds.items() if signature},
        }
        write_atomically(self.path, json.dumps(content, ensure_ascii=False, indent=1) + "\n")
