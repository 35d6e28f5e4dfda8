"""From sums over batches to scores, and which scores are better."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from seqgen.errors import ConfigError

_LOWER_IS_BETTER = ("loss", "ppl", "ter", "wer", "cer", "error")


def lower_is_better(metric: str) -> bool:
    """Whether a score is better when it is smaller, told by its name: losses, perplexities and error rates are."""
    return metric.lower().endswith(_LOWER_IS_BETTER)


def pick(scores: Mapping[str, float], metric: str) -> float:
    """The score that ranks checkpoints, whatever the case of its name.

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
    """Turn sums over batches into scores.

    Args:
        sums: ``loss``, ``sample_size`` and whatever the criterion logs.

    Returns:
        ``loss`` and ``nll_loss`` in nats per token, ``ppl``, the perplexity (e to the ``nll_loss``), ``accuracy`` in
        percent of tokens, and what else the criterion logs, divided by the sample size.
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
    """Bring scalars from the device in one transfer.

    Args:
        tensors: scalars, as tensors or plain.
    """
    on_device = [value.detach().float() for value in tensors if isinstance(value, Tensor)]
    moved = iter(torch.stack(on_device).tolist() if on_device else [])
    return [next(moved) if isinstance(value, Tensor) else float(value) for value in tensors]
