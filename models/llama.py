"""Llama (Touvron et al. 2023) and the language models with its layers: Mistral, Qwen 2 and 3, SmolLM 2."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

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

INIT_STD = 0.02
"""Standard deviation of the initial weights."""


@dataclass
class LlamaConfig:
    """Configuration of Llama; most names are those of ``config.json``, the defaults those of Llama 2 7B."""

    hidden_size: int = option(4096, "hidden size", minimum=1)
    intermediate_size: int = option(11008, "hidden size of the feed-forward layers", minimum=1)
    num_hidden_layers: int = option(32, "number of layers", minimum=1)
    num_attention_heads: int = option(32, "number of attention heads", minimum=1)
    num_key_value_heads: int = option(0, "number of key/value heads (grouped queries); 0 for all heads", minimum=0)
    head_dim: int = option(0, "dimension of an attention head, even; 0: hidden size / heads, rounded down", minimum=0)
    activation_fn: str = option("swish", "activation function of the gates", choices=sorted(ACTIVATIONS))
    attention_bias: bool = option(False, "add a bias to the projections to queries, keys and values")
    attention_out_bias: bool = option(False, "add a bias to the output projection of attention")
    mlp_bias: bool = option(False, "add a bias to the projections of the feed-forward layers")
    qk_norm: bool = option(False, "normalize the queries and keys of each head (Qwen 3)")
    rms_norm_eps: float = option(1e-5, "constant added to the mean square in RMS normalization", minimum=0)
    rope_theta: float = option(10000.0, "base of the rotary positions", minimum=1e-6)
    rope_factor: float = option(1.0, "divisor of the positions", minimum=1e-6)
    rope_original_positions: int = option(0, "longest input without rope_factor, which keeps high frequencies; 0: none")
    rope_low_freq_factor: float = option(1.0, "rope_original_positions / longest wavelength that is kept in part")
    rope_high_freq_factor: float = option(4.0, "rope_original_positions / longest wavelength that is kept")
    sliding_window: int = option(0, "positions to which sliding layers attend, itself included; 0: all", minimum=0)
    first_sliding_layer: int = option(0, "number of layers at the bottom that attend to all positions", minimum=0)
    dropout: float = option(0.0, "dropout probability of features", minimum=0, maximum=0.99)
    attention_dropout: float = option(0.0, "dropout probability of attention weights", minimum=0, maximum=0.99)
    tie_word_embeddings: bool = option(False, "use the embedding as the output projection (tied weights)")
    max_position_embeddings: int = option(4096, "maximum length of prompt and output together, in tokens", minimum=1)

    @property
    def kv_heads(self) -> int:
        """The number of key/value heads."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def size_of_head(self) -> int:
        """The dimension of an attention head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    def check(self) -> None:
        """Check the values.

        Raises:
            ConfigError: values exclude each other.
        """
        heads = self.num_attention_heads
        if heads % self.kv_heads:
            raise ConfigError(f"model.num_attention_heads={heads} is not a multiple of {self.kv_heads} key/value heads")
        if self.size_of_head % 2 or not self.size_of_head:
            raise ConfigError(f"model.head_dim={self.size_of_head}; rotary positions need an even number from 2 on")
        if self.rope_original_positions and not 0 < self.rope_low_freq_factor < self.rope_high_freq_factor:
            raise ConfigError("model.rope_low_freq_factor must be above 0 and below model.rope_high_freq_factor")


class LlamaLayer(AttentionLayer):
    """Causal self-attention and a gated feed-forward network, each after a normalization.

    Args:
        cfg: the configuration.
    """

    def __init__(self, cfg: LlamaConfig):
        super().__init__()
        options: dict[str, Any] = {"qk_norm": lambda dim: RMSNorm(dim, cfg.rms_norm_eps)} if cfg.qk_norm else {}
        options |= {"head_dim": cfg.size_of_head, "kv_heads": cfg.kv_heads, "bias": cfg.attention_bias}
        options["dropout"] = cfg.attention_dropout
        self.self_attn = MultiheadAttention(cfg.hidden_size, cfg.num_attention_heads, **options)
        inner = cfg.num_attention_heads * cfg.size_of_head
        self.self_attn.out_proj = Linear(inner, cfg.hidden_size, bias=cfg.attention_out_bias)
        self.self_attn_layer_norm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        sizes = cfg.hidden_size, cfg.intermediate_size
        self.feed_forward = GatedFeedForward(*sizes, cfg.activation_fn, cfg.dropout, INIT_STD, cfg.mlp_bias)
        self.final_layer_norm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.dropout = Dropout(cfg.dropout)
        for projection in (self.self_attn.in_proj, self.self_attn.out_proj):
            nn.init.normal_(projection.weight, std=INIT_STD)
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)


class LlamaDecoder(LayerStack, ProjectedOutput, LanguageModelDecoder):
    """Embedding, layers with rotary positions, and the output projection.

    Args:
        cfg: the configuration.
        rows: rows of the embedding.
    """

    def __init__(self, cfg: LlamaConfig, rows: int):
        super().__init__()
        self.cfg = cfg
        self.embed_tokens = token_embedding(rows, cfg.hidden_size, None, INIT_STD)
        kept = cfg.rope_original_positions, cfg.rope_low_freq_factor, cfg.rope_high_freq_factor
        scaled = (cfg.size_of_head, cfg.rope_theta, cfg.rope_factor)
        self.rotary = HighFrequencyPositions(*scaled, *kept) if kept[0] else RotaryPositions(*scaled)
        self.layers = LayerDropList(0.0, [LlamaLayer(cfg) for _ in range(cfg.num_hidden_layers)])
        self.layer_norm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.dropout = Dropout(cfg.dropout)
        self.output_projection = make_output_projection(self.embed_tokens, cfg.tie_word_embeddings, INIT_STD)

    def embed(self, tokens: Tensor, queries: QueryPositions) -> Tensor:
        """The embeddings ``(N, T, C)``."""
        embedded: Tensor = self.dropout(self.embed_tokens(tokens))
        return embedded

    def layer_options(self, queries: QueryPositions) -> list[dict[str, Any]]:
        """The rotation, which all layers share."""
        return [{"rotation": self.rotary(queries, self.embed_tokens.weight)}] * len(self.layers)

    def self_attention_mask(self, queries: QueryPositions, layer: int) -> Tensor | None:
        """The mask of self-attention in one layer; see ``LayerStack.self_attention_mask``."""
        window = self.cfg.sliding_window
        if window and layer >= self.cfg.first_sliding_layer and queries.seen + queries.new > window:
            return queries.once(self, lambda: queries.restrict(queries.distances < window))
        return super().self_attention_mask(queries, layer)

    def transform(self, tokens: Tensor, queries: QueryPositions, incremental_state: StateDict | None = None) -> Tensor:
        """Compute the last hidden features of new columns; see ``LanguageModelDecoder``."""
        return self.run(tokens, queries, incremental_state=incremental_state)[0]

    def max_positions(self) -> int:
        """The longest prompt and output together, in tokens."""
        return int(self.cfg.max_position_embeddings)


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
