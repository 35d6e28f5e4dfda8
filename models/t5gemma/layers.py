"""The configuration of T5Gemma, the sizes in which it was published, and its layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from seqgen.config import option
from seqgen.errors import ConfigError, shown
from seqgen.incremental_state import StateDict
from seqgen.modules.dropout import Dropout
from seqgen.modules.linear import Linear
from seqgen.modules.multihead_attention import MultiheadAttention
from seqgen.modules.positions import RotaryPositions, Rotation
from seqgen.modules.rms_norm import RMSNorm
from seqgen.modules.transformer_layer import ACTIVATIONS

SLIDING, FULL = "sliding_attention", "full_attention"
"""The types of layers: self-attention to a window of positions, or to all."""

INIT_STD = 0.02
"""Standard deviation of the initial weights."""


@dataclass
class T5GemmaConfig:
    """Configuration of T5Gemma; names without their side are those of ``config.json``, the defaults those of 2B-2B."""

    vocab_size: int = option(0, "rows of each embedding; 0 for the size of the vocabulary", minimum=0)
    encoder_hidden_size: int = option(2304, "hidden size of the encoder", minimum=1)
    encoder_intermediate_size: int = option(9216, "hidden size of the encoder's feed-forward layers", minimum=1)
    encoder_layers: int = option(26, "number of encoder layers", minimum=1)
    encoder_attention_heads: int = option(8, "number of attention heads in the encoder", minimum=1)
    encoder_key_value_heads: int = option(4, "heads of keys and values in the encoder, each of a group", minimum=1)
    encoder_head_dim: int = option(256, "dimension of an attention head in the encoder, even", minimum=2)
    encoder_query_pre_attn_scalar: int = option(
        256, "scores of attention in the encoder are divided by the square root of this number", minimum=1
    )
    encoder_rope_theta: float = option(10000.0, "base of the rotary positions in the encoder", minimum=1e-6)
    encoder_sliding_window: int = option(
        4096, "largest distance to which a sliding layer of the encoder attends, in tokens", minimum=1
    )
    encoder_layer_types: list[str] = option(
        [], "sliding_attention or full_attention for each encoder layer; empty to alternate, sliding first"
    )
    decoder_hidden_size: int = option(2304, "hidden size of the decoder", minimum=1)
    decoder_intermediate_size: int = option(9216, "hidden size of the decoder's feed-forward layers", minimum=1)
    decoder_layers: int = option(26, "number of decoder layers", minimum=1)
    decoder_attention_heads: int = option(8, "number of attention heads in the decoder", minimum=1)
    decoder_key_value_heads: int = option(4, "heads of keys and values in the decoder, each of a group", minimum=1)
    decoder_head_dim: int = option(256, "dimension of an attention head in the decoder, even", minimum=2)
    decoder_query_pre_attn_scalar: int = option(
        256, "scores of attention in the decoder are divided by the square root of this number", minimum=1
    )
    decoder_rope_theta: float = option(10000.0, "base of the rotary positions in the decoder", minimum=1e-6)
    decoder_sliding_window: int = option(
        4096, "positions to which a sliding layer of the decoder attends, itself included", minimum=1
    )
    decoder_layer_types: list[str] = option(
        [], "sliding_attention or full_attention for each decoder layer; empty to alternate, sliding first"
    )
    activation_fn: str = option(
        "gelu_accurate", "activation function of the gates in the feed-forward layers", choices=sorted(ACTIVATIONS)
    )
    attention_bias: bool = option(False, "add a bias to the projections of attention")
    attn_logit_softcapping: float = option(50.0, "bound of the scores of attention; 0 for none", minimum=0)
    final_logit_softcapping: float = option(30.0, "bound of the logits; 0 for none", minimum=0)
    rms_norm_eps: float = option(1e-6, "constant added to the mean square in RMS normalization", minimum=0)
    dropout_rate: float = option(0.0, "dropout probability of features", minimum=0, maximum=0.99)
    attention_dropout: float = option(0.0, "dropout probability of attention weights", minimum=0, maximum=0.99)
    tie_word_embeddings: bool = option(True, "use the decoder's embedding as the output projection (tied weights)")
    decoder_start_token_id: int = option(-1, "id of the first decoder input; -1 for end-of-sentence", minimum=-1)
    max_source_positions: int = option(8192, "maximum source length, in tokens with end-of-sentence", minimum=1)
    max_target_positions: int = option(8192, "maximum target length, in tokens with end-of-sentence", minimum=1)

    def layer_types(self, side: str) -> list[str]:
        """The type of each layer, ``SLIDING`` or ``FULL``.

        Args:
            side: ``encoder`` or ``decoder``.
        """
        given: list[str] = getattr(self, f"{side}_layer_types")
        return given or [FULL if index % 2 else SLIDING for index in range(getattr(self, f"{side}_layers"))]

    def rotary_positions(self, side: str) -> list[RotaryPositions]:
        """The rotary positions of each layer.

        Args:
            side: ``encoder`` or ``decoder``.
        """
        shared = RotaryPositions(getattr(self, f"{side}_head_dim"), getattr(self, f"{side}_rope_theta"))
        return [shared] * getattr(self, f"{side}_layers")

    def attention_options(self) -> dict[str, Any]:
        """Further options of self-attention in all layers."""
        return {}

    @property
    def encoder_window(self) -> tuple[int, int]:
        """The largest distances to which a sliding layer of the encoder attends: to the left, and to the right."""
        return self.encoder_sliding_window, self.encoder_sliding_window

    def check(self) -> None:
        """Check the values.

        Raises:
            ConfigError: a value is not one of its choices, or values exclude each other.
        """
        if self.activation_fn not in ACTIVATIONS:
            known = ", ".join(sorted(ACTIVATIONS))
            raise ConfigError(f"model.activation_fn: there is no {self.activation_fn!r}; choose one of: {known}")
        for side in ("encoder", "decoder"):
            layers, types = getattr(self, f"{side}_layers"), self.layer_types(side)
            unknown = [given for given in types if given not in (SLIDING, FULL)]
            if unknown:
                raise ConfigError(
                    f"model.{side}_layer_types: there is no {shown(unknown[0])}; choose {SLIDING} or {FULL}"
                )
            if len(types) != layers:
                raise ConfigError(
                    f"model.{side}_layer_types has {len(types)} entries, but model.{side}_layers is {layers}"
                )
            heads, groups = getattr(self, f"{side}_attention_heads"), getattr(self, f"{side}_key_value_heads")
            if heads % groups:
                raise ConfigError(
                    f"model.{side}_attention_heads={heads} is not a multiple of model.{side}_key_value_heads={groups}"
                )
            if (dim := getattr(self, f"{side}_head_dim")) % 2:
                raise ConfigError(f"model.{side}_head_dim={dim} must be even, as rotary positions need it")


_SIZES = """
    hidden_size intermediate_size layers attention_heads key_value_heads head_dim query_pre_attn_scalar
    """.split()  # noqa: SIM905


def sizes_of(encoder: tuple[int, ...], decoder: tuple[int, ...]) -> dict[str, Any]:
    """Values of a configuration: those of ``_SIZES`` for each side."""
    sides = {"encoder": encoder, "decoder": decoder}
    return {f"{side}_{key}": size for side, sizes in sides.items() for key, size in zip(_SIZES, sizes, strict=True)}


TINY = (128, 256, 4, 4, 2, 32, 32)
"""The sizes of an encoder or decoder for tests."""

_2B, _9B = (2304, 9216, 26, 8, 4, 256, 256), (3584, 14336, 42, 16, 8, 256, 256)

PRESETS: dict[str, T5GemmaConfig] = {
    "t5gemma_tiny": T5GemmaConfig(
        **sizes_of(TINY, TINY), encoder_sliding_window=16, decoder_sliding_window=16, dropout_rate=0.1
    ),
    "t5gemma_2b_2b": T5GemmaConfig(**sizes_of(_2B, _2B)),
    "t5gemma_9b_2b": T5GemmaConfig(**sizes_of(_9B, _2B)),
    "t5gemma_9b_9b": T5GemmaConfig(**sizes_of(_9B, _9B)),
}
"""Published models by name, and a small one for tests."""


class T5GemmaFeedForward(nn.Module):
    """Feed-forward network with a gate (Shazeer 2020); the first rows of the first projection are those of the gate.

    Args:
        cfg: the configuration.
        side: ``encoder`` or ``decoder``.
    """

    def __init__(self, cfg: T5GemmaConfig, side: str):
        super().__init__()
        dim, hidden = getattr(cfg, f"{side}_hidden_size"), getattr(cfg, f"{side}_intermediate_size")
        self.activation = ACTIVATIONS[cfg.activation_fn]
        self.wi = Linear(dim, 2 * hidden, bias=False)
        self.wo = Linear(hidden, dim, bias=False)
        self.dropout = Dropout(cfg.dropout_rate)
        for projection in (self.wi, self.wo):
            nn.init.normal_(projection.weight, std=INIT_STD)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each position of ``(..., C)``."""
        gate, linear = self.wi(x).chunk(2, dim=-1)
        hidden = self.activation(gate) * linear
        projected: Tensor = self.wo(self.dropout(hidden) if self.training else hidden)
        return projected


