"""Finished hypotheses: which candidates end, how they rank, and when a sentence is done.

There are three rules, each a class; docs/decoding.md compares them. All state is in tensors of fixed shape, so that no
step waits for the device. A finished hypothesis is stored as its last token, the beam that this token continues, and
its length; ``BackPointers`` reads the other tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from seqgen.core.backpointers import BackPointers
from seqgen.core.candidates import Candidates, gather_beams
from seqgen.core.component import BatchInfo, Component
from seqgen.core.errors import ConfigError
from seqgen.core.structures import Hypothesis


@dataclass(frozen=True)
class Ranking:
    """The rule by which the sum of log-probabilities of a finished hypothesis becomes its score.

    Attributes:
        normalize: whether the sum is divided by a function of the length.
        len_penalty: alpha, from -10 to 10; above 1 favours longer outputs.
        kind: ``"power"`` divides by ``length ** alpha``, ``"wu"`` by ``((5 + length) / 6) ** alpha`` (Wu et al. 2016,
            equation 14).
        coverage: beta of the coverage penalty (same equation), which adds ``beta * sum_s log(min(a_s, 1))``, where
            ``a_s`` is the attention on source position ``s``, summed over the output.
    """

    normalize: bool = True
    len_penalty: float = 1.0
    kind: str = "power"
    coverage: float = 0.0

    def __post_init__(self) -> None:
        if not -10 <= self.len_penalty <= 10:  # powers of lengths would exceed the largest number
            raise ConfigError(f"a length penalty of {self.len_penalty:g} cannot be used; choose one from -10 to 10")

    def score(self, sums: Tensor, length: int | Tensor) -> Tensor:
        """Divide by the length penalty.

        Args:
            sums: sums of log-probabilities in nats.
            length: number of tokens, the last one included; an int, or a tensor that broadcasts against ``sums``.
        """
        if not self.normalize:
            return sums
        length = length.to(sums.dtype) if isinstance(length, Tensor) else length
        base = (5 + length) / 6 if self.kind == "wu" else length
        divisor: Tensor | float = base**self.len_penalty
        return sums / divisor

    @property
    def favours_length(self) -> bool:
        """True if, of two hypotheses with equal sums, the longer one scores better."""
        return self.normalize and self.len_penalty > 0


class FinishedHypotheses(Component):
    """The finished hypotheses of the live sentences; a subclass defines which candidates finish and when enough have.

    Its tensors, ``(live, beam)`` each, follow the sentences like the state of other components.

    Args:
        batch: the batch; for each sentence ``beam_size`` hypotheses are kept, each in a place.
        ranking: turns sums of log-probabilities into scores.
    """

    sentence_state: ClassVar[tuple[str, ...]] = ("lengths", "beams", "tokens", "cumulative", "scores")

    def __init__(self, batch: BatchInfo, ranking: Ranking):
        self.beam, self.ranking = batch.beam_size, ranking
        self.may_have_any = False
        """False if no sentence has a finished hypothesis."""
        self.lengths = torch.zeros(batch.num_sentences, self.beam, dtype=torch.int64, device=batch.device)
        """``(live, beam)`` int64 number of tokens of the hypothesis in each place; 0 if the place is free."""
        self.beams = torch.zeros_like(self.lengths)
        self.tokens = torch.zeros_like(self.lengths)
        self.cumulative = torch.full(self.lengths.shape, -torch.inf, device=batch.device)
        self.scores = torch.full_like(self.cumulative, -torch.inf)

    def finalize(self, candidates: Candidates, ends: Tensor, step: int | Tensor, bonus: Tensor | None) -> Candidates:
        """Finalize candidates that end, and choose the beams of the next step.

        Args:
            candidates: ``K`` of each live sentence, in the order in which they are preferred.
            ends: ``(live, K)`` bool, which of them end.
            step: number of tokens before the new one; ``(live, 1)`` int64 if sentences differ in it.
            bonus: ``(live, K)`` added to the scores of hypotheses, such as the coverage penalty; ``None`` for nothing.

        Returns:
            The ``beam`` candidates of each sentence that continue; missing ones have score ``-inf``.
        """
        raise NotImplementedError

    def done(self, active: Candidates, step: int | Tensor, max_lengths: Tensor) -> Tensor:
        """Find the sentences that need no further hypotheses, or can have none: by default, those without active beams.

        Args:
            active: the candidates that ``finalize`` returned.
            step: as for ``finalize``; ``(live,)`` int64 if sentences differ in it.
            max_lengths: ``(live,)`` int64, the last step of each sentence.

        Returns:
            ``(live,)`` bool.
        """
        return (max_lengths <= step) | (active.scores == -torch.inf).all(1)

    def hypotheses(self, sentences: Tensor, backpointers: BackPointers) -> list[list[Hypothesis]]:
        """Read the hypotheses of some sentences from the device.

        Args:
            sentences: ``(k,)`` int64 live sentences.
            backpointers: what was generated.

        Returns:
            The hypotheses of each sentence, best first; equal scores in the order of their places.
        """
        own = [getattr(self, name)[sentences] for name in FinishedHypotheses.sentence_state]
        backpointers, (lengths, beams, last, sums, ranked) = backpointers.on_cpu(sentences, own)
        before, totals, records = backpointers.trace(beams, (lengths - 1).clamp(min=0))
        results = []
        for row, (sizes, scores) in enumerate(zip(lengths.tolist(), ranked.tolist(), strict=True)):
            found = []
            for place, (size, score) in enumerate(zip(sizes, scores, strict=True)):
                if size == 0:
                    continue
                tokens = torch.cat([before[row, place, : size - 1], last[row, place : place + 1]])
                reached = torch.cat([totals[row, place, : size - 1].to(sums.dtype), sums[row, place : place + 1]])
                positional = reached.diff(prepend=reached.new_zeros(1))
                kept: dict[str, Any] = {name: values[row, place, :size].clone() for name, values in records.items()}
                fields = backpointers.fields_of(row, tokens, kept.pop("parents")) if backpointers.fields else {}
                alignment = kept["attention"].argmax(-1) if "attention" in kept else None
                found.append(Hypothesis(tokens, score, positional, alignment=alignment, fields=fields, **kept))
            results.append(sorted(found, key=lambda hypothesis: hypothesis.score, reverse=True))
        return results

    def merge(self, other: Self) -> None:
        """See ``Component.merge``."""
        super().merge(other)
        self.may_have_any |= other.may_have_any

    def _ranked(self, candidates: Candidates, step: int | Tensor, bonus: Tensor | None) -> Tensor:
        """The scores of candidates as hypotheses, ``(live, K)``; the stored ones get the same dtype."""
        dtype = candidates.scores.dtype
        if self.cumulative.dtype != dtype:
            self.cumulative, self.scores = self.cumulative.to(dtype), self.scores.to(dtype)
        scores = self.ranking.score(candidates.scores, step + 1)
        return scores if bonus is None else scores + bonus

    def _finish(self, candidates: Candidates, ends: Tensor) -> Tensor:
        """``(live, K)`` bool, true for candidates that end among the first ``beam``."""
        among_first = torch.arange(ends.size(1), device=ends.device) < self.beam
        return ends & among_first & (candidates.scores > -torch.inf)

    def _entries(
        self, candidates: Candidates, finished: Tensor, scores: Tensor, step: int | Tensor
    ) -> dict[str, Tensor]:
        """The stored values of candidates, ``(live, K)`` each; the length is 0 if a candidate is not ``finished``."""
        lengths = torch.where(finished, step + 1, torch.zeros_like(candidates.tokens))
        values = (lengths, candidates.beams, candidates.tokens, candidates.scores, scores)
        return dict(zip(FinishedHypotheses.sentence_state, values, strict=True))

    def _first_active(self, candidates: Candidates, ends: Tensor) -> Candidates:
        """The first ``beam`` candidates that have not ended, in their order."""
        # a stable sort of [no, yes, no, no] by "ends" gives the columns [0, 2, 3, 1]
        columns = ends.to(torch.int8).argsort(dim=1, stable=True)[:, : self.beam]
        chosen = candidates.gather(columns)
        return chosen.without(ends.gather(1, columns))

    def _place(self, places: Tensor, taken: Tensor, candidates: Candidates, scores: Tensor, step: int | Tensor) -> None:
        """Write the candidates that ``taken`` ``(live, K)`` bool marks into ``places``, ``(live, K)`` int64."""
        if _none(taken):
            return
        self.may_have_any = True
        # the others are written to an extra place, which is cut off
        index = torch.where(taken, places, self.beam)
        for name, value in self._entries(candidates, taken, scores, step).items():
            room = torch.nn.functional.pad(getattr(self, name), (0, 1))
            setattr(self, name, room.scatter(1, index, value)[:, : self.beam])

    def _keep_best(self, candidates: Candidates, scores: Tensor, step: int | Tensor, groups: int = 1) -> None:
        """Keep the best of the old and the new hypotheses; of equal scores, the old one.

        Args:
            candidates: ``K`` of each live sentence.
            scores: ``(live, K)`` their scores as hypotheses; ``-inf`` for those that do not finish.
            step: number of tokens before the new one.
            groups: places and candidates are split into this many equal parts; the best are kept in each part.
        """
        if _none(scores > -torch.inf):
            return
        self.may_have_any = True
        merged = {
            name: torch.cat([getattr(self, name).unflatten(1, (groups, -1)), value.unflatten(1, (groups, -1))], dim=-1)
            for name, value in self._entries(candidates, scores > -torch.inf, scores, step).items()
        }
        order = merged["scores"].sort(dim=-1, descending=True, stable=True).indices[..., : self.beam // groups]
        for name, values in merged.items():
            setattr(self, name, values.gather(-1, order).flatten(1))


def _none(finished: Tensor) -> bool:
    """True if no candidate finishes, as in most steps; false on a GPU, where the question would wait for the device."""
    return finished.device.type == "cpu" and not finished.any()


class FirstFinished(FinishedHypotheses):
    """fairseq's rule: the first ``beam`` hypotheses that finish are the result, even if beams score better."""

    def finalize(self, candidates: Candidates, ends: Tensor, step: int | Tensor, bonus: Tensor | None) -> Candidates:
        """Finalize candidates that end among the first ``beam``, as long as places are free."""
        finished = self._finish(candidates, ends)
        if _none(finished):
            return self._first_active(candidates, ends)
        scores = self._ranked(candidates, step, bonus)
        # 3 places of 5 filled, finished [1, 0, 1, 1]: places [3, -, 4, 5]; there is no place 5, so the last is dropped
        places = (self.lengths > 0).sum(1, keepdim=True) + finished.cumsum(1) - 1
        self._place(places, finished & (places < self.beam), candidates, scores, step)
        return self._first_active(candidates, ends)

    def done(self, active: Candidates, step: int | Tensor, max_lengths: Tensor) -> Tensor:
        """All places are filled, the maximum length is reached, or no beam is active."""
        done = super().done(active, step, max_lengths)
        return done | (self.lengths > 0).all(1) if self.may_have_any else done


