"""The layers of T5."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from seqgen.incremental_state import StateDict
from seqgen.models.t5.config import FEED_FORWARDS, T5Config
from seqgen.modules.dropout import Dropout
from seqgen.modules.linear import Linear
from seqgen.modules.multihead_attention import MultiheadAttention
from seqgen.modules.rms_norm import RMSNorm


def t5_attention(cfg: T5Config, encoder_decoder: bool = False) -> MultiheadAttention:
    """T5's attention: scores are not scaled; the query projection has smaller initial weights instead.

    Args:
        cfg: the configuration.
        encoder_decoder: whether it attends to the encoder's output.

    Returns:
        The attention module.
    """
    attention = MultiheadAttention(
        cfg.d_model,
        cfg.num_heads,
        encoder_dim=cfg.d_model if encoder_decoder else None,
        head_dim=cfg.d_kv,
        dropout=cfg.dropout_rate,
        bias=False,
        scale=1.0,
    )
    with torch.no_grad():
        if encoder_decoder:
            nn.init.normal_(attention.q_proj.weight, std=(cfg.d_model * cfg.d_kv) ** -0.5)
            nn.init.normal_(attention.kv_proj.weight, std=cfg.d_model**-0.5)
        else:
            nn.init.normal_(attention.in_proj.weight[: cfg.inner_dim], std=(cfg.d_model * cfg.d_kv) ** -0.5)
            nn.init.normal_(attention.in_proj.weight[cfg.inner_dim :], std=cfg.d_model**-0.5)
        nn.init.normal_(attention.out_proj.weight, std=cfg.inner_dim**-0.5)
    return attention


class WideLinear(Linear):
    """A linear layer without bias that stays in float32 when the model is converted to float16.

    In the published models, the output of the last feed-forward projection exceeds the largest float16, 65,504.

    Args:
        in_features: dimension of the input.
        out_features: dimension of the output.
    """

    def __init__(self, in_features: int, out_features: int):
        super().__init__(in_features, out_features, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        """Map ``(..., in_features)`` to ``(..., out_features)``, in the dtype of the weight."""
        device = input.device.type
        if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.float16:
            with torch.autocast(device, enabled=False):
                return super().forward(input.to(self.weight.dtype))
        return super().forward(input.to(self.weight.dtype))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def in_float32(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return tensor.to(moved.device, torch.float32) if moved.dtype == torch.float16 else moved

        return super()._apply(in_float32, recurse)


class T5FeedForward(nn.Module):
    """Feed-forward network with two projections and, in later versions, a gate (Shazeer 2020, "GLU variants").

    One matrix projects to the gate and to the gated values; its first rows are those of the gate.

    Args:
        cfg: the configuration.
    """

    def __init__(self, cfg: T5Config):
        super().__init__()
        self.is_gated = cfg.is_gated
        self.activation = FEED_FORWARDS[cfg.feed_forward_proj]
        self.wi = Linear(cfg.d_model, cfg.d_ff * (2 if cfg.is_gated else 1), bias=False)
        self.wo = WideLinear(cfg.d_ff, cfg.d_model)
        self.dropout = Dropout(cfg.dropout_rate)
        nn.init.normal_(self.wi.weight, std=cfg.d_model**-0.5)
        nn.init.normal_(self.wo.weight, std=cfg.d_ff**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each position of ``(..., C)``."""
        hidden = self.wi(x)
        if hidden.dtype == torch.float16:  # the product of gate and values may also exceed the range of float16
            hidden = hidden.float()
        if self.is_gated:
            gate, linear = hidden.chunk(2, dim=-1)
            hidden = self.activation(gate) * linear
        else:
            hidden = self.activation(hidden)
        projected: Tensor = self.wo(self.dropout(hidden) if self.training else hidden)
        return projected


class T5EncoderLayer(nn.Module):
    """Self-attention and a feed-forward network, each with normalization before it and a residual connection.

    Args:
        cfg: the configuration.
    """

    def __init__(self, cfg: T5Config):
        super().__init__()
        self.self_attn = t5_attention(cfg)
        self.self_attn_layer_norm = RMSNorm(cfg.d_model, cfg.layer_norm_epsilon)
        self.feed_forward = T5FeedForward(cfg)
        self.final_layer_norm = RMSNorm(cfg.d_model, cfg.layer_norm_epsilon)
        self.dropout = Dropout(cfg.dropout_rate)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """Transform each position.

        Args:
            x: ``(N, S, C)``.
            bias: position bias and mask, added to the scores; broadcastable to ``(N, H, S, S)``.

        Returns:
            ``(N, S, C)``; values at padded positions are undefined.
        """
        attended, _ = self.self_attn(self.self_attn_layer_norm(x), attn_mask=bias)
        x = self.dropout.residual(x, attended)
        return self.dropout.residual(x, self.feed_forward(self.final_layer_norm(x)))


class T5DecoderLayer(nn.Module):
    """Causal self-attention, encoder-decoder attention and a feed-forward network; see ``T5EncoderLayer``.

    Args:
        cfg: the configuration.
    """

    def __init__(self, cfg: T5Config):
        super().__init__()
        self.self_attn = t5_attention(cfg)
        self.self_attn_layer_norm = RMSNorm(cfg.d_model, cfg.layer_norm_epsilon)
        self.encoder_attn = t5_attention(cfg, encoder_decoder=True)
        self.encoder_attn_layer_norm = RMSNorm(cfg.d_model, cfg.layer_norm_epsilon)
        self.feed_forward = T5FeedForward(cfg)
        self.final_layer_norm = RMSNorm(cfg.d_model, cfg.layer_norm_epsilon)
        self.dropout = Dropout(cfg.dropout_rate)

    def forward(
        self,
        x: Tensor,
        bias: Tensor,
        encoder_out: Tensor,
        encoder_padding_mask: Tensor | None,
        incremental_state: StateDict | None = None,
        need_weights: bool = False,
        encoder_attn_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Transform each new position.

        Args:
            x: ``(N, T, C)``.
            bias: position bias and mask, added to the scores of self-attention; broadcastable to ``(N, H, T, K)``.
            encoder_out: ``(N or sentences, S, C)``.
            encoder_padding_mask: ``(N or sentences, S)`` bool, true at padding; ``None`` if there is no padding.
            incremental_state: the decoding state; ``None`` for the parallel pass.
            need_weights: whether to return the attention weights over the source.
            encoder_attn_mask: mask of encoder-decoder attention, see ``MultiheadAttention``.

        Returns:
            ``(N, T, C)``, and the weights averaged over heads, ``(N, T, S)`` or ``None``.
        """
        attended, _ = self.self_attn(self.self_attn_layer_norm(x), attn_mask=bias, incremental_state=incremental_state)
        x = self.dropout.residual(x, attended)
        attended, weights = self.encoder_attn(
            self.encoder_attn_layer_norm(x),
            encoder_out,
            key_padding_mask=encoder_padding_mask,
            attn_mask=encoder_attn_mask,
            incremental_state=incremental_state,
            need_weights=need_weights,
        )
        x = self.dropout.residual(x, attended)
        return self.dropout.residual(x, self.feed_forward(self.final_layer_norm(x))), weights


def checkpointed(layer: nn.Module, *args: Any) -> Any:
    """Run a layer without storing its activations; the backward pass computes them again (gradient checkpointing)."""
    from torch.utils.checkpoint import checkpoint

    return checkpoint(layer, *args, use_reentrant=False)
