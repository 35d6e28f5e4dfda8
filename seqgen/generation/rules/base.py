"""Rules: everything in which the decoding of two toolkits differs, as one object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch

from seqgen.config import GenerationConfig
from seqgen.generation.finished import EachRow, FinishedHypotheses, Ranking
from seqgen.generation.processors.base import LogitsProcessor
from seqgen.generation.search.base import Search

Make = Callable[[Sequence[str]], list[LogitsProcessor]]
"""Makes the processors that some keys of the configuration ask for, in the order of the keys."""


DRAWING = ("sampling", "beam_sampling", "stochastic_beam")
"""The built-in strategies that draw at random."""


def draws(cfg: GenerationConfig) -> bool:
    """Whether a configuration asks for something to be drawn at random."""
    return cfg.sampling or cfg.search in DRAWING


class Rules:
    """How one toolkit decodes; ``fairseq`` and ``huggingface`` are the two there are.

    ``generation.semantics`` selects the object by its ``name``, once; nothing else compares names.
    """

    name: ClassVar[str]
    """What ``generation.semantics`` calls it."""

    forces_end: ClassVar[bool]
    """Whether end-of-sentence is forced at the maximum length; if not, an output is cut there."""

    counts_start: ClassVar[bool]
    """Whether processors see the start token as a generated token."""

    divides_by_temperature_first: ClassVar[bool]
    """Whether logits are divided by the temperature before everything else; if not, after the other processors."""

    minimum_yields: ClassVar[bool]
    """Whether a sentence whose maximum length is below the minimum may end there."""

    keeps_forced_score: ClassVar[bool]
    """Whether a forced first token keeps the model's score; if not, its score is 0."""

    def default_search(self, cfg: GenerationConfig) -> str:
        """The strategy of a configuration that names none."""
        raise NotImplementedError

    def search(self, search: Search) -> Search:
        """The variant of a strategy that these rules prescribe; the strategy itself where there is none."""
        return search

    def order(self, make: Make, cfg: GenerationConfig, registered: Sequence[LogitsProcessor]) -> list[LogitsProcessor]:
        """All logits processors of a configuration, in the order in which they are applied.

        Args:
            make: makes those of some keys.
            cfg: the configuration.
            registered: those that the user chose by name.
        """
        raise NotImplementedError

    def usual(self, penalties: list[LogitsProcessor], free: list[LogitsProcessor], pad: int) -> list[LogitsProcessor]:
        """The processors of a generator that is built without a configuration.

        Args:
            penalties: those that apply to prefixes too.
            free: those that a prefix overrules.
            pad: id of padding.
        """
        raise NotImplementedError

    def finished(
        self, sentences: int, beam: int, ranking: Ranking, device: torch.device, early_stopping: str
    ) -> FinishedHypotheses:
        """The finished hypotheses of a beam search, none so far."""
        raise NotImplementedError

    def finished_rows(self, sentences: int, beam: int, ranking: Ranking, device: torch.device) -> FinishedHypotheses:
        """Those of a strategy whose beams are hypotheses of their own."""
        return EachRow(sentences, beam, ranking, device)

    def renormalizes(self, search: Search) -> bool:
        """Whether the scores that processors changed are normalized over the vocabulary before the search."""
        raise NotImplementedError

    def processes_logits(self, search: Search, members: int) -> bool:
        """Whether processors see the logits of the only member rather than log-probabilities."""
        return False

    def objection(self, cfg: GenerationConfig, key: str) -> str:
        """Why a key has no effect under these rules, after "generation.KEY=VALUE "; empty where it has."""
        return ""
