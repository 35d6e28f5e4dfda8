"""Decoding of many sentences, of which waiting ones join the batch as places come free."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from seqgen.generation.session import Decoding
from seqgen.structures import Batch, Hypothesis

if TYPE_CHECKING:
    from seqgen.generation.sequence_generator import SequenceGenerator

_SHARE = 4
"""Sentences join when this part of the places is free: joining copies what the batch remembers."""


class RollingDecoding:
    """A batch whose places are filled again.

    Newcomers are encoded and decoded for their first step by themselves; then they are merged into the running batch.

    Args:
        generator: says how.
        waiting: see ``SequenceGenerator.generate_rolling``.
    """

    def __init__(self, generator: SequenceGenerator, waiting: Callable[[int, int], Batch | None]):
        self.generator = generator
        self.waiting = waiting

    def run(self) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Decode until nobody waits and all are done; see ``SequenceGenerator.generate_rolling``."""
        running = self._next(0, 0)
        while running is not None:
            places = len(running.sentences)
            while running.step():
                taken = len(running.sentences) - running.num_done
                if (places - taken) * _SHARE >= places and (newcomers := self._next(taken, running.width)):
                    yield from self._join(running, newcomers)
                    places = max(places, len(running.sentences))
                yield from running.fresh()
            running.collect_all()
            yield from running.fresh()
            running = self._next(0, 0)

    def _next(self, running: int, width: int) -> Decoding | None:
        batch = self.waiting(running, width)
        return None if batch is None else Decoding(self.generator, batch)

    def _join(self, running: Decoding, newcomers: Decoding) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Merge newcomers after their first step, unless that was all."""
        if newcomers.step():
            running.drop_done()
            running.merge(newcomers)
        else:
            newcomers.collect_all()
            yield from newcomers.fresh()
