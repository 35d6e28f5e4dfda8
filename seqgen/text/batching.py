"""Batches of lines: how many sentences a batch has, which lines share one, and the tensors of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seqgen.core.structures import Batch
from seqgen.data.pair_dataset import Example
from seqgen.text.input_line import InputLine
from seqgen.text.languages import LanguageReader
from seqgen.text.members import TextModel

SENTENCE_SCORES = 2**20
"""Scores of a decoding step (beam times vocabulary) up to which a sentence counts as one sentence of a batch.

A sentence of more scores counts as several, so that the 64 sentences of a batch have at most 2**26 scores (256 MiB in
float32) and 1,024 beams. T5-small with 32,128 tokens, beam 200 and 16 sentences: 7.2 GiB in one batch, 2.8 GiB in
batches of 5.
"""

COUNTED_VOCABULARY = 2**16
"""The size that a smaller vocabulary counts as, because each beam also has a decoder state."""


@dataclass(frozen=True)
class Batcher:
    """Divides lines into batches, and collates a batch.

    Attributes:
        models: the models that read the source.
        languages: gives batches the tokens of languages.
        batch_size: most sentences of a batch.
        max_tokens: most source tokens of a batch, padding included.
        beam: beams of each sentence.
        vocab_size: size of the target vocabulary.
        in_order: whether lines keep their order, because they are streamed; otherwise the longest come first.
        device: the device of batches.
    """

    models: Sequence[TextModel]
    languages: LanguageReader
    batch_size: int
    max_tokens: int
    beam: int
    vocab_size: int
    in_order: bool
    device: torch.device

    def sentences_of(self, width: int) -> int:
        """The most sentences of a batch whose longest source has ``width`` tokens; at least 1."""
        weight = max(1.0, self.beam * max(self.vocab_size, COUNTED_VOCABULARY) / SENTENCE_SCORES)
        return max(1, int(min(self.batch_size, self.max_tokens // width) / weight))

    def divided(self, lines: int, divisor: int) -> Batcher:
        """A batcher whose batches are smaller than one with all of some lines, for less memory.

        Args:
            lines: number of the lines.
            divisor: how many times smaller.
        """
        size = max(1, min(self.batch_size, lines) // divisor)
        return replace(self, batch_size=size, max_tokens=max(1, self.max_tokens // divisor))

    def batches(self, lines: Sequence[InputLine]) -> Iterator[list[InputLine]]:
        """Divide lines into batches."""
        batch: list[InputLine] = []
        for line in lines if self.in_order else sorted(lines, key=lambda line: line.length, reverse=True):
            widest = max(line.length, *(other.length for other in batch)) if batch else line.length
            if len(batch) >= self.sentences_of(widest):
                yield batch
                batch = []
            batch.append(line)
        if batch:
            yield batch

    def waiting(self, lines: Sequence[InputLine]) -> Callable[[int, int], Batch | None]:
        """Lines that wait to join a running batch, the longest first; see ``generate_continuously``."""
        waiting = sorted(lines, key=lambda line: line.length)

        def take(running: int, width: int) -> Batch | None:
            # every row is padded to the longest source: a short source waits until the long ones are finished
            if not waiting or 2 * waiting[-1].length < width:
                return None
            room = self.sentences_of(max(width, waiting[-1].length)) - running
            if room < 1:
                return None
            return self.collate([(waiting.pop(), None) for _ in range(min(room, len(waiting)))])

        return take

    def collate(
        self, rows: Sequence[tuple[InputLine, Tensor | None]], models: Sequence[TextModel] | None = None
    ) -> Batch:
        """Collate lines.

        Args:
            rows: the lines, each with the ids ``(T,)`` of its target or ``None``.
            models: the first of the models, if not all of them read the batch.
        """
        return collate(rows, models or self.models, self.languages).to(self.device)


def collate(
    rows: Sequence[tuple[InputLine, Tensor | None]], models: Sequence[TextModel], languages: LanguageReader
) -> Batch:
    """Collate lines.

    Args:
        rows: the lines, each with the ids ``(T,)`` of its target or ``None``.
        models: the models that read the batch.
        languages: gives it the tokens of languages.
    """
    batches = [
        model.task.collate(
            [Example(line.number, line.sources[i], target, line.columns) for line, target in rows], model.model
        )
        for i, model in enumerate(models)
    ]
    return replace(
        batches[0],
        member_sources=[other.source for other in batches] if len(batches) > 1 else None,
        texts=[line.text for line, _ in rows],
        **languages.batch_tokens([line.languages for line, _ in rows]),
    )
