"""Llama (Touvron et al. 2023) and the models with its layers: Mistral, Qwen 2 and 3, SmolLM 2 and 3, Gemma 2 and 3."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from seqgen.config import option
from seqgen.core.errors import ConfigError
from seqgen.core.incremental_state import StateDict
from seqgen.data.dictionary import Vocabularies
from seqgen.modules.dropout import Dropout, LayerDropList
from seqgen.modules.language_model import LanguageModel, LanguageModelDecoder
from seqgen.modules.layered import LayerStack
from seqgen.modules.linear import Linear
from seqgen.modules.masks import QueryPositions
from seqgen.modules.multihead_attention import MultiheadAttention
from seqgen.modules.positions import HighFrequencyPositions, RotaryPositions, token_embedding
from seqgen.modules.projected_output import ProjectedOutput, make_output_projection
from seqgen.modules.rms_norm import RMSNorm
from seqgen.modules.transformer_layer import ACTIVATIONS, AttentionLayer, GatedFeedForward
from seqgen.registry import register_model
from seqgen.system.switches import INPUT_CHOICES

SLIDING, FULL = "sliding_attention", "full_attention"
"""The types of layers: self-attention to a window of positions, or to all."""

INIT_STD = 0.02
"""Standard deviation of the initial weights."""


def layer_pattern(layers: int, period: int) -> list[str]:
    """Types of layers of which every ``period``-th one is full."""
    return [SLIDING if number % period else FULL for number in range(1, layers + 1)]


@dataclass
class LlamaConfig:
    """Configuration of Llama; most names are those of ``config.json``, the defaults those of a model to train."""

    hidden_size: int = option(512, "hidden size", minimum=1)
    intermediate_size: int = option(1376, "hidden size of the feed-forward layers", minimum=1)
    num_hidden_layers: int = option(6, "number of layers", minimum=1)
    num_attention_heads: int = option(8, "number of attention heads", minimum=1)
    num_key_value_heads: int = option(0, "number of key/value heads (grouped queries); 0 for all heads", minimum=0)
    head_dim: int = option(0, "dimension of an attention head, even; 0: hidden size / heads, rounded down", minimum=0)
    query_pre_attn_scalar: int = option(
        0, "scores of attention are divided by the square root of this number; 0 for head_dim", minimum=0
    )
    activation_fn: str = option("swish", "activation function of the gates", choices=sorted(ACTIVATIONS))
    attention_bias: bool = option(False, "add a bias to the projections to queries, keys and values")
    attention_out_bias: bool = option(False, "add a bias to the output projection of attention")
    mlp_bias: bool = option(False, "add a bias to the projections of the feed-forward layers")
    qk_norm: bool = option(False, "normalize the queries and keys of each head (Qwen 3, Gemma 3)")
    post_norm: bool = option(False, "also normalize the output of each sublayer (Gemma 2)")
    zero_centered_norm: bool = option(False, "multiply by 1 + weight in normalization (Gemma)")
    scale_embedding: bool = option(False, "multiply embeddings by the square root of their dimension (Gemma)")
    attn_logit_softcapping: float = option(0.0, "soft cap of the attention scores (Gemma 2); 0 for none", minimum=0)
    final_logit_softcapping: float = option(0.0, "soft cap of the logits (Gemma 2); 0 for none", minimum=0)
    rms_norm_eps: float = option(1e-5, "constant added to the mean square in RMS normalization", minimum=0)
    rope_theta: float = option(10000.0, "base of the rotary positions", minimum=1e-6)
    rope_factor: float = option(1.0, "divisor of the positions", minimum=1e-6)
    rope_original_positions: int = option(0, "longest input without rope_factor, which keeps high frequencies; 0: none")
    rope_low_freq_factor: float = option(1.0, "rope_original_positions / longest wavelength that is kept in part")
    rope_high_freq_factor: float = option(4.0, "rope_original_positions / longest wavelength that is kept")
    rope_local_base_freq: float = option(
        0.0,
        "base of the rotary positions in sliding layers, where rope_factor is 1 (Gemma 3); 0: as in others",
        minimum=0,
    )
    no_rope_layers: list[int] = option([], "for each layer 1, or 0 if it has no positions (SmolLM 3); empty: all have")
    sliding_window: int = option(0, "positions to which sliding layers attend, itself included; 0: all", minimum=0)
    layer_types: list[str] = option(
        [], "sliding_attention or full_attention for each layer; empty: all slide if there is a sliding_window"
    )
    dropout: float = option(0.0, "dropout probability of features", minimum=0, maximum=0.99)
    attention_dropout: float = option(0.0, "dropout probability of attention weights", minimum=0, maximum=0.99)
    tie_word_embeddings: bool = option(False, "use the embedding as the output projection (tied weights)")
    max_position_embeddings: int = option(4096, "maximum length of prompt and output together, in tokens", minimum=1)

    def resolved(self) -> Self:
        """A copy in which no 0 and no empty list stands for something else, and unused values are 0."""
        head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        types = self.layer_types or [SLIDING if self.sliding_window else FULL] * self.num_hidden_layers
        full = self.rope_theta, self.rope_factor, self.rope_original_positions
        is_local = SLIDING in types and (self.rope_local_base_freq, 1, 0) != full
        return replace(
            self,
            num_key_value_heads=self.num_key_value_heads or self.num_attention_heads,
            head_dim=head_dim,
            query_pre_attn_scalar=self.query_pre_attn_scalar or head_dim,
            rope_local_base_freq=self.rope_local_base_freq if is_local else 0.0,
            no_rope_layers=self.no_rope_layers or [1] * self.num_hidden_layers,
            sliding_window=self.sliding_window if SLIDING in types else 0,
            layer_types=types,
        )

    def check(self) -> None:
        """Check the values.

        Raises:
            ConfigError: values exclude each other.
        """
        heads, groups, layers = self.num_attention_heads, self.num_key_value_heads, self.num_hidden_layers
        size = self.head_dim or self.hidden_size // heads
        if groups and heads % groups:
            raise ConfigError(f"model.num_attention_heads={heads} is not a multiple of {groups} key/value heads")
        if size % 2 or not size:
            raise ConfigError(f"model.head_dim={size}; rotary positions need an even number from 2 on")
        if self.rope_original_positions and not 0 < self.rope_low_freq_factor < self.rope_high_freq_factor:
            raise ConfigError("model.rope_low_freq_factor must be above 0 and below model.rope_high_freq_factor")
        check_layers("model.layer_types", self.layer_types, layers, (SLIDING, FULL))
        check_layers("model.no_rope_layers", self.no_rope_layers, layers, (0, 1))
        if SLIDING in self.layer_types and not self.sliding_window:
            raise ConfigError(
                f"model.layer_types has {SLIDING}, for which model.sliding_window must be set, in files of some "
                "model types with use_sliding_window"
            )


def check_layers(key: str, values: list[Any], layers: int, allowed: tuple[Any, Any]) -> None:
    """Check a list with a value for each layer, unless it is empty.

    Args:
        key: the key that has it, for messages.
        values: the values.
        layers: number of layers.
        allowed: the possible values.

    Raises:
        ConfigError: it has another length, or other values.
    """
    if values and (len(values) != layers or not {*values} <= {*allowed}):
        raise ConfigError(f"{key} must have {layers} entries, each {allowed[0]} or {allowed[1]}")


def llama_norm(cfg: LlamaConfig, dim: int) -> RMSNorm:
    """The normalization of features of a dimension."""
    return RMSNorm(dim, cfg.rms_norm_eps, cfg.zero_centered_norm)


def llama_attention(
    cfg: LlamaConfig, kind: type[MultiheadAttention] = MultiheadAttention, **options: Any
) -> MultiheadAttention:
    """The attention of one layer with initial weights.

    Args:
        cfg: the configuration, resolved.
        kind: its class.
        options: further arguments of the class.
    """
    attention = kind(
        cfg.hidden_size,
        cfg.num_attention_heads,
        head_dim=cfg.head_dim,
        dropout=cfg.attention_dropout,
        bias=cfg.attention_bias,
        scale=cfg.query_pre_attn_scalar**-0.5,
        kv_heads=cfg.num_key_value_heads,
        soft_cap=cfg.attn_logit_softcapping or None,
        qk_norm=partial(llama_norm, cfg) if cfg.qk_norm else nn.Identity,
        **options,
    )
    inner = cfg.num_attention_heads * cfg.head_dim
    attention.out_proj = Linear(inner, cfg.hidden_size, bias=cfg.attention_out_bias)
    for name, parameter in attention.named_parameters():
        if name.endswith("_proj.weight"):
            nn.init.normal_(parameter, std=INIT_STD)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    return attention


class LlamaLayer(AttentionLayer):
    """Causal self-attention and a gated feed-forward network, each after a normalization, or between two.

    Args:
        cfg: the configuration, resolved.
    """

    attention_class: type[MultiheadAttention] = MultiheadAttention
    """The class of self-attention, for a subclass whose attention differs."""

    def __init__(self, cfg: LlamaConfig):
        super().__init__()
        self.has_post_norm = cfg.post_norm
        self.self_attn = llama_attention(cfg, self.attention_class)
        self.add_norms("self_attn", cfg)
        sizes = cfg.hidden_size, cfg.intermediate_size
        self.feed_forward = GatedFeedForward(*sizes, cfg.activation_fn, cfg.dropout, INIT_STD, cfg.mlp_bias)
        self.add_norms("final", cfg)
        self.dropout = Dropout(cfg.dropout)

    def add_norms(self, part: str, cfg: LlamaConfig) -> None:
        """Add the normalizations of a sublayer: before it and, with ``post_norm``, after it."""
        for place in ("layer", "post")[: 1 + cfg.post_norm]:
            setattr(self, f"{part}_{place}_norm", llama_norm(cfg, cfg.hidden_size))

    def _after(self, part: str, x: Tensor, update: Tensor) -> Tensor:
        return super()._after(part, x, getattr(self, f"{part}_post_norm")(update) if self.has_post_norm else update)


class LlamaStack(LayerStack):
    """Embedding, rotary positions, layers and the last normalization.

    Args:
        cfg: the configuration.
        embed_tokens: the embedding.
        layer: makes a layer.
    """

    def __init__(
        self, cfg: LlamaConfig, embed_tokens: nn.Embedding, layer: Callable[[LlamaConfig], LlamaLayer] = LlamaLayer
    ):
        super().__init__()
        self.cfg = cfg = cfg.resolved()
        self.embed_tokens = embed_tokens
        kept = cfg.rope_original_positions, cfg.rope_low_freq_factor, cfg.rope_high_freq_factor
        scaled = (cfg.head_dim, cfg.rope_theta, cfg.rope_factor)
        full = HighFrequencyPositions(*scaled, *kept) if kept[0] else RotaryPositions(*scaled)
        local = RotaryPositions(cfg.head_dim, cfg.rope_local_base_freq) if cfg.rope_local_base_freq else full
        by_type = {FULL: full, SLIDING: local}
        kinds = zip(cfg.layer_types, cfg.no_rope_layers, strict=True)
        self.rotary = [by_type[kind] if has_positions else None for kind, has_positions in kinds]
        self.layers = LayerDropList(0.0, [layer(cfg) for _ in cfg.layer_types])
        self.layer_norm = llama_norm(cfg, cfg.hidden_size)
        self.dropout = Dropout(cfg.dropout)

    def embed(self, tokens: Tensor, queries: QueryPositions) -> Tensor:
        """The embeddings ``(N, T, C)``, perhaps times the square root of ``C``, which is rounded to their dtype.

        Scaled ones are float32 in a float16 model, because sums over many layers exceed the range of float16.
        """
        embedded: Tensor = self.embed_tokens(tokens)
        if self.cfg.scale_embedding:
            scale = torch.full((), embedded.size(-1) ** 0.5, dtype=embedded.dtype, device=embedded.device)
            embedded = embedded * scale
            embedded = embedded.float() if embedded.dtype == torch.float16 else embedded
        dropped: Tensor = self.dropout(embedded)
        return dropped

    def layer_options(self, queries: QueryPositions) -> list[dict[str, Any]]:
        """The rotation of each layer, ``None`` without positions; layers with the same positions share it."""
        like = self.embed_tokens.weight
        made = {positions: positions and positions(queries, like) for positions in dict.fromkeys(self.rotary)}
        return [{"rotation": made[positions]} for positions in self.rotary]

    def self_attention_mask(self, queries: QueryPositions, layer: int) -> Tensor | None:
        """The mask of self-attention in one layer; see ``LayerStack.self_attention_mask``."""
        window = self.cfg.sliding_window
        limited = not INPUT_CHOICES.is_on() or queries.seen + queries.new > window
        if self.cfg.layer_types[layer] == SLIDING and limited:
            return queries.once(self, lambda: queries.restrict(queries.distances < window))
        return super().self_attention_mask(queries, layer)

    def add_output(self) -> None:
        """Add a decoder's output projection and the bound of its logits."""
        self.output_projection = make_output_projection(self.embed_tokens, self.cfg.tie_word_embeddings, INIT_STD)
        self.soft_cap = self.cfg.final_logit_softcapping

    def max_positions(self) -> int:
        """The longest input, in tokens; of a language model, prompt and output together."""
        return int(self.cfg.max_position_embeddings)


