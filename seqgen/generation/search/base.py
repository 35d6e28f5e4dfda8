"""The base class of search strategies: which tokens continue which beams. They know nothing of models."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from torch import Tensor

from seqgen.errors import ConfigError
from seqgen.flags import Flags
from seqgen.generation.candidates import Candidates
from seqgen.generation.component import BatchInfo, Component
from seqgen.generation.context import StepContext
from seqgen.generation.finished import FinishedHypotheses, Ranking


class Search(Component):
    """A strategy; a subclass implements ``step``.

    One that remembers something between two steps declares ``sentence_state`` or ``beam_state`` and fills it in
    ``begin``, so that any number of batches may be decoded with one strategy at once. A strategy that is more than a
    choice among the next tokens brings a loop of its own, ``session_class``.
    """

    flags: ClassVar[Flags] = {
        "additive": ("begin", "step"),
        "can_merge": ("begin", "finished", "select_sentences", "advance", "merge", "step"),
        "independent_rows": ("begin", "step"),
        "session_class": ("step",),
    }

    additive: bool = False
    """Whether it does no more with ``lprobs`` and ``scores`` than to add them. Then the session may hand over logits
    and subtract their log-sum-exp from ``scores``, which saves a pass over the vocabulary."""

    can_merge: bool = False
    """Whether sentences may join a running batch: it asks of the context no more than whether ``step`` is 0."""

    independent_rows: bool = False
    """Whether every beam is a hypothesis of its own: candidate ``i`` continues beam ``i``, and ends when it ends."""

    processes_itself: bool = False
    """Whether ``step`` gets scores that no logits processor has changed, and applies ``context.process`` itself."""

    takes_constraints: bool = False
    """Whether it makes outputs contain given phrases."""

    session_class: ClassVar[type[Any] | None] = None
    """The loop that decodes a batch, a subclass of ``Session``; ``None`` for the ordinary one."""

    def rows(self, beam: int) -> int:
        """How many beams are decoded where ``beam`` are asked for."""
        return beam

    def begin(self, batch: BatchInfo) -> Self:
        """Prepare for a batch; see ``Component.begin``.

        Raises:
            ConfigError: the batch has constraints, and the strategy does not take any.
        """
        if batch.constraints is not None and not self.takes_constraints:
            raise ConfigError(f"{type(self).__name__} does not take constraints; choose the constrained search")
        return super().begin(batch)

    def finished(self, ranking: Ranking, early_stopping: str) -> FinishedHypotheses | None:
        """The finished hypotheses of this batch, for a strategy that has a rule of its own for them.

        Args:
            ranking: how they score.
            early_stopping: see ``BestFinished``.

        Returns:
            The finished hypotheses of the batch, none so far; ``None`` for those of the rules in use.
        """
        return None

    def step(self, context: StepContext, lprobs: Tensor, scores: Tensor) -> Candidates:
        """Choose the candidates of each sentence.

        There must be twice as many as beams: at most one candidate of each beam is end-of-sentence, so that enough
        others continue.

        Args:
            context: the step; at ``context.step == 0`` all beams of a sentence are the same.
            lprobs: ``(sentences, beam, V)`` log-probabilities of the next token; ``-inf`` where it is forbidden.
            scores: ``(sentences, beam)`` cumulative scores; ``-inf`` for a beam that does not exist.

        Returns:
            ``2 * beam`` candidates of each sentence, in the order in which they are preferred: those among the first
            ``beam`` that are end-of-sentence finish a hypothesis, and the first ``beam`` others continue.
        """
        raise NotImplementedError
