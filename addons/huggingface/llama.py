"""Models with the layers of Llama in Hugging Face's layout: their ``config.json`` and the names of their weights."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from seqgen.addons.huggingface.architecture import ACTIVATIONS, HEAD, Architecture, JSONConfig, activation_name
from seqgen.extend import (
    CheckpointError,
    ConfigError,
    DataError,
    GemmaTokenizer,
    Layout,
    Piece,
    PromptDecodingTask,
    Tokenizer,
    shown,
    stacked_pieces,
)
from seqgen.models.llama import FULL, SLIDING, LlamaConfig, LlamaModel, layer_pattern

EMBEDDING = "model.embed_tokens.weight"

_LLAMA = {
    **{"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32},
    **{"num_key_value_heads": 0, "head_dim": 0, "max_position_embeddings": 2048, "vocab_size": 32000},
    **{"rms_norm_eps": 1e-6, "rope_theta": 1e4, "attention_dropout": 0.0, "tie_word_embeddings": False},
}
_QWEN = {"intermediate_size": 22016, "num_key_value_heads": 32, "max_position_embeddings": 32768, "vocab_size": 151936}
_SMOLLM = {
    **{"hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 4},
    **{"max_position_embeddings": 32768, "vocab_size": 128256, "rope_theta": 2e6, "tie_word_embeddings": True},
}
_GEMMA = {
    **{"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8},
    **{"num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 8192, "vocab_size": 256000},
    **{"tie_word_embeddings": True, "attention_bias": False, "query_pre_attn_scalar": 256},
}
_GEMMA3 = {"max_position_embeddings": 131072, "vocab_size": 262208, "rope_theta": 1e6, "rope_local_base_freq": 1e4}
DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {**_LLAMA, "attention_bias": False, "mlp_bias": False},
    "mistral": {**{**_LLAMA, "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072}},
    "qwen2": {**_LLAMA, **_QWEN},
    "qwen3": {**_LLAMA, **_QWEN, "head_dim": 128, "attention_bias": False},
    "smollm3": {**_LLAMA, **_SMOLLM, "attention_bias": False},
    "gemma2": {**_LLAMA, **_GEMMA},
    "gemma3_text": {**_LLAMA, **_GEMMA, **_GEMMA3},
}
"""The values for each ``model_type`` by names that the file and the configuration have in common, with their defaults.

