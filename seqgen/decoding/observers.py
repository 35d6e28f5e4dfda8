"""Observers of decoding: streaming, and the most probable tokens in place of each token of an output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from seqgen.core.candidates import best_continuations
from seqgen.core.context import StepContext
from seqgen.core.errors import ConfigError
from seqgen.core.observers import Observer, StepRecord
from seqgen.core.scores import Scores
from seqgen.core.setup import DecodingSetup


class Streamer(Protocol):
    """Receives tokens while they are generated."""

    def put(self, sentence: int, tokens: Sequence[int]) -> None:
        """Receive the next tokens of a sentence.

        Args:
            sentence: the sentence's number, one of the batch's ``ids``.
            tokens: ids of the tokens.
        """

    def end(self, sentence: int) -> None:
        """Called when a sentence is complete."""


class Streaming(Observer):
    """Passes the newest token of each sentence's first beam to a streamer.

    Args:
        streamer: receives the tokens.
        setup: how the batch is decoded: with one beam, or a strategy with independent beams.

    Raises:
        ConfigError: the beams of a sentence compete, so that tokens may be replaced.
    """

    reads_finished = False

    def __init__(self, streamer: Streamer, setup: DecodingSetup):
        independent = setup.search.continues_each_beam and not setup.search.enforces_constraints
        if setup.beam_size > 1 and not independent:
            raise ConfigError(
                f"beam search can replace tokens that it has generated, so beam_size={setup.beam_size} cannot "
                "be streamed; use beam_size=1 or sampling"
            )
        self.streamer = streamer

    def observe(self, record: StepRecord) -> None:
        """See ``Observer.observe``."""
        first = record.candidates.scores[:, 0] > -torch.inf
        done = (record.now_done & ~record.was_done).tolist()
        tokens, ids = record.candidates.tokens[:, 0].tolist(), record.context.sentences.ids.tolist()
        for sentence, token, exists, is_done in zip(ids, tokens, first.tolist(), done, strict=True):
            if exists:
                self.streamer.put(sentence, [token])
            if is_done:
                self.streamer.end(sentence)


class TopTokens(Observer):
    """Lists the most probable tokens, and their log-probabilities, for each token of a hypothesis.

    Args:
        count: number of tokens.
    """

    can_merge = True
    reads_finished = False

    def __init__(self, count: int):
        self.count = count

    def beam_values(self, context: StepContext, scores: Scores) -> Mapping[str, Tensor]:
        """See ``Observer.beam_values``."""
        if context.process is not None:  # the search applies the processors itself
            scores = replace(scores, values=context.process(scores.values.clone()))
        lprobs = scores.seen()
        rows = lprobs.flatten(0, 1).unsqueeze(1)
        best = best_continuations(rows, torch.zeros_like(rows[..., 0]), self.count, scores.in_blocks)
        shape = (*lprobs.shape[:2], self.count)
        return {"top_tokens": best.tokens.view(shape), "top_scores": best.scores.view(shape)}