class T5GemmaEncoderLayer(nn.Module):
    """Self-attention and a feed-forward network, each with normalization before and after it and a residual connection.

    Args:
        cfg: the configuration.
        side: ``encoder``, or ``decoder`` in a derived class.
    """

    attention_class: type[MultiheadAttention] = MultiheadAttention
    """The class of self-attention, for a subclass whose attention differs."""

    def __init__(self, cfg: T5GemmaConfig, side: str = "encoder"):
        super().__init__()
        self.self_attn = _attention(cfg, side, self.attention_class, **cfg.attention_options())
        self.self_attn_layer_norm = t5gemma_norm(cfg, side)
        self.self_attn_post_norm = t5gemma_norm(cfg, side)
        self.feed_forward = T5GemmaFeedForward(cfg, side)
        self.final_layer_norm = t5gemma_norm(cfg, side)
        self.final_post_norm = t5gemma_norm(cfg, side)
        self.dropout = Dropout(cfg.dropout_rate)

    def forward(self, x: Tensor, mask: Tensor | None, rotation: Rotation) -> Tensor:
        """Transform each position.

        Args:
            x: ``(N, S, C)``.
            mask: mask of self-attention, see ``MultiheadAttention``.
            rotation: the rotation of the positions.

        Returns:
            ``(N, S, C)``; values at padded positions are undefined.
        """
        attended, _ = self.self_attn(self.self_attn_layer_norm(x), attn_mask=mask, rotation=rotation)
        return self._feed_forward(self.dropout.residual(x, self.self_attn_post_norm(attended)))

    def _feed_forward(self, x: Tensor) -> Tensor:
        transformed = self.feed_forward(self.final_layer_norm(x))
        return self.dropout.residual(x, self.final_post_norm(transformed))


