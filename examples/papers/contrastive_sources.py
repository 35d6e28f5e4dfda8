"""Source-contrastive and language-contrastive decoding (Sennrich, Vamvas and Mohammadshahi 2024).

"Mitigating hallucinations and off-target machine translation with source-contrastive and language-contrastive
decoding": an output should be probable given its source ``x``, and improbable given another source ``x'``, or given the
same source with the tag of another target language. Each token has the score::

    log(p(y|x) - sum_i weights_i p(y|x'_i))

The same model is a member several times. The contrastive members read a random line of a file, or the line with another
language tag as its first word (for models that read the target language from such a tag)::

    seqgen-generate common.user_dir=examples/papers/contrastive_sources.py path=[runs/a,runs/a] input=test.en
        generation.member_sources=[input,random_line] source.random_line.file=test.en generation.combination=contrast
        combination.weights=[0.2]
    seqgen-generate common.user_dir=examples/papers/contrastive_sources.py path=[runs/a,runs/a] input=test.en
        generation.member_sources=[input,language_tag] source.language_tag.tag=<2en> generation.combination=contrast
        combination.weights=[0.1]

The paper has the weights 0.7 for sources and 0.1 for languages. Expect fewer hallucinations from weak models, and few
differences where a model translates well: its tokens are then improbable given another source.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from seqgen.extend import (
    Combination,
    ConfigError,
    MemberSource,
    Resources,
    StepContext,
    option,
    read_lines,
    register_combination,
    register_member_source,
)


@dataclass
class RandomLineConfig:
    """Configuration of the random source; its fields are the keys ``source.random_line.FIELD``."""

    file: str = option("", "text file with lines of the source language", role="input_path")
    seed: int = option(1, "seed of the choice, which depends on the line number and not on the batch", minimum=0)


@register_member_source("random_line", config=RandomLineConfig)
class RandomLine(MemberSource):
    """A random one of some lines, other than the input line.

    Args:
        lines: the lines to choose from.
        seed: seed of the choice.
    """

    def __init__(self, lines: Sequence[str], seed: int = 1):
        self.lines, self.seed = list(lines), seed

    @classmethod
    def build(cls, cfg: RandomLineConfig, resources: Resources) -> Self:
        """Read the file.

        Raises:
            ConfigError: no file is named.
        """
        if not cfg.file:
            raise ConfigError("random_line needs lines to choose from; set source.random_line.file=FILE")
        return cls([line for line in read_lines([Path(cfg.file)]) if line.strip()], cfg.seed)

    def __call__(self, line: str, number: int) -> str:
        """Choose a line for line ``number``; an empty one if the file has no other line."""
        others = [other for other in self.lines if other != line]
        return random.Random(f"{self.seed} {number}").choice(others or [""])


@dataclass
class LanguageTagConfig:
    """Configuration of the tag; its fields are the keys ``source.language_tag.FIELD``."""

    tag: str = option("", "first word of the contrastive source, such as <2en>")


@register_member_source("language_tag", config=LanguageTagConfig)
class LanguageTag(MemberSource):
    """The input line with another first word, which tells the model the target language.

    Args:
        tag: the first word.
    """

    def __init__(self, tag: str):
        if not tag:
            raise ConfigError("language_tag needs the tag of another language; set source.language_tag.tag=TAG")
        self.tag = tag

    def __call__(self, line: str, number: int) -> str:
        """The line ``<2de> a dog`` becomes ``<2en> a dog``."""
        return " ".join([self.tag, *line.split()[1:]])


@dataclass
class ContrastConfig:
    """Configuration of the contrast; its fields are the keys ``combination.FIELD``."""

    weights: list[float] = option([0.7], "weight of each member after the first, or one weight for all", minimum=0)


@register_combination("contrast", config=ContrastConfig)
class Contrast(Combination):
    """``log(p_1 - sum_i w_i p_i)``; a token for which the difference is not positive gets a very low score.

    Args:
        weights: ``w_i`` of each member after the first, or one value for all.
    """

    can_merge = True  # it reads neither tokens nor source ids
    ignores_context = True

    def __init__(self, weights: Sequence[float] = (0.7,)):
        self.weights = list(weights)

    def attention_weights(self, members: int) -> list[float]:
        """The attention is that of the first member.

        Raises:
            ConfigError: the number of weights is neither 1 nor the number of other members.
        """
        if members < 2 or len(self.weights) not in (1, members - 1):
            raise ConfigError(
                f"contrast has {len(self.weights)} weights for {members} members; it needs a contrastive member, and "
                "one weight for each or for all"
            )
        return [1.0] + [0.0] * (members - 1)

    def __call__(self, lprobs: Sequence[Tensor], context: StepContext | None) -> Tensor:
        """Combine ``(..., V)`` log-probabilities of the members into ``(..., V)`` scores in nats."""
        weights = self.weights * (len(lprobs) - 1) if len(self.weights) == 1 else self.weights
        others = sum(weight * other.exp() for weight, other in zip(weights, lprobs[1:], strict=True))
        difference = (lprobs[0].exp() - others).clamp(min=torch.finfo(lprobs[0].dtype).tiny)
        return difference.log().masked_fill(lprobs[0] == -torch.inf, -torch.inf)
