"""Procedures: whole ways to decode a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from seqgen.generation.search.base import Phrases
    from seqgen.generation.sequence_generator import SequenceGenerator
    from seqgen.generation.session import Streamer
    from seqgen.structures import Batch, Hypothesis


class Procedure(Protocol):
    """Decodes batches as a generator says.

    Every search strategy is one, since ``Search.decode`` drives it step by step; a procedure of its own is what needs
    another loop.
    """

    def decode(
        self,
        generator: SequenceGenerator,
        sample: Batch,
        prefix_tokens: Tensor | None = None,
        constraints: Sequence[Phrases] | None = None,
        streamer: Streamer | None = None,
    ) -> list[list[Hypothesis]]:
        """Decode a batch of at least one sentence; see ``SequenceGenerator.generate``.

        Args:
            generator: the models, in evaluation mode, and how to decode with them.
            sample: the batch.
            prefix_tokens: ``(sentences, P)`` int64 tokens that each output begins with, padded on the right.
            constraints: for each sentence the phrases that its outputs must contain.
            streamer: takes the tokens as they are written.

        Returns:
            The hypotheses of each sentence, best first.
        """
        ...