class T5GemmaDecoderLayer(T5GemmaEncoderLayer):
    """Causal self-attention, encoder-decoder attention and a feed-forward network; see ``T5GemmaEncoderLayer``.

    Args:
        cfg: the configuration.
    """

    def __init__(self, cfg: T5GemmaConfig):
        super().__init__(cfg, "decoder")
        self.encoder_attn = _attention(cfg, "decoder", MultiheadAttention, encoder_dim=cfg.encoder_hidden_size)
        self.encoder_attn_layer_norm = t5gemma_norm(cfg, "decoder")
        self.encoder_attn_post_norm = t5gemma_norm(cfg, "decoder")

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        mask: Tensor | None,
        rotation: Rotation,
        encoder_out: Tensor,
        encoder_padding_mask: Tensor | None,
        *,
        encoder_attn_mask: Tensor | None = None,
        incremental_state: StateDict | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Transform each new position.

        Args:
            x: ``(N, T, C)``.
            mask: mask of self-attention; ``None`` for a plain causal mask.
            rotation: the rotation of the new positions.
            encoder_out: ``(N or sentences, S, encoder_hidden_size)``.
            encoder_padding_mask: ``(N or sentences, S)`` bool, true at padding; ``None`` if there is no padding.
            encoder_attn_mask: mask of encoder-decoder attention, see ``MultiheadAttention``.
            incremental_state: the decoding state; ``None`` for the parallel pass.
            need_weights: whether to return the attention weights over the source.

        Returns:
            ``(N, T, C)``, and the weights averaged over heads, ``(N, T, S)`` or ``None``.
        """
        attended, _ = self.self_attn(
            self.self_attn_layer_norm(x),
            attn_mask=mask,
            is_causal=mask is None,
            rotation=rotation,
            incremental_state=incremental_state,
        )
        x = self.dropout.residual(x, self.self_attn_post_norm(attended))
        attended, weights = self.encoder_attn(
            self.encoder_attn_layer_norm(x),
            encoder_out,
            key_padding_mask=encoder_padding_mask,
            attn_mask=encoder_attn_mask,
            incremental_state=incremental_state,
            need_weights=need_weights,
        )
        x = self.dropout.residual(x, self.encoder_attn_post_norm(attended))
        return self._feed_forward(x), weights


def _attention(cfg: T5GemmaConfig, side: str, kind: type[MultiheadAttention], **options: Any) -> MultiheadAttention:
    """The attention of one layer."""
    attention = kind(
        getattr(cfg, f"{side}_hidden_size"),
        getattr(cfg, f"{side}_attention_heads"),
        head_dim=getattr(cfg, f"{side}_head_dim"),
        dropout=cfg.attention_dropout,
        bias=cfg.attention_bias,
        scale=getattr(cfg, f"{side}_query_pre_attn_scalar") ** -0.5,
        kv_heads=getattr(cfg, f"{side}_key_value_heads"),
        soft_cap=cfg.attn_logit_softcapping or None,
        **options,
    )
    for parameter in attention.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=INIT_STD)
        else:
            nn.init.zeros_(parameter)
    return attention


def t5gemma_norm(cfg: T5GemmaConfig, side: str) -> RMSNorm:
    """The normalization of one side, ``encoder`` or ``decoder``."""
    return RMSNorm(getattr(cfg, f"{side}_hidden_size"), cfg.rms_norm_eps, zero_centered=True)
