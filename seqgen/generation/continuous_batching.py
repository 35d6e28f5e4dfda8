"""Continuous batching: waiting sentences join a running batch when other sentences are done."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from seqgen.generation.session import Session
from seqgen.generation.setup import DecodingRequest, DecodingSetup
from seqgen.structures import Batch, Hypothesis

_SHARE = 4
"""Sentences join when a quarter of the places is free, and not earlier, since joining copies all state of the batch."""


class ContinuousBatching:
    """Decodes a stream of sentences in one batch.

    New sentences are encoded and decode their first step in a session of their own, which is then merged into the
    running session.

    Args:
        setup: how to decode.
        waiting: see ``SequenceGenerator.generate_continuously``.
    """

    def __init__(self, setup: DecodingSetup, waiting: Callable[[int, int], Batch | None]):
        self.setup = setup
        self.waiting = waiting

    def run(self) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Decode until no sentence waits and all are done; see ``SequenceGenerator.generate_continuously``."""
        running = self._next(0, 0)
        while running is not None:
            places = len(running.live)
            while running.step():
                taken = len(running.live) - running.num_done
                if (places - taken) * _SHARE >= places and (newcomers := self._next(taken, running.width)):
                    yield from self._join(running, newcomers)
                    places = max(places, len(running.live))
                yield from running.new_results()
            running.collect_all()
            yield from running.new_results()
            running = self._next(0, 0)

    def _next(self, running: int, width: int) -> Session | None:
        batch = self.waiting(running, width)
        return None if batch is None else Session(self.setup, DecodingRequest(batch))

    def _join(self, running: Session, newcomers: Session) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Decode the first step of the new sentences, and merge them unless all of them are then done."""
        if newcomers.step():
            running.drop_done()
            running.merge(newcomers)
        else:
            newcomers.collect_all()
            yield from newcomers.new_results()
