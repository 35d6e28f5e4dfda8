"""A member of an ensemble: its role, and its encoder output and decoding state while a batch is decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, TypeAlias

import torch
from torch import Tensor

from seqgen.core.component import ATTENTION, HIDDEN_STATES, LAYER_LOGITS
from seqgen.core.contract import check_returned, check_returned_tensor
from seqgen.core.decoder import Decoder, IncrementalDecoder
from seqgen.core.encoder import Encoder, inputs_of
from seqgen.core.errors import ConfigError
from seqgen.core.incremental_state import IncrementalState, rows_of_sentences
from seqgen.core.model import EncoderDecoderModel
from seqgen.core.structures import DecoderOut, EncoderOut, Source, map_tensors, with_forked_attributes

INPUT, EMPTY = "input", "empty"
"""Sources of a member: the input line, or a source of end-of-sentence only."""


@dataclass(frozen=True)
class FastPaths:
    """Switches of optimizations, none of which changes a result.

    Attributes:
        use_cache: decoders keep the state of earlier positions.
        beam_indirection: ``"on"`` or ``"off"`` for the indirection table of self-attention; ``"auto"`` while it is
            faster.
        share_encoder_output: the encoder output has one row for each sentence instead of one for each beam.
        skip_log_softmax: the log-softmax stays pending where that is possible; see ``Scores``.
        two_stage_candidates: the best candidates are searched in two stages; see ``best_continuations``.
        narrowed_scores: the search may get the scores of the allowed tokens alone; see ``LogitsProcessor.defer``.
        lazy_compaction: sentences that are done stay in the batch until enough of them are.
        continuous_batching: waiting sentences join a running batch.
    """

    use_cache: bool = True
    beam_indirection: str = "auto"
    share_encoder_output: bool = True
    skip_log_softmax: bool = True
    two_stage_candidates: bool = True
    narrowed_scores: bool = True
    lazy_compaction: bool = True
    continuous_batching: bool = True


@dataclass(frozen=True)
class MemberSpec:
    """A model and its role in an ensemble.

    Attributes:
        model: the model.
        source: what it reads: ``"input"``, ``"empty"``, ``"fieldN"`` or a registered member source.
        companion: whether it uses the source of another member with the same model, as the unconditional half of
            classifier-free guidance does. Any other member has a source in the batch.
    """

    setting: ClassVar[str] = "member_sources"
    """The key whose value can be an object of this class."""

    model: EncoderDecoderModel
    source: str = INPUT
    companion: bool = False

    def source_of(self, source: Source) -> Source:
        """The source of this member, given the source of its model in the batch."""
        return self.model.empty_source(source) if self.source == EMPTY else source


ModelOrMember: TypeAlias = EncoderDecoderModel | MemberSpec
"""A model, or a model with a role in an ensemble."""


@dataclass(frozen=True)
class MemberOutput:
    """The output of a member for the newest token of each row; ``run_decoder`` returns ``(rows, T, ...)``.

    Attributes:
        logits: ``(rows, V)``.
        attention: ``(rows, S)`` attention over the source; ``None`` if not asked for.
        features: ``(rows, C)`` last hidden features; ``None`` if not asked for.
        layers: ``(rows, C)`` output of each decoder layer; ``None`` if not asked for.
    """

    logits: Tensor
    attention: Tensor | None = None
    features: Tensor | None = None
    layers: list[Tensor] | None = None

    def at(self, position: int) -> MemberOutput:
        """The output at one of ``T`` positions."""
        newest: MemberOutput = map_tensors(self, lambda tensor: tensor[:, position])
        return newest

    def select(self, rows: Tensor) -> MemberOutput:
        """The output of some rows, ``(kept,)`` int64."""
        selected: MemberOutput = map_tensors(self, lambda tensor: tensor.index_select(0, rows))
        return selected


def encode(encoder: Encoder, source: Source) -> EncoderOut:
    """Run an encoder, unless the source has its output already.

    Args:
        encoder: the encoder of a member.
        source: ``(sentences, S)``.

    Returns:
        The output, which must not be changed in place: several members may read it.
    """
    if source.encoder_out is not None:
        return source.encoder_out
    output = encoder(source.src_tokens, source.src_lengths, **inputs_of(encoder, source))
    output = check_returned(encoder, "forward", output, EncoderOut)
    rows, on = len(source.src_tokens), source.src_tokens.device
    features, mask = check_returned(encoder, "forward", output.encoder_out, Tensor), output.encoder_padding_mask
    check_returned_tensor(encoder, "forward", features, (rows, *features.shape[1:]), features.dtype, on, "encoder_out ")
    if mask is not None:
        shape = rows, features.size(1)
        check_returned_tensor(encoder, "forward", mask, shape, torch.bool, on, "encoder_padding_mask ")
    return output


def run_decoder(
    decoder: Any,
    tokens: Tensor,
    encoder_out: EncoderOut,
    needs: Set[str] = frozenset(),
    output_layer: Callable[[Tensor], Tensor] | None = None,
    **state: IncrementalState,
) -> MemberOutput:
    """Run a decoder.

    Args:
        decoder: the decoder of a member.
        tokens: ``(rows, L)`` int64, a start token and the tokens after it.
        encoder_out: what the encoder returned.
        needs: what components need, see ``Component.needs``.
        output_layer: used instead of the decoder's output layer; see ``Decoder.output_columns``.
        state: the ``incremental_state``, for a decoder that has one.

    Returns:
        The output, ``(rows, T, ...)``, for the ``T`` positions that are computed.
    """
    need_attention = ATTENTION in needs
    with record_layers(decoder) if LAYER_LOGITS in needs else nullcontext() as layers:
        if HIDDEN_STATES not in needs and output_layer is None:
            found = decoder(tokens, encoder_out, need_attention=need_attention, **state)
            out = found if type(found) is DecoderOut else check_returned(decoder, "forward", found, DecoderOut)
            return MemberOutput(out.logits, out.attention, None, layers)
        found = decoder.extract_features(tokens, encoder_out, need_attention=need_attention, **state)
        features, attention = check_returned(decoder, "extract_features", found, tuple)
        return MemberOutput((output_layer or decoder.output_layer)(features), attention, features, layers)


class Member:
    """One model that decodes a batch: its encoder output and its incremental state.

    Args:
        model: the model.
        source: the sentences as this model reads them.
        beam_size: rows of each sentence.
        start_token: the start token of this model; ``None`` if the generated tokens already begin with it.
        fast: switches of optimizations.

    Attributes:
        encoder_out: the encoder's output, with a row for each sentence or for each of its beams.
        shares_encoder_output: whether ``encoder_out`` has one row for each sentence.
        source: the sentences when the batch began, which another reader of them need not encode; or ``None``.
        state: the incremental state of the decoder; ``None`` for decoding without a state.
        output_columns: if set, it takes the place of the decoder's output layer; see ``Decoder.output_columns``.
    """

    def __init__(
        self, model: EncoderDecoderModel, source: Source, beam_size: int, start_token: int | None, fast: FastPaths
    ):
        self.model = model
        self.source: Any = source
        self.beam_size = beam_size
        self.start_token = start_token
        sentences, device = source.src_tokens.size(0), source.src_tokens.device
        decoder = model.decoder
        with self.computing():
            self.encoder_out: Any = encode(model.encoder, source)  # a model may have a subclass of EncoderOut
        use_cache, shares = fast.use_cache, getattr(decoder, "shares_encoder_output", False)
        self.shares_encoder_output = use_cache and fast.share_encoder_output and shares
        if not self.shares_encoder_output:
            rows = torch.arange(sentences, device=device).repeat_interleave(beam_size)
            self.encoder_out = model.encoder.reorder_encoder_out(self.encoder_out, rows)
        self.output_columns: Callable[[Tensor], Tensor] | None = None
        self.state: IncrementalState | None = None
        if use_cache and isinstance(decoder, IncrementalDecoder):
            decoder.set_beam_size(beam_size)
            self.state = decoder.new_incremental_state(sentences, beam_size, device)
            self.state.beam_indirection = {"auto": None, "on": True, "off": False}[fast.beam_indirection]

    def sentence_encoder_out(self) -> Any:
        """The encoder's output with a row for each live sentence, which must not be changed in place."""
        if self.shares_encoder_output:
            return self.encoder_out
        rows = torch.arange(0, self.encoder_out.num_rows, self.beam_size, device=self.encoder_out.encoder_out.device)
        return self.model.encoder.reorder_encoder_out(self.encoder_out, rows)

    def computing(self) -> AbstractContextManager[object]:
        """The context in which the encoder and the decoder run; a subclass can set up what lasts for the batch."""
        return nullcontext()

    def finish(self, notes: set[str]) -> None:
        """Called when all sentences are done; adds what the user should know about this decode to ``notes``."""

    def next_output(self, tokens: Tensor, needs: Set[str] = frozenset()) -> MemberOutput:
        """Score the token after the last one.

        Args:
            tokens: ``(rows, 1 + step)`` int64, a start token and the generated tokens.
            needs: what components need, see ``Component.needs``.
        """
        if self.start_token is not None:
            tokens = tokens.clone()
            tokens[:, 0] = self.start_token
        out = self.compute(tokens, needs)
        logits = self.model.adjust_logits_during_generation(out.logits, tokens.size(1) - 1)
        return out if logits is out.logits else replace(out, logits=logits)

    def compute(self, tokens: Tensor, needs: Set[str]) -> MemberOutput:
        """Run the decoder; see ``next_output``."""
        state = {} if self.state is None else {"incremental_state": self.state}
        with self.computing():
            return run_decoder(self.model.decoder, tokens, self.encoder_out, needs, self.output_columns, **state).at(-1)

    def reorder_beams(self, parents: Tensor) -> None:
        """Continue other beams of the same sentences.

        The encoder output does not change: it is the same for all rows of a sentence.

        Args:
            parents: ``(sentences, beam)`` int64.
        """
        if self.state is not None:
            self.model.decoder.reorder_beams(self.state, parents)  # type: ignore[operator]

    def fork(self) -> Self:
        """A copy for ``Session.fork``; ``select_sentences``, which must follow, copies what steps change in place."""
        return with_forked_attributes(self)

    def select_sentences(self, keep: Tensor) -> None:
        """Keep only the sentences ``keep``, ``(kept,)`` int64."""
        rows = keep if self.shares_encoder_output else rows_of_sentences(keep, self.beam_size)
        self.encoder_out = self.model.encoder.reorder_encoder_out(self.encoder_out, rows)
        if self.state is not None:
            self.model.decoder.select_sentences(self.state, keep)  # type: ignore[operator]

    def merge(self, other: Member) -> None:
        """Append the sentences of another batch, decoded by the same model."""
        self.encoder_out = self.model.encoder.merge_encoder_outs(self.encoder_out, other.encoder_out)
        self.state = self.model.decoder.merge(self.state, other.state)  # type: ignore[operator]

    def crop(self, positions: int) -> None:
        """Drop the first positions, which no sentence sees."""
        self.model.decoder.crop(self.state, positions)  # type: ignore[operator]


