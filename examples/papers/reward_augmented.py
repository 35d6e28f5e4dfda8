"""Reward-augmented decoding (Deng and Raffel 2023, "Reward-Augmented Decoding: Efficient Controlled Text Generation
With a Unidirectional Reward Model").

At each step, the k most probable tokens of each beam get beta r, where r, between 0 and 1, is the reward of the output
that ends with the token; all other tokens are forbidden. The reward is a linear head on the features of a model, which
reads all candidates against the keys and values of their beam, that are computed once.

The head is fitted on outputs with a reward each, one a line: with r_t of the first t of T tokens it minimizes the
cumulative squared error ``sum over t of t (r_t - r)^2 / (1 + ... + T)``, so that early tokens count little.
``python examples/papers/reward_augmented.py path=runs/a source=test.en target=test.de rewards=rewards
head=head.safetensors`` fits it. ``seqgen-generate common.user_dir=examples/papers/reward_augmented.py path=runs/a
input=test.en generation.processors=[reward] processor.reward.head=head.safetensors processor.reward.beta=2``

In the paper, the reward model is trained as a whole; here its head is, on the model that decodes or on another one with
the same vocabularies (``processor.reward.model``). The scores are not normalized again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from seqgen import load_model
from seqgen.extend import (
    CommonConfig,
    ConfigError,
    Critic,
    OwnMember,
    ReadingConfig,
    Resources,
    SequenceScorer,
    StepContext,
    TextModel,
    option,
    read_lines,
    register_logits_processor,
    run,
    set_up_device,
)


@dataclass
class RewardConfig:
    """Configuration of the processor; its fields are the keys ``processor.reward.FIELD``."""

    head: str = option("", "file with the head", role="input_path")
    model: str = option("", "model whose features the head reads; empty: the first that decodes", role="input_path")
    beta: float = option(1.0, "factor of the rewards", minimum=0)
    k: int = option(20, "candidates of each beam; at least two for each beam", minimum=1)


@register_logits_processor("reward", config=RewardConfig)
class RewardAugmented(Critic):
    """Adds rewards to the scores of the best tokens.

    Args:
        member: the reward model.
        head: the head on its features.
        beta: factor of the rewards.
        k: candidates of each beam.
    """

    def __init__(self, member: OwnMember, head: nn.Linear, beta: float = 1.0, k: int = 20):
        super().__init__([member], k, beta)
        self.head = head

    @classmethod
    def build(cls, cfg: RewardConfig, resources: Resources) -> Self:
        """Read the head, and the model, unless it decodes already."""
        loaded = load_model(cfg.model, device=resources.device) if cfg.model else resources.models[0]
        return cls(OwnMember(loaded.model), _read_head(cfg.head), cfg.beta, cfg.k)

    def values(self, context: StepContext, tokens: Tensor) -> Tensor:
        """See ``Critic.values``."""
        features: Tensor = self.parts[0].peek(context, tokens)
        if features.size(-1) != self.head.in_features:
            raise ConfigError("processor.reward.head is that of another model; fit it with the model of the reward")
        weight, bias = (parameter.to(features) for parameter in self.head.parameters())
        return nn.functional.linear(features, weight, bias).squeeze(-1).sigmoid()


def _read_head(file: str) -> nn.Linear:
    try:
        weights = load_file(file)
        head = nn.Linear(weights["weight"].size(1), 1)
        head.load_state_dict(weights)
    except (OSError, ValueError, KeyError, RuntimeError, IndexError) as error:
        raise ConfigError(
            f"processor.reward.head={file} is not a head that this file's command wrote: {error}"
        ) from None
    return head.requires_grad_(False)


@dataclass
class FitConfig:
    """The keys of the command that fits a head."""

    path: str = option("", "run folder or checkpoint of the model", role="input_path")
    source: str = option("", "text file with the sources", role="input_path")
    target: str = option("", "text file with an output of each source", role="input_path")
    rewards: str = option("", "text file with the reward of each output, between 0 and 1", role="input_path")
    head: str = option("", "file to write", role="output_path")
    reading: ReadingConfig = field(default_factory=ReadingConfig)
    common: CommonConfig = field(default_factory=CommonConfig)


def fit(cfg: FitConfig) -> None:
    """Fit the head that a configuration describes."""
    if not (cfg.path and cfg.source and cfg.target and cfg.rewards and cfg.head):
        raise ConfigError("set path=RUN source=FILE target=FILE rewards=FILE head=FILE")
    loaded = load_model(cfg.path, set_up_device(cfg.common), torch.float32, cfg.reading)
    sources, targets, lines = (list(read_lines(Path(file))) for file in (cfg.source, cfg.target, cfg.rewards))
    if not len(sources) == len(targets) == len(lines) > 0:
        raise ConfigError(f"source, target and rewards have {len(sources)}, {len(targets)} and {len(lines)} lines")
    try:
        rewards = torch.tensor([float(line) for line in lines])
    except ValueError as error:
        raise ConfigError(f"rewards={cfg.rewards} must have a number in each line: {error}") from None
    head = fit_head(*read_features(loaded, list(zip(sources, targets, strict=True))), rewards)
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


def fit_head(features: Tensor, numbers: Tensor, steps: Tensor, rewards: Tensor, iterations: int = 200) -> nn.Linear:
    """Minimize the cumulative squared error by L-BFGS; the arguments are those of ``read_features``."""
    head = nn.Linear(features.size(1), 1, dtype=features.dtype)
    nn.init.zeros_(head.weight)
    totals = torch.zeros(len(rewards)).scatter_add(0, numbers, steps.float())
    weights, wanted = (steps / totals[numbers]).to(features), rewards[numbers].to(features)
    optimizer = torch.optim.LBFGS(head.parameters(), max_iter=iterations, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        error: Tensor = (head(features).squeeze(-1).sigmoid() - wanted).square() @ weights / len(rewards)
        error.backward()
        return error

    optimizer.step(loss)
    return head.requires_grad_(False)


if __name__ == "__main__":
    run(FitConfig, fit, "fits the head of generation.processors=[reward].")
