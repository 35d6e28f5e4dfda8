"""T5Gemma (Zhang et al. 2025, "Encoder-decoder Gemma"): the layers of Gemma 2 as an encoder and a decoder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from seqgen.config import option
from seqgen.extend import (
    ACTIVATIONS,
    ConfigError,
    EncoderDecoderModel,
    LayeredDecoder,
    LayeredEncoder,
    QueryPositions,
    Vocabularies,
    embedding_sizes,
    register_model,
)
from seqgen.models.llama import (
    FULL,
    INIT_STD,
    SLIDING,
    LlamaConfig,
    LlamaLayer,
    LlamaStack,
    check_layers,
    layer_pattern,
    llama_attention,
)

SIDE_KEYS = {
    **{"hidden_size": "hidden_size", "intermediate_size": "intermediate_size", "num_hidden_layers": "layers"},
    **{"num_attention_heads": "attention_heads", "num_key_value_heads": "key_value_heads", "head_dim": "head_dim"},
    **{"query_pre_attn_scalar": "query_pre_attn_scalar", "sliding_window": "sliding_window"},
}
"""The sizes of a side: their names in ``config.json`` and in ``LlamaConfig``, and here without the side."""


@dataclass
class T5GemmaConfig:
    """Configuration of T5Gemma; names without their side are those of ``config.json``, the defaults those of 2B-2B."""

    vocab_size: int = option(0, "rows of each embedding; 0 for the size of the vocabulary", minimum=0)
    encoder_hidden_size: int = option(2304, "hidden size of the encoder", minimum=1)
    encoder_intermediate_size: int = option(9216, "hidden size of the encoder's feed-forward layers", minimum=1)
    encoder_layers: int = option(26, "number of encoder layers", minimum=1)
    encoder_attention_heads: int = option(8, "number of attention heads in the encoder", minimum=1)
    encoder_key_value_heads: int = option(4, "number of key/value heads in the encoder (grouped queries)", minimum=1)
    encoder_head_dim: int = option(256, "dimension of an attention head in the encoder; an even number", minimum=2)
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
    decoder_key_value_heads: int = option(4, "number of key/value heads in the decoder (grouped queries)", minimum=1)
    decoder_head_dim: int = option(256, "dimension of an attention head in the decoder; an even number", minimum=2)
    decoder_query_pre_attn_scalar: int = option(
        256, "scores of attention in the decoder are divided by the square root of this number", minimum=1
    )
    decoder_rope_theta: float = option(10000.0, "base of the rotary positions in the decoder", minimum=1e-6)
    decoder_sliding_window: int = option(
        4096, "positions to which a sliding layer of the decoder attends, the current one included", minimum=1
    )
    decoder_layer_types: list[str] = option(
        [], "sliding_attention or full_attention for each decoder layer; empty to alternate, sliding first"
    )
    activation_fn: str = option(
        "gelu_accurate", "activation function of the gates in the feed-forward layers", choices=sorted(ACTIVATIONS)
    )
    attention_bias: bool = option(False, "add a bias to the projections of attention")
    attn_logit_softcapping: float = option(50.0, "soft cap of the attention scores; 0 for none", minimum=0)
    final_logit_softcapping: float = option(30.0, "soft cap of the logits; 0 for none", minimum=0)
    rms_norm_eps: float = option(1e-6, "constant added to the mean square in RMS normalization", minimum=0)
    dropout_rate: float = option(0.0, "dropout probability of features", minimum=0, maximum=0.99)
    attention_dropout: float = option(0.0, "dropout probability of attention weights", minimum=0, maximum=0.99)
    tie_word_embeddings: bool = option(True, "use the decoder's embedding as the output projection (tied weights)")
    decoder_start_token_id: int = option(-1, "id of the first decoder input; -1 for end-of-sentence", minimum=-1)
    max_source_positions: int = option(8192, "maximum source length, in tokens with end-of-sentence", minimum=1)
    max_target_positions: int = option(8192, "maximum target length, in tokens with end-of-sentence", minimum=1)

    period: ClassVar[int] = 2
    """Every ``period``-th layer is full, unless the types of layers are listed."""

    def layer_types(self, side: str) -> list[str]:
        """The type of each layer, ``SLIDING`` or ``FULL``.

        Args:
            side: ``encoder`` or ``decoder``.
        """
        given: list[str] = getattr(self, f"{side}_layer_types")
        return given or layer_pattern(getattr(self, f"{side}_layers"), self.period)

    def of_side(self, side: str) -> LlamaConfig:
        """The configuration of the layers of a side.

        Args:
            side: ``encoder`` or ``decoder``.
        """
        sizes = {name: getattr(self, f"{side}_{own}") for name, own in SIDE_KEYS.items()}
        shared = ["activation_fn", "attention_bias", "rms_norm_eps", "attention_dropout", "tie_word_embeddings"]
        shared += ["attn_logit_softcapping", "final_logit_softcapping"]
        return LlamaConfig(
            **sizes,
            **{name: getattr(self, name) for name in shared},
            attention_out_bias=self.attention_bias,
            dropout=self.dropout_rate,
            layer_types=self.layer_types(side),
            rope_theta=getattr(self, f"{side}_rope_theta"),
            post_norm=True,
            zero_centered_norm=True,
            scale_embedding=True,
            max_position_embeddings=self.max_source_positions if side == "encoder" else self.max_target_positions,
        )

    @property
    def encoder_window(self) -> tuple[int, int]:
        """The largest distances to which a sliding layer of the encoder attends: to the left, and to the right."""
        return self.encoder_sliding_window, self.encoder_sliding_window

    def check(self) -> None:
        """Check the values.

        Raises:
            ConfigError: a value is not one of its choices, or values exclude each other.
        """
        for side in ("encoder", "decoder"):
            types = getattr(self, f"{side}_layer_types")
            check_layers(f"model.{side}_layer_types", types, getattr(self, f"{side}_layers"), (SLIDING, FULL))


_TINY_SIDE = {
    **{"hidden_size": 128, "intermediate_size": 256, "layers": 4, "attention_heads": 4, "key_value_heads": 2},
    **{"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16},
}
TINY: dict[str, Any] = {f"{side}_{key}": size for side in ("encoder", "decoder") for key, size in _TINY_SIDE.items()}
TINY["dropout_rate"] = 0.1
"""Values of a small model for tests; the defaults are those of 2B-2B."""


class T5GemmaDecoderLayer(LlamaLayer):
    """Causal self-attention, encoder-decoder attention and the feed-forward network, each between two normalizations.

    Args:
        cfg: the configuration of the decoder's layers.
        encoder_dim: hidden size of the encoder.
    """

    has_encoder_attn = True

    def __init__(self, cfg: LlamaConfig, encoder_dim: int):
        super().__init__(cfg)
        if self.has_encoder_attn:
            self.encoder_attn = llama_attention(cfg, encoder_dim=encoder_dim)
            self.add_norms("encoder_attn", cfg)


class T5GemmaEncoder(LlamaStack, LayeredEncoder):
    """T5Gemma encoder.

    Args:
        cfg: the configuration.
        embed_tokens: the embedding of the source.
        padding_idx: id of padding in the source.
    """

    def __init__(self, cfg: T5GemmaConfig, embed_tokens: nn.Embedding, padding_idx: int):
        super().__init__(cfg.of_side("encoder"), embed_tokens)
        self.padding_idx = padding_idx
        self.window = cfg.encoder_window

    def self_attention_mask(self, queries: QueryPositions, layer: int) -> Tensor | None:
        """The mask of self-attention in one layer.

        Args:
            queries: the positions of the source.
            layer: index of the layer.

        Returns:
            Bool, true where attention is allowed, broadcastable to ``(N, H, S, S)``; ``None`` if everywhere.
        """
        left, right = self.window
        if self.cfg.layer_types[layer] == FULL or queries.new <= min(left, right) + 1:
            return queries.allowed
        distances = queries.distances
        return queries.once(self, lambda: queries.restrict((distances <= left) & (distances >= -right)))


class T5GemmaDecoder(LlamaStack, LayeredDecoder):
    """T5Gemma decoder.

    Args:
        cfg: the configuration.
        embed_tokens: the embedding of the target.
    """

    layer_class: type[T5GemmaDecoderLayer] = T5GemmaDecoderLayer
    """The class of the layers, for a subclass whose layers differ."""

    def __init__(self, cfg: T5GemmaConfig, embed_tokens: nn.Embedding):
        layer = partial(self.layer_class, encoder_dim=cfg.encoder_hidden_size)
        super().__init__(cfg.of_side("decoder"), embed_tokens, layer)
        self.add_output()


@register_model("t5gemma", config=T5GemmaConfig, presets={"t5gemma_tiny": T5GemmaConfig(**TINY)})
class T5GemmaModel(EncoderDecoderModel):
    """T5Gemma.

    Args:
        cfg: the configuration.
        source_size: number of source ids.
        target_size: number of target ids.
        padding_idx: id of padding in the source.
    """

    supports_packing = True
    decoder_class: type[T5GemmaDecoder] = T5GemmaDecoder
    """The class of the decoder, for a subclass whose decoder differs."""

    encoder: T5GemmaEncoder
    decoder: T5GemmaDecoder

    def __init__(self, cfg: T5GemmaConfig, source_size: int, target_size: int, padding_idx: int):
        source, target = self.embeddings(cfg, source_size, target_size)
        super().__init__(T5GemmaEncoder(cfg, source, padding_idx), self.decoder_class(cfg, target))
        self.cfg = cfg
        for embedding in (source, target):
            nn.init.normal_(embedding.weight, std=INIT_STD)

    @staticmethod
    def embeddings(cfg: Any, source_size: int, target_size: int) -> tuple[nn.Embedding, nn.Embedding]:
        """The embeddings of source and target; see ``T5GemmaModel``."""
        return nn.Embedding(source_size, cfg.encoder_hidden_size), nn.Embedding(target_size, cfg.decoder_hidden_size)

    @classmethod
    def build_model(cls, cfg: T5GemmaConfig, task: Vocabularies) -> Self:
        """Build the model.

        Args:
            cfg: the configuration.
            task: gives the dictionaries.

        Raises:
            ConfigError: values of the configuration exclude each other, or do not fit the dictionaries.
        """
        cfg.check()
        sizes = embedding_sizes(task, cfg.vocab_size, cfg.decoder_start_token_id)
        try:
            return cls(replace(cfg), *sizes, task.source_dictionary.pad())
        except ValueError as error:
            raise ConfigError(f"the configuration of this model cannot be used: {error}") from None

    def start_token(self, task_eos: int) -> int:
        """The id that ``prev_output_tokens`` begins with: ``decoder_start_token_id``, or else end-of-sentence."""
        return task_eos if self.cfg.decoder_start_token_id < 0 else self.cfg.decoder_start_token_id
