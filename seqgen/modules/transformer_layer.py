"""The layers of a transformer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from seqgen.core.incremental_state import StateDict
from seqgen.modules.dropout import Dropout
from seqgen.modules.linear import Linear
from seqgen.modules.multihead_attention import MultiheadAttention

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    **{"relu": F.relu, "gelu": F.gelu, "swish": F.silu, "tanh": F.tanh},
    # fairseq's name of GPT-2's activation, and its former name
    **dict.fromkeys(("gelu_accurate", "gelu_fast"), partial(F.gelu, approximate="tanh")),
}
"""The activation functions of feed-forward layers, by the name that keys have for them."""


class AttentionLayer(nn.Module):
    """Self-attention, attention to the source if the layer is one of a decoder, and a feed-forward network.

    Each of the three has a residual connection (Vaswani et al. 2017, section 3.1). A subclass sets the modules
    ``self_attn``, ``encoder_attn`` and ``feed_forward``, for each a normalization, and ``dropout``.
    """

    normalize_before: bool = True
    """Whether normalization is applied before each sublayer (pre-norm) rather than after it."""

    has_encoder_attn: bool = False
    """Whether there is attention to the source."""

    self_attn: Any
    self_attn_layer_norm: Any
    encoder_attn: Any
    encoder_attn_layer_norm: Any
    feed_forward: Any
    final_layer_norm: Any
    dropout: Dropout

    def forward(
        self,
        x: Tensor,
        encoder_out: Tensor | None = None,
        encoder_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        *,
        encoder_attn_mask: Tensor | None = None,
        incremental_state: StateDict | None = None,
        need_weights: bool = False,
        **of_self: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Transform each new position.

        Args:
            x: ``(N, T, C)``.
            encoder_out: ``(N or sentences, S, encoder_dim)``; ``None`` for a layer without attention to the source.
            encoder_padding_mask: ``(N or sentences, S)`` bool, true at padding; ``None`` if there is no padding.
            attn_mask: mask of self-attention, see ``MultiheadAttention``.
            encoder_attn_mask: mask of attention to the source, see ``MultiheadAttention``.
            incremental_state: the decoding state; ``None`` for the parallel pass.
            need_weights: whether to return the attention weights over the source.
            of_self: further arguments of self-attention: ``is_causal``, ``rotation`` and ``key_padding_mask``.

        Returns:
            ``(N, T, C)``, undefined at padding, and the weights averaged over heads, ``(N, T, S)`` or ``None``.
        """
        inputs = self.self_attn_layer_norm(x) if self.normalize_before else x
        attended, weights = self.self_attn(inputs, attn_mask=attn_mask, incremental_state=incremental_state, **of_self)
        x = self._after("self_attn", x, attended)
        if self.has_encoder_attn:
            attended, weights = self.encoder_attn(
                self.encoder_attn_layer_norm(x) if self.normalize_before else x,
                encoder_out,
                key_padding_mask=encoder_padding_mask,
                attn_mask=encoder_attn_mask,
                incremental_state=incremental_state,
                need_weights=need_weights,
            )
            x = self._after("encoder_attn", x, attended)
        update = self.feed_forward(self.final_layer_norm(x) if self.normalize_before else x)
        return self._after("final", x, update), weights

    def _after(self, part: str, x: Tensor, update: Tensor) -> Tensor:
        """The output of a sublayer with input ``x``; a module without effect is not called, since that costs time."""
        x = x + (self.dropout(update) if self.training else update)
        normalized: Tensor = x if self.normalize_before else getattr(self, f"{part}_layer_norm")(x)
        return normalized


class TransformerEncoderLayer(AttentionLayer):
    """Self-attention and a feed-forward network of two linear layers with an activation in between.

    Args:
        cfg: the configuration of a transformer.
        side: ``"encoder"`` or ``"decoder"``, with which the names of its sizes begin.
        attention_scale: factor of the scores of self-attention; ``None`` for ``head_dim ** -0.5``.
    """

    def __init__(self, cfg: Any, side: str, attention_scale: float | None = None):
        super().__init__()
        dim, hidden = getattr(cfg, f"{side}_embed_dim"), getattr(cfg, f"{side}_ffn_embed_dim")
        heads = getattr(cfg, f"{side}_attention_heads")
        self.normalize_before = getattr(cfg, f"{side}_normalize_before")
        self.self_attn = MultiheadAttention(dim, heads, dropout=cfg.attention_dropout, scale=attention_scale)
        self.self_attn_layer_norm = nn.LayerNorm(dim, cfg.layer_norm_epsilon)
        self.fc1 = _glorot_linear(dim, hidden)
        self.fc2 = _glorot_linear(hidden, dim)
        self.final_layer_norm = nn.LayerNorm(dim, cfg.layer_norm_epsilon)
        self.activation = ACTIVATIONS[cfg.activation_fn]
        self.dropout = Dropout(cfg.dropout)
        self.activation_dropout = Dropout(cfg.activation_dropout)

    def feed_forward(self, x: Tensor) -> Tensor:
        """The update of the feed-forward network."""
        hidden = self.activation(self.fc1(x))
        projected: Tensor = self.fc2(self.activation_dropout(hidden) if self.training else hidden)
        return projected


class TransformerDecoderLayer(TransformerEncoderLayer):
    """Causal self-attention, encoder-decoder attention and a feed-forward network, each with a residual connection.

    Args:
        cfg: the configuration of a transformer.
        encoder_dim: size of the encoder's features; ``None`` for a layer without encoder-decoder attention.
        attention_scale: factor of the scores of self-attention; ``None`` for ``head_dim ** -0.5``.
    """

    def __init__(self, cfg: Any, encoder_dim: int | None, attention_scale: float | None = None):
        super().__init__(cfg, "decoder", attention_scale)
        self.has_encoder_attn = encoder_dim is not None
        if encoder_dim is None:
            return
        dim, heads = cfg.decoder_embed_dim, cfg.decoder_attention_heads
        self.encoder_attn = MultiheadAttention(dim, heads, encoder_dim=encoder_dim, dropout=cfg.attention_dropout)
        self.encoder_attn_layer_norm = nn.LayerNorm(dim, cfg.layer_norm_epsilon)


def _glorot_linear(in_features: int, out_features: int) -> Linear:
    linear = Linear(in_features, out_features)
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


class GatedFeedForward(nn.Module):
    """Feed-forward network with a gate (Shazeer 2020); the first rows of the first projection are those of the gate.

    Args:
        dim: dimension of the features.
        hidden_size: hidden size.
        activation_fn: activation function of the gate.
        dropout: dropout probability of the hidden features.
        std: standard deviation of the initial weights.
        bias: whether the projections have a bias, first 0.
    """

    def __init__(self, dim: int, hidden_size: int, activation_fn: str, dropout: float, std: float, bias: bool = False):
        super().__init__()
        self.activation = ACTIVATIONS[activation_fn]
        self.wi = Linear(dim, 2 * hidden_size, bias=bias)
        self.wo = Linear(hidden_size, dim, bias=bias)
        self.dropout = Dropout(dropout)
        for projection in (self.wi, self.wo):
            nn.init.normal_(projection.weight, std=std)
            if bias:
                nn.init.zeros_(projection.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each position of ``(..., C)``."""
        gate, linear = self.wi(x).chunk(2, dim=-1)
        hidden = self.activation(gate) * linear
        projected: Tensor = self.wo(self.dropout(hidden) if self.training else hidden)
        return projected
