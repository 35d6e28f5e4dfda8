"""Output columns: with a shortlist, the decoders compute the scores of a part of the vocabulary only."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from seqgen.generation.candidates import Candidates
from seqgen.generation.component import Composite
from seqgen.generation.context import StepContext
from seqgen.generation.processors.base import LogitsProcessor, apply_all
from seqgen.generation.setup import DecodingSetup
from seqgen.generation.shortlist import Shortlist

LARGEST_SHARE = 0.5
"""Columns are used if the shortlists of a batch contain at most this share of the vocabulary; copying the weights of
more columns would take longer than it saves."""


@dataclass(frozen=True)
class OutputColumns:
    """The tokens in the shortlists of a batch, as the columns of all scores: column ``i`` is token ``ids[i]``.

    Attributes:
        ids: ``(U,)`` int64, ascending, so that equal scores are ordered as in the whole vocabulary.
        eos: the column of end-of-sentence.
        pad: the column of padding.
        projections: the output layer of each member for these columns.
        processors: the logits processors, with columns in place of the ids of tokens.
    """

    ids: Tensor
    eos: int
    pad: int
    projections: Sequence[Callable[[Tensor], Tensor]]
    processors: Sequence[LogitsProcessor]

    @classmethod
    def choose(
        cls, setup: DecodingSetup, shortlist: Shortlist, processors: Sequence[LogitsProcessor]
    ) -> OutputColumns | None:
        """The columns of a batch.

        Args:
            setup: how to decode.
            shortlist: the shortlists of the batch.
            processors: the logits processors of the batch.

        Returns:
            The columns; ``None`` if a component needs the whole vocabulary, or if most of the vocabulary is needed.
        """
        ids = shortlist.union()
        if not setup.can_use_columns or len(ids) > LARGEST_SHARE * setup.vocab_size:
            return None
        column = {token: place for place, token in enumerate(ids.tolist())}
        own = [_with_columns(processor, column) for processor in processors]
        decoders: dict[int, Any] = {id(spec.model): spec.model.decoder for spec in setup.ensemble.members}
        made = {key: decoder.output_columns(ids) for key, decoder in decoders.items()}
        if any(part is None for part in (*own, *made.values())):
            return None
        return cls(
            ids,
            column[setup.eos],
            column[setup.pad],
            [made[id(spec.model)] for spec in setup.ensemble.members],
            [processor for processor in own if processor is not None],
        )

    def process(self, scores: Tensor, context: StepContext) -> Tensor:
        """Apply the logits processors to ``(rows, U)`` scores."""
        return apply_all(self.processors, scores, replace(context, eos=self.eos, pad=self.pad))

    def to_tokens(self, candidates: Candidates) -> Candidates:
        """Candidates with the ids of their tokens in place of columns."""
        return Candidates(candidates.scores, self.ids[candidates.tokens], candidates.beams)


def _with_columns(processor: LogitsProcessor, column: dict[int, int]) -> LogitsProcessor | None:
    """A processor with columns in place of the ids of tokens; ``None`` if it needs others, or the whole vocabulary."""
    if processor.token_attributes is None or processor.sentence_state or processor.beam_state:
        return None
    own = copy.copy(processor)
    if isinstance(processor, Composite):
        parts = [_with_columns(part, column) for part in processor.parts]
        if None in parts:
            return None
        own.parts = parts  # type: ignore[attr-defined]
    for name in processor.token_attributes:
        ids = getattr(own, name)
        if ids is None:
            continue
        wanted = ids.tolist() if isinstance(ids, Tensor) else ids if isinstance(ids, list) else [ids]
        found = [column[token] for token in wanted if token in column]
        if isinstance(ids, list):  # a token without a column is forbidden anyway
            setattr(own, name, found)
        elif len(found) < len(wanted):
            return None
        else:
            setattr(own, name, torch.tensor(found, device=ids.device) if isinstance(ids, Tensor) else found[0])
    return own
