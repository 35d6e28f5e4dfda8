"""Step contexts for tests of single components: one row for each sentence, unless said otherwise."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from seqgen.extend import BatchInfo, StepContext


def batch_info(sentences: int, beam: int, end_tokens: Sequence[int] = (2,), **known: Any) -> BatchInfo:
    """The sentences of a batch without length limits."""
    ids, limits = torch.arange(sentences), torch.full((sentences,), 10**6)
    required = {"ids": ids, "max_lengths": limits, "done": torch.zeros(sentences, dtype=torch.bool), "eos": 2, "pad": 1}
    return BatchInfo(beam_size=beam, end_tokens=end_tokens, **{**required, **known})


def step_context(
    step: int, tokens: Tensor | None = None, generated: Tensor | None = None, first_end: int = 10**6, **known: Any
) -> StepContext:
    """A context whose ``tokens`` are ``(rows, step)``; ``generated`` begins with the start token where that counts."""
    tokens = torch.zeros(1, step, dtype=torch.int64) if tokens is None else tokens
    counts_start = generated is not None and generated.size(1) > tokens.size(1)
    start = generated[:, :1] if generated is not None and counts_start else torch.full((len(tokens), 1), 2)
    whole = torch.cat([start, tokens], dim=1)
    batch = batch_info(len(tokens), 1, counts_start=counts_start, **known)
    return StepContext(step, batch, 1, first_end, lambda: whole)
