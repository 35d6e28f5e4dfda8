"""Hugging Face's rules, those of transformers 4.53."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from seqgen.config import GenerationConfig
from seqgen.generation.finished import BestFinished, FinishedHypotheses, Ranking
from seqgen.generation.processors.base import LogitsProcessor
from seqgen.generation.processors.length import ForceEndAtMaximum
from seqgen.generation.processors.prefix import ForcePrefix
from seqgen.generation.rules.base import Make, Rules, draws
from seqgen.generation.rules.huggingface_constraints import HuggingFaceConstrainedBeam
from seqgen.generation.rules.huggingface_groups import HuggingFaceDiverseBeam
from seqgen.generation.search.base import Search
from seqgen.generation.search.constrained import ConstrainedSearch
from seqgen.generation.search.diverse import DiverseBeamSearch

ORDER = (
    "unkpen",  # not in transformers
    "sequence_bias",
    "encoder_repetition_penalty",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "bad_words",
    "min_len",
    "min_total_len",
    "match_source_len",
    "prefix_trie",
    "forced_first",
    "forced_last",
    "remove_invalid",
    "exponential_decay_factor",
    "suppress",
    "suppress_at_begin",
)
"""Keys in the order in which transformers' ``generate`` applies their processors."""


class HuggingFaceRules(Rules):
    """A better hypothesis replaces the worst finished one, and an output is cut at the maximum length.

    Padding can be generated, the start token counts as generated, and a given prefix overrides all processors.
    """

    name = "huggingface"
    forces_end = False
    counts_start = True
    divides_by_temperature_first = False
    minimum_yields = False
    keeps_forced_score = False

    def default_search(self, cfg: GenerationConfig) -> str:
        """Greedy search for one beam; beam sampling for sampling with several beams."""
        if cfg.sampling:
            return "beam_sampling" if cfg.beam > 1 else "sampling"
        return "greedy" if cfg.beam == 1 else "beam"

    def search(self, search: Search) -> Search:
        """Diverse and constrained beam search have variants of their own."""
        if type(search) is DiverseBeamSearch and search.groups > 1:
            return HuggingFaceDiverseBeam(search.groups, search.strength)
        if type(search) is ConstrainedSearch:
            return HuggingFaceConstrainedBeam(search.ordered)
        return search

    def order(
        self, make: Make, cfg: GenerationConfig, registered: Sequence[LogitsProcessor], pad: int | None
    ) -> list[LogitsProcessor]:
        """See ``Rules.order``."""
        exact: list[LogitsProcessor] = [ForceEndAtMaximum()] if cfg.match_source_len else []
        return [ForcePrefix([*make(ORDER), *exact, *registered])]

    def finished(
        self, sentences: int, beam: int, ranking: Ranking, device: torch.device, early_stopping: str
    ) -> FinishedHypotheses:
        """See ``Rules.finished``."""
        return BestFinished(sentences, beam, ranking, device, early_stopping)

    def renormalizes(self, search: Search) -> bool:
        """In greedy search and sampling."""
        return search.independent_rows

    def processes_logits(self, search: Search, members: int) -> bool:
        """In greedy search and sampling with one model."""
        return search.independent_rows and members == 1

    def objection(self, cfg: GenerationConfig, key: str) -> str:
        """See ``Rules.objection``."""
        if key == "temperature" and not draws(cfg):
            return (
                "has an effect on sampling alone by Hugging Face's rules; give generation.sampling=true or leave it out"
            )
        return ""
