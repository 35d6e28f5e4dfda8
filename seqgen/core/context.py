"""The step context: what all components see of one decoding step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any

import torch
from torch import Tensor

from seqgen.core.component import BatchInfo


@dataclass(frozen=True)
class LayerLogits:
    """The logits of each decoder layer as if it were the last one, computed when they are read.

    Attributes:
        layers: ``(rows, C)`` output of each layer at the newest position.
        early_exit: turns the output of a layer into logits ``(rows, V)``.
    """

    layers: Sequence[Tensor]
    early_exit: Callable[[Tensor], Tensor]

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, layer: int) -> Tensor:
        """The logits ``(rows, V)`` after a layer, counted from 0; those of the last layer are the model's."""
        return self.early_exit(self.layers[layer])


@dataclass(frozen=True)
class StepOutputs:
    """The outputs of the members in this step, as far as components need them.

    An attribute is ``None`` if no component in use declares a need for it, or if the models do not have it.

    Attributes:
        features: ``(rows, C)`` last hidden features of the first member's decoder.
        attention: ``(rows, S)`` attention over the source, combined over the members that read the same source.
        member_logits: ``(rows, V)`` logits of each member, temperature applied.
        layer_logits: logits of each decoder layer, temperature applied; ensembles do not have it.
        member_lprobs: ``(rows, V)`` log-probabilities of each member, temperature applied; known only after the
            combination, to strategies, stopping rules and observers. A single model does not have it.
    """

    features: Tensor | None = None
    attention: Tensor | None = None
    member_logits: list[Tensor] | None = None
    layer_logits: LayerLogits | None = None
    member_lprobs: list[Tensor] | None = None