class LlamaDecoder(LlamaStack, ProjectedOutput, LanguageModelDecoder):
    """The layers, and the output projection.

    Args:
        cfg: the configuration.
        rows: rows of the embedding.
    """

    can_roll_back = True
    can_merge = True

    def __init__(self, cfg: LlamaConfig, rows: int):
        super().__init__(cfg, token_embedding(rows, cfg.hidden_size, None, INIT_STD))
        self.add_output()

    def transform(self, tokens: Tensor, queries: QueryPositions, incremental_state: StateDict | None = None) -> Tensor:
        """Compute the last hidden features of new columns; see ``LanguageModelDecoder``."""
        return self.run(tokens, queries, incremental_state=incremental_state)[0]


_TINY: dict[str, Any] = {
    **{"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "dropout": 0.1, "tie_word_embeddings": True, "max_position_embeddings": 1024},
}


@register_model("llama", config=LlamaConfig, presets={"llama_tiny": LlamaConfig(**_TINY)})
class LlamaModel(LanguageModel):
    """Llama.

    Args:
        cfg: the configuration.
        rows: rows of the embedding.
    """

    decoder: LlamaDecoder

    def __init__(self, cfg: LlamaConfig, rows: int):
        super().__init__(LlamaDecoder(cfg, rows))
        self.cfg = cfg

    @classmethod
    def build_model(cls, cfg: LlamaConfig, task: Vocabularies) -> Self:
        """Build the model.

        Args:
            cfg: the configuration.
            task: gives the target dictionary.

        Raises:
            ConfigError: values of the configuration exclude each other.
        """
        cfg.check()
        return cls(replace(cfg), len(task.target_dictionary))