They have the types of their defaults. A model is written as the first type that can describe it.
"""

CAPS = {"gemma2": {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}}
CAPS["gemma3_text"] = {"final_logit_softcapping": 0.0}
"""The same for values that may be ``null``, which is 0 here."""

_NORMS = {"post_norm": True, "zero_centered_norm": True, "scale_embedding": True}
FIXED: dict[str, dict[str, bool]] = {
    **{"qwen2": {"attention_bias": True}, "qwen3": {"qk_norm": True}},
    **{"gemma2": _NORMS, "gemma3_text": {**_NORMS, "qk_norm": True}},
}
"""The values that all models of a type have."""

_LLAMA_IDS = {"bos_token_id": 1, "eos_token_id": 2}
_GEMMA_IDS = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
_IDS = {
    **{"llama": _LLAMA_IDS, "mistral": _LLAMA_IDS, "gemma2": _GEMMA_IDS, "gemma3_text": _GEMMA_IDS},
    "smollm3": {"bos_token_id": 128000, "eos_token_id": 128001, "pad_token_id": 128004},
}
"""The special ids of the types that have some."""

_OFF: tuple[str, ...] = ("is_encoder_decoder", "pruned_heads", "quantization_config", "rope_interleaved", "use_mrope")
_OFF += ("use_bidirectional_attention",)
"""Keys that change the computation and are not supported."""

_LLAMA3 = {"original_max_position_embeddings", "low_freq_factor", "high_freq_factor"}
"""Keys of the rotary positions of Llama 3.1."""

MAX_LAYERS = 10_000
"""More layers than a file describes, whose number is compared with the weights later."""

_PLAIN_NORMS = {"input": "self_attn_layer_norm", "post_attention": "final_layer_norm"}
_FOUR_NORMS = {
    **{"input": "self_attn_layer_norm", "post_attention": "self_attn_post_norm"},
    **{"pre_feedforward": "final_layer_norm", "post_feedforward": "final_post_norm"},
}
"""The normalizations of a layer by their names in the file."""


class LlamaArchitecture(Architecture):
    """Llama and the models with its layers; see ``Architecture``."""

    model_class: type[LlamaModel] | None = LlamaModel
    tying = "tie_word_embeddings"
    decoder_only = True

    def read_config(self, config: JSONConfig) -> LlamaConfig:
        """Turn a folder's ``config.json`` into a configuration."""
        kind = config.get("model_type", "llama")
        config.refuse(_OFF if kind == "smollm3" else (*_OFF, "no_rope_layers"), kind)
        config.one_of("partial_rotary_factor", [1.0], 1.0)
        values = {key: config.get(key, default, minimum=int(default != 0)) for key, default in DEFAULTS[kind].items()}
        heads = values["num_attention_heads"]
        for key, usual in (("num_key_value_heads", heads), ("head_dim", values["hidden_size"] // heads)):
            if not values[key] or (key in config.values and config.value(key) is None):
                values[key] = usual
        del values["vocab_size"]
        values |= {**FIXED.get(kind, {}), **{key: config.bound(key, cap) for key, cap in CAPS.get(kind, {}).items()}}
        values["attention_out_bias"] = kind != "qwen2" and values.get("attention_bias", False)
        gate = ("gelu_pytorch_tanh", "hidden_activation") if kind.startswith("gemma") else ("silu", "hidden_act")
        values |= {"activation_fn": config.activation(*gate), **_layers(config, kind, values["num_hidden_layers"])}
        model: LlamaConfig = config.model({"_name": "llama", **values, **_rope(config, values)})
        return model

    def vocab_size(self, cfg: LlamaConfig, config: JSONConfig) -> int:
        """The size of the vocabulary."""
        default: int = DEFAULTS[config.get("model_type", "llama")]["vocab_size"]
        return config.get("vocab_size", default, minimum=1)

    def make_task(self, cfg: LlamaConfig, path: Path, tokenizer: Tokenizer) -> PromptDecodingTask:
        """The task that decodes: a prompt has the ids that transformers gives it; an empty one is never empty.

        Raises:
            DataError: the tokenizer adds tokens after a text.
        """
        if isinstance(tokenizer, GemmaTokenizer) and tokenizer.source_tokens().after:
            raise DataError(
                f"{path}/tokenizer_config.json: add_eos_token=true is not supported, as prompts are continued; set it "
                "to false"
            )
        return PromptDecodingTask.of(tokenizer, getattr(tokenizer, "begins_with_eos", False))

    def generation_defaults(self, config: JSONConfig) -> dict[str, Any]:
        """The special ids of a type; see ``Architecture.generation_defaults``."""
        return _IDS.get(config.get("model_type", "llama"), {})

    def special_ids(self, model: LlamaModel, tokenizer: Tokenizer | None) -> Mapping[str, int | None]:
        """The special ids of the files of a folder."""
        if tokenizer is None:
            return _IDS.get(self.write_config(model)["model_type"], _LLAMA_IDS)
        words = tokenizer.dictionary
        pad = None if words.pad() == words.eos() else words.pad()  # null, since some types have a default
        return {"bos_token_id": words.bos(), "eos_token_id": words.eos(), "pad_token_id": pad}

    def write_config(self, model: LlamaModel) -> dict[str, Any]:
        """The content of a model's ``config.json``: of the first type from which the same configuration is read.

        Raises:
            ConfigError: there is none.
        """
        activation = ACTIVATIONS[activation_name(model.cfg.activation_fn)]
        cfg = replace(model.cfg.resolved(), dropout=0.0, activation_fn=activation)  # which has no dropout of features
        for kind in DEFAULTS:
            content = {**_content(cfg, kind), "vocab_size": model.decoder.embed_tokens.num_embeddings}
            with contextlib.suppress(CheckpointError):  # it cannot have such values
                if self.read_config(JSONConfig(Path(kind), content)).resolved() == cfg:
                    return content
        raise ConfigError("no model_type of Hugging Face has these biases, norms, windows and positions together")

    def layout(self, cfg: LlamaConfig) -> Layout:
        """The names of the weights."""
        pieces = {EMBEDDING: Piece("decoder.embed_tokens.weight")}
        pieces["model.norm.weight"] = Piece("decoder.layer_norm.weight")
        norms = _FOUR_NORMS if cfg.post_norm else _PLAIN_NORMS
        for index in range(cfg.num_hidden_layers):
            pieces |= layer_pieces(cfg.resolved(), f"model.layers.{index}", f"decoder.layers.{index}", norms)
        # buffers, which old versions saved
        ignored = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq" for i in range(cfg.num_hidden_layers)}
        tied = {HEAD: EMBEDDING} if cfg.tie_word_embeddings else {}
        if not tied:
            pieces[HEAD] = Piece("decoder.output_projection.weight")
        return Layout(pieces, ignored=frozenset(ignored), tied=tied)


ARCHITECTURE = LlamaArchitecture()


def _content(cfg: LlamaConfig, kind: str) -> dict[str, Any]:
    """What a ``config.json`` of a type says of a configuration, which is resolved."""
    scaling: dict[str, Any] = {"rope_type": "linear", "factor": cfg.rope_factor}
    if cfg.rope_original_positions:
        scaling |= {"rope_type": "llama3", "original_max_position_embeddings": cfg.rope_original_positions}
        scaling |= {f"{name}_freq_factor": getattr(cfg, f"rope_{name}_freq_factor") for name in ("low", "high")}
    activation = activation_name(cfg.activation_fn).replace("gelu_new", "gelu_pytorch_tanh")
    named = {"smollm3": "SmolLM3", "gemma3_text": "Gemma3"}.get(kind, kind.capitalize())
    values = {
        **{"architectures": [f"{named}ForCausalLM"], "model_type": kind, "use_cache": True},
        **{name: getattr(cfg, name) for name in DEFAULTS[kind] if name != "vocab_size"},
        **{name: getattr(cfg, name) or None for name in CAPS.get(kind, {})},
        "hidden_activation" if kind.startswith("gemma") else "hidden_act": activation,
        "rope_scaling": None if (cfg.rope_factor, cfg.rope_original_positions) == (1, 0) else scaling,
        "sliding_window": cfg.sliding_window or (4096 if kind.startswith("gemma") else None),
    }
    if kind == "smollm3" or kind.startswith("qwen"):
        values |= {"use_sliding_window": cfg.sliding_window > 0, "max_window_layers": cfg.layer_types.count(FULL)}
    further = {"smollm3": ["layer_types", "no_rope_layers"], "llama": [], "mistral": []}.get(kind, ["layer_types"])
    return {**values, **{name: getattr(cfg, name) for name in further}}


def _layers(config: JSONConfig, kind: str, layers: int) -> dict[str, Any]:
    """The types of the layers, the window of the sliding ones, and which layers have positions.

    Raises:
        CheckpointError: a value is of the wrong type.
    """
    if kind == "llama":
        return {}
    is_off = config.values.get("sliding_window", None if kind == "smollm3" else 0) is None
    window = 0 if is_off else config.get("sliding_window", 4096, minimum=1)
    if kind == "mistral":
        return {"sliding_window": window}
    numbers = range(1, layers + 1) if layers <= MAX_LAYERS else range(0)
    if kind.startswith("gemma"):
        pattern = config.get("sliding_window_pattern", 6 if kind == "gemma3_text" else 2, minimum=1)
        pattern = pattern if kind == "gemma3_text" else config.one_of("sliding_window_pattern", [2], 2)
        return {"sliding_window": window, "layer_types": read_types(config, "layer_types", layers, pattern)}
    window = window if config.get("use_sliding_window", False) else 0
    has_positions = [1] * len(numbers)
    if kind == "smollm3":
        interval = config.get("no_rope_layer_interval", 4, minimum=1)
        usual = [int(number % interval > 0) for number in numbers]
        has_positions = config.list_of(int, "no_rope_layers", usual)[:layers]
        slides = [not positions for positions in has_positions]
    else:
        slides = [number > config.get("max_window_layers", 28) for number in numbers]
    types = [SLIDING if window and slide else FULL for slide in slides]
    types = config.list_of(str, "layer_types", types)[:layers]
    return {"sliding_window": window, "layer_types": types, "no_rope_layers": has_positions}


def read_types(config: JSONConfig, key: str, layers: int, period: int) -> list[str]:
    """The types of layers.

    Args:
        config: the file.
        key: the key that lists them.
        layers: number of layers.
        period: without that key, every ``period``-th layer is full.

    Raises:
        CheckpointError: they are not a list of texts.
    """
    return config.list_of(str, key, layer_pattern(min(layers, MAX_LAYERS), period))[:layers]


def _rope(config: JSONConfig, values: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary positions; version 5 of transformers has other keys, and those of Gemma 3 for each type of layers.

    Raises:
        CheckpointError: they are not supported.
    """
    theta, is_scaled, parameters = values["rope_theta"], config.value("rope_scaling") is not None, "rope_parameters"
    if "rope_local_base_freq" not in values:
        return read_rope(config, ("rope_scaling" if is_scaled else parameters,), theta)
    if {*(given := config.part(parameters))} - {FULL, SLIDING}:
        raise config.wrong(parameters, given, f"keys and values for each of {FULL} and {SLIDING}")
    local = read_rope(config, (parameters, SLIDING), values["rope_local_base_freq"], ("default",))
    full = read_rope(config, ("rope_scaling",) if is_scaled else (parameters, FULL), theta)
    return {**full, "rope_local_base_freq": local["rope_theta"]}


def read_rope(
    config: JSONConfig, names: tuple[str, ...], theta: float, kinds: Sequence[str] = ("default", "linear", "llama3")
) -> dict[str, Any]:
    """The base of rotary positions, and how they are scaled, by the names of ``LlamaConfig``.

    Args:
        config: the file.
        names: where the parameters are; see ``JSONConfig.part``.
        theta: the base if they lack it.
        kinds: the supported types of positions.

    Raises:
        CheckpointError: the positions are of another type, or a value is of the wrong type.
    """
    key = ".".join(names)
    given = {name: value for name, value in config.part(*names).items() if value is not None}
    inner = JSONConfig(config.path, {f"{key}.{name}": value for name, value in given.items()})
    kind = given.get("rope_type", given.get("type", "default"))
    known = {"rope_type", "type", "rope_theta"} | ({"factor"} if kind != "default" else set())
    known |= _LLAMA3 if kind == "llama3" else set()
    if kind not in kinds or set(given) - known:
        raise CheckpointError(
            f"{config.path}: {key}={shown(given)} is not supported; only the keys of rope_type {' or '.join(kinds)} are"
        )
    values: dict[str, Any] = {"rope_theta": inner.get(f"{key}.rope_theta", theta)}
    if kind != "default":
        values["rope_factor"] = inner.get(f"{key}.factor", 0.0)
    if kind == "llama3":
        values["rope_original_positions"] = inner.get(f"{key}.original_max_position_embeddings", 0, minimum=1)
        values |= {f"rope_{n}_freq_factor": inner.get(f"{key}.{n}_freq_factor", 0.0) for n in ("low", "high")}
    return values


def layer_pieces(
    cfg: LlamaConfig, foreign: str, local: str, norms: Mapping[str, str], reads_source: bool = False
) -> dict[str, Piece]:
    """The weights of a layer.

    Args:
        cfg: the configuration, resolved.
        foreign: the name of the layer in a folder.
        local: its name in the model.
        norms: the names of its normalizations, in a folder without ``_layernorm``.
        reads_source: see ``attention_pieces``.
    """
    pieces = {f"{foreign}.{name}_layernorm.weight": Piece(f"{local}.{own}.weight") for name, own in norms.items()}
    for name in "qk" * cfg.qk_norm:
        pieces[f"{foreign}.self_attn.{name}_norm.weight"] = Piece(f"{local}.self_attn.{name}_norm.weight")
    for kind in ("weight", "bias")[: 1 + cfg.mlp_bias]:
        gate, up, down = (f"{foreign}.mlp.{name}_proj.{kind}" for name in ("gate", "up", "down"))
        pieces |= stacked_pieces([gate, up], f"{local}.feed_forward.wi.{kind}", cfg.intermediate_size)
        pieces[down] = Piece(f"{local}.feed_forward.wo.{kind}")
    return pieces | attention_pieces(cfg, f"{foreign}.self_attn", f"{local}.self_attn", reads_source)


def attention_pieces(cfg: LlamaConfig, foreign: str, local: str, reads_source: bool) -> dict[str, Piece]:
    """The projections of attention.

    Args:
        cfg: the configuration, resolved.
        foreign: the name of the attention in a folder.
        local: its name in the model.
        reads_source: whether one projection gives keys and values, as they are also those of the source.
    """
    rows, shared = cfg.num_attention_heads * cfg.head_dim, cfg.num_key_value_heads * cfg.head_dim
    pieces: dict[str, Piece] = {}
    for kind, (of_heads, of_out) in {"weight": (1, 1), "bias": (cfg.attention_bias, cfg.attention_out_bias)}.items():
        query, key, value, out = (f"{foreign}.{letter}_proj.{kind}" for letter in "qkvo")
        if of_heads and reads_source:
            pieces |= {query: Piece(f"{local}.q_proj.{kind}")}
            pieces |= stacked_pieces([key, value], f"{local}.kv_proj.{kind}", shared)
        elif of_heads:
            pieces |= stacked_pieces([query, key, value], f"{local}.in_proj.{kind}", rows, shared, shared)
        if of_out:
            pieces[out] = Piece(f"{local}.out_proj.{kind}")
    return pieces
