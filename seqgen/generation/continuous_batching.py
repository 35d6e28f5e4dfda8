"""Continuous batching: waiting sentences join a running batch when other sentences are done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor

from seqgen.generation.candidates import Candidates
from seqgen.generation.session import Session
from seqgen.generation.setup import DecodingRequest, DecodingSetup
from seqgen.structures import Batch, Hypothesis

_SHARE = 4
"""Sentences join when a quarter of the places is free, and not earlier, since joining copies all state of the batch."""


class RollingSession(Session):
    """A session whose sentences leave it as soon as they are done, and which other sentences join.

    Args:
        setup: how to decode.
        request: the first sentences.
    """

    def __init__(self, setup: DecodingSetup, request: DecodingRequest):
        super().__init__(setup, request)
        self.collected: list[int] = []
        """Indices of the sentences whose results were collected since the last call of ``new_results``."""

    def collect(self, rows: Tensor) -> list[int]:
        """See ``Session.collect``."""
        sentences = super().collect(rows)
        self.collected += sentences
        return sentences

    def merge(self, other: Self) -> None:
        """Append the sentences of another session, which has decoded at least one step.

        ``DecodingSetup.merge_obstacle`` says whether this is possible. Done sentences leave this session before.

        Args:
            other: a session of the same setup; it must not be used afterwards.
        """
        if self.num_done:
            newest = self.backpointers.last_tokens()
            self.compact(Candidates(self.scores, newest, newest))
        self.live = torch.cat([self.live, other.live + len(self.ids)])
        self.collected += [sentence + len(self.ids) for sentence in other.collected]
        self.ids = torch.cat([self.ids, other.ids])
        self.results += other.results
        self.scores = torch.cat([self.scores, other.scores])
        for mine, theirs in zip(self.components, other.components, strict=True):
            mine.merge(theirs)
        for mine_, theirs_ in zip(self.members, other.members, strict=True):
            mine_.merge(theirs_)
        own_limits = torch.cat([one.sentences.own_limits for one in (self, other)])
        self.backpointers.merge(other.backpointers)
        if (unseen := int(self.backpointers.start_offsets.min())) > 0:
            self.backpointers.crop(unseen)
            for member in self.members:
                member.crop(unseen)
        start_offsets = self.backpointers.start_offsets
        texts = [one.sentences.source_texts for one in (self, other)]
        self.sentences = replace(
            self.sentences,
            ids=torch.cat([self.sentences.ids, other.sentences.ids]),
            max_lengths=own_limits + start_offsets,
            done=torch.cat([self.sentences.done, other.sentences.done]),
            start_offsets=start_offsets,
            source_texts=None if None in texts else [text for some in texts for text in some or ()],
            # components that support merged batches do not read these
            src_tokens=None,
            src_padding=None,
            prefix_tokens=None,
            first_tokens=None,
            constraints=None,
        )
        self.first_end = int(self.sentences.max_lengths.min())
        self.choose_columns()

    def new_results(self) -> Iterator[tuple[int, list[Hypothesis]]]:
        """The results collected since the last call: the number of each sentence in ``ids``, and its hypotheses."""
        ids = self.ids.tolist() if self.collected else []
        for sentence in self.collected:
            yield ids[sentence], self.results[sentence]
            self.results[sentence] = []
        self.collected = []

    @property
    def width(self) -> int:
        """Number of positions of the encoded sources of the batch."""
        return max(int(member.encoder_out.encoder_out.size(1)) for member in self.members)


def decode_continuously(
    setup: DecodingSetup, waiting: Callable[[int, int], Batch | None]
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Decode a stream of sentences in one batch, until no sentence waits and all are done.

    New sentences are encoded and decode their first step in another session, which is then merged into the
    running session.

    Args:
        setup: how to decode.
        waiting: see ``SequenceGenerator.generate_continuously``.

    Yields:
        The number of a sentence in its batch's ``ids``, and its hypotheses.
    """
    while (batch := waiting(0, 0)) is not None:
        running = RollingSession(setup, DecodingRequest(batch))
        places = len(running.live)
        while running.step():
            taken = len(running.live) - running.num_done
            if (places - taken) * _SHARE >= places and (batch := waiting(taken, running.width)) is not None:
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
