"""Scores from sums over batches, and the order of scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from seqgen.errors import ConfigError

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
