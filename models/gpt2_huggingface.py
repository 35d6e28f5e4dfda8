"""GPT-2 in Hugging Face's layout: its ``config.json`` and the names of its weights. It is a ``transformer_lm`` here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from seqgen.checkpoints.loading import PromptDecodingConfig, PromptDecodingTask
from seqgen.config import TrainConfig
from seqgen.config_dicts import from_dict
from seqgen.data.tokenizers.base import Tokenizer
from seqgen.errors import CheckpointError, ConfigError
from seqgen.models.huggingface_config import JSONConfig, ModelSize
from seqgen.models.huggingface_weights import Layout, Piece, weights_of
from seqgen.models.transformer_lm import TransformerLanguageModel, TransformerLMConfig

MODEL = TransformerLanguageModel
DECODER_ONLY = True

_PREFIX = "transformer."
_HEAD, _EMBEDDING, _POSITIONS = "lm_head.weight", f"{_PREFIX}wte.weight", f"{_PREFIX}wpe.weight"

_ACTIVATIONS = {"gelu_new": "gelu_accurate", "gelu": "gelu", "relu": "relu", "tanh": "tanh"}
_ACTIVATIONS |= {"gelu_pytorch_tanh": "gelu_accurate", "gelu_fast": "gelu_accurate", "silu": "swish", "swish": "swish"}

_SIZES = (
    ("n_embd", "hidden_size", "decoder_embed_dim", 768),
    ("n_layer", "num_hidden_layers", "decoder_layers", 12),
    ("n_head", "num_attention_heads", "decoder_attention_heads", 12),
    ("n_positions", "max_position_embeddings", "max_target_positions", 1024),
)
"""GPT-2's name, the general name that transformers reads as well, ours, and the default."""

_FIXED: dict[str, Any] = {
    "decoder_normalize_before": True,
    "no_decoder_final_norm": False,
    "decoder_learned_pos": True,
    "positions_from_zero": True,
    "no_scale_embedding": True,
    "layernorm_embedding": False,
}
"""Values of the configuration that every GPT-2 has."""

_OFF = ("add_cross_attention", "is_encoder_decoder", "chunk_size_feed_forward", "pruned_heads")
"""Keys that change the computation and are not supported. All other keys that are not read below do not change it."""


def read_config(config: JSONConfig) -> TransformerLMConfig:
    """Turn a folder's ``config.json`` into a configuration.

    Args:
        config: its content.

    Raises:
        CheckpointError: a value is of the wrong type, or seqgen does not support such a GPT-2.
    """
    for key in _OFF:
        if config.values.get(key):
            raise CheckpointError(f"{config.path}: {key}={config.values[key]!r} is not supported for a GPT-2")
    values = {"_name": "transformer_lm", **_FIXED}
    for name, general, ours, default in _SIZES:
        values[ours] = config.integer(name, config.integer(general, default, minimum=1), minimum=1)
    width = values["decoder_embed_dim"]
    activation = config.string("activation_function", "gelu_new")
    if activation not in _ACTIVATIONS:
        raise CheckpointError(
            f"{config.path}: activation_function={activation!r} is not supported; seqgen supports "
            f"{', '.join(sorted(_ACTIVATIONS))}"
        )
    values |= {
        "decoder_ffn_embed_dim": config.integer("n_inner", 4 * width, minimum=1),
        "activation_fn": _ACTIVATIONS[activation],
        "dropout": config.number("resid_pdrop", 0.1),
        "embedding_dropout": config.number("embd_pdrop", 0.1),
        "attention_dropout": config.number("attn_pdrop", 0.1),
        "layer_norm_epsilon": config.number("layer_norm_epsilon", 1e-5),
        "scale_attn_weights": config.boolean("scale_attn_weights", True),
        "scale_attn_by_inverse_layer_idx": config.boolean("scale_attn_by_inverse_layer_idx", False),
        "share_decoder_input_output_embed": config.boolean("tie_word_embeddings", True),
    }
    try:
        cfg: TransformerLMConfig = from_dict(TrainConfig, {"model": values}, str(config.path)).model
    except ConfigError as error:
        raise CheckpointError(
            f"{config.path}: {str(error).removeprefix(f'{config.path}: ').replace('model.', '')}"
        ) from None
    return cfg


def size(cfg: TransformerLMConfig, config: JSONConfig) -> ModelSize:
    """The size that a folder's configuration describes.

    Args:
        cfg: what ``read_config`` returned.
        config: the content of ``config.json``.
    """
    vocab_size, dim = config.integer("vocab_size", 50257, minimum=1), cfg.decoder_embed_dim
    embeddings = (1 if cfg.share_decoder_input_output_embed else 2) * vocab_size + cfg.max_target_positions
    layer = 4 * dim + 2 * cfg.decoder_ffn_embed_dim
    return ModelSize(vocab_size, cfg.decoder_layers, dim * (embeddings + cfg.decoder_layers * layer))


def make_task(cfg: TransformerLMConfig, path: Path, tokenizer: Tokenizer) -> PromptDecodingTask:
    """The task that decodes: a prompt has the ids that transformers gives it; an empty one is end-of-sentence.

    Args:
        cfg: the configuration.
        path: the folder.
        tokenizer: its tokenizer.
    """
    return PromptDecodingTask(PromptDecodingConfig(getattr(tokenizer, "begins_with_eos", False)), tokenizer, tokenizer)


