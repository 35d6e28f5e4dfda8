"""A model in one file: a recurrent encoder-decoder with attention (Luong et al. 2015).

::

    seqgen-train common.user_dir=examples/lstm.py model=lstm_tiny run_dir=runs/lstm
    seqgen-generate common.user_dir=examples/lstm.py path=runs/lstm input=- output=-

The file has no code for beam search: the decoder stores tensors in the decoding state whose first dimension is the row,
and the base class reorders them.

Letters: ``N`` rows, ``S`` source positions, ``T`` target positions, ``C`` hidden size, ``E`` embedding dimension.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn

from seqgen.extend import (
    Encoder,
    EncoderDecoderModel,
    EncoderOut,
    IncrementalDecoder,
    StateDict,
    Vocabularies,
    option,
    register_model,
)


@dataclass
class LSTMConfig:
    """Configuration of the recurrent model; its fields are the keys ``model.FIELD``."""

    embed_dim: int = option(256, "dimension of the embeddings", minimum=1)
    hidden_size: int = option(
        512, "hidden size of the decoder; each direction of the encoder has half of it", minimum=2
    )
    layers: int = option(1, "number of layers of the encoder, and of the decoder", minimum=1)
    dropout: float = option(0.1, "dropout probability of features", minimum=0, maximum=0.99)
    max_positions: int = option(1024, "maximum source and target length, in tokens with end-of-sentence", minimum=2)


@dataclass(frozen=True)
class LSTMEncoderOut(EncoderOut):
    """The features ``(N, S, C)`` and padding mask ``(N, S)`` of ``EncoderOut``, and the last states of both directions.

    Attributes:
        hidden: ``(N, layers, C)`` last hidden states, forward and backward concatenated.
        cell: ``(N, layers, C)`` last cell states, likewise.
    """

    hidden: Tensor = field(kw_only=True)
    cell: Tensor = field(kw_only=True)


class LSTMEncoder(Encoder):
    """A bidirectional LSTM."""

    def __init__(self, cfg: LSTMConfig, vocab_size: int, pad: int):
        super().__init__()
        self.cfg, self.pad = cfg, pad
        self.embed_tokens = nn.Embedding(vocab_size, cfg.embed_dim, padding_idx=pad)
        self.dropout = nn.Dropout(cfg.dropout)
        self.lstm = nn.LSTM(cfg.embed_dim, cfg.hidden_size // 2, cfg.layers, batch_first=True, bidirectional=True)

    def forward(self, src_tokens: Tensor, src_lengths: Tensor) -> LSTMEncoderOut:
        """Encode a batch of sentences.

        Args:
            src_tokens: ``(N, S)`` int64, padded on the right.
            src_lengths: ``(N,)`` int64 lengths, end-of-sentence included.
        """
        embedded = self.dropout(self.embed_tokens(src_tokens))
        # packed, so that the backward direction starts at the last token of each sentence, not at padding
        packed = nn.utils.rnn.pack_padded_sequence(embedded, src_lengths.cpu(), batch_first=True, enforce_sorted=False)
        output, (hidden, cell) = self.lstm(packed)
        features, _ = nn.utils.rnn.pad_packed_sequence(output, batch_first=True, total_length=src_tokens.size(1))
        return LSTMEncoderOut(
            self.dropout(features), src_tokens.eq(self.pad), hidden=self._join(hidden), cell=self._join(cell)
        )

    def _join(self, state: Tensor) -> Tensor:
        # (layers * 2, N, C / 2) -> (layers, 2, N, C / 2) -> (N, layers, 2, C / 2) -> (N, layers, C)
        joined: Tensor = state.unflatten(0, (self.cfg.layers, 2)).permute(2, 0, 1, 3).flatten(2)
        return joined

    def max_positions(self) -> int:
        """The longest source, in tokens with end-of-sentence."""
        return self.cfg.max_positions


class LSTMDecoder(IncrementalDecoder):
    """An LSTM whose output attends to the source; it starts from the last states of the encoder."""

    def __init__(self, cfg: LSTMConfig, vocab_size: int, pad: int):
        super().__init__()
        self.cfg = cfg
        self.embed_tokens = nn.Embedding(vocab_size, cfg.embed_dim, padding_idx=pad)
        self.dropout = nn.Dropout(cfg.dropout)
        self.lstm = nn.LSTM(cfg.embed_dim, cfg.hidden_size, cfg.layers, batch_first=True)
        self.attention = nn.Linear(cfg.hidden_size, 2 * (cfg.hidden_size // 2), bias=False)
        self.combine = nn.Linear(cfg.hidden_size + 2 * (cfg.hidden_size // 2), cfg.embed_dim)

    def extract_features(  # type: ignore[override]
        self,
        prev_output_tokens: Tensor,
        encoder_out: LSTMEncoderOut,
        incremental_state: StateDict | None = None,
        need_attention: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the features of the positions that the state has not seen.

        Args:
            prev_output_tokens: ``(N, T)`` int64, all positions so far.
            encoder_out: the encoder's output, one row for each row of ``prev_output_tokens``.
            incremental_state: the decoding state; ``None`` in training, where all positions are computed.
            need_attention: whether the attention weights are returned.

        Returns:
            Features ``(N, new positions, E)``, and attention weights ``(N, new positions, S)`` or ``None``.
        """
        start = self.positions_seen(incremental_state)
        before = self.get_state(incremental_state) or {"hidden": encoder_out.hidden, "cell": encoder_out.cell}
        embedded = self.dropout(self.embed_tokens(prev_output_tokens[:, start:]))
        # the row is the first dimension in the state; the LSTM of PyTorch has layers first: (layers, N, C)
        initial = tuple(before[name].transpose(0, 1).contiguous() for name in ("hidden", "cell"))
        output, (hidden, cell) = self.lstm(embedded, initial)
        self.set_state(incremental_state, {"hidden": hidden.transpose(0, 1), "cell": cell.transpose(0, 1)})

        scores = self.attention(output) @ encoder_out.encoder_out.transpose(1, 2)  # (N, new positions, S)
        if encoder_out.encoder_padding_mask is not None:
            scores = scores.masked_fill(encoder_out.encoder_padding_mask.unsqueeze(1), -torch.inf)
        weights = scores.softmax(-1)
        context = weights @ encoder_out.encoder_out
        features = self.dropout(torch.tanh(self.combine(torch.cat([output, context], dim=-1))))
        self.advance(incremental_state, embedded.size(1))
        return features, weights if need_attention else None

    def output_layer(self, features: Tensor) -> Tensor:
        """Project features ``(..., E)`` to logits ``(..., V)`` with the embedding matrix."""
        return nn.functional.linear(features, self.embed_tokens.weight)

    def max_positions(self) -> int:
        """The longest target, in tokens with end-of-sentence."""
        return self.cfg.max_positions


@register_model("lstm", config=LSTMConfig, presets={"lstm_tiny": LSTMConfig(embed_dim=128, hidden_size=192)})
class LSTMModel(EncoderDecoderModel):
    """A recurrent encoder-decoder with attention."""

    @classmethod
    def build_model(cls, cfg: Any, task: Vocabularies) -> Self:
        """Build the model for a task's vocabularies."""
        source, target = task.source_dictionary, task.target_dictionary
        return cls(LSTMEncoder(cfg, len(source), source.pad()), LSTMDecoder(cfg, len(target), target.pad()))
