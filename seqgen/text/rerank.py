"""Reranking: the n-best list of a line is put into another order after decoding."""

from __future__ import annotations

from collections.abc import Sequence

from seqgen.config import GenerationConfig
from seqgen.generation.component import Component, Resources, build
from seqgen.registry import RERANKERS
from seqgen.text.results import TextHypothesis, Translation


class Reranker(Component):
    """Scores the hypotheses of a line; a subclass implements ``__call__``.

    A reranker registered with ``@register_reranker`` is selected by its name (``generation.rerank``). It receives all
    hypotheses of the search, of which the ``nbest`` with the highest scores remain.

    ``build`` receives the models that decode (``resources.models``) and the settings of their ensemble. A reranker that
    scores text with ``Translator(resources.models, **resources.ensemble)`` uses the same sources, weights and
    combination as the search.
    """

    def prepare(self, lines: Sequence[Translation]) -> None:
        """Receive lines before their hypotheses are scored, for work that is faster for many lines together.

        Args:
            lines: consecutive lines, without hypotheses; empty lines included.
        """

    def __call__(self, translation: Translation, hypotheses: Sequence[TextHypothesis]) -> Sequence[float]:
        """Score the hypotheses of one line.

        Args:
            translation: the line: its number, its text, its source ids, and the prefix of its output.
            hypotheses: the hypotheses, in the order of the search; at least one.

        Returns:
            A score for each; the higher, the better. Hypotheses with equal scores keep their order.
        """
        raise NotImplementedError


def reranker_from_config(cfg: GenerationConfig, resources: Resources) -> Reranker:
    """Make the reranker that ``cfg.rerank`` names.

    Raises:
        ConfigError: it is not registered.
    """
    return build(RERANKERS, cfg.rerank, Reranker, cfg, resources)