class BestFinished(FinishedHypotheses):
    """Hugging Face's rule: a better hypothesis replaces the worst one, until no beam is expected to be better.

    Args:
        batch: see ``FinishedHypotheses``.
        ranking: see ``FinishedHypotheses``.
        early_stopping: when a sentence is done whose places are all filled. ``"true"``: at once. ``"false"``: when the
            best active beam would score no better than the worst hypothesis if it ended now. ``"never"``: when it
            would score no better at its best possible length (the maximum, with a positive length penalty).
    """

    sentence_state = (*FinishedHypotheses.sentence_state, "_all_ended")

    def __init__(self, batch: BatchInfo, ranking: Ranking, early_stopping: str = "false"):
        super().__init__(batch, ranking)
        self.early_stopping = early_stopping
        self._all_ended = torch.zeros_like(batch.done)

    def finalize(self, candidates: Candidates, ends: Tensor, step: int | Tensor, bonus: Tensor | None) -> Candidates:
        """Finalize candidates that end among the first ``beam`` and score above the worst hypothesis."""
        finished = self._finish(candidates, ends)
        if not _none(finished):
            scores = self._ranked(candidates, step, bonus)
            self._keep_best(candidates, scores.masked_fill(~finished, -torch.inf), step)
        self._all_ended = (ends | (candidates.scores == -torch.inf)).all(1)
        running = candidates.without(ends)
        return running.gather(running.scores.argsort(dim=1, descending=True, stable=True)[:, : self.beam])

    def done(self, active: Candidates, step: int | Tensor, max_lengths: Tensor) -> Tensor:
        """See ``early_stopping``; a sentence is also done when all of its candidates have ended."""
        if not self.may_have_any:
            return self._all_ended
        full = (self.lengths > 0).all(1)
        if self.early_stopping == "true":
            return full | self._all_ended
        length = max_lengths + 1 if self.early_stopping == "never" and self.ranking.favours_length else step + 1
        best = self.ranking.score(active.scores[:, 0], length)
        return (full & (best <= self.scores[:, -1])) | self._all_ended


