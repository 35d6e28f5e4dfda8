"""A user's file with one decoding component of each kind and its keys; imported through ``common.user_dir``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from seqgen.config import option
from seqgen.core.beam_search import BeamSearch
from seqgen.core.candidates import Candidates
from seqgen.core.combinations import Combination
from seqgen.core.component import BatchInfo
from seqgen.core.context import StepContext
from seqgen.core.observers import Observer, StepRecord
from seqgen.core.processors import LogitsProcessor
from seqgen.core.rules import StoppingRule
from seqgen.core.scores import Scores
from seqgen.decoding.building import Resources
from seqgen.registry import (
    register_combination,
    register_logits_processor,
    register_observer,
    register_search,
    register_stopping_rule,
)


@dataclass
class CroppingConfig:
    delta: float = option(5.0, "candidates this many nats below the best one are dropped", minimum=0)


@register_search("cropping", config=CroppingConfig, presets={"cropping_narrow": CroppingConfig(delta=0.5)})
class CroppingSearch(BeamSearch):
    """Beam search that drops candidates far below the best one of their sentence."""

    def __init__(self, delta: float = 5.0):
        super().__init__()
        self.delta = delta

    def step(self, context: StepContext, scores: Scores) -> Candidates:
        found = super().step(context, scores)
        low = found.scores < found.scores[:, :1] - self.delta
        return replace(found, scores=found.scores.masked_fill(low, -torch.inf))


@dataclass
class VarietyConfig:
    weight: float = option(1.0, "subtracted for each occurrence in the beam, in nats", minimum=0, maximum=100)


@register_logits_processor("variety", config=VarietyConfig, presets={"much_variety": VarietyConfig(weight=9.0)})
class Variety(LogitsProcessor):
    """Lowers the scores of tokens that the beam has generated; counts them instead of reading the tokens."""

    beam_state = ("counts",)
    counts: Tensor

    def __init__(self, vocabulary: int, weight: float):
        self.vocabulary, self.weight = vocabulary, weight

    @classmethod
    def build(cls, cfg: VarietyConfig, resources: Resources) -> Self:
        return cls(len(resources.dictionary), cfg.weight)

    def begin(self, batch: BatchInfo) -> Self:
        begun = super().begin(batch)
        begun.counts = torch.zeros(batch.num_sentences, batch.beam_size, self.vocabulary, device=batch.device)
        return begun

    def advance(self, active: Candidates) -> None:
        super().advance(active)
        self.counts.scatter_add_(2, active.tokens.unsqueeze(2), torch.ones_like(self.counts[:, :, :1]))

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        return lprobs - self.weight * self.counts.flatten(0, 1)


@dataclass
class AtMostConfig:
    tokens: int = option(3, "maximum length of an output, in tokens", minimum=1)


@register_stopping_rule("at_most", config=AtMostConfig, presets={"at_most_two": AtMostConfig(tokens=2)})
class AtMost(StoppingRule):
    """Ends an output that has ``tokens`` tokens."""

    def __init__(self, tokens: int):
        self.tokens = tokens

    def __call__(self, tokens: Tensor, context: StepContext) -> Tensor:
        return context.steps + 1 >= self.tokens


@dataclass
class BestOfConfig:
    scale: float = option(1.0, "what the largest log-probability is multiplied by", minimum=0.1, maximum=10)


@register_combination("best_of", config=BestOfConfig, presets={"best_of_double": BestOfConfig(scale=2.0)})
class BestOf(Combination):
    """The largest log-probability of any member, scaled."""

    def __init__(self, scale: float):
        self.scale = scale

    def __call__(self, lprobs: Sequence[Tensor], context: StepContext | None) -> Tensor:
        return torch.stack(list(lprobs)).amax(0) * self.scale


@dataclass
class JournalConfig:
    file: str = option("", "file that gets one line for each step")


@register_observer("journal", config=JournalConfig)
class Journal(Observer):
    """Writes the tokens of the beams that continue, step by step."""

    def __init__(self, file: str):
        self.file = file

    def observe(self, record: StepRecord) -> None:
        with Path(self.file).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": record.context.step, "tokens": record.active.tokens.tolist()}) + "\n")
