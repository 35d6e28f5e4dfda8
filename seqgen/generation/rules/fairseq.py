"""fairseq's rules."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from seqgen.config import GenerationConfig
from seqgen.generation.finished import FinishedHypotheses, FirstFinished, Ranking
from seqgen.generation.processors.base import LogitsProcessor
from seqgen.generation.processors.length import ForceEndAtMaximum
from seqgen.generation.processors.prefix import ForcePrefix
from seqgen.generation.processors.tokens import Forbid
from seqgen.generation.rules.base import Make, Rules
from seqgen.generation.search.base import Search

OVERRULED_BY_PREFIX = (
    "min_len",
    "min_total_len",
    "match_source_len",
    "suppress",
    "suppress_at_begin",
    "sequence_bias",
    "encoder_repetition_penalty",
    "repetition_penalty",
    "encoder_no_repeat_ngram_size",
    "bad_words",
    "prefix_trie",
    "forced_first",
    "exponential_decay_factor",
)
"""Keys whose processors apply only after a given prefix, in order; the first few are fairseq's own."""


class FairseqRules(Rules):
    """The first ``beam`` finished hypotheses are kept, and end-of-sentence is forced at the maximum length.

    Padding is never generated. A given prefix overrides the processors of ``OVERRULED_BY_PREFIX``, but not the others.
    """

    name = "fairseq"
    forces_end = True
    counts_start = False
    divides_by_temperature_first = True
    minimum_yields = True
    keeps_forced_score = True

    def default_search(self, cfg: GenerationConfig) -> str:
        """Beam search, or sampling."""
        return "sampling" if cfg.sampling else "beam"

    def order(
        self, make: Make, cfg: GenerationConfig, registered: Sequence[LogitsProcessor], pad: int | None
    ) -> list[LogitsProcessor]:
        """See ``Rules.order``."""
        return [
            *([] if pad is None else [Forbid([pad])]),
            *make(("remove_invalid", "unkpen")),
            ForceEndAtMaximum(),
            ForcePrefix(make(OVERRULED_BY_PREFIX)),
            *make(("no_repeat_ngram_size",)),
            *registered,
        ]

    def finished(
        self, sentences: int, beam: int, ranking: Ranking, device: torch.device, early_stopping: str
    ) -> FinishedHypotheses:
        """See ``Rules.finished``."""
        return FirstFinished(sentences, beam, ranking, device)

    def renormalizes(self, search: Search) -> bool:
        """Only in sampling."""
        return search.independent_rows and not search.additive

    def objection(self, cfg: GenerationConfig, key: str) -> str:
        """See ``Rules.objection``."""
        if key == "early_stopping":
            return "belongs to Hugging Face's rules; give generation.semantics=huggingface, or leave it out"
        if key == "forced_last" or (key == "processors" and "force_last" in cfg.processors):
            return (
                "belongs to Hugging Face's rules, and by fairseq's every output ends with end-of-sentence; give "
                "generation.semantics=huggingface, or leave it out"
            )
        return ""
