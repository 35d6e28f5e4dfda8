"""fairseq's and Hugging Face's rules of decoding: every difference between the two is in these classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

from seqgen.config import GenerationConfig
from seqgen.generation.component import BatchInfo
from seqgen.generation.finished import BestFinished, FinishedHypotheses, FirstFinished, Ranking
from seqgen.generation.processors.base import LogitsProcessor
from seqgen.generation.processors.length import ForceEndAtMaximum
from seqgen.generation.processors.tokens import Forbid, ForcePrefix
from seqgen.generation.search.base import Search
from seqgen.generation.search.constrained import ConstrainedSearch
from seqgen.generation.search.diverse import DiverseBeamSearch
from seqgen.generation.search.huggingface import HuggingFaceConstrainedBeam, HuggingFaceDiverseBeam

Make = Callable[..., list[LogitsProcessor]]
"""Builds the processors that some keys of the ``generation`` group select, in their order; unset keys are skipped.

Without an argument, those of all keys that are independent of sampling, in the order in which transformers applies
them.
"""


DRAWING = ("sampling", "beam_sampling", "stochastic_beam")
"""The built-in random strategies."""


def draws(cfg: GenerationConfig) -> bool:
    """True if a configuration asks for sampling."""
    return cfg.sampling or cfg.search in DRAWING


class Rules:
    """The decoding rules of one toolkit.

    ``generation.semantics`` selects the object by its ``name``, once; no other code compares names.
    """

    name: ClassVar[str]
    """Its value of ``generation.semantics``."""

    forces_end: ClassVar[bool]
    """True if end-of-sentence is forced at the maximum length; if not, an output is cut there."""

    counts_start: ClassVar[bool]
    """True if processors see the start token as a generated token."""

    divides_by_temperature_first: ClassVar[bool]
    """True if logits are divided by the temperature first; otherwise only in sampling, after the other processors."""

    max_len_overrides_min_len: ClassVar[bool]
    """True if an output may end at its maximum length if that is below the minimum length."""

    keeps_forced_score: ClassVar[bool]
    """True if a forced first token keeps the model's score; if not, its score is 0."""

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
            make: see ``Make``.
            cfg: the configuration.
            registered: the processors that ``generation.processors`` names.
            pad: id of padding; ``None`` if padding is end-of-sentence.
        """
        raise NotImplementedError

    def finished(self, batch: BatchInfo, ranking: Ranking, early_stopping: str) -> FinishedHypotheses:
        """Make the finished hypotheses of a beam search."""
        raise NotImplementedError

    def renormalizes(self, search: Search) -> bool:
        """True if scores are renormalized after the processors."""
        raise NotImplementedError

    def processes_logits(self, search: Search) -> bool:
        """True if processors see the logits of a single member instead of log-probabilities."""
        return False

    def objection(self, cfg: GenerationConfig, key: str) -> str:
        """Why a key has no effect under these rules, to follow "generation.KEY=VALUE "; empty if it has one."""
        return ""


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
"""Keys whose processors apply only after a given prefix, in order; the first few are those of fairseq."""


class FairseqRules(Rules):
    """The first ``beam`` finished hypotheses are kept, and end-of-sentence is forced at the maximum length.

    Padding is never generated. A given prefix overrides the processors of ``OVERRULED_BY_PREFIX``, but not the others.
    """

    name = "fairseq"
    forces_end = True
    counts_start = False
    divides_by_temperature_first = True
    max_len_overrides_min_len = True
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

    def finished(self, batch: BatchInfo, ranking: Ranking, early_stopping: str) -> FinishedHypotheses:
        """See ``Rules.finished``."""
        return FirstFinished(batch, ranking)

    def renormalizes(self, search: Search) -> bool:
        """Only in sampling."""
        return search.independent_rows and not search.additive

    def objection(self, cfg: GenerationConfig, key: str) -> str:
        """See ``Rules.objection``."""
        if key == "early_stopping":
            return "belongs to Hugging Face's rules; give generation.semantics=huggingface, or leave it out"
        if key == "forced_last":
            return (
                "belongs to Hugging Face's rules, and by fairseq's every output ends with end-of-sentence; give "
                "generation.semantics=huggingface, or leave it out"
            )
        return ""


class HuggingFaceRules(Rules):
    """A better hypothesis replaces the worst finished one, and an output is cut at the maximum length.

    Padding can be generated, the start token counts as generated, and a given prefix overrides all processors.
    """

    name = "huggingface"
    forces_end = False
    counts_start = True
    divides_by_temperature_first = False
    max_len_overrides_min_len = False
    keeps_forced_score = False

    def default_search(self, cfg: GenerationConfig) -> str:
        """Greedy search for one beam; beam sampling for sampling with several beams."""
        if cfg.sampling:
            return "beam_sampling" if cfg.beam > 1 else "sampling"
        return "greedy" if cfg.beam == 1 else "beam"

    def search(self, search: Search) -> Search:
        """Diverse and constrained beam search have other variants."""
        if type(search) is DiverseBeamSearch and search.groups > 1:
            return HuggingFaceDiverseBeam(search.groups, search.strength)
        if type(search) is ConstrainedSearch:
            return HuggingFaceConstrainedBeam(search.ordered)
        return search

    def order(
        self, make: Make, cfg: GenerationConfig, registered: Sequence[LogitsProcessor], pad: int | None
    ) -> list[LogitsProcessor]:
        """See ``Rules.order``."""
        exact = [ForceEndAtMaximum()] if cfg.match_source_len else []
        return [ForcePrefix([*make(), *exact, *registered])]

    def finished(self, batch: BatchInfo, ranking: Ranking, early_stopping: str) -> FinishedHypotheses:
        """See ``Rules.finished``."""
        return BestFinished(batch, ranking, early_stopping)

    def renormalizes(self, search: Search) -> bool:
        """In greedy search and sampling."""
        return search.independent_rows

    def processes_logits(self, search: Search) -> bool:
        """In greedy search and sampling."""
        return search.independent_rows

    def objection(self, cfg: GenerationConfig, key: str) -> str:
        """See ``Rules.objection``."""
        if key == "temperature" and not draws(cfg):
            return (
                "has an effect on sampling alone by Hugging Face's rules; give generation.sampling=true or leave it out"
            )
        return ""


FAIRSEQ, HUGGINGFACE = FairseqRules(), HuggingFaceRules()
RULES: dict[str, Rules] = {rules.name: rules for rules in (FAIRSEQ, HUGGINGFACE)}


def rules_named(semantics: str) -> Rules:
    """The rules that ``generation.semantics`` names; fairseq's where it is empty."""
    return RULES[semantics] if semantics else FAIRSEQ


def with_semantics(cfg: GenerationConfig) -> GenerationConfig:
    """The configuration with the name of its rules in place of an empty ``semantics``."""
    return replace(cfg, semantics=rules_named(cfg.semantics).name)
