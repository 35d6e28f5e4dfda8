"""The generator: decodes batches with one model or an ensemble. It is the entry point of decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from seqgen.core.component import Phrases
from seqgen.core.contract import check_returned
from seqgen.core.observers import Observer
from seqgen.core.search import Search
from seqgen.core.session import Session
from seqgen.core.setup import DecodingRequest, DecodingSetup
from seqgen.core.structures import Batch, Hypothesis, Source


class SequenceGenerator:
    """Decodes batches of sentences.

    Args:
        setup: the components and options of decoding.
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
        return " ".join(filter(None, (check_returned(one, "summary", one.summary(), str) for one in speakers)))

    @torch.inference_mode()
    def generate(
        self,
        sample: Batch | Source,
        prefix_tokens: Tensor | None = None,
        constraints: Sequence[Phrases] | None = None,
        observers: Sequence[Observer] = (),
    ) -> list[list[Hypothesis]]:
        """Decode a batch.

        Args:
            sample: the batch, of which only the sources are read; or the source of one model.
            prefix_tokens: ``(sentences, P)`` int64 tokens that each output begins with, padded on the right.
            constraints: for each sentence the phrases (token ids) that its outputs must contain; the search strategy
                must support constraints.
            observers: observers of this call, besides those of the setup.

        Returns:
            The hypotheses of each sentence in the order of the batch, best first. There are ``beam_size`` of them, or
            fewer if fewer outputs are possible or satisfy the constraints.

        Raises:
            ConfigError: the search strategy does not support the beam size or the constraints.
            DecodingError: a model returned NaN or infinity.
        """
        setup = self.setup if not observers else replace(self.setup, observers=[*self.setup.observers, *observers])
        if isinstance(sample, Source):
            sample = Batch(torch.arange(len(sample.src_tokens)), sample)
        read = sample
        if sample.num_sentences == 0:
            return []
        if constraints is not None:
            setup.search.check_constraints(constraints, sample.num_sentences, setup.vocab_size)
        for stage in setup.stages:
            read = stage.before(read)
        session_class = setup.search.session_class or Session
        with setup.ensemble.evaluating(), setup.active():
            session = session_class(setup, DecodingRequest(read, prefix_tokens, constraints))
            results: list[list[Hypothesis]] = session.run()
        for stage in setup.stages:
            results = [[stage.after(each, sample) for each in hypotheses] for hypotheses in results]
        return results