@dataclass(frozen=True)
class StepContext:
    """The properties of one step that components see.

    A row is one beam of one sentence (for a stopping rule: one candidate). Rows are sentence-major: row ``i``
    belongs to sentence ``i // rows_per_sentence``. Derived attributes are computed when first read.

    Attributes:
        step: number of generated tokens, counted from the first step of the batch; ``steps`` counts for each row.
        sentences: the live sentences.
        rows_per_sentence: beams (or candidates) of each sentence.
        first_end: the smallest of ``max_lengths``, a Python int: before this step, nothing is read from the device.
        read_tokens: returns ``(rows, 1 + step)`` int64, the start token and the generated tokens of each row.
        scores: ``(rows,)`` cumulative scores.
        parents: ``(live, candidates)`` int64, the beam that each candidate continues; for stopping rules only.
        outputs: features, attention and logits that components need.
        process: applies the logits processors to ``(live, beam, V)`` scores, possibly in place; ``None`` if they were
            applied before the search.
        watch: called with each processor and the scores after it; ``None`` unless an observer needs it.
        processors: the logits processors, parts of composites included, while the next token is scored.
    """

    step: int
    sentences: BatchInfo
    rows_per_sentence: int
    first_end: int
    read_tokens: Callable[[], Tensor] = field(repr=False)
    scores: Tensor | None = None
    parents: Tensor | None = None
    outputs: StepOutputs = field(default_factory=StepOutputs)
    process: Callable[[Tensor], Tensor] | None = None
    watch: Callable[[Any, Tensor], None] | None = None
    processors: Sequence[Any] = ()

    @cached_property
    def forced(self) -> Tensor | None:
        """``(rows,)`` int64, the token that each row must continue with, such as that of a prefix, or -1; ``None`` if
        nothing is forced in this step. A combination that gives it the score ``-inf`` leaves the row no token."""
        found = [tokens for one in self.processors if (tokens := one.forced(self)) is not None]
        return reduce(lambda before, tokens: tokens.where(tokens >= 0, before), found) if found else None

    @property
    def eos(self) -> int:
        """The id of end-of-sentence."""
        return self.sentences.eos

    @property
    def pad(self) -> int:
        """The id of padding."""
        return self.sentences.pad

    @cached_property
    def _tokens(self) -> Tensor:
        return self.read_tokens()

    @property
    def tokens(self) -> Tensor:
        """``(rows, step)`` int64, the generated tokens of each row, without a start token."""
        return self._tokens[:, 1:]

    @property
    def generated(self) -> Tensor:
        """The tokens that count as generated: ``(rows, step)`` int64, or ``(rows, 1 + step)`` with the start token.

        The start token counts under Hugging Face's rules and does not count under fairseq's. For a decoder-only model
        the prompt replaces the start token: ``(rows, P + step)``, of which ``generated_padding`` does not count.
        """
        if self.sentences.continues_source and self.src_tokens is not None:
            return torch.cat([self.src_tokens, self.tokens], dim=1)
        return self._tokens if self.sentences.counts_start else self._tokens[:, 1:]

    @cached_property
    def generated_padding(self) -> Tensor | None:
        """``(rows, P + step)`` bool, true for tokens of ``generated`` that do not count; ``None`` if all count.

        They are the padding of prompts on the left and, unless the start token counts, an end-of-sentence with which a
        prompt begins, as in fairseq.
        """
        source, padding = self.src_tokens, self.src_padding
        if not self.sentences.continues_source or source is None:
            return None
        hidden = torch.zeros_like(source, dtype=torch.bool) if padding is None else padding
        if not self.sentences.counts_start:
            first = (~hidden).cumsum(1) == 1
            hidden = hidden | (first & ~hidden & (source == self.eos))
        elif padding is None:
            return None
        return torch.nn.functional.pad(hidden, (0, self.step))

    @cached_property
    def steps(self) -> Tensor:
        """``(rows,)`` int64, number of tokens of each row; sentences that joined a running batch have fewer."""
        start_offsets = self.sentences.start_offsets
        offsets = torch.zeros_like(self.sentences.max_lengths) if start_offsets is None else start_offsets
        return self.by_row(self.step - offsets)

    @property
    def has_joined(self) -> bool:
        """True if sentences joined the batch at different steps."""
        return self.sentences.start_offsets is not None

    @cached_property
    def max_lengths(self) -> Tensor:
        """``(rows,)`` int64, last step of each row, at which the rules force end-of-sentence or cut the output."""
        return self.by_row(self.sentences.max_lengths)

    @cached_property
    def sentence_ids(self) -> Tensor:
        """``(rows,)`` int64, line number of the sentence of each row."""
        return self.by_row(self.sentences.ids)

    @cached_property
    def prefix_tokens(self) -> Tensor | None:
        """``(rows, P)`` int64, tokens that each row begins with, padded on the right; or ``None``."""
        return None if self.sentences.prefix_tokens is None else self.by_row(self.sentences.prefix_tokens)

    @cached_property
    def src_tokens(self) -> Tensor | None:
        """``(rows, S)`` int64, ids of the source, padded; ``None`` if not known."""
        return None if self.sentences.src_tokens is None else self.by_row(self.sentences.src_tokens)

    @cached_property
    def src_padding(self) -> Tensor | None:
        """``(rows, S)`` bool, true where the source is padding; ``None`` if there is no padding."""
        return None if self.sentences.src_padding is None else self.by_row(self.sentences.src_padding)

    @property
    def source_texts(self) -> Sequence[str] | None:
        """The source line of each live sentence; ``None`` if sentences were not given as text."""
        return self.sentences.source_texts

    @property
    def done(self) -> Tensor:
        """``(live,)`` bool, which sentences need no further hypotheses; their candidates are ignored."""
        return self.sentences.done

    def by_row(self, values: Tensor) -> Tensor:
        """Repeat ``(live, ...)`` values for each row of the sentence: ``(rows, ...)``."""
        return values.repeat_interleave(self.rows_per_sentence, 0)

    def by_sentence(self, values: Tensor) -> Tensor:
        """View ``(rows, ...)`` values as ``(live, rows_per_sentence, ...)``."""
        rows = self.rows_per_sentence
        grouped: Tensor = values.view(values.size(0) // rows, rows, *values.shape[1:])
        return grouped
