"""The generator: decodes batches with one model or an ensemble. It is the entry point of decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from seqgen.errors import ConfigError
from seqgen.generation.bit_exact import pad_to_tiles, unpad_attention
from seqgen.generation.component import Phrases
from seqgen.generation.continuous_batching import decode_continuously
from seqgen.generation.observers import Observer
from seqgen.generation.search.base import Search
from seqgen.generation.search.constrained import check_phrases
from seqgen.generation.session import Session
from seqgen.generation.setup import DecodingRequest, DecodingSetup, Streamer
from seqgen.structures import Batch, Hypothesis
from seqgen.system.contract import returned


class SequenceGenerator:
    """Decodes batches of sentences.

    Args:
        setup: the components and options of decoding; ``build_setup`` makes it from a configuration, and
            ``fairseq_generator`` makes a generator from the arguments of fairseq's constructor.
    """

    def __init__(self, setup: DecodingSetup):
        self.setup = setup

    @property
    def can_merge(self) -> bool:
        """True if waiting sentences may join a running batch."""
        return not self.setup.merge_obstacle

    def summary(self) -> str:
        """A sentence about the batches decoded so far, for the user; empty for none."""
        speakers: list[Search | Observer] = [self.setup.search, *self.setup.observers]
        return " ".join(filter(None, (returned(one, "summary", one.summary(), str) for one in speakers)))

    @torch.inference_mode()
    def generate(
        self,
        sample: Batch,
        prefix_tokens: Tensor | None = None,
        constraints: Sequence[Phrases] | None = None,
        streamer: Streamer | None = None,
    ) -> list[list[Hypothesis]]:
        """Decode a batch.

        Args:
            sample: the batch; only its sources are read.
            prefix_tokens: ``(sentences, P)`` int64 tokens that each output begins with, padded on the right.
            constraints: for each sentence the phrases (token ids) that its outputs must contain; the search strategy
                must support constraints.
            streamer: receives tokens as they are generated; needs one beam, or a strategy with independent beams.

        Returns:
            The hypotheses of each sentence in the order of the batch, best first. There are ``beam_size`` of them, or
            fewer if fewer outputs are possible or satisfy the constraints.

        Raises:
            ConfigError: the search strategy does not support the beam size or the constraints.
            DecodingError: a model returned NaN or infinity.
        """
        setup = self.setup
        if sample.num_sentences == 0:
            return []
        independent = setup.search.continues_each_beam and constraints is None
        if streamer is not None and setup.beam_size > 1 and not independent:
            raise ConfigError(
                f"beam search can replace tokens that it has generated, so that beam_size={setup.beam_size} cannot "
                "be streamed; use beam_size=1 or sampling"
            )
        if constraints is not None:
            check_phrases(constraints, sample.num_sentences, setup.vocab_size)
        read = pad_to_tiles(sample, setup.ensemble, setup.pad) if setup.bit_exact else sample
        session_class = setup.search.session_class or Session
        with setup.ensemble.evaluating(), setup.switched():
            session = session_class(setup, DecodingRequest(read, prefix_tokens, constraints, streamer))
            results: list[list[Hypothesis]] = session.run()
        if not setup.bit_exact:
            return results
        model = setup.ensemble.models[0]
        return [[unpad_attention(each, sample, model) for each in hypotheses] for hypotheses in results]

    @torch.inference_mode()
    def generate_continuously(
        self, waiting: Callable[[int, int], Batch | None]
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Decode any number of sentences by continuous batching: waiting sentences replace those that are done.

        The batch stays full, whereas a separate batch shrinks after its shortest output. If ``can_merge`` is false,
        each batch is decoded separately.

        Args:
            waiting: called with the number of sentences in the running batch and the width of their sources; returns a
                batch of sentences that join it, or ``None`` if no more fit or none are left.

        Yields:
            The number of a sentence in its batch's ``ids``, and its hypotheses, in the order in which they are done.
        """
        with self.setup.ensemble.evaluating():
            if self.can_merge:
                found = decode_continuously(self.setup, waiting)
                while True:
                    with self.setup.switched():  # only while decoding, not while the caller uses the result
                        result = next(found, None)
                    if result is None:
                        return
                    yield result
            while (batch := waiting(0, 0)) is not None:
                yield from zip(batch.ids.tolist(), self.generate(batch), strict=True)
