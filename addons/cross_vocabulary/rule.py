"""Rules: how members with different target vocabularies are combined. A rule is a combination, chosen by its name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from seqgen.addons.cross_vocabulary.session import AgreementSearch
from seqgen.config import ResolvedSettings
from seqgen.extend import Combination, LogProbabilityMean, MeanConfig, Search, register_combination


class TextRule(Combination):
    """A combination whose members may have different target vocabularies; a subclass implements ``search``.

    With one vocabulary, it is an ordinary combination, which ``__call__`` computes.
    """

    keys: ClassVar[Sequence[str]] = ()
    """The keys of the ``generation`` group that can be used besides those of every cross-vocabulary ensemble."""

    note: ClassVar[str]
    """What the user should know."""

    @classmethod
    def search(cls, members: Any, resolved: ResolvedSettings) -> Search:
        """Make the search strategy; the rule is the combination of the setup that its session gets.

        Args:
            members: the models, with the texts of their tokens; a ``CrossVocabulary``.
            resolved: the settings; those of ``keys`` and ``objects`` have no other effect.

        Raises:
            ConfigError: a value cannot be used.
        """
        raise NotImplementedError


@dataclass
class AgreementConfig(MeanConfig):
    """Configuration of agreement."""


@register_combination("agreement", config=AgreementConfig)
class Agreement(LogProbabilityMean, TextRule):
    """Each member generates its own tokens, and all have the same text (Wicks et al. 2025); see ``AgreementSession``.

    With one vocabulary, this is the mean of log-probabilities.
    """

    note = "each member generates its own tokens, and the score is the weighted mean of the members' scores"

    @classmethod
    def search(cls, members: Any, resolved: ResolvedSettings) -> Search:
        """See ``TextRule.search``."""
        cfg = resolved.generation
        return AgreementSearch(members.texts, members.first_tokens, cfg.min_len, cfg.max_len)