def write_config(model: TransformerLanguageModel) -> dict[str, Any]:
    """The content of a model's ``config.json``.

    Args:
        model: the model.

    Returns:
        Values by key.

    Raises:
        ConfigError: the model differs from a GPT-2 in a way that the file cannot describe.
    """
    cfg = model.cfg
    if differing := [key for key, value in _FIXED.items() if getattr(cfg, key) != value]:
        keys = ", ".join(f"model.{key}={str(getattr(cfg, key)).lower()}" for key in differing)
        raise ConfigError(f"a transformer_lm with {keys} cannot be written in Hugging Face's layout of GPT-2")
    activations = {ours: theirs for theirs, ours in reversed(_ACTIVATIONS.items())}
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": model.decoder.embed_tokens.num_embeddings,
        **{name: getattr(cfg, ours) for name, _, ours, _ in _SIZES},
        "n_inner": cfg.decoder_ffn_embed_dim,
        "activation_function": activations[cfg.activation_fn.replace("gelu_fast", "gelu_accurate")],
        "resid_pdrop": cfg.dropout,
        "embd_pdrop": cfg.dropout if cfg.embedding_dropout is None else cfg.embedding_dropout,
        "attn_pdrop": cfg.attention_dropout,
        "layer_norm_epsilon": cfg.layer_norm_epsilon,
        "scale_attn_weights": cfg.scale_attn_weights,
        "scale_attn_by_inverse_layer_idx": cfg.scale_attn_by_inverse_layer_idx,
        "tie_word_embeddings": cfg.share_decoder_input_output_embed,
        "use_cache": True,
    }


def special_ids(model: TransformerLanguageModel, tokenizer: Tokenizer | None) -> dict[str, int]:
    """The special ids of the files of a folder.

    Args:
        model: the model.
        tokenizer: its tokenizer; without one, end-of-sentence is the last id, as in GPT-2.
    """
    if tokenizer is None:
        last = model.decoder.embed_tokens.num_embeddings - 1
        return {"bos_token_id": last, "eos_token_id": last}
    words = tokenizer.dictionary
    return {"bos_token_id": words.bos(), "eos_token_id": words.eos(), "pad_token_id": words.pad()}


def weights(model: TransformerLanguageModel) -> dict[str, Tensor]:
    """The weights of a model by their names in a folder.

    Args:
        model: the model.
    """
    return weights_of(model, layout(model.cfg))


def notes(model: TransformerLanguageModel) -> list[str]:
    """Notes for the user about a folder written from a model; there are none.

    Args:
        model: the model.
    """
    return []


def layout(cfg: TransformerLMConfig) -> Layout:
    """The names of the weights; folders of the model without its output projection lack ``transformer.``.

    Args:
        cfg: the configuration.
    """
    pieces = {_EMBEDDING: Piece("decoder.embed_tokens.weight"), _POSITIONS: Piece("decoder.embed_positions.weight")}
    ignored = set()  # causal masks, which old versions saved
    for index in range(cfg.decoder_layers):
        pieces |= _layer(index)
        ignored |= {f"{prefix}h.{index}.attn.{name}" for prefix in ("", _PREFIX) for name in ("bias", "masked_bias")}
    pieces |= _both(f"{_PREFIX}ln_f", "decoder.layer_norm")
    aliases = {name: (name.removeprefix(_PREFIX),) for name in pieces}
    if cfg.share_decoder_input_output_embed:
        return Layout(pieces, aliases, frozenset(ignored), {_HEAD: _EMBEDDING})
    return Layout({**pieces, _HEAD: Piece("decoder.output_projection.weight")}, aliases, frozenset(ignored))


def untie(model: TransformerLanguageModel, weights: Mapping[str, Tensor]) -> None:
    """Untie a model's output projection.

    Args:
        model: the model.
        weights: the weight of the projection, by its name in a folder.
    """
    model.cfg.share_decoder_input_output_embed = False
    model.decoder.output_projection.weight = nn.Parameter(weights[_HEAD])


def _layer(index: int) -> dict[str, Piece]:
    """The weights of a layer; its matrices are transposed."""
    theirs, ours = f"{_PREFIX}h.{index}", f"decoder.layers.{index}"
    return {
        **_both(f"{theirs}.ln_1", f"{ours}.self_attn_layer_norm"),
        **_both(f"{theirs}.attn.c_attn", f"{ours}.self_attn.in_proj", transposed=True),
        **_both(f"{theirs}.attn.c_proj", f"{ours}.self_attn.out_proj", transposed=True),
        **_both(f"{theirs}.ln_2", f"{ours}.final_layer_norm"),
        **_both(f"{theirs}.mlp.c_fc", f"{ours}.fc1", transposed=True),
        **_both(f"{theirs}.mlp.c_proj", f"{ours}.fc2", transposed=True),
    }


def _both(theirs: str, ours: str, transposed: bool = False) -> dict[str, Piece]:
    """A weight and its bias."""
    return {
        f"{theirs}.weight": Piece(f"{ours}.weight", transposed=transposed),
        f"{theirs}.bias": Piece(f"{ours}.bias"),
    }
