"""A model of one's own: a recurrent encoder-decoder with attention (Luong et al. 2015), in one file.

Train it with ``seqgen-train common.user_dir=examples/lstm.py model=lstm_tiny``. Nothing in it is about beam search: the
decoder keeps its state in tensors whose first dimension is the row, and the base class does the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from seqgen.config import option
from seqgen.decoder import IncrementalDecoder
from seqgen.encoder import Encoder
from seqgen.incremental_state import StateDict
from seqgen.model import EncoderDecoderModel
from seqgen.registry import register_model
from seqgen.structures import EncoderOut

if TYPE_CHECKING:
    from seqgen.task import Task


@dataclass
class LSTMConfig:
    """Configuration of the recurrent model."""

    embed_dim: int = option(256, "dimension of the embeddings", minimum=1)
    hidden_size: int = option(
        512, "hidden size of the decoder; each direction of the encoder has half of it", minimum=2
    )
    layers: int = option(1, "number of layers of the encoder, and of the decoder", minimum=1)
    dropout: float = option(0.1, "dropout probability of features", minimum=0, maximum=0.99)
    max_positions: int = option(1024, "maximum source and target length, in tokens with end-of-sentence", minimum=2)


@dataclass(frozen=True)
class LSTMEncoderOut(EncoderOut):
    """The encoder's output.

    Attributes:
        hidden: ``(N, layers, C)`` hidden state at the sentence's ends.
        cell: ``(N, layers, C)`` likewise, the cell.
    """

    hidden: Tensor = field(kw_only=True)
    cell: Tensor = field(kw_only=True)


class LSTMEncoder(Encoder):
    """Reads the source in both directions."""

    def __init__(self, cfg: LSTMConfig, vocab_size: int, pad: int):
        super().__init__()
        self.cfg, self.pad = cfg, pad
        self.embed_tokens = nn.Embedding(vocab_size, cfg.embed_dim, padding_idx=pad)
        self.dropout = nn.Dropout(cfg.dropout)
        self.lstm = nn.LSTM(cfg.embed_dim, cfg.hidden_size // 2, cfg.layers, batch_first=True, bidirectional=True)

    def forward(self, src_tokens: Tensor, src_lengths: Tensor) -> LSTMEncoderOut:
        """Encode a batch of sentences; see ``Encoder.forward``."""
        embedded = self.dropout(self.embed_tokens(src_tokens))
        # packed, so that the backward direction begins at each sentence's own end
        packed = nn.utils.rnn.pack_padded_sequence(embedded, src_lengths.cpu(), batch_first=True, enforce_sorted=False)
        output, (hidden, cell) = self.lstm(packed)
        features, _ = nn.utils.rnn.pad_packed_sequence(output, batch_first=True, total_length=src_tokens.size(1))
        return LSTMEncoderOut(
            self.dropout(features), src_tokens.eq(self.pad), hidden=self._join(hidden), cell=self._join(cell)
        )

    def _join(self, state: Tensor) -> Tensor:
        # (layers * 2, N, C / 2) -> (layers, 2, N, C / 2) -> (N, layers, 2, C / 2) -> (N, layers, C)
        return state.unflatten(0, (self.cfg.layers, 2)).permute(2, 0, 1, 3).flatten(2)

    def max_positions(self) -> int:
        """The longest source, in tokens with end-of-sentence."""
        return self.cfg.max_positions


class LSTMDecoder(IncrementalDecoder):
    """Writes the target, attending to the source with its last layer's output."""

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
        """Compute features of the positions that the state has not seen; see ``IncrementalDecoder.forward``."""
        start = self.positions_seen(incremental_state)
        before = self.get_state(incremental_state) or {"hidden": encoder_out.hidden, "cell": encoder_out.cell}
        embedded = self.dropout(self.embed_tokens(prev_output_tokens[:, start:]))
        # the state is kept rows first; torch's LSTM wants layers first
        initial = tuple(before[name].transpose(0, 1).contiguous() for name in ("hidden", "cell"))
        output, (hidden, cell) = self.lstm(embedded, initial)
        self.set_state(incremental_state, {"hidden": hidden.transpose(0, 1), "cell": cell.transpose(0, 1)})

        scores = self.attention(output) @ encoder_out.encoder_out.transpose(1, 2)  # (N, T, S)
        if encoder_out.encoder_padding_mask is not None:
            scores = scores.masked_fill(encoder_out.encoder_padding_mask.unsqueeze(1), -torch.inf)
        weights = scores.softmax(-1)
        context = weights @ encoder_out.encoder_out
        features = self.dropout(torch.tanh(self.combine(torch.cat([output, context], dim=-1))))
        self.advance(incremental_state, embedded.size(1))
        return features, weights if need_attention else None

    def output_layer(self, features: Tensor) -> Tensor:
        """Project to the vocabulary, with the embedding as the matrix."""
        return nn.functional.linear(features, self.embed_tokens.weight)

    def max_positions(self) -> int:
        """The longest target, in tokens with end-of-sentence."""
        return self.cfg.max_positions


@register_model("lstm", config=LSTMConfig, presets={"lstm_tiny": LSTMConfig(embed_dim=128, hidden_size=192)})
class LSTMModel(EncoderDecoderModel):
    """A recurrent encoder-decoder with attention."""

    @classmethod
    def build_model(cls, cfg: Any, task: Task) -> Self:
        """Build the model for a task's vocabularies."""
        source, target = task.source_dictionary, task.target_dictionary
        return cls(LSTMEncoder(cfg, len(source), source.pad()), LSTMDecoder(cfg, len(target), target.pad()))
