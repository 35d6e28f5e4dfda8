"""One model or several, seen by the search as a single source of next-token probabilities."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from seqgen.decoder import IncrementalDecoder
from seqgen.errors import ConfigError
from seqgen.incremental_state import IncrementalState, rows_of_sentences
from seqgen.model import EncoderDecoderModel
from seqgen.modules.cached_weight import CachedWeight
from seqgen.structures import Batch, DecoderOut, Source


class Member:
    """One model in the middle of decoding a batch: its encoder output and its decoding state.

    Args:
        model: the model.
        source: the sentences as this model reads them.
        beam_size: rows of each sentence.
        start_symbol: what this model's decoder input begins with; ``None`` where the tokens begin with it anyway.
        use_cache: whether decoding goes on from a state; if not, every step computes all positions anew.
        beam_table: see ``IncrementalState``.
    """

    def __init__(
        self,
        model: EncoderDecoderModel,
        source: Source,
        beam_size: int,
        start_symbol: int | None,
        use_cache: bool = True,
        beam_table: bool | None = None,
    ):
        self.model = model
        self.beam_size = beam_size
        self.start_symbol = start_symbol
        sentences, device = source.src_tokens.size(0), source.src_tokens.device
        decoder = model.decoder
        self.encoder_out = model.encoder(source.src_tokens, source.src_lengths)
        self.shares_encoder_output = use_cache and getattr(decoder, "shares_encoder_output", False)
        if not self.shares_encoder_output:
            rows = torch.arange(sentences, device=device).repeat_interleave(beam_size)
            self.encoder_out = model.encoder.reorder_encoder_out(self.encoder_out, rows)
        self.state: IncrementalState | None = None
        if use_cache and isinstance(decoder, IncrementalDecoder):
            decoder.set_beam_size(beam_size)
            self.state = decoder.new_incremental_state(sentences, beam_size, device)
            self.state.beam_table = beam_table

    def next_logits(self, tokens: Tensor, need_attention: bool) -> DecoderOut:
        """Score the token after the last one.

        Args:
            tokens: ``(rows, 1 + step)`` int64, after a start symbol.
            need_attention: whether the attention weights are wanted.

        Returns:
            Logits ``(rows, V)``, and attention ``(rows, S)`` where wanted.
        """
        if self.start_symbol is not None:
            tokens = tokens.clone()
            tokens[:, 0] = self.start_symbol
        if self.state is not None:
            out = self.model.decoder(tokens, self.encoder_out, self.state, need_attention=need_attention)
        else:
            out = self.model.decoder(tokens, self.encoder_out, need_attention=need_attention)
        logits = self.model.adjust_logits_during_generation(out.logits[:, -1], tokens.size(1) - 1)
        return DecoderOut(logits, None if out.attention is None else out.attention[:, -1])

    def reorder_beams(self, parents: Tensor) -> None:
        """Continue from other beams of the same sentences.

        The encoder output stays: the rows of one sentence all hold the same.

        Args:
            parents: ``(sentences, beam)`` int64.
        """
        if self.state is not None:
            self.model.decoder.reorder_beams(self.state, parents)  # type: ignore[operator]

    def select_sentences(self, keep: Tensor) -> None:
        """Forget all sentences but those in ``keep``, ``(kept,)`` int64."""
        rows = keep if self.shares_encoder_output else rows_of_sentences(keep, self.beam_size)
        self.encoder_out = self.model.encoder.reorder_encoder_out(self.encoder_out, rows)
        if self.state is not None:
            self.model.decoder.select_sentences(self.state, keep)  # type: ignore[operator]

    def merge(self, other: Member) -> None:
        """Take in the sentences of another batch that this model is decoding."""
        decoder, encoder = self.model.decoder, self.model.encoder
        assert isinstance(decoder, IncrementalDecoder)
        assert self.state is not None
        assert other.state is not None
        self.encoder_out = encoder.merge_encoder_outs(self.encoder_out, other.encoder_out)
        self.state = decoder.merge(self.state, other.state)

    def trim(self, positions: int) -> None:
        """Forget the first positions, which no sentence sees."""
        self.model.decoder.trim(self.state, positions)  # type: ignore[operator]


class Ensemble:
    """Averages the next-token distributions of models that share the target vocabulary.

    Args:
        models: one or more models, of any architectures.
        average: ``"probability"`` takes the weighted arithmetic mean of probabilities, ``"log"`` the weighted geometric
            mean, normalized.
        weights: how much each model counts; scaled to sum to one. Empty for equal weights.
    """

    def __init__(
        self, models: Sequence[EncoderDecoderModel], average: str = "probability", weights: Sequence[float] = ()
    ):
        if not models:
            raise ConfigError("an ensemble needs at least one model")
        if weights and (len(weights) != len(models) or sum(weights) <= 0):
            raise ConfigError(
                f"generation.ensemble_weights has {len(weights)} weights that sum to {sum(weights):g}, but there are "
                f"{len(models)} models; give one weight for each, not all zero"
            )
        self.models = list(models)
        self.average = average
        total = sum(weights) if weights else len(models)
        self.weights = [weight / total for weight in (weights or [1.0] * len(models))]

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Put every model into evaluation mode, and afterwards back into the mode that it was in.

        A model that is in evaluation already keeps what it has made of its weights, unless they have changed.
        """
        training = [model for model in self.models if model.training]
        for model in self.models:
            if any(module.training for module in model.modules()):
                model.eval()
            for module in model.modules():
                if isinstance(module, CachedWeight):
                    module.refresh()
        try:
            yield
        finally:
            for model in training:
                model.train()

    def sources(self, sample: Batch) -> list[Source]:
        """The source of a batch as each member reads it."""
        if sample.member_sources is None:
            return [sample.source] * len(self.models)
        if len(sample.member_sources) != len(self.models):
            raise ValueError(f"the batch has {len(sample.member_sources)} sources for {len(self.models)} models")
        return sample.member_sources

    def read_alike(self, sources: Sequence[Source]) -> list[bool]:
        """Which members read the same pieces of the source as the first, so that their attention can be averaged."""
        return [torch.equal(source.src_tokens, sources[0].src_tokens) for source in sources]

    def combine(self, lprobs: Sequence[Tensor]) -> Tensor:
        """Average log-probabilities.

        Args:
            lprobs: ``(..., V)`` from each member, in nats.

        Returns:
            ``(..., V)`` normalized log-probabilities.
        """
        if len(lprobs) == 1:
            return lprobs[0]
        weighted = [(weight, scores) for weight, scores in zip(self.weights, lprobs, strict=True) if weight > 0]
        if self.average == "log":
            mean = weighted[0][1] * weighted[0][0]
            for weight, scores in weighted[1:]:
                mean = mean.add(scores, alpha=weight)
            return mean.log_softmax(-1)
        total = weighted[0][1] + math.log(weighted[0][0])
        for weight, scores in weighted[1:]:
            total = torch.logaddexp(total, scores + math.log(weight))
        return total

    def combine_attention(self, attention: Sequence[Tensor | None]) -> Tensor | None:
        """Average attention weights over the members that have some and that read the source alike.

        Args:
            attention: ``(..., S)`` from each member, or ``None``.
        """
        given = [
            (weight, weights)
            for weight, weights in zip(self.weights, attention, strict=True)
            if weights is not None and weights.shape == next(a for a in attention if a is not None).shape
        ]
        if not given:
            return None
        total = sum(weight for weight, _ in given) or 1.0
        return torch.stack([weights * (weight / total) for weight, weights in given]).sum(0)
