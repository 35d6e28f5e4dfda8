"""A linear head on the features of a model, whose sigmoid rates partial outputs: files, fitting, and a processor."""

from __future__ import annotations

from dataclasses import dataclass

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from seqgen import load_model
from seqgen.extend import (
    ConfigError,
    Critic,
    OwnMember,
    Resources,
    StepContext,
    option,
)

from .text_member import TextMember, member_of


@dataclass
class HeadConfig:
    """The keys of a processor that reads a head."""

    head: str = option("", "file with the head", role="input_path")
    model: str = option("", "model whose features the head reads; empty: the first that decodes", role="input_path")
    k: int = option(20, "candidates of each beam; at least two for each beam", minimum=1)


class HeadCritic(Critic):
    """Rates candidates by a head.

    Args:
        member: the model that the head reads.
        head: the head.
        k: candidates of each beam.
        weight: see ``Critic``.
    """

    def __init__(self, member: OwnMember | TextMember, head: nn.Linear, k: int, weight: float):
        super().__init__([member], k, weight)
        self.head = head

    def logits(self, context: StepContext, tokens: Tensor) -> Tensor:
        """The head's result after each candidate, ``(rows, k)``.

        Raises:
            ConfigError: the head reads other features.
        """
        features: Tensor = self.parts[0].peek(context, tokens)
        if features.size(-1) != self.head.in_features:
            raise ConfigError(
                f"the head of {type(self).__name__} has {self.head.in_features} inputs, and its model "
                f"{features.size(-1)} features; fit it with this model"
            )
        weight, bias = (parameter.to(features) for parameter in self.head.parameters())
        return nn.functional.linear(features, weight, bias).squeeze(-1)


def read_member(model: str, resources: Resources) -> OwnMember | TextMember:
    """The model of a critic, which is read unless it decodes already."""
    models = resources.models
    return member_of(load_model(model, resources.device, among=models) if model else models[0], resources)


def read_head(file: str, key: str) -> nn.Linear:
    """Read a head that ``fit.py`` wrote.

    Args:
        file: the file.
        key: the key that names it, for messages.

    Raises:
        ConfigError: the file is another one.
    """
    try:
        weights = load_file(file)
        head = nn.Linear(weights["weight"].size(1), 1)
        head.load_state_dict(weights)
    except (OSError, ValueError, KeyError, RuntimeError, IndexError, SafetensorError) as error:
        reason = str(error).rpartition("\n")[2].strip()
        raise ConfigError(f"{key}={file} is not a head that fit.py wrote: {reason}") from None
    return head.requires_grad_(False)
