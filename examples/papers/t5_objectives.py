"""Denoising objectives (Raffel et al. 2020, "Exploring the Limits of Transfer Learning", section 3.3).

Span corruption is built in (``task=denoising``); these are the objectives that the paper compares with it. For the text
``a b c d e`` with ``b c`` and ``e`` hidden, sentinels ``<0> <1>`` and the mask ``<M>`` (sentinel 0)::

    task.objective    input              target
    span_drop         a d                b c e
    iid_spans         a <0> d <1>        <0> b c <1> e     tokens are hidden independently of each other
    iid_drop          a d                b c e             likewise
    mass              a <M> <M> d <M>    a b c d e         likewise (after Song et al. 2019)
    bert              a <M> x d <M>      a b c d e         one mask in ten is a random word x (after Devlin et al. 2019)
    prefix_lm         a b                c d e             cut at a random position
    deshuffling       d a e c b          a b c d e         after Liu et al. 2019

An objective of your own is a subclass of ``Objective`` in ``OBJECTIVES``. ::

    seqgen-train common.user_dir=examples/papers/t5_objectives.py task=t5_objectives task.objective=prefix_lm
        task.train=DATA/train.en task.valid=DATA/val.en task.hard_vocab_limit=false model=t5_tiny
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from seqgen.addons.mixtures import (
    DenoisingConfig,
    DenoisingTask,
    NoiseTokens,
    Objective,
    replace_spans,
    span_counts,
    span_mask,
)
from seqgen.extend import option, register_task

Tokens: TypeAlias = NDArray[np.int64]

RANDOM_SHARE = 0.1
"""Fraction of the masks that ``bert`` replaces by a random word."""


def iid_mask(length: int, density: float, most_spans: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """True where a token is hidden; tokens of more than ``most_spans`` spans remain visible."""
    mask = rng.random(length) < density
    starts = mask & ~np.concatenate([[False], mask[:-1]])
    within: NDArray[np.bool_] = np.cumsum(starts) <= most_spans
    return mask & within


class SpanDrop(Objective):
    """Spans of random length are left out of the input; the target is these spans."""

    def corrupt(self, tokens: Tokens, noise: NoiseTokens, rng: np.random.Generator) -> tuple[Tokens, Tokens]:
        """See ``Objective``."""
        mask = span_mask(len(tokens), self.density, self.mean_span, rng)
        return tokens[~mask], tokens[mask]

    def lengths(self, length: int) -> tuple[int, int]:
        """The exact lengths; see ``Objective``."""
        hidden, _ = span_counts(length, self.density, self.mean_span)
        return (length - hidden + 1, hidden + 1) if length > 1 else (2, 1)


class IIDSpans(Objective):
    """Single tokens are hidden; adjacent hidden tokens share one sentinel."""

    def corrupt(self, tokens: Tokens, noise: NoiseTokens, rng: np.random.Generator) -> tuple[Tokens, Tokens]:
        """See ``Objective``."""
        mask = iid_mask(len(tokens), self.density, len(noise.sentinels) - 1, rng)
        return replace_spans(tokens, mask, noise.sentinels)

    def lengths(self, length: int) -> tuple[int, int]:
        """See ``Objective``."""
        return length + 1, length + 2

    def sentinels_needed(self, length: int) -> int:
        """An upper bound that holds for all but one text in 30,000: the mean plus four standard deviations.

        A span begins where a hidden token follows a visible one, which has probability ``d (1 - d)`` at each position.
        """
        rate = self.density * (1 - self.density)
        spans = length * rate + 4 * math.sqrt(length * rate * max(1 - 3 * rate, 0))
        return min(math.ceil(spans), (length + 1) // 2) + 1


class IIDDrop(Objective):
    """Single tokens are left out of the input; the target is these tokens."""

    def corrupt(self, tokens: Tokens, noise: NoiseTokens, rng: np.random.Generator) -> tuple[Tokens, Tokens]:
        """See ``Objective``."""
        mask = iid_mask(len(tokens), self.density, len(tokens), rng)
        return tokens[~mask], tokens[mask]


class Mass(Objective):
    """Single tokens are masked in the input; the target is the whole text."""

    words: Tokens = np.empty(0, np.int64)
    """The ids of random words."""

    def corrupt(self, tokens: Tokens, noise: NoiseTokens, rng: np.random.Generator) -> tuple[Tokens, Tokens]:
        """See ``Objective``."""
        masked = iid_mask(len(tokens), self.density, len(tokens), rng)
        source = np.where(masked, noise.sentinels[0], tokens)
        if len(self.words):
            replaced = masked & (rng.random(len(tokens)) < RANDOM_SHARE)
            source[replaced] = rng.choice(self.words, int(replaced.sum()))
        return source, tokens

    def sentinels_needed(self, length: int) -> int:
        """One: the mask."""
        return 1


class PrefixLM(Objective):
    """The input is the beginning of the text, the target its rest."""

    def corrupt(self, tokens: Tokens, noise: NoiseTokens, rng: np.random.Generator) -> tuple[Tokens, Tokens]:
        """See ``Objective``."""
        cut = int(rng.integers(1, len(tokens))) if len(tokens) > 1 else 0
        return tokens[:cut], tokens[cut:]


class Deshuffling(Objective):
    """The input is the tokens in random order, the target the text."""

    def corrupt(self, tokens: Tokens, noise: NoiseTokens, rng: np.random.Generator) -> tuple[Tokens, Tokens]:
        """See ``Objective``."""
        return rng.permutation(tokens), tokens


OBJECTIVES: dict[str, type[Objective]] = {
    "span_drop": SpanDrop,
    "iid_spans": IIDSpans,
    "iid_drop": IIDDrop,
    "mass": Mass,
    "bert": Mass,
    "prefix_lm": PrefixLM,
    "deshuffling": Deshuffling,
}


@dataclass
class T5ObjectivesConfig(DenoisingConfig):
    """The raw text, the objective and its parameters."""

    objective: str = option("prefix_lm", "what is hidden, and what the target is", choices=tuple(OBJECTIVES))


@register_task("t5_objectives", config=T5ObjectivesConfig)
class T5ObjectivesTask(DenoisingTask):
    """Pretraining on raw text by one of ``OBJECTIVES``."""

    cfg: T5ObjectivesConfig

    def objective(self) -> Objective:
        """The objective that the configuration names."""
        chosen = OBJECTIVES[self.cfg.objective](self.cfg.noise_density, self.cfg.mean_span_length)
        if isinstance(chosen, Mass) and self.cfg.objective == "bert":
            special = {*self.noise_tokens().sentinels, *self.source_dictionary.special_ids.values()}
            chosen.words = np.array([index for index in range(len(self.source_dictionary)) if index not in special])
        return chosen
