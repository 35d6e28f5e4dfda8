"""Rules: the differences between the decoding of fairseq and of Hugging Face's toolkit, as one object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch

from seqgen.config import GenerationConfig
from seqgen.generation.finished import EachRow, FinishedHypotheses, Ranking
from seqgen.generation.processors.base import LogitsProcessor
from seqgen.generation.search.base import Search

Make = Callable[[Sequence[str]], list[LogitsProcessor]]
"""Builds the processors that some keys of the ``generation`` group select, in their order; unset keys are skipped."""


DRAWING = ("sampling", "beam_sampling", "stochastic_beam")
"""The built-in random strategies."""


def draws(cfg: GenerationConfig) -> bool:
    """Whether a configuration asks for sampling."""
    return cfg.sampling or cfg.search in DRAWING


class Rules:
    """The decoding rules of one toolkit.

    ``generation.semantics`` selects the object by its ``name``, once; no other code compares names.
    """

    name: ClassVar[str]
    """Its value of ``generation.semantics``."""

    forces_end: ClassVar[bool]
    """Whether end-of-sentence is forced at the maximum length; if not, an output is cut there."""

    counts_start: ClassVar[bool]
    """Whether processors see the start token as a generated token."""

    divides_by_temperature_first: ClassVar[bool]
    """Whether logits are divided by the temperature first; otherwise only in sampling, after the other processors."""

    minimum_yields: ClassVar[bool]
    """Whether an output may end at its maximum length if that is below the minimum length."""

    keeps_forced_score: ClassVar[bool]
    """Whether a forced first token keeps the model's score; if not, its score is 0."""

    def default_search(self, cfg: GenerationConfig) -> str:
        """Name of the strategy of a configuration that names none."""
        raise NotImplementedError

    def search(self, search: Search) -> Search:
        """The variant of a strategy under these rules; by default the strategy itself."""
        return search

    def order(
        self, make: Make, cfg: GenerationConfig, registered: Sequence[LogitsProcessor], pad: int | None
    ) -> list[LogitsProcessor]:
        """The logits processors of a configuration in the order in which they are applied, without warpers.

        Args:
            make: builds the processors of some flat keys.
            cfg: the configuration.
            registered: the processors that ``generation.processors`` names.
            pad: id of padding; ``None`` if padding is end-of-sentence.
        """
        raise NotImplementedError

    def finished(
        self, sentences: int, beam: int, ranking: Ranking, device: torch.device, early_stopping: str
    ) -> FinishedHypotheses:
        """Make the finished hypotheses of a beam search."""
        raise NotImplementedError

    def finished_rows(self, sentences: int, beam: int, ranking: Ranking, device: torch.device) -> FinishedHypotheses:
        """Make the finished hypotheses of a strategy whose beams are independent."""
        return EachRow(sentences, beam, ranking, device)

    def renormalizes(self, search: Search) -> bool:
        """Whether scores are renormalized after the processors."""
        raise NotImplementedError

    def processes_logits(self, search: Search, members: int) -> bool:
        """Whether processors see the logits of a single member instead of log-probabilities."""
        return False

    def objection(self, cfg: GenerationConfig, key: str) -> str:
        """Why a key has no effect under these rules, to follow "generation.KEY=VALUE "; empty if it has one."""
        return ""
