"""Coverage: how much attention each source position has received, for the coverage penalty."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from seqgen.errors import ConfigError
from seqgen.generation.candidates import Candidates, gather_beams


@dataclass(frozen=True)
class Coverage:
    """The coverage of each beam, and the penalty for source positions that received little attention.

    Attributes:
        weight: beta of the penalty (Wu et al. 2016, equation 14); 0 for no penalty, and coverage is then not recorded.
        received: ``(live, beam, S)``, the attention of all steps so far; ``None`` before the first.
    """

    weight: float
    received: Tensor | None = None

    def penalty(self, candidates: Candidates, attention: Tensor | None, padding: Tensor | None) -> Tensor | None:
        """The penalty ``beta * sum_s log(min(a_s, 1))`` of each candidate.

        Args:
            candidates: the continuations, ``(live, K)``.
            attention: ``(live, beam, S)``, the attention of this step.
            padding: ``(live, S)`` bool, the padding of the sources.

        Returns:
            ``(live, K)``, or ``None`` if the weight is 0.

        Raises:
            ConfigError: the model does not return its attention.
        """
        if not self.weight:
            return None
        if attention is None:
            raise ConfigError(
                "generation.coverage_penalty needs the attention of the model, and this one does not say what it "
                "attends to; leave it out"
            )
        logs = gather_beams(self._after(attention), candidates.beams).clamp(min=1e-9, max=1.0).log()
        if padding is not None and padding.size(1) == logs.size(-1):
            logs = logs.masked_fill(padding.unsqueeze(1), 0.0)
        return self.weight * logs.sum(-1)

    def advance(self, beams: Tensor, attention: Tensor | None) -> Coverage:
        """The coverage after a step.

        Args:
            beams: ``(live, beam)`` int64, the beam that each one continues.
            attention: the attention of the step.
        """
        if not self.weight or attention is None:
            return self
        return replace(self, received=gather_beams(self._after(attention), beams))

    def select(self, keep: Tensor) -> Coverage:
        """The coverage of the sentences ``keep``, ``(kept,)`` int64."""
        return self if self.received is None else replace(self, received=self.received.index_select(0, keep))

    def _after(self, attention: Tensor) -> Tensor:
        return attention if self.received is None else self.received + attention
