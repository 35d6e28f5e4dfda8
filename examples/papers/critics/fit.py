"""Fits the head of a critic: on rewards of outputs, or on their tokens, which are right or wrong.

With ``rewards``, r_t after the first t of T tokens has the cumulative squared error ``t (r_t - r)^2 / (1 + ... + T)``,
so that early tokens count little. With ``references``, each token has the cross-entropy of its label: a token is right
if it is aligned with an equal one of the reference, and no token is missing before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from seqgen import load_model
from seqgen.extend import (
    CommonConfig,
    ConfigError,
    ReadingConfig,
    SequenceScorer,
    TextModel,
    option,
    read_lines,
    run,
    set_up_device,
)


@dataclass
class FitConfig:
    """The keys of the command that fits a head."""

    path: str = option("", "run folder or checkpoint of the model", role="input_path")
    source: str = option("", "text file with the sources", role="input_path")
    target: str = option("", "text file with an output of each source", role="input_path")
    rewards: str = option("", "text file with the reward of each output, between 0 and 1", role="input_path")
    references: str = option("", "text file with a correct output of each source", role="input_path")
    head: str = option("", "file to write", role="output_path")
    reading: ReadingConfig = field(default_factory=ReadingConfig)
    common: CommonConfig = field(default_factory=CommonConfig)


def fit(cfg: FitConfig) -> None:
    """Fit the head that a configuration describes."""
    if not (cfg.path and cfg.source and cfg.target and cfg.head and bool(cfg.rewards) != bool(cfg.references)):
        raise ConfigError("set path=RUN source=FILE target=FILE head=FILE, and either rewards=FILE or references=FILE")
    loaded = load_model(cfg.path, set_up_device(cfg.common), torch.float32, cfg.reading)
    name = "rewards" if cfg.rewards else "references"
    files = (cfg.source, cfg.target, cfg.rewards or cfg.references)
    sources, targets, lines = (list(read_lines(Path(file))) for file in files)
    if not len(sources) == len(targets) == len(lines) > 0:
        raise ConfigError(f"source, target and {name} have {len(sources)}, {len(targets)} and {len(lines)} lines")
    try:
        rewards = [float(line) for line in lines] if cfg.rewards else []
    except ValueError as error:
        raise ConfigError(f"rewards={cfg.rewards} must have a number in each line: {error}") from None
    if wrong := [line for line, reward in zip(lines, rewards, strict=False) if not 0 <= reward <= 1]:
        raise ConfigError(f"rewards={cfg.rewards} must have numbers between 0 and 1, not {wrong[0]}")
    Path(cfg.head).parent.mkdir(parents=True, exist_ok=True)
    try:
        features, numbers, steps = read_features(loaded, list(zip(sources, targets, strict=True)))
    except ValueError as error:  # a line is too long
        raise ConfigError(f"source={cfg.source} and target={cfg.target}: {error}") from None
    if rewards:
        head = fit_rewards(features, numbers, steps, torch.tensor(rewards))
    else:
        pairs = ((loaded.task.encode_target(one).tolist() for one in pair) for pair in zip(targets, lines, strict=True))
        labels = torch.tensor([label for output, reference in pairs for label in right_tokens(output, reference)])
        head = fit_labels(features, labels)
    save_file({name: value.detach().cpu() for name, value in head.state_dict().items()}, cfg.head)


def read_features(
    loaded: TextModel, pairs: Sequence[tuple[str, str]], batch_size: int = 64
) -> tuple[Tensor, Tensor, Tensor]:
    """The features after each token of outputs.

    Returns:
        Features ``(n, C)``; the number of the output ``(n,)``; and the number of tokens so far ``(n,)``.
    """
    task, model, words = loaded.task, loaded.model, loaded.task.target_dictionary
    scorer, found = SequenceScorer([model], words.pad(), words.eos()), list[tuple[Tensor, Tensor, Tensor]]()
    for first in range(0, len(pairs), batch_size):
        encoded = [
            (task.encode_source(source), task.encode_target(target)) for source, target in pairs[first:][:batch_size]
        ]
        # One more token, so that end-of-sentence is read too: the features at column t + 1 are those after t tokens.
        examples: Any = [(n, source, torch.cat([target, target[-1:]])) for n, (source, target) in enumerate(encoded)]
        (features,) = scorer.features(task.collate(examples, model).to(next(model.parameters()).device))
        lengths = torch.tensor([len(target) for _, target in encoded])
        steps = torch.arange(1, features.size(1)).expand(len(encoded), -1)
        kept = steps <= lengths.unsqueeze(1)
        numbers = torch.arange(first, first + len(encoded)).unsqueeze(1).expand_as(steps)
        found.append((features.cpu()[:, 1:][kept], numbers[kept], steps[kept]))
    features, numbers, steps = map(torch.cat, zip(*found, strict=True))
    return features, numbers, steps


def right_tokens(output: Sequence[int], reference: Sequence[int]) -> list[float]:
    """For each token of an output 1 if it is right, 0 if it is wrong or follows a place where tokens are missing."""
    found = SequenceMatcher(None, reference, output, autojunk=False).get_opcodes()
    missing = {begin for kind, _, _, begin, _ in found if kind == "delete"}
    right = {place for kind, _, _, begin, end in found if kind == "equal" for place in range(begin, end)}
    return [float(place in right - missing) for place in range(len(output))]


def fit_rewards(features: Tensor, numbers: Tensor, steps: Tensor, rewards: Tensor) -> nn.Linear:
    """Minimize the cumulative squared error of rewards; the arguments are those of ``read_features``."""
    totals = torch.zeros(len(rewards)).scatter_add(0, numbers, steps.float())
    return fit_head(features, rewards[numbers], steps / totals[numbers] / len(rewards), F.mse_loss)


def fit_labels(features: Tensor, labels: Tensor) -> nn.Linear:
    """Minimize the cross-entropy of labels ``(n,)`` after features ``(n, C)``."""
    return fit_head(features, labels, torch.full_like(labels, 1 / len(labels)), F.binary_cross_entropy)


def fit_head(
    features: Tensor, wanted: Tensor, weights: Tensor, loss: Callable[..., Tensor], iterations: int = 200
) -> nn.Linear:
    """Minimize the weighted sum of a loss of the head's sigmoid by L-BFGS."""
    head = nn.Linear(features.size(1), 1, dtype=features.dtype)
    nn.init.zeros_(head.weight)
    optimizer = torch.optim.LBFGS(head.parameters(), max_iter=iterations, line_search_fn="strong_wolfe")

    def error() -> Tensor:
        optimizer.zero_grad()
        found = loss(head(features).squeeze(-1).sigmoid(), wanted.to(features), reduction="none")
        total: Tensor = found @ weights.to(features)
        total.backward()
        return total

    optimizer.step(error)
    return head.requires_grad_(False)


if __name__ == "__main__":
    run(FitConfig, fit, "fits the head of a critic.")
