"""The transformer as a decoder-only language model: fairseq's ``transformer_lm``, and GPT-2 (Radford et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor, nn

from seqgen.config import like, option
from seqgen.core.incremental_state import StateDict
from seqgen.data.dictionary import Vocabularies
from seqgen.models.transformer import TransformerConfig, TransformerStack
from seqgen.modules.dropout import Dropout
from seqgen.modules.language_model import LanguageModel, LanguageModelDecoder
from seqgen.modules.masks import QueryPositions
from seqgen.modules.positions import token_embedding
from seqgen.modules.projected_output import ProjectedOutput, make_output_projection
from seqgen.modules.transformer_layer import TransformerDecoderLayer
from seqgen.registry import register_model


@dataclass
class TransformerLMConfig:
    """Configuration of the language model, with fairseq's names and defaults."""

    dropout: float = like(TransformerConfig, "dropout")
    attention_dropout: float = like(TransformerConfig, "attention_dropout")
    activation_dropout: float = like(TransformerConfig, "activation_dropout")
    activation_fn: str = like(TransformerConfig, "activation_fn")
    decoder_embed_dim: int = option(512, "hidden size", minimum=1)
    decoder_ffn_embed_dim: int = option(2048, "hidden size of the feed-forward layers", minimum=1)
    decoder_layers: int = option(6, "number of layers", minimum=1)
    decoder_attention_heads: int = option(8, "number of attention heads", minimum=1)
    decoder_normalize_before: bool = like(TransformerConfig, "decoder_normalize_before", True)
    no_decoder_final_norm: bool = option(False, "no layer normalization after the last layer (pre-norm only)")
    decoder_learned_pos: bool = option(False, "learned position embeddings instead of sinusoidal ones")
    decoder_layerdrop: float = like(TransformerConfig, "decoder_layerdrop")
    share_decoder_input_output_embed: bool = like(TransformerConfig, "share_decoder_input_output_embed")
    no_scale_embedding: bool = like(TransformerConfig, "no_scale_embedding")
    layernorm_embedding: bool = like(TransformerConfig, "layernorm_embedding")
    embedding_dropout: float | None = option(
        None, "dropout probability of embeddings; null for that of features", minimum=0, maximum=0.99
    )
    layer_norm_epsilon: float = like(TransformerConfig, "layer_norm_epsilon")
    scale_attn_weights: bool = option(True, "divide attention scores by the square root of the head dimension")
    scale_attn_by_inverse_layer_idx: bool = option(
        False, "divide attention scores by the number of the layer as well, counted from 1"
    )
    positions_from_zero: bool = option(
        False, "the first position embedding is that of the first token (GPT-2), else padding_idx + 1 (fairseq)"
    )
    max_target_positions: int = option(1024, "maximum length of prompt and output together, in tokens", minimum=1)

    sinusoids: ClassVar[str] = "fairseq"
    """The table of sinusoidal positions; see ``TransformerConfig``."""

    @property
    def position_offset(self) -> int | None:
        """The number of the first position; see ``TransformerConfig``."""
        return 0 if self.positions_from_zero else None

    def attention_scale(self, index: int) -> float:
        """The factor of the scores of attention in one layer, counted from 0."""
        head_dim = self.decoder_embed_dim // self.decoder_attention_heads
        scale = head_dim**-0.5 if self.scale_attn_weights else 1.0
        return scale / (index + 1) if self.scale_attn_by_inverse_layer_idx else scale


class TransformerLMDecoder(TransformerStack, ProjectedOutput, LanguageModelDecoder):
    """Layers of causal self-attention.

    Args:
        cfg: the configuration.
        embed_tokens: embedding of the vocabulary.
        padding_idx: id of padding, after which fairseq's positions are numbered.
    """

    can_roll_back = True
    can_merge = True

    def __init__(self, cfg: TransformerLMConfig, embed_tokens: nn.Embedding, padding_idx: int):
        scale = cfg.attention_scale
        super().__init__(
            cfg, "decoder", embed_tokens, padding_idx, lambda index: TransformerDecoderLayer(cfg, None, scale(index))
        )
        if cfg.embedding_dropout is not None:
            self.dropout = Dropout(cfg.embedding_dropout)
        tied, std = cfg.share_decoder_input_output_embed, cfg.decoder_embed_dim**-0.5
        self.output_projection = make_output_projection(embed_tokens, tied, std)

    def transform(self, tokens: Tensor, queries: QueryPositions, incremental_state: StateDict | None = None) -> Tensor:
        """Compute the last hidden features of new columns; see ``LanguageModelDecoder``."""
        return self.run(tokens, queries, incremental_state=incremental_state)[0]


_TINY = TransformerLMConfig(
    decoder_embed_dim=128,
    decoder_ffn_embed_dim=256,
    decoder_attention_heads=4,
    decoder_layers=4,
    share_decoder_input_output_embed=True,
)


@register_model("transformer_lm", config=TransformerLMConfig, presets={"transformer_lm_tiny": _TINY})
class TransformerLanguageModel(LanguageModel):
    """The transformer language model.

    Args:
        cfg: the configuration.
        decoder: the decoder that it describes.
    """

    decoder: TransformerLMDecoder

    def __init__(self, cfg: TransformerLMConfig, decoder: TransformerLMDecoder):
        super().__init__(decoder)
        self.cfg = cfg

    @classmethod
    def build_model(cls, cfg: TransformerLMConfig, task: Vocabularies) -> Self:
        """Build the model.

        Args:
            cfg: the configuration.
            task: gives the target dictionary.

        Raises:
            ConfigError: the hidden size is not a multiple of the number of heads.
        """
        dim, dictionary = cfg.decoder_embed_dim, task.target_dictionary
        padding_idx = dictionary.pad()
        # padding is masked by length: it may be end-of-sentence (GPT-2), whose embedding is trained
        frozen = None if padding_idx == dictionary.eos() else padding_idx
        embedding = token_embedding(len(dictionary), dim, frozen, std=dim**-0.5)
        return cls(cfg, TransformerLMDecoder(cfg, embedding, padding_idx))
