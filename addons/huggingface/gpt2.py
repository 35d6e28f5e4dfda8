"""GPT-2 in Hugging Face's layout, read as a ``transformer_lm``: its ``config.json`` and the names of its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from seqgen.addons.huggingface.architecture import HEAD, Architecture, JSONConfig
from seqgen.addons.huggingface.weights import with_bias
from seqgen.extend import Layout, Piece, PromptDecodingTask, Tokenizer, TransformerLMConfig

_PREFIX = "transformer."
_EMBEDDING, _POSITIONS = f"{_PREFIX}wte.weight", f"{_PREFIX}wpe.weight"

_SIZES = (
    ("n_embd", "decoder_embed_dim", 768),
    ("n_layer", "decoder_layers", 12),
    ("n_head", "decoder_attention_heads", 12),
    ("n_positions", "max_target_positions", 1024),
)
"""The name in GPT-2, the name in seqgen, and the default."""

_VALUES: tuple[tuple[str, str, Any], ...] = (
    ("resid_pdrop", "dropout", 0.1),
    ("embd_pdrop", "embedding_dropout", 0.1),
    ("attn_pdrop", "attention_dropout", 0.1),
    ("layer_norm_epsilon", "layer_norm_epsilon", 1e-5),
    ("scale_attn_weights", "scale_attn_weights", True),
    ("scale_attn_by_inverse_layer_idx", "scale_attn_by_inverse_layer_idx", False),
    ("tie_word_embeddings", "share_decoder_input_output_embed", True),
)
"""The name in GPT-2, the name in seqgen, and the default, whose type is that of the value."""

_FIXED: dict[str, Any] = {
    "decoder_normalize_before": True,
    "no_decoder_final_norm": False,
    "decoder_learned_pos": True,
    "positions_from_zero": True,
    "no_scale_embedding": True,
    "layernorm_embedding": False,
}
"""Values of the configuration that every GPT-2 has."""

_OFF = ("add_cross_attention", "is_encoder_decoder", "pruned_heads")
"""Keys that change the computation and are not supported."""


class GPT2Architecture(Architecture):
    """GPT-2; see ``Architecture``."""

    decoder_only = True

    def read_config(self, config: JSONConfig) -> TransformerLMConfig:
        """Turn a folder's ``config.json`` into a configuration."""
        config.refuse(_OFF, "GPT-2")
        sizes = config.read_table(_SIZES, minimum=1)
        values = {
            "_name": "transformer_lm",
            **_FIXED,
            **sizes,
            "decoder_ffn_embed_dim": config.get("n_inner", 4 * sizes["decoder_embed_dim"], minimum=1),
            "activation_fn": config.activation("gelu_new"),
            **config.read_table(_VALUES),
        }
        cfg: TransformerLMConfig = config.model(values)
        return cfg

    def vocab_size(self, cfg: TransformerLMConfig, config: JSONConfig) -> int:
        """The size of the vocabulary."""
        return config.get("vocab_size", 50257, minimum=1)

    def make_task(self, cfg: TransformerLMConfig, path: Path, tokenizer: Tokenizer) -> PromptDecodingTask:
        """The task that decodes: a prompt has the ids that transformers gives it; an empty one is end-of-sentence."""
        return PromptDecodingTask.of(tokenizer, getattr(tokenizer, "begins_with_eos", False))

    def layout(self, cfg: TransformerLMConfig) -> Layout:
        """The names of the weights; folders of the model without its output projection lack ``transformer.``."""
        pieces = {_EMBEDDING: Piece("decoder.embed_tokens.weight"), _POSITIONS: Piece("decoder.embed_positions.weight")}
        ignored = set()  # causal masks, which old versions saved
        for index in range(cfg.decoder_layers):
            pieces |= _layer(index)
            ignored |= {f"{_PREFIX}h.{index}.attn.{name}" for name in ("bias", "masked_bias")}
        pieces |= with_bias(f"{_PREFIX}ln_f", "decoder.layer_norm")
        tied = {HEAD: _EMBEDDING} if cfg.share_decoder_input_output_embed else {}
        if not tied:
            pieces[HEAD] = Piece("decoder.output_projection.weight")
        return Layout(pieces, ignored=frozenset(ignored), tied=tied, prefix=_PREFIX)


ARCHITECTURE = GPT2Architecture()


def _layer(index: int) -> dict[str, Piece]:
    """The weights of a layer; its matrices are transposed."""
    foreign, local = f"{_PREFIX}h.{index}", f"decoder.layers.{index}"
    return {
        **with_bias(f"{foreign}.ln_1", f"{local}.self_attn_layer_norm"),
        **with_bias(f"{foreign}.attn.c_attn", f"{local}.self_attn.in_proj", transposed=True),
        **with_bias(f"{foreign}.attn.c_proj", f"{local}.self_attn.out_proj", transposed=True),
        **with_bias(f"{foreign}.ln_2", f"{local}.final_layer_norm"),
        **with_bias(f"{foreign}.mlp.c_fc", f"{local}.fc1", transposed=True),
        **with_bias(f"{foreign}.mlp.c_proj", f"{local}.fc2", transposed=True),
    }
