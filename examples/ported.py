"""A model ported from fairseq: the decoder sees the mean of the previous tokens (average attention, Zhang et al. 2018).

``docs/from-fairseq.md`` shows the original file and each change. ::

    seqgen-train common.user_dir=examples/ported.py model=average run_dir=runs/average

Letters: ``N`` rows, ``S`` source positions, ``T`` target positions, ``C`` dimension of the embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqgen.extend import (
    DecoderOut,
    Encoder,
    EncoderDecoderModel,
    EncoderOut,
    IncrementalDecoder,
    LearnedPositions,
    QueryPositions,
    StateDict,
    Vocabularies,
    option,
    register_model,
)


@dataclass
class AverageConfig:
    """Configuration of the averaging model; its fields are the keys ``model.FIELD``."""

    embed_dim: int = option(128, "dimension of the embeddings and features", minimum=1)
    dropout: float = option(0.1, "dropout probability of features", minimum=0, maximum=0.99)
    max_positions: int = option(512, "maximum source and target length, in tokens with end-of-sentence", minimum=1)


class AverageEncoder(Encoder):
    """Embeddings, learned positions and one layer."""

    def __init__(self, cfg: AverageConfig, dictionary: Any):
        super().__init__()
        self.pad = dictionary.pad()
        self.embed_tokens = nn.Embedding(len(dictionary), cfg.embed_dim, self.pad)
        self.embed_positions = LearnedPositions(cfg.max_positions + self.pad + 1, cfg.embed_dim, self.pad, std=0.1)
        self.layer = nn.Linear(cfg.embed_dim, cfg.embed_dim)
        self.dropout = nn.Dropout(cfg.dropout)

    def forward(self, src_tokens: Tensor, src_lengths: Tensor) -> EncoderOut:
        """Encode ``(N, S)`` tokens to features ``(N, S, C)``; see ``Encoder.forward``."""
        padding_mask = src_tokens.eq(self.pad)
        positions = self.embed_positions(QueryPositions.of_source(src_tokens, None, padding_mask))
        x = self.dropout(self.embed_tokens(src_tokens) + positions)
        return EncoderOut(x + torch.tanh(self.layer(x)), padding_mask)

    def max_positions(self) -> int:
        """The longest source, in tokens with end-of-sentence."""
        return self.embed_positions.max_positions


class AverageDecoder(IncrementalDecoder):
    """Attends to the source from each token and the mean of the embeddings up to it.

    The decoding state has the sum of the embeddings, ``(N, C)``.
    """

    def __init__(self, cfg: AverageConfig, dictionary: Any):
        super().__init__()
        self.longest = cfg.max_positions
        self.embed_tokens = nn.Embedding(len(dictionary), cfg.embed_dim)
        self.history = nn.Linear(2 * cfg.embed_dim, cfg.embed_dim)
        self.combine = nn.Linear(2 * cfg.embed_dim, cfg.embed_dim)
        self.dropout = nn.Dropout(cfg.dropout)

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: StateDict | None = None,
        need_attention: bool = False,
    ) -> DecoderOut:
        """Score the next token at each position that the state has not seen.

        Args:
            prev_output_tokens: ``(N, T)`` int64, all positions so far.
            encoder_out: the encoder's output, one row for each row of ``prev_output_tokens``.
            incremental_state: the decoding state; ``None`` in training, where all positions are computed.
            need_attention: whether the attention weights are returned.

        Returns:
            Logits ``(N, new positions, V)``, and attention weights ``(N, new positions, S)`` or ``None``.
        """
        seen = self.positions_seen(incremental_state)
        x = self.dropout(self.embed_tokens(prev_output_tokens[:, seen:]))
        total = x.cumsum(1)
        before = self.get_state(incremental_state)
        if before is not None:
            total = total + before["total"].unsqueeze(1)
        self.set_state(incremental_state, {"total": total[:, -1]})
        self.advance(incremental_state, x.size(1))

        count = torch.arange(seen + 1, seen + 1 + x.size(1), device=x.device).unsqueeze(1)
        x = torch.tanh(self.history(torch.cat([x, total / count], dim=-1)))
        scores = x @ encoder_out.encoder_out.transpose(1, 2)  # (N, new positions, S)
        if encoder_out.encoder_padding_mask is not None:
            scores = scores.masked_fill(encoder_out.encoder_padding_mask.unsqueeze(1), -torch.inf)
        weights = scores.softmax(-1)
        x = torch.tanh(self.combine(torch.cat([x, weights @ encoder_out.encoder_out], dim=-1)))
        return DecoderOut(F.linear(self.dropout(x), self.embed_tokens.weight), weights if need_attention else None)

    def max_positions(self) -> int:
        """The longest target, in tokens with end-of-sentence."""
        return self.longest


@register_model("average", config=AverageConfig, presets={"average_tiny": AverageConfig(embed_dim=64)})
class AverageModel(EncoderDecoderModel):
    """An encoder-decoder whose decoder averages the previous tokens."""

    @classmethod
    def build_model(cls, cfg: AverageConfig, task: Vocabularies) -> Self:
        """Build the model for a task's vocabularies."""
        return cls(AverageEncoder(cfg, task.source_dictionary), AverageDecoder(cfg, task.target_dictionary))
