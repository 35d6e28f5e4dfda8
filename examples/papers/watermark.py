"""A watermark for generated text (Kirchenbauer, Geiping, Wen, Katz, Miers and Goldstein 2023, "A Watermark for Large
Language Models", algorithm 2 and equation 2).

The previous token seeds a random generator, which splits the vocabulary V into a green list G of gamma |V| tokens and a
red list. With the logits l of the model, the next token has the probability

    p(v) ~ exp(l(v) + delta [v in G])

A text of T tokens, of which g are in the green lists of their previous tokens, has the one-sided test

    z = (g - gamma T) / sqrt(T gamma (1 - gamma)),    p-value = P(Z >= z) for a standard normal Z

``seqgen-generate common.user_dir=examples/papers/watermark.py path=runs/a input=test.en output=out.txt
generation.processors=[watermark] processor.watermark.delta=2`` generates text.
``python examples/papers/watermark.py path=runs/a text=out.txt`` prints z of each line and of all.

Expect z near 0 for other text; above 4 the p-value is below 0.00004. Sentences are short: test many together. A larger
delta gives a larger z and worse text. End-of-sentence precedes the first token. Forced tokens keep their score.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from seqgen import load_model
from seqgen.extend import (
    BatchInfo,
    Candidates,
    CommonConfig,
    ConfigError,
    LogitsProcessor,
    ReadingConfig,
    Resources,
    StepContext,
    option,
    read_lines,
    register_logits_processor,
    run,
    set_up_device,
)


@dataclass
class WatermarkConfig:
    """Configuration of the watermark; its fields are the keys ``processor.watermark.FIELD``."""

    gamma: float = option(0.25, "share of the vocabulary that is green", minimum=1e-3, maximum=0.999)
    delta: float = option(2.0, "added to the logits of green tokens", minimum=0)
    key: int = option(15485863, "secret number; the detector needs the same one", minimum=1, maximum=2**31)


class GreenLists:
    """The green list of each token: a random subset of the vocabulary, the same on all devices.

    Args:
        size: size of the vocabulary, ``V``.
        gamma: share of the vocabulary that is green.
        key: secret number; the generator that draws the list after token ``t`` is seeded with ``key * t``.
    """

    def __init__(self, size: int, gamma: float, key: int):
        self.size, self.gamma, self.key = size, gamma, key
        self.lists: dict[int, Tensor] = {}

    def after(self, token: int) -> Tensor:
        """``(V,)`` bool, which tokens are green after ``token``."""
        if token not in self.lists:
            generator = torch.Generator().manual_seed(self.key * token)
            order = torch.randperm(self.size, generator=generator)
            self.lists[token] = torch.zeros(self.size, dtype=torch.bool)
            self.lists[token][order[: int(self.gamma * self.size)]] = True
        return self.lists[token]


@register_logits_processor("watermark", config=WatermarkConfig)
class Watermark(LogitsProcessor):
    """Adds ``delta`` to the logits of the tokens in the lists of ``green``."""

    shift_invariant = True  # the log-sum-exp of a row stays as it is
    can_merge = True  # the previous token of each beam is its own state
    beam_state = ("previous",)
    previous: Tensor  # (sentences, beam) int64

    def __init__(self, green: GreenLists, delta: float):
        self.green, self.delta = green, delta

    @classmethod
    def build(cls, cfg: WatermarkConfig, resources: Resources) -> Self:
        """Make the processor; it needs the size of the vocabulary, so the default ``build`` is not enough."""
        return cls(GreenLists(len(resources.dictionary), cfg.gamma, cfg.key), cfg.delta)

    def begin(self, batch: BatchInfo) -> Self:
        """Return a copy for this batch, in which end-of-sentence is the previous token of all beams."""
        processor = super().begin(batch)
        shape = (batch.num_sentences, batch.beam_size)
        processor.previous = torch.full(shape, batch.eos, device=batch.device)
        return processor

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """Change the ``(rows, V)`` scores of the next token; ``rows = sentences * beam``."""
        lists = [self.green.after(token) for token in self.previous.flatten().tolist()]
        scores = lprobs + self.delta * torch.stack(lists).to(lprobs)
        added = scores.logsumexp(-1, keepdim=True) - lprobs.logsumexp(-1, keepdim=True)
        return scores - added.nan_to_num(0.0)  # not a number where no token is possible

    def advance(self, active: Candidates) -> None:
        """Remember the newest token ``(sentences, beam)`` of each beam."""
        self.previous = active.tokens


@dataclass
class DetectConfig:
    """The keys of the command that tests text."""

    path: str = option("", "run folder or checkpoint, whose tokenizer is used", role="input_path")
    text: str = option("", "file with the lines to test", role="input_path")
    unique: bool = option(True, "count each pair of tokens once, as repeated pairs are not independent")
    watermark: WatermarkConfig = field(default_factory=WatermarkConfig)
    reading: ReadingConfig = field(default_factory=ReadingConfig)
    common: CommonConfig = field(default_factory=CommonConfig)


def detect(pairs: Sequence[tuple[int, int]], green: GreenLists) -> dict[str, float]:
    """Test pairs of a previous token and a token: their number, how many are green, z and the p-value."""
    found = sum(bool(green.after(previous)[token]) for previous, token in pairs)
    spread = math.sqrt(len(pairs) * green.gamma * (1 - green.gamma))
    z = (found - green.gamma * len(pairs)) / spread if pairs else 0.0
    return {"tokens": len(pairs), "green": found, "z": z, "p": math.erfc(z / math.sqrt(2)) / 2}


def report(cfg: DetectConfig) -> None:
    """Print one JSON line for each line of a text, and one for all lines."""
    if not (cfg.path and cfg.text):
        raise ConfigError("set path=RUN text=FILE; the file has one text on each line")
    task = load_model(cfg.path, set_up_device(cfg.common), torch.float32, cfg.reading).task
    eos, tokenizer = task.target_dictionary.eos(), task.target_tokenizer
    green = GreenLists(len(task.target_dictionary), cfg.watermark.gamma, cfg.watermark.key)
    texts = [[eos, *tokenizer.encode(line)] for line in read_lines(Path(cfg.text))]
    by_line = [list(pairwise(tokens)) for tokens in texts]
    for number, pairs in enumerate([*by_line, [pair for line in by_line for pair in line]]):
        counted = list(dict.fromkeys(pairs)) if cfg.unique else pairs
        print(json.dumps({"line": number if number < len(by_line) else "all", **detect(counted, green)}))


if __name__ == "__main__":
    run(DetectConfig, report, "tests whether text has the watermark of generation.processors=[watermark].")
