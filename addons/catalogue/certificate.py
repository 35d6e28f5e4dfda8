"""A certificate of beam search: an upper bound on the score of every output that it has pruned."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from seqgen.addons.catalogue.constraint import TrieConstraint
from seqgen.config import GenerationConfig
from seqgen.extend import (
    BatchInfo,
    ConfigError,
    DecodingSetup,
    Hypothesis,
    InputLine,
    LineStage,
    LogitsProcessor,
    Observer,
    Outcome,
    Ranking,
    Resources,
    StepRecord,
    Translation,
    flattened,
    register_line_stage,
)

ROUNDING = 1e-4
"""A score must exceed the bound by this much, since both are rounded."""


class Certificate(Observer):
    """Bounds the scores of the outputs that beam search has pruned.

    Log-probabilities are not positive, so that no continuation of a pruned prefix has a larger cumulative score than
    the prefix. Its score as a hypothesis is at most this sum divided by the length penalty of the length that favours
    it most, of those that are still possible. Candidates below the listed ones score no better than the last of them.

    Args:
        wanted: the number of hypotheses that the user asked for.
        processors: the logits processors; with a trie, its longest sequence limits the length of outputs.

    Attributes:
        found: by the number of each decoded sentence, the bound in the unit of scores (``-inf`` if nothing was pruned),
            and whether the ``wanted`` best hypotheses are the best of all allowed outputs.
        counts: numbers of sentences decoded so far, and of exact lists among them.
    """

    sentence_state = ("ids", "bound", "longest")

    def __init__(self, wanted: int, processors: Sequence[LogitsProcessor]) -> None:
        self.wanted = wanted
        tries = [each.trie.longest for each in flattened(processors) if isinstance(each, TrieConstraint)]
        self.of_trie = min(tries, default=sys.maxsize)
        self.found: dict[int, tuple[float, bool]] = {}
        self.counts = [0, 0]
        self.ids = self.bound = self.longest = torch.zeros(0)

    def begin(self, batch: BatchInfo) -> Self:
        """See ``Observer.begin``."""
        certificate = super().begin(batch)
        certificate.ids, certificate.longest = batch.ids, (batch.max_lengths + 1).clamp(max=self.of_trie)
        certificate.bound = torch.full((batch.num_sentences,), -torch.inf, device=batch.device)
        return certificate

    def observe(self, record: StepRecord) -> None:
        """See ``Observer.observe``."""
        candidates, step, ranking = record.candidates, record.context.step, record.after.ranking
        lost, ended = record.outcomes == Outcome.BELOW_BEAM, record.outcomes == Outcome.ENDED_TOO_LOW
        pruned = [
            self._best(ranking, candidates.scores.masked_fill(~lost, -torch.inf), step + 2),
            ranking.score(candidates.scores, step + 1).masked_fill(~ended, -torch.inf),
            self._best(ranking, candidates.scores[:, -1:], step + 1),  # of those that are not listed
            # a sentence may be done while beams are active
            self._best(ranking, record.active.scores.masked_fill(~record.now_done.unsqueeze(1), -torch.inf), step + 2),
        ]
        largest = torch.cat(pruned, dim=1).amax(1).masked_fill(record.was_done, -torch.inf)
        self.bound = torch.maximum(self.bound.to(largest.dtype), largest)

    def _best(self, ranking: Ranking, sums: Tensor, shortest: int) -> Tensor:
        """The best score that hypotheses of at least ``shortest`` tokens can have, from the sums of their prefixes."""
        longest = self.longest.clamp(min=shortest).unsqueeze(1)
        return torch.maximum(ranking.score(sums, shortest), ranking.score(sums, longest))

    def end(self, sentence: int, hypotheses: Sequence[Hypothesis]) -> None:
        """See ``Observer.end``."""
        bound = float(self.bound[self.ids == sentence])
        # fewer hypotheses than wanted are exact only if nothing was pruned
        is_full = len(hypotheses) >= self.wanted
        exact = bound == -torch.inf or (is_full and bound + ROUNDING < hypotheses[self.wanted - 1].score)
        self.found[sentence] = bound, exact
        self.counts[0] += 1
        self.counts[1] += exact

    def summary(self) -> str:
        """See ``Observer.summary``."""
        return f"{self.counts[1]} of {self.counts[0]} n-best lists are certified to be exact"


def certify(setup: DecodingSetup, certificate: bool, resources: Resources) -> DecodingSetup:
    """The setup with an observer that bounds the scores of pruned outputs.

    A bound needs scores that never rise, and outputs that nothing but the beam prunes; see ``Component.certifiable``.

    Args:
        setup: the setup.
        certificate: the value of the key, which is true.
        resources: have the settings.

    Raises:
        ConfigError: a component makes a bound impossible.
    """
    if not setup.search.certifiable:
        raise ConfigError(f"generation.certificate bounds what beam search prunes, not {type(setup.search).__name__}")
    components = flattened([setup.ensemble.combination, *setup.processors, *setup.stopping])
    what = [type(component).__name__ for component in components if not component.certifiable]
    what += ["generation.coverage_penalty"] if setup.ranking.coverage else []
    if what:
        raise ConfigError(
            f"generation.certificate needs scores that never rise and outputs that nothing cuts off, which {what[0]} "
            "does not guarantee (certifiable); remove one of them"
        )
    bounds = Certificate(resources.settings.nbest, setup.processors)
    return replace(setup, observers=[*setup.observers, bounds])


@register_line_stage("certificate")
class CertificateStage(LineStage):
    """Says for each line whether its list is certified to be exact.

    ``bound`` is an upper bound on the score of every output that the search has pruned, and ``exact`` whether the
    hypotheses are the best of all allowed outputs; both are ``None`` for an empty line.

    Args:
        certificate: the observer that bounds the scores.
    """

    key = "certificate"

    def __init__(self, certificate: Certificate):
        self.certificate = certificate

    @classmethod
    def build(cls, cfg: GenerationConfig, resources: Resources) -> CertificateStage:
        """Find the observer; see ``LineStage``."""
        return cls(next(observer for observer in resources.observers if isinstance(observer, Certificate)))

    def write(self, line: InputLine, translation: Translation) -> Translation:
        """Add ``bound`` and ``exact``; see ``LineStage``."""
        bound, exact = self.certificate.found.pop(line.number, (None, None))
        return translation.with_extra("bound", bound).with_extra("exact", exact)

    def record(self, translation: Translation) -> Mapping[str, Any]:
        """Describe them in JSON; see ``LineStage``."""
        extras = translation.extras
        return {} if extras.get("exact") is None else {"exact": extras["exact"], "bound": extras["bound"]}
