"""A model of a component's own, such as a critic, that reads the partial outputs of a decode."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from seqgen.core.candidates import Candidates
from seqgen.core.component import HIDDEN_STATES, BatchInfo, Component
from seqgen.core.context import StepContext
from seqgen.core.decoder import IncrementalDecoder
from seqgen.core.errors import ConfigError, DecodingError
from seqgen.core.incremental_state import IncrementalState
from seqgen.core.member import EMPTY, INPUT, FastPaths, Member, MemberSpec, ModelOrMember, check_features, run_decoder
from seqgen.core.structures import Source
from seqgen.modules.kv_cache.indirection import IndirectionTable, widened
from seqgen.modules.kv_cache.protocol import KeyValueCache


class OwnMember(Component):
    """A model that a component reads while a batch is decoded; its encoder output and state follow the beams.

    The component has it among its ``parts``, see ``Composite``. It reads the source and the tokens of the first member,
    and its vocabularies are therefore the same. A row is a beam, as in the component's context. If a member that
    decodes has the same model and source, its encoder output is used.

    Args:
        model: the model, or a ``MemberSpec`` with its source, ``"input"`` or ``"empty"``.
        use_cache: whether its decoder keeps the state of earlier positions.

    Raises:
        ConfigError: the decoder has no ``extract_features``, or the source is another one.
    """

    beam_state = ("_tokens",)

    def __init__(self, model: ModelOrMember, use_cache: bool = True):
        self.spec = model if isinstance(model, MemberSpec) else MemberSpec(model)
        self.use_cache = use_cache
        self.can_merge = use_cache and not getattr(self.spec.model.decoder, "merge_obstacle", "")
        self._member: Any = None
        self._features: Tensor | None = None
        self._tokens = torch.zeros(0, 0, 0, dtype=torch.int64)
        """``(sentences, beam, step)``, the tokens of each beam."""
        check_features([self.spec.model], type(self).__name__)
        if self.spec.source not in (INPUT, EMPTY):
            raise ConfigError(f"{type(self).__name__} reads the source {INPUT} or {EMPTY}, not {self.spec.source!r}")

    @property
    def parts(self) -> list[Any]:
        """The decoder, which a note names if it does not support continuous batching."""
        return [self.spec.model.decoder]

    def begin(self, batch: BatchInfo) -> Self:
        """Encode the sources of the batch, unless a member has done so."""
        begun, model = super().begin(batch), self.spec.model
        if batch.src_tokens is None:
            raise ConfigError(f"{type(self).__name__} needs the ids of the sources, which this decode does not have")
        source = self.spec.source_of(_padded(batch.src_tokens, batch.src_padding, model.left_pad_source))
        for one in batch.members:
            if one.model is model and one.source and torch.equal(one.source.src_tokens, source.src_tokens):
                source = replace(source, encoder_out=one.sentence_encoder_out())
        fast = FastPaths(use_cache=self.use_cache)
        begun._member = Member(model, source, batch.beam_size, model.start_token(batch.eos), fast)
        begun._features = None
        begun._tokens = batch.ids.new_zeros(batch.num_sentences, batch.beam_size, 0)
        return begun

    def features(self, context: StepContext) -> Tensor:
        """The last hidden features at the newest token of each row, ``(rows, C)``; computed once in each step."""
        member = self._member
        if context.rows_per_sentence != member.beam_size:
            raise DecodingError(
                f"{type(self).__name__} reads beams; in the context of candidates, call peek from a processor instead"
            )
        if context.step > self._tokens.size(2):  # a draft model looks ahead
            return self._ahead(context.tokens, 1)
        if self._features is None:
            self._features = self._read(context.tokens, member.encoder_out, member.state)
        return self._features

    def peek(self, context: StepContext, tokens: Tensor) -> Tensor:
        """The last hidden features if rows continued with candidates.

        All candidates read the keys and values of their row, which are not copied: each adds its own.

        Args:
            context: the step context.
            tokens: ``(rows, k)`` int64 candidates of each row.

        Returns:
            ``(rows, k, C)``.
        """
        self.features(context)  # the state has then seen all tokens but the candidates
        count = tokens.size(1)
        continued = torch.cat([context.tokens.repeat_interleave(count, 0), tokens.reshape(-1, 1)], dim=1)
        features = self._ahead(continued, count)
        return features.view(-1, count, features.size(-1))

    def _ahead(self, tokens: Tensor, copies: int) -> Tensor:
        """Read the next tokens of ``copies`` rows in place of each row; the state stays as it is."""
        member, encoder_out, state = self._member, self._member.encoder_out, self._member.state
        if not member.shares_encoder_output:
            rows = torch.arange(len(tokens), device=tokens.device) // copies
            encoder_out = member.model.encoder.reorder_encoder_out(encoder_out, rows)
        return self._read(
            tokens, encoder_out, None if state is None else widened_state(member.model.decoder, state, copies)
        )

    def lprobs(self, features: Tensor) -> Tensor:
        """The log-probabilities of the token after features ``(..., C)``: ``(..., V)``."""
        decoder = self.spec.model.decoder
        return decoder.get_normalized_probs(decoder.output_layer(features))

    def _read(self, tokens: Tensor, encoder_out: Any, state: IncrementalState | None) -> Tensor:
        given: dict[str, Any] = {} if state is None else {"incremental_state": state}
        inputs = F.pad(tokens, (1, 0), value=self._member.start_token)
        found = run_decoder(self.spec.model.decoder, inputs, encoder_out, {HIDDEN_STATES}, _unchanged, **given)
        return found.at(-1).logits

    def advance(self, active: Candidates) -> None:
        """See ``Component.advance``."""
        super().advance(active)
        self._tokens = torch.cat([self._tokens, active.tokens.unsqueeze(2)], dim=2)
        self._member.reorder_beams(active.beams)
        self._features = None

    def select_sentences(self, keep: Tensor) -> None:
        """See ``Component.select_sentences``."""
        super().select_sentences(keep)
        self._member.select_sentences(keep)
        if self._features is not None:
            of_sentences = self._features.view(-1, self._member.beam_size, self._features.size(-1))
            self._features = of_sentences.index_select(0, keep).flatten(0, 1)

    def merge(self, other: Self) -> None:
        """See ``Component.merge``; states read before what they have not seen, except the newest tokens."""
        length = max(self._tokens.size(2), other._tokens.size(2))
        for one in (self, other):
            member, tokens = one._member, one._tokens[..., :-1].flatten(0, 1)
            if member.model.decoder.positions_seen(member.state) <= tokens.size(1):
                one._read(tokens, member.encoder_out, member.state)
            one._tokens = F.pad(one._tokens, (length - one._tokens.size(2), 0))
        super().merge(other)
        self._member.merge(other._member)
        unseen = int(self._member.state.start_offsets.min())
        self._member.crop(unseen)
        self._tokens = self._tokens[..., unseen:]

    def fork(self) -> Self:
        """See ``Component.fork``."""
        other = super().fork()
        other._member = self._member.fork()
        return other


def widened_state(decoder: IncrementalDecoder, state: IncrementalState, copies: int) -> IncrementalState:
    """A state in which each row of another one is read with several next tokens, one step and no more.

    Caches of attention read the keys and values of ``state`` and write behind them, where nothing is stored yet.

    Args:
        decoder: the decoder.
        state: its state, which does not change.
        copies: rows in place of each row, next to each other.
    """
    wide = state.fork()
    wide.beam_size *= copies
    rows = torch.arange(len(state.start_offsets) * state.beam_size, device=state.start_offsets.device)
    rows = rows.repeat_interleave(copies)
    if not decoder.moves_rows_by_modules:
        decoder.reorder_incremental_state(wide, rows)
        return wide
    tables: dict[int, IndirectionTable] = {}
    for key, values in wide.items():
        if all(isinstance(value, KeyValueCache) for value in values.values()):
            wide[key] = {name: widened(cache, copies, tables) for name, cache in values.items()}
        else:
            wide[key] = key.owner.reorder_state(values, rows)
    return wide


def _padded(tokens: Tensor, padding: Tensor | None, left: bool) -> Source:
    """A source with its padding on one side, ``left`` or right."""
    if padding is None:
        return Source(tokens, torch.full_like(tokens[:, 0], tokens.size(1)))
    order = (padding ^ left).to(torch.int8).argsort(dim=1, stable=True)
    return Source(tokens.gather(1, order), (~padding).sum(1))


def _unchanged(features: Tensor) -> Tensor:
    return features