class EachRow(FinishedHypotheses):
    """Each beam is an independent hypothesis, which finishes when it ends: greedy search and sampling."""

    def finalize(self, candidates: Candidates, ends: Tensor, step: int | Tensor, bonus: Tensor | None) -> Candidates:
        """Finalize candidate ``i``, which continues beam ``i``, in place ``i`` if it ends."""
        finished = ends & (candidates.scores > -torch.inf)
        if _none(finished):
            return candidates.without(ends)
        places = torch.arange(self.beam, device=ends.device).expand_as(ends)
        self._place(places, finished, candidates, self._ranked(candidates, step, bonus), step)
        return candidates.without(ends)


class Coverage(Component):
    """The coverage of each beam, and the penalty for source positions that received little attention.

    Args:
        weight: beta of the penalty (Wu et al. 2016, equation 14); 0 for no penalty, and coverage is then not recorded.
        batch: the batch.

    Attributes:
        received: ``(live, beam, S)``, the attention of all steps so far.
    """

    beam_state = ("received",)

    def __init__(self, weight: float, batch: BatchInfo):
        self.weight = weight
        # bool, so that the sum has the dtype of the attention
        self.received = torch.zeros(batch.num_sentences, batch.beam_size, 1, dtype=torch.bool, device=batch.device)

    def attend(self, attention: Tensor | None) -> None:
        """Add the attention of this step, ``(live, beam, S)``, before the beams are reordered.

        Raises:
            ConfigError: the model does not return its attention.
        """
        if not self.weight:
            return
        if attention is None:
            raise ConfigError(
                "generation.coverage_penalty needs attention weights, but this model returns none; remove the key"
            )
        self.received = self.received + attention

    def penalty(self, candidates: Candidates, padding: Tensor | None) -> Tensor | None:
        """The penalty ``beta * sum_s log(min(a_s, 1))`` of each candidate.

        Args:
            candidates: the continuations, ``(live, K)``.
            padding: ``(live, S)`` bool, the padding of the sources.

        Returns:
            ``(live, K)``, or ``None`` if the weight is 0.
        """
        if not self.weight:
            return None
        logs = gather_beams(self.received, candidates.beams).clamp(min=1e-9, max=1.0).log()
        if padding is not None and padding.size(1) == logs.size(-1):
            logs = logs.masked_fill(padding.unsqueeze(1), 0.0)
        return self.weight * logs.sum(-1)

    def advance(self, active: Candidates) -> None:
        """See ``Component.advance``."""
        if self.weight:
            super().advance(active)
