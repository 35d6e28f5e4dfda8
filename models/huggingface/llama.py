"""Llama, Mistral, Qwen 2 and Qwen 3 in Hugging Face's layout: their ``config.json`` and the names of their weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from seqgen.checkpoints.loaders import PromptDecodingTask
from seqgen.core.errors import CheckpointError, ConfigError, shown
from seqgen.data.tokenizers.base import Tokenizer
from seqgen.models.huggingface.architecture import HEAD, Architecture, JSONConfig, activation_name
from seqgen.models.huggingface.weights import Layout, Piece, stacked_pieces
from seqgen.models.llama import LlamaConfig, LlamaModel

_EMBEDDING = "model.embed_tokens.weight"

_SIZES = {
    **{"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32},
    **{"num_key_value_heads": 0, "head_dim": 0, "max_position_embeddings": 2048, "vocab_size": 32000},
}
_QWEN = {"intermediate_size": 22016, "num_key_value_heads": 32, "max_position_embeddings": 32768, "vocab_size": 151936}
SIZES: dict[str, dict[str, int]] = {
    "llama": _SIZES,
    "mistral": {**_SIZES, "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072},
    "qwen2": {**_SIZES, **_QWEN},
    "qwen3": {**_SIZES, **_QWEN, "head_dim": 128},
}
"""The defaults of sizes for each ``model_type``, by names that the file and the configuration have in common."""

_VALUES = {"rms_norm_eps": 1e-6, "rope_theta": 1e4, "attention_dropout": 0.0, "tie_word_embeddings": False}
"""The same for other values, whose types are those of their defaults."""

_IDS = {"bos_token_id": 1, "eos_token_id": 2}
"""The special ids of Llama and Mistral."""

_OFF = ("is_encoder_decoder", "pruned_heads", "quantization_config", "rope_interleaved", "use_mrope", "no_rope_layers")
"""Keys that change the computation and are not supported."""

_LLAMA3 = {"original_max_position_embeddings", "low_freq_factor", "high_freq_factor"}
"""Keys of the rotary positions of Llama 3.1."""


class LlamaArchitecture(Architecture):
    """Llama and the models with its layers; see ``Architecture``."""

    model_class = LlamaModel
    tying = "tie_word_embeddings"
    decoder_only = True

    def read_config(self, config: JSONConfig) -> LlamaConfig:
        """Turn a folder's ``config.json`` into a configuration."""
        kind = config.get("model_type", "llama")
        config.refuse(_OFF, kind)
        config.one_of("partial_rotary_factor", [1.0], 1.0)
        sizes = {key: config.get(key, size, minimum=bool(size)) for key, size in SIZES[kind].items()}
        heads = sizes["num_attention_heads"]
        for key, usual in (("num_key_value_heads", heads), ("head_dim", sizes["hidden_size"] // heads)):
            if not sizes[key] or (key in config.values and config.value(key) is None):
                sizes[key] = usual
        del sizes["vocab_size"]
        biased = kind == "qwen2" or (kind in ("llama", "qwen3") and config.get("attention_bias", False))
        values: dict[str, Any] = {
            **{"_name": "llama", **sizes, **{key: config.get(key, value) for key, value in _VALUES.items()}},
            **{"activation_fn": config.activation("silu", "hidden_act"), "qk_norm": kind == "qwen3"},
            **{"attention_bias": biased, "attention_out_bias": biased and kind != "qwen2"},
            **{"mlp_bias": kind == "llama" and config.get("mlp_bias", False)},
            **_window(config, kind, sizes["num_hidden_layers"]),
        }
        model: LlamaConfig = config.model({**values, **_rope(config, values["rope_theta"])})
        return model

    def vocab_size(self, cfg: LlamaConfig, config: JSONConfig) -> int:
        """The size of the vocabulary."""
        return config.get("vocab_size", SIZES[config.get("model_type", "llama")]["vocab_size"], minimum=1)

    def make_task(self, cfg: LlamaConfig, path: Path, tokenizer: Tokenizer) -> PromptDecodingTask:
        """The task that decodes: a prompt has the ids that transformers gives it; an empty one is never empty."""
        return PromptDecodingTask.of(tokenizer, getattr(tokenizer, "begins_with_eos", False))

    def generation_defaults(self, config: JSONConfig) -> dict[str, Any]:
        """The special ids of Llama and Mistral; see ``Architecture.generation_defaults``."""
        return _IDS if config.get("model_type", "llama") in ("llama", "mistral") else {}

    def special_ids(self, model: LlamaModel, tokenizer: Tokenizer | None) -> dict[str, int]:
        """The special ids of the files of a folder."""
        if tokenizer is None:
            return _IDS
        words = tokenizer.dictionary
        named = ("bos", "eos", "pad")[: 2 + (words.pad() != words.eos())]
        ids = {f"{name}_token_id": words.special_ids[name] for name in named}
        return {name: index for name, index in ids.items() if index is not None}

    def write_config(self, model: LlamaModel) -> dict[str, Any]:
        """The content of a model's ``config.json``: of the first type that has the same layers.

        Raises:
            ConfigError: there is none.
        """
        cfg, biases = model.cfg, (model.cfg.attention_bias, model.cfg.attention_out_bias)
        window, first = cfg.sliding_window, cfg.first_sliding_layer
        fits = {
            "llama": biases[0] == biases[1] and not (cfg.qk_norm or window),
            "mistral": not (any(biases) or cfg.qk_norm or cfg.mlp_bias or first) and window,
            "qwen2": biases == (True, False) and not (cfg.qk_norm or cfg.mlp_bias),
            "qwen3": biases[0] == biases[1] and cfg.qk_norm and not cfg.mlp_bias,
        }
        kind = next((kind for kind, fit in fits.items() if fit), None)
        if kind is None:
            raise ConfigError("no model_type of Hugging Face has these biases, qk_norm and sliding_window together")
        scaling: dict[str, Any] = {"rope_type": "linear", "factor": cfg.rope_factor}
        if cfg.rope_original_positions:
            scaling |= {"rope_type": "llama3", "original_max_position_embeddings": cfg.rope_original_positions}
            scaling |= {f"{name}_freq_factor": getattr(cfg, f"rope_{name}_freq_factor") for name in ("low", "high")}
        windows = {"sliding_window": window or None}
        if kind.startswith("qwen"):
            windows |= {"use_sliding_window": bool(window), "max_window_layers": first}
        return {
            **{"architectures": [f"{kind.capitalize()}ForCausalLM"], "model_type": kind},
            **{name: getattr(cfg, name) for name in (*_SIZES, *_VALUES) if name != "vocab_size"},
            **{"head_dim": cfg.size_of_head, "num_key_value_heads": cfg.kv_heads},
            **{"vocab_size": model.decoder.embed_tokens.num_embeddings, "use_cache": True},
            **{"hidden_act": activation_name(cfg.activation_fn), "mlp_bias": cfg.mlp_bias, **windows},
            **{"attention_bias": cfg.attention_bias, "rope_scaling": None if cfg.rope_factor == 1 else scaling},
        }

    def layout(self, cfg: LlamaConfig) -> Layout:
        """The names of the weights."""
        pieces = {_EMBEDDING: Piece("decoder.embed_tokens.weight")}
        pieces["model.norm.weight"] = Piece("decoder.layer_norm.weight")
        for index in range(cfg.num_hidden_layers):
            pieces |= _layer(cfg, index)
        # buffers, which old versions saved
        ignored = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq" for i in range(cfg.num_hidden_layers)}
        tied = {HEAD: _EMBEDDING} if cfg.tie_word_embeddings else {}
        if not tied:
            pieces[HEAD] = Piece("decoder.output_projection.weight")
        return Layout(pieces, ignored=frozenset(ignored), tied=tied)


ARCHITECTURE = LlamaArchitecture()


def _window(config: JSONConfig, kind: str, layers: int) -> dict[str, int]:
    """The window of attention, and the first layer that has it.

    Raises:
        CheckpointError: ``layer_types`` has a full layer after a sliding one, or something else.
    """
    if kind == "llama":
        return {}
    is_off = config.values.get("sliding_window", 0) is None
    window = 0 if is_off else config.get("sliding_window", 4096, minimum=1)
    if kind == "mistral":
        return {"sliding_window": window}
    window = window if config.get("use_sliding_window", False) else 0
    first = config.get("max_window_layers", 28)
    types = config.value("layer_types", [])
    full = types.count("full_attention") if isinstance(types, list) else 0
    wanted = ["full_attention"] * full + ["sliding_attention"] * (layers - full)
    if types and (types != wanted or (full < layers and not window)):
        raise CheckpointError(
            f"{config.path}: layer_types={shown(types)} is not supported, only full_attention in {layers} layers or, "
            "with use_sliding_window, in the first of them and sliding_attention in the others"
        )
    return {"sliding_window": window, "first_sliding_layer": full if types else first}


def _rope(config: JSONConfig, theta: float) -> dict[str, Any]:
    """The rotary positions: their base, and how they are scaled; version 5 of transformers has other keys.

    Raises:
        CheckpointError: they are scaled in a way that is not supported.
    """
    key = "rope_scaling" if config.value("rope_scaling") is not None else "rope_parameters"
    given = {name: value for name, value in config.part(key).items() if value is not None}
    inner = JSONConfig(config.path, {f"{key}.{name}": value for name, value in given.items()})
    kind = given.get("rope_type", given.get("type", "default"))
    known = {"rope_type", "type", "rope_theta"} | ({"factor"} if kind != "default" else set())
    known |= _LLAMA3 if kind == "llama3" else set()
    if kind not in ("default", "linear", "llama3") or set(given) - known:
        raise CheckpointError(
            f"{config.path}: {key}={shown(given)} is not supported; only the keys of rope_type default, linear and "
            "llama3 are"
        )
    values: dict[str, Any] = {"rope_theta": inner.get(f"{key}.rope_theta", theta)}
    if kind != "default":
        values["rope_factor"] = inner.get(f"{key}.factor", 0.0)
    if kind == "llama3":
        values["rope_original_positions"] = inner.get(f"{key}.original_max_position_embeddings", 0, minimum=1)
        values |= {f"rope_{n}_freq_factor": inner.get(f"{key}.{n}_freq_factor", 0.0) for n in ("low", "high")}
    return values


def _layer(cfg: LlamaConfig, index: int) -> dict[str, Piece]:
    """The weights of a layer."""
    foreign, local = f"model.layers.{index}", f"decoder.layers.{index}"
    rows, shared = cfg.num_attention_heads * cfg.size_of_head, cfg.kv_heads * cfg.size_of_head
    norms = {"input": "self_attn_layer_norm", "post_attention": "final_layer_norm"}
    pieces = {f"{foreign}.{name}_layernorm.weight": Piece(f"{local}.{own}.weight") for name, own in norms.items()}
    for name in "qk" * cfg.qk_norm:
        pieces[f"{foreign}.self_attn.{name}_norm.weight"] = Piece(f"{local}.self_attn.{name}_norm.weight")
    biases = (cfg.attention_bias, cfg.attention_out_bias, cfg.mlp_bias)
    for kind, (of_heads, of_out, of_mlp) in {"weight": (True, True, True), "bias": biases}.items():
        query, key, value, out = (f"{foreign}.self_attn.{letter}_proj.{kind}" for letter in "qkvo")
        gate, up, down = (f"{foreign}.mlp.{name}_proj.{kind}" for name in ("gate", "up", "down"))
        if of_heads:
            pieces |= stacked_pieces([query, key, value], f"{local}.self_attn.in_proj.{kind}", rows, shared, shared)
        if of_out:
            pieces[out] = Piece(f"{local}.self_attn.out_proj.{kind}")
        if of_mlp:
            pieces |= stacked_pieces([gate, up], f"{local}.feed_forward.wi.{kind}", cfg.intermediate_size)
            pieces[down] = Piece(f"{local}.feed_forward.wo.{kind}")
    return pieces
