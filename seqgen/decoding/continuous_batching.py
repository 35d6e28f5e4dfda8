"""Continuous batching: waiting sentences join a running batch when other sentences are done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Self

import torch
from torch import Tensor

from seqgen.core.sequence_generator import SequenceGenerator
from seqgen.core.session import Session
from seqgen.core.setup import DecodingRequest, DecodingSetup
from seqgen.core.structures import Batch, Hypothesis

_SHARE = 4
"""Sentences join when a quarter of the places is free, and not earlier, since joining copies all state of the batch."""


class RollingSession(Session):
    """A session whose sentences leave it as soon as they are done, and which other sentences join.

    Args:
        setup: how to decode.
        request: the first sentences.

    Attributes:
        collected: indices of the sentences whose results were collected since the last call of ``new_results``.
    """

    def __init__(self, setup: DecodingSetup, request: DecodingRequest):
        super().__init__(setup, request)
        self.collected: list[int] = []

    def collect(self, rows: Tensor) -> list[int]:
        """See ``Session.collect``."""
        sentences = super().collect(rows)
        self.collected += sentences
        return sentences

    def merge(self, other: Self) -> None:
        """See ``Session.merge``."""
        super().merge(other)
        first = len(self.ids) - len(other.ids)
        self.collected += [sentence + first for sentence in other.collected]

    def new_results(self) -> Iterator[tuple[int, list[Hypothesis]]]:
        """The results collected since the last call: the number of each sentence in ``ids``, and its hypotheses."""
        ids = self.ids.tolist() if self.collected else []
        for sentence in self.collected:
            yield ids[sentence], self.results[sentence]
            self.results[sentence] = []
        self.collected = []


@torch.inference_mode()
def generate_continuously(
    generator: SequenceGenerator, waiting: Callable[[int, int], Batch | None]
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Decode any number of sentences by continuous batching: waiting sentences replace those that are done.

    The batch stays full, whereas a separate batch shrinks after its shortest output. If sentences cannot join (see
    ``DecodingSetup.merge_obstacle``), each batch is decoded separately.

    Args:
        generator: decodes them.
        waiting: called with the number of sentences in the running batch and the width of their sources; returns a
            batch of sentences that join it, or ``None`` if no more fit or none are left.

    Yields:
        The number of a sentence in its batch's ``ids``, and its hypotheses, in the order in which they are done.
    """
    setup = generator.setup
    with setup.ensemble.evaluating():
        if generator.can_merge:
            found = decode_continuously(setup, waiting)
            while True:
                with setup.active():  # only while decoding, not while the caller uses the result
                    result = next(found, None)
                if result is None:
                    return
                yield result
        while (batch := waiting(0, 0)) is not None:
            yield from zip(batch.ids.tolist(), generator.generate(batch), strict=True)


def decode_continuously(
    setup: DecodingSetup, waiting: Callable[[int, int], Batch | None]
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Decode a stream of sentences in one batch, until no sentence waits and all are done.

    New sentences are encoded and decode their first step in another session, which is then merged into the
    running session.

    Args:
        setup: how to decode.
        waiting: see ``generate_continuously``.

    Yields:
        The number of a sentence in its batch's ``ids``, and its hypotheses.
    """
    while (batch := waiting(0, 0)) is not None:
        running = RollingSession(setup, DecodingRequest(batch))
        places = len(running.live)
        while running.step():
            taken = len(running.live) - running.num_done
            width = max(int(member.encoder_out.encoder_out.size(1)) for member in running.members)
            if (places - taken) * _SHARE >= places and (batch := waiting(taken, width)) is not None:
                newcomers = RollingSession(setup, DecodingRequest(batch))
                if newcomers.step():
                    running.merge(newcomers)
                else:  # all of them are done
                    newcomers.collect_all()
                    yield from newcomers.new_results()
                places = max(places, len(running.live))
            yield from running.new_results()
        running.collect_all()
        yield from running.new_results()
