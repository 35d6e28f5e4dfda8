"""Base classes of decoder-only language models, which decode like all other models: the prompt is their source.

The decoder's input is the prompt, padded on the left, followed by the generated tokens; the first step computes the
whole prompt. ``prev_output_tokens`` has a start token in its first column, as for every decoder. A language model does
not read that column: the prompt takes its place. Two rows, with prompts ``[e a b]`` and ``[e c]`` (e: end-of-sentence,
p: padding) and the generated tokens ``x`` and ``y``::

    src_tokens     e a b      prev_output_tokens   s x      decoder input     e a b x      start offsets  0
                   p e c                           s y                        p e c y                     1

The column of ``b`` and ``c`` predicts ``x`` and ``y``. Without a prompt the source is the model's start token alone.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from seqgen.core.contract import Flags, is_built_in
from seqgen.core.decoder import IncrementalDecoder, PositionCounter
from seqgen.core.encoder import Encoder
from seqgen.core.incremental_state import IncrementalState, ModuleState, StateDict, StatefulModule
from seqgen.core.model import EncoderDecoderModel
from seqgen.core.structures import EncoderOut, Source
from seqgen.modules.masks import QueryPositions
from seqgen.modules.multihead_attention import MultiheadAttention


class PromptEncoder(Encoder):
    """Passes the prompt to the decoder: ``encoder_out`` contains token ids, not features.

    Args:
        max_positions: longest prompt in tokens.
    """

    def __init__(self, max_positions: int):
        super().__init__()
        self._max_positions = max_positions

    def forward(self, src_tokens: Tensor, src_lengths: Tensor) -> EncoderOut:
        """Return the prompt.

        Args:
            src_tokens: ``(N, P)`` int64, padded on the left.
            src_lengths: ``(N,)`` int64, at least 1 each.

        Returns:
            Token ids ``(N, P)``, and the padding mask.
        """
        return EncoderOut(src_tokens, Source(src_tokens, src_lengths).padding(left=True))

    def max_positions(self) -> int:
        """The longest prompt, in tokens."""
        return self._max_positions


class ColumnCounter(PositionCounter):
    """The columns of the decoder's input that the state has seen, prompts and their padding included.

    Its module state has the number of columns, and for each row the start offset: how many columns on the left are
    padding, or positions from before the sentence joined the batch.
    """

    reorder_state_beams = StatefulModule.reorder_state_beams  # start offsets follow their rows

    def start_offsets(self, incremental_state: StateDict) -> Tensor | None:
        """``(N,)`` int64, the first column of each row; ``None`` if that is 0 for all of them."""
        module_state = self.get_state(incremental_state) or {"padded": False}
        return module_state["start_offsets"] if module_state["padded"] else None

    def begin(self, incremental_state: StateDict | None, start_offsets: Tensor, padded: bool) -> None:
        """Store the start offsets ``(N,)`` of the rows, before the first step; ``padded``: whether any is above 0."""
        self.set_state(incremental_state, {"positions": 0, "start_offsets": start_offsets, "padded": padded})

    def crop_state(self, module_state: ModuleState, positions: int) -> ModuleState:
        """Remove columns on the left."""
        start_offsets = module_state["start_offsets"] - positions
        return {**self.roll_back_state(module_state, positions), "start_offsets": start_offsets}

    def merge_states(self, module_state: ModuleState, other: ModuleState) -> ModuleState:
        """Append rows, aligned at the last column: of 5 and 2 columns, the offsets of the second increase by 3."""
        merged = super().merge_states(module_state, other)
        begins = [one["start_offsets"] + merged["positions"] - one["positions"] for one in (module_state, other)]
        start_offsets = torch.cat(begins)
        return {**merged, "start_offsets": start_offsets, "padded": bool(start_offsets.any())}


class LanguageModelDecoder(IncrementalDecoder):
    """A decoder without encoder-decoder attention; a subclass implements ``transform`` and ``output_layer``."""

    flags: ClassVar[Flags] = {"can_roll_back": ("transform",), "can_merge": ("transform",)}

    shares_encoder_output = True
    reads_history = False
    can_roll_back = True
    can_merge = True

    def __init__(self) -> None:
        super().__init__()
        self.column_counter = ColumnCounter()

    def transform(self, tokens: Tensor, queries: QueryPositions, incremental_state: StateDict | None = None) -> Tensor:
        """Compute the last hidden features of new columns.

        Args:
            tokens: ``(N, new)`` int64 token ids of the new columns.
            queries: their positions and the mask of self-attention: each row starts at its start offset.
            incremental_state: keys and values of earlier columns, updated in place; ``None`` without a cache.

        Returns:
            ``(N, new, C)``; undefined at padding.
        """
        raise NotImplementedError

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: StateDict | None = None,
        need_attention: bool = False,
        segments: Any = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the features of the new positions, and of the prompt in the first step; there is no attention."""
        seen = self.positions_seen(incremental_state)
        tokens = prev_output_tokens[:, seen:]
        new = tokens.size(1)
        if seen == 0:
            prompts, mask = encoder_out.encoder_out, encoder_out.encoder_padding_mask
            start_offsets = prompts.new_zeros(prompts.size(0)) if mask is None else mask.sum(1)
            beam = tokens.size(0) // prompts.size(0)
            # with one column, the beams of a sentence differ in nothing, so that one row of it is enough
            width = 1 if new == 1 and self._beams_share(incremental_state) else beam
            # the prompt takes the place of the start token
            tokens = torch.cat([prompts.repeat_interleave(width, 0), tokens[:: beam // width, 1:]], dim=1)
            offsets = None if mask is None else start_offsets.repeat_interleave(width)
            self.column_counter.begin(incremental_state, start_offsets.repeat_interleave(beam), mask is not None)
        else:
            assert incremental_state is not None
            offsets = self.column_counter.start_offsets(incremental_state)
        columns = self.column_counter.count(incremental_state)
        queries = QueryPositions(columns, tokens.size(1), tokens.device, True, offsets)
        features = self.transform(tokens, queries, incremental_state)
        self.column_counter.add(incremental_state, tokens.size(1))
        self.advance(incremental_state, new)
        newest = features[:, features.size(1) - new :]
        sharing = prev_output_tokens.size(0) // newest.size(0)
        return newest if sharing == 1 else newest.repeat_interleave(sharing, 0), None

    def _beams_share(self, incremental_state: StateDict | None) -> bool:
        """True if a prompt is computed once for all beams: nobody watches the layers, and no state is a user's own."""
        if not isinstance(incremental_state, IncrementalState) or incremental_state.beam_size == 1:
            return False
        return not any(
            module._forward_hooks
            or module._forward_pre_hooks
            or (isinstance(module, MultiheadAttention) and (module.cache or module.on_weights))
            or (isinstance(module, StatefulModule) and not is_built_in(type(module)))
            for module in self.modules()
        )

    def roll_back(self, incremental_state: StateDict, positions: int) -> None:
        """See ``IncrementalDecoder.roll_back``; with the first position, the prompt is rolled back too."""
        if positions and positions == self.positions_seen(incremental_state):
            incremental_state.clear()
            getattr(incremental_state, "shared", {}).clear()
        else:
            super().roll_back(incremental_state, positions)

    def prompt_features(self, encoder_out: EncoderOut) -> Tensor:
        """Compute the last hidden features of prompts, without a state.

        Args:
            encoder_out: the prompts, ``(N, P)``.

        Returns:
            ``(N, P, C)``; undefined at padding.
        """
        prompts, mask = encoder_out.encoder_out, encoder_out.encoder_padding_mask
        offsets = None if mask is None else mask.sum(1)
        return self.transform(prompts, QueryPositions(0, prompts.size(1), prompts.device, True, offsets))

    def columns_to_crop(self, incremental_state: IncrementalState, positions: int) -> int:
        """Columns on the left that no row sees; see ``IncrementalDecoder.columns_to_crop``."""
        offsets = self.column_counter.start_offsets(incremental_state)
        return 0 if offsets is None else int(offsets.min())


class LanguageModel(EncoderDecoderModel):
    """A decoder-only model; its source is the prompt.

    Args:
        decoder: the decoder.
    """

    left_pad_source = True
    continues_source = True
    decoder: LanguageModelDecoder

    def __init__(self, decoder: LanguageModelDecoder):
        super().__init__(PromptEncoder(decoder.max_positions()), decoder)

    def max_target_lengths(self, src_lengths: Tensor) -> Tensor:
        """The positions that each prompt leaves: its last token predicts the first output token."""
        return self.decoder.max_positions() + 1 - src_lengths

    def empty_source(self, source: Source) -> Source:
        """The empty prompt: the first token of each prompt, which is the same for all of them."""
        columns = source.src_tokens.size(1) - source.src_lengths.unsqueeze(1)
        return Source(source.src_tokens.gather(1, columns), torch.ones_like(source.src_lengths))
