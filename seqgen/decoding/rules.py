"""fairseq's and Hugging Face's rules of decoding: every difference between the two is in these classes.

Keys that have no effect by one toolkit's rules say so in their declaration (``seqgen.config.generation``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from seqgen.config import GenerationConfig
from seqgen.core.beam_search import BeamSearch
from seqgen.core.component import BatchInfo
from seqgen.core.finished import BestFinished, FinishedHypotheses, Ranking
from seqgen.core.processors import LogitsProcessor
from seqgen.core.rules import Rules
from seqgen.core.search import Search
from seqgen.decoding.processors.length import ForceEndAtMaximum
from seqgen.decoding.processors.tokens import Forbid, ForcePrefix
from seqgen.decoding.search.constrained import ConstrainedSearch
from seqgen.decoding.search.diverse import DiverseBeamSearch
from seqgen.decoding.search.huggingface import HuggingFaceConstrainedBeam, HuggingFaceDiverseBeam


class ToolkitRules(Rules):
    """The decoding rules of one toolkit.

    ``generation.semantics`` selects the object by its ``name``, once; no other code of the decoder compares names.
    """

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
        self, made: Mapping[str, LogitsProcessor], registered: Sequence[LogitsProcessor], pad: int | None
    ) -> list[LogitsProcessor]:
        """The logits processors of a configuration in the order in which they are applied, without warpers.

        Args:
            made: by their keys of the ``generation`` group, the processors that are independent of sampling, in the
                order in which transformers applies them.
            registered: the processors that ``generation.processors`` names.
            pad: id of padding; ``None`` if padding is end-of-sentence.
        """
        raise NotImplementedError


class FairseqRules(ToolkitRules):
    """The first ``beam`` finished hypotheses are kept, and end-of-sentence is forced at the maximum length.

    Padding is never generated. A given prefix overrides most processors.
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
        self, made: Mapping[str, LogitsProcessor], registered: Sequence[LogitsProcessor], pad: int | None
    ) -> list[LogitsProcessor]:
        """See ``ToolkitRules.order``."""
        before, after = ("remove_invalid", "unkpen"), ("no_repeat_ngram_size",)
        first = ("min_len", "min_total_len", "match_source_len", "suppress", "suppress_at_begin")
        others = [key for key in made if key not in (*before, *first, *after)]
        return [
            *([] if pad is None else [Forbid([pad])]),
            *(made[key] for key in before if key in made),
            ForceEndAtMaximum(),
            ForcePrefix([made[key] for key in (*first, *others) if key in made]),
            *(made[key] for key in after if key in made),
            *registered,
        ]


class HuggingFaceRules(ToolkitRules):
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
        """Diverse and constrained beam search have other variants.

        Raises:
            ConfigError: there are constraints for diverse beam search, which these rules do not define.
        """
        if type(search) is DiverseBeamSearch and search.groups > 1:
            return HuggingFaceDiverseBeam(search.groups, search.strength)
        if type(search) is ConstrainedSearch:
            if type(search.inner) is BeamSearch:
                return HuggingFaceConstrainedBeam(search.ordered)
            return ConstrainedSearch(search.ordered, self.search(search.inner))
        return search

    def order(
        self, made: Mapping[str, LogitsProcessor], registered: Sequence[LogitsProcessor], pad: int | None
    ) -> list[LogitsProcessor]:
        """See ``ToolkitRules.order``."""
        exact = [ForceEndAtMaximum()] if "match_source_len" in made else []
        return [ForcePrefix([*made.values(), *exact, *registered])]

    def finished(self, batch: BatchInfo, ranking: Ranking, early_stopping: str) -> FinishedHypotheses:
        """See ``Rules.finished``."""
        return BestFinished(batch, ranking, early_stopping)

    def renormalizes(self, search: Search) -> bool:
        """True in greedy search and sampling."""
        return search.continues_each_beam

    def processes_logits(self, search: Search) -> bool:
        """True in greedy search and sampling."""
        return search.continues_each_beam


FAIRSEQ, HUGGINGFACE = FairseqRules(), HuggingFaceRules()
RULES: dict[str, ToolkitRules] = {rules.name: rules for rules in (FAIRSEQ, HUGGINGFACE)}


def rules_named(semantics: str) -> ToolkitRules:
    """The rules that ``generation.semantics`` names; fairseq's where it is empty."""
    return RULES[semantics] if semantics else FAIRSEQ
