"""Low-rank adaptation (Hu, Shen, Wallis, Allen-Zhu, Li, Wang, Wang and Chen 2022, "LoRA: Low-Rank Adaptation of Large
Language Models", arXiv 2106.09685).

The weights W of a trained model, the base, are frozen. A matrix product of it also has a product of rank r that is
trained::

    h = W x + (alpha / r) B A dropout(x),    A of shape (r, in), at first normal;    B of shape (out, r), at first 0

``seqgen-train common.user_dir=examples/papers/lora.py checkpoint.finetune_from=runs/a model=lora model.rank=8
run_dir=runs/lora task.train=NEW/train task.valid=NEW/val``

The base is a run, or any model that ``checkpoint.finetune_from`` reads: ``transformer`` (also BART, Marian and NLLB),
``t5``, ``llama``, ``fconv`` and others with ``Linear`` layers. Checkpoints contain A and B only; the run records where
the base is. Training computes the small products separately, as written above. For decoding, W + (alpha / r) B A is
computed once, so that decoding costs as much as that of the base; ``seqgen-convert path=runs/lora output=FOLDER`` with
``format=huggingface``, ``export`` or ``ctranslate2`` writes this sum.

In a ``transformer`` or ``t5``, the projections of queries, keys and values are rows of one matrix, and have one A. A
weight-normalized W (``fconv``) is normalized before the product is added.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from seqgen.extend import (
    MODELS,
    BaseConfig,
    ConfigError,
    EncoderDecoderModel,
    Linear,
    Vocabularies,
    change_class,
    load_base,
    option,
    register_model,
)


class LoRALinear(Linear):
    """A linear layer whose weight is W + scale B A; made of another layer by ``adapt``."""

    lora_a: nn.Parameter
    lora_b: nn.Parameter
    scale: float
    rate: float

    def project(self, x: Tensor) -> Tensor:
        """Project ``(..., in)`` to ``(..., out)``."""
        out = super().project(x)
        if not self.training:
            return out
        return out + self.scale * functional.linear(
            functional.linear(functional.dropout(x, self.rate), self.lora_a), self.lora_b
        )

    def matrix(self) -> Tensor:
        """The weight of ``super().project``: in training W, otherwise the sum."""
        return super().matrix() if self.training else self.kept("sum", self._sum)

    def _sum(self) -> Tensor:
        weight = super().matrix()
        return weight + (self.scale * self.lora_b @ self.lora_a).to(weight)

    def _parameters_of_weight(self) -> list[Tensor]:
        return [*super()._parameters_of_weight(), self.lora_a, self.lora_b]

    @torch.no_grad()
    def merge_weights(self) -> None:
        """Become a layer without A and B whose weight is the sum; see ``EncoderDecoderModel.merged``."""
        merged = self._sum()
        del self.lora_a, self.lora_b
        change_class(self, parametrize.type_before_parametrizations(self).__bases__[1])
        if parametrize.is_parametrized(self):
            self.weight = merged
        else:
            self.weight.copy_(merged)


@functools.cache
def _lora_class(kind: type[Linear]) -> type[LoRALinear]:
    return type(f"LoRA{kind.__name__}", (LoRALinear, kind), {})


def adapt(layer: Linear, cfg: LoRAConfig) -> None:
    """Add A and B to a layer."""
    change_class(layer, _lora_class(parametrize.type_before_parametrizations(layer)))
    weight = layer.weight
    a, b = weight.new_empty(cfg.rank, weight.size(1)), weight.new_zeros(weight.size(0), cfg.rank)
    made = cast(LoRALinear, layer)
    made.lora_a, made.lora_b = nn.Parameter(nn.init.normal_(a, std=weight.size(1) ** -0.5)), nn.Parameter(b)
    made.scale, made.rate = cfg.alpha / cfg.rank, cfg.dropout


@dataclass
class LoRAConfig(BaseConfig):
    """Configuration of a model with low-rank adapters."""

    rank: int = option(8, "r, the rank of the products", minimum=1)
    alpha: float = option(16.0, "the products are multiplied by alpha / rank", minimum=0)
    targets: str = option("attn|attention", "regular expression that a part of the names of adapted layers matches")
    dropout: float = option(0.0, "probability with which inputs of A are dropped", minimum=0, maximum=1)


@register_model("lora", config=LoRAConfig)
class LoRA(EncoderDecoderModel):
    """Makes models with adapters; the model has the class of the base."""

    @classmethod
    def build_model(cls, cfg: LoRAConfig, task: Vocabularies) -> Any:
        """Load the base and adapt it."""
        model = _base(cfg, task).requires_grad_(False)
        weights = [id(weight) for _, weight in model.named_parameters(remove_duplicate=False)]
        targets = {name: layer for name, layer in model.named_modules() if isinstance(layer, Linear)}
        try:
            chosen = [name for name in targets if re.search(cfg.targets, name)]
        except re.error as error:
            raise ConfigError(f"model.targets={cfg.targets} is not a regular expression: {error}") from None
        if not chosen:
            raise ConfigError(f"model.targets={cfg.targets} matches none of the layers {', '.join(targets)}")
        if tied := [name for name in chosen if weights.count(id(targets[name].weight)) > 1]:
            raise ConfigError(f"model.targets={cfg.targets}: the weight of {tied[0]} is also that of an embedding")
        for name in chosen:
            adapt(targets[name], cfg)
        return model


def _base(cfg: LoRAConfig, task: Vocabularies) -> EncoderDecoderModel:
    """The base; with a name such as ``model.base=transformer_tiny`` a random one, which checkpoints contain."""
    if MODELS.find(cfg.base) or cfg.base in MODELS.names():
        config = MODELS.config(cfg.base)
        model: EncoderDecoderModel = MODELS.of(config).component.build_model(config, task)  # type: ignore[attr-defined]
        return model
    loaded = load_base(cfg)
    sides = [(one.source_dictionary, one.target_dictionary) for one in (loaded.task, task)]
    if sides[0] != sides[1]:
        raise ConfigError(f"the vocabulary is not that of model.base={cfg.base}, to which tokens cannot be added")
    loaded.model.new_weights = loaded.model.saved_weights = ("*.lora_a", "*.lora_b")
    return loaded.model
