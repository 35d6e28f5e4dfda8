"""Step contexts for tests of single components: one row for each sentence, unless said otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from seqgen.core.component import BatchInfo
from seqgen.core.context import StepContext


def batch_info(sentences: int, beam: int, end_tokens: Sequence[int] = (2,), **known: Any) -> BatchInfo:
    """The sentences of a batch without length limits."""
    ids, limits = torch.arange(sentences), torch.full((sentences,), 10**6)
    required = {"ids": ids, "max_lengths": limits, "done": torch.zeros(sentences, dtype=torch.bool), "eos": 2, "pad": 1}
    return BatchInfo(beam_size=beam, end_tokens=end_tokens, **{**required, **known})


def step_context(
    step: int,
    tokens: Tensor | None = None,
    max_lengths: Tensor | None = None,
    first_end: int = 10**6,
    prefix_tokens: Tensor | None = None,
    eos: int = 2,
    pad: int = 1,
    generated: Tensor | None = None,
    src_tokens: Tensor | None = None,
    src_padding: Tensor | None = None,
    sentences: Tensor | None = None,
    start_offsets: Tensor | None = None,
) -> StepContext:
    """A context whose ``tokens`` are ``(rows, step)``; ``generated`` begins with the start token where that counts."""
    if tokens is None:
        tokens = torch.zeros(1, step, dtype=torch.int64)
    rows = tokens.size(0)
    counts_start = generated is not None and generated.size(1) > tokens.size(1)
    start = generated[:, :1] if generated is not None and counts_start else torch.full((rows, 1), eos)
    whole = torch.cat([start.to(tokens.dtype), tokens], dim=1)
    known = batch_info(
        rows,
        1,
        eos=eos,
        pad=pad,
        ids=torch.arange(rows) if sentences is None else sentences,
        max_lengths=torch.full((rows,), 10**6) if max_lengths is None else max_lengths,
        counts_start=counts_start,
        start_offsets=start_offsets,
        prefix_tokens=prefix_tokens,
        src_tokens=src_tokens,
        src_padding=src_padding,
    )
    return StepContext(step, known, 1, first_end, lambda: whole)