def has_features(decoder: Decoder) -> bool:
    """True if a decoder implements ``extract_features``."""
    return type(decoder).extract_features not in (Decoder.extract_features, IncrementalDecoder.extract_features)


def check_features(models: Sequence[EncoderDecoderModel], what: str) -> None:
    """Refuse models whose decoders do not return hidden features.

    Args:
        models: the models.
        what: what needs the features, for the message.

    Raises:
        ConfigError: a decoder implements ``forward`` without ``extract_features``.
    """
    for model in models:
        if not has_features(model.decoder):
            raise ConfigError(
                f"{what} needs hidden features, but {type(model.decoder).__name__} has no extract_features; implement "
                f"extract_features and output_layer in place of forward, or remove {what}"
            )


@contextmanager
def record_layers(decoder: Any) -> Iterator[list[Tensor]]:
    """Record what each layer of a decoder returns, ``(rows, positions, C)``."""
    found: list[Tensor] = []

    def record(layer: Any, arguments: Any, output: Any) -> None:
        found.append(output[0] if isinstance(output, tuple) else output)

    handles = [layer.register_forward_hook(record) for layer in decoder.layers]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def check_layers(models: Sequence[EncoderDecoderModel], what: str) -> None:
    """Refuse ensembles, and a model whose decoder has no early exits.

    Args:
        models: the models of the members.
        what: what needs the logits of the layers, for the message.

    Raises:
        ConfigError: there are several models, or the decoder has no ``early_exit``.
    """
    if len(models) > 1:
        raise ConfigError(f"{what} needs the layers of a single model, not of an ensemble of {len(models)}; give one")
    decoder = type(models[0].decoder)
    if decoder.early_exit is Decoder.early_exit:  # type: ignore[union-attr]
        raise ConfigError(
            f"{what} needs the logits of each layer, but {decoder.__name__} has no early_exit; implement it, or remove "
            f"{what}"
        )
