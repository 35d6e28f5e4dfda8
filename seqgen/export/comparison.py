"""Compares stepped decoding with exported graphs to the model's parallel pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seqgen.export.graphs import Graph, Run
from seqgen.export.state import ROWS
from seqgen.model import EncoderDecoderModel


@dataclass(frozen=True)
class Sentences:
    """Random sentences: sources of unequal length, and the targets that are given to the decoder.

    Attributes:
        src_tokens: ``(N, S)`` int64, padded on the right.
        src_lengths: ``(N,)`` int64.
        prev_output_tokens: ``(N, T)`` int64.
    """

    src_tokens: Tensor
    src_lengths: Tensor
    prev_output_tokens: Tensor

    @classmethod
    def random(cls, lengths: Sequence[int], steps: int, *, pad: int, source_size: int, target_size: int) -> Sentences:
        """Draw sentences; the same arguments give the same sentences.

        Args:
            lengths: length of each source.
            steps: length of all targets.
            pad: id of padding in the source vocabulary.
            source_size: size of the source vocabulary.
            target_size: size of the target vocabulary.
        """
        generator = torch.Generator().manual_seed(1)
        src_lengths = torch.tensor(lengths)
        words = torch.tensor([word for word in range(source_size) if word != pad])
        shape = len(lengths), max(lengths)
        src_tokens = words[torch.randint(len(words), shape, generator=generator)]
        src_tokens[torch.arange(max(lengths)) >= src_lengths.unsqueeze(1)] = pad
        targets = torch.randint(target_size, (len(lengths), steps), generator=generator)
        return cls(src_tokens, src_lengths, targets)


@torch.no_grad()
def largest_difference(
    model: EncoderDecoderModel, encoder: Run, step: Run, step_graph: Graph, sentences: Sentences
) -> float:
    """The largest difference of logits over all steps, relative to the largest logit if that is above 1.

    Args:
        model: the model.
        encoder: runs the graph of the encoder.
        step: runs the graph of a step.
        step_graph: the graph of a step.
        sentences: the sentences to decode.
    """
    rows, steps = sentences.prev_output_tokens.shape
    expected, _ = model(sentences.src_tokens, sentences.src_lengths, sentences.prev_output_tokens)
    expected = torch.stack([model.adjust_logits_during_generation(expected[:, n], n) for n in range(steps)], dim=1)
    source = list(encoder([sentences.src_tokens]))
    state = [
        torch.zeros([rows if n == ROWS else n if isinstance(n, int) else 0 for n in tensor.shape], dtype=tensor.dtype)
        for tensor in step_graph.inputs[1 + len(source) :]
    ]
    scale, largest = max(1.0, float(expected.abs().max())), 0.0
    for seen in range(steps):
        logits, *state = step([sentences.prev_output_tokens[:, : seen + 1], *source, *state])
        largest = max(largest, float((logits - expected[:, seen]).abs().max()))
    return largest / scale
