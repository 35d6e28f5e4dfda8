"""T5 in Hugging Face's layout: its ``config.json`` and the names of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from seqgen.addons.huggingface.architecture import ACTIVATIONS, HEAD, Architecture, JSONConfig
from seqgen.extend import (
    CheckpointError,
    DecodingConfig,
    DecodingTask,
    Layout,
    Piece,
    T5Config,
    T5Model,
    Tokenizer,
    stacked_pieces,
    weights_of,
)

_TIED = {"t5": True, "mt5": False, "umt5": True}
_STARTS = {"t5": -1, "mt5": 0, "umt5": 0}
_DEFAULTS = {
    "t5": {"vocab_size": 32128, "d_ff": 2048, "num_layers": 6, "num_heads": 8, "feed_forward_proj": "relu"},
    "mt5": {"vocab_size": 250112, "d_ff": 1024, "num_layers": 8, "num_heads": 6, "feed_forward_proj": "gated-gelu"},
}
"""Defaults of transformers for keys missing in a ``config.json``, where the model types differ."""

_NAMES = {"relu": "relu", "gelu": "gelu", "gelu_accurate": "gelu_new", "swish": "silu"}
_ACTIVATIONS = {foreign: _NAMES[activation] for foreign, activation in ACTIVATIONS.items() if activation in _NAMES}
"""For each name of an activation the one of ``T5Config``; "gelu" after a gate, which is "gelu_new", is an exception."""
_GATED = {"relu": "gated-relu", "gelu_new": "gated-gelu", "silu": "gated-silu"}

_VALUES: dict[str, Any] = {
    **{"d_model": 512, "d_kv": 64},
    **{"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128},
    **{"dropout_rate": 0.1, "layer_norm_epsilon": 1e-6},
}
"""Defaults of keys that have the same name here, and one default for all model types."""


class T5Architecture(Architecture):
    """T5; see ``Architecture``."""

    model_class = T5Model

    def read_config(self, config: JSONConfig) -> T5Config:
        """Turn a folder's ``config.json`` into a configuration."""
        kind = config.get("model_type", "")
        defaults: Mapping[str, Any] = _DEFAULTS.get(kind, _DEFAULTS["mt5"])
        config.check_kind(kind)
        # only the encoder has the general name of the number of layers
        layers = config.get("num_layers", defaults["num_layers"])
        values = {
            "_name": "t5",
            **config.read_table([(name, name, default) for name, default in {**_VALUES, **defaults}.items()]),
            "vocab_size": config.get("vocab_size", defaults["vocab_size"], minimum=1),
            "num_decoder_layers": config.get("num_decoder_layers", layers, minimum=1),
            "per_layer_bias": kind == "umt5",
            "feed_forward_proj": _feed_forward(config, defaults["feed_forward_proj"]),
            "tie_word_embeddings": config.get("tie_word_embeddings", _TIED[kind]),
            "scale_decoder_outputs": _scales(config, kind),
            "decoder_start_token_id": config.get("decoder_start_token_id", _STARTS[kind], minimum=-1),
        }
        cfg: T5Config = config.model(values)
        return cfg

    def make_task(self, cfg: T5Config, path: Path, tokenizer: Tokenizer) -> DecodingTask:
        """The task that decodes; the configuration gets the first decoder input."""
        bos = JSONConfig.read(path / "config.json").get("bos_token_id", -1, minimum=-1)
        pad = tokenizer.dictionary.pad()
        cfg.decoder_start_token_id = self.first_decoder_input(path, cfg.decoder_start_token_id, bos, pad)
        return DecodingTask(DecodingConfig(), tokenizer, tokenizer)

    def special_ids(self, model: T5Model, tokenizer: Tokenizer | None) -> dict[str, int]:
        """The special ids of the files of a folder."""
        eos = 1 if tokenizer is None else tokenizer.dictionary.eos()
        return {
            "pad_token_id": model.padding_idx,
            "eos_token_id": eos,
            "decoder_start_token_id": model.start_token(eos),
        }

    def write_config(self, model: T5Model) -> dict[str, Any]:
        """The content of a model's ``config.json``."""
        cfg = model.cfg
        kind = "umt5" if cfg.per_layer_bias else "t5"
        activation = cfg.feed_forward_proj.removeprefix("gated-")
        return {
            "architectures": [f"{kind.upper()}ForConditionalGeneration"],
            "model_type": kind,
            "is_encoder_decoder": True,
            **{name: getattr(cfg, name) for name in (*_DEFAULTS["t5"], *_VALUES)},
            "num_decoder_layers": cfg.decoder_layers,
            "tie_word_embeddings": cfg.scales_outputs if cfg.per_layer_bias else _is_plain_tie(cfg),
            "dense_act_fn": "gelu_new" if cfg.feed_forward_proj == "gated-gelu" else activation,
            "is_gated_act": cfg.is_gated,
            "initializer_factor": 1.0,
            "use_cache": True,
        }

    def weights(self, model: T5Model) -> dict[str, Tensor]:
        """The weights of a model by their names in a folder.

        Versions 4 and 5 of transformers compute the same from them: a tied projection without scale is written as an
        untied one, and the scale of an untied projection is multiplied into its weight.
        """
        cfg = model.cfg
        tensors = weights_of(model, self.layout(replace(cfg, tie_word_embeddings=_is_plain_tie(cfg))))
        if HEAD in tensors and cfg.tie_word_embeddings:
            tensors[HEAD] = tensors[HEAD].clone()
        if HEAD in tensors and cfg.scales_outputs and not cfg.per_layer_bias:
            tensors[HEAD] = (tensors[HEAD].float() * cfg.d_model**-0.5).to(tensors[HEAD].dtype)
        return tensors

    def notes(self, model: T5Model) -> list[str]:
        """Notes for the user about a folder written from a model."""
        if not model.cfg.per_layer_bias or _is_plain_tie(model.cfg):
            return []
        right, wrong = ("5", "4") if model.cfg.scales_outputs else ("4", "5")
        return [
            f"umT5 with an untied output projection: transformers {right} computes the same logits from this folder, "
            f"transformers {wrong} does not, because it scales the features differently"
        ]

    def layout(self, cfg: T5Config) -> Layout:
        """The names of the weights."""
        pieces = {"shared.weight": Piece("encoder.embed_tokens.weight")}
        for stack, layers in (("encoder", cfg.num_layers), ("decoder", cfg.decoder_layers)):
            for index in range(layers):
                pieces |= _layer(cfg, stack, index)
            pieces[f"{stack}.final_layer_norm.weight"] = Piece(f"{stack}.layer_norm.weight")
        tied = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
        # Encoder-decoder attention has no position bias; files of old versions hold one nevertheless.
        ignored = {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"}
        if not cfg.tie_word_embeddings:
            pieces[HEAD] = Piece("decoder.output_projection.weight")
        tied_head = {HEAD: "shared.weight"} if cfg.tie_word_embeddings else {}
        return Layout(pieces, {"shared.weight": tied}, frozenset(ignored), tied_head)

    def untie(self, model: T5Model, weights: Mapping[str, Tensor]) -> None:
        """Untie a model's output projection; whether features are scaled does not change."""
        scales = model.cfg.scales_outputs
        model.cfg.tie_word_embeddings, model.cfg.scale_decoder_outputs = False, scales
        model.decoder.output_projection.weight = nn.Parameter(weights[HEAD])


ARCHITECTURE = T5Architecture()


def _scales(config: JSONConfig, kind: str) -> bool | None:
    """True if features are scaled before the output projection; ``None`` if ``tie_word_embeddings`` determines it.

    Version 5 of transformers always writes ``"tie_word_embeddings": true``. It has a separate key for the scale of a
    T5, and never scales an mT5. Version 4 scales an mT5 with a tied embedding.
    """
    if kind == "mt5":
        return None if config.written_by(4) else False
    given = kind == "t5" and config.value("scale_decoder_outputs") is not None
    return config.get("scale_decoder_outputs", True) if given else None


def _feed_forward(config: JSONConfig, default: str) -> str:
    """The value of ``feed_forward_proj``; the keys ``dense_act_fn`` and ``is_gated_act`` override its parts."""
    projection = config.get("feed_forward_proj", default)
    activation = "gelu_new" if projection == "gated-gelu" else projection.removeprefix("gated-")
    activation = config.get("dense_act_fn", activation)
    gated = config.get("is_gated_act", projection.startswith("gated-"))
    known = _ACTIVATIONS.get(activation, "")
    result = _GATED.get(known, "") if gated else known
    if not result:
        raise CheckpointError(
            f"{config.path}: feed_forward_proj, dense_act_fn and is_gated_act give the {'gated ' if gated else ''}"
            f"activation {activation!r}, which is not supported; seqgen supports {', '.join(sorted(_ACTIVATIONS))}, "
            "and those besides gelu and gelu_python also gated"
        )
    return result


def _is_plain_tie(cfg: T5Config) -> bool:
    """True if the projection is tied and scaled, which all versions of transformers read as a tied embedding."""
    return cfg.tie_word_embeddings and cfg.scales_outputs


def _layer(cfg: T5Config, stack: str, index: int) -> dict[str, Piece]:
    foreign, local = f"{stack}.block.{index}.layer", f"{stack}.layers.{index}"
    inner = cfg.inner_dim
    pieces = {f"{foreign}.0.layer_norm.weight": Piece(f"{local}.self_attn_layer_norm.weight")}
    separate = [f"{foreign}.0.SelfAttention.{letter}.weight" for letter in "qkv"]
    pieces |= stacked_pieces(separate, f"{local}.self_attn.in_proj.weight", inner)
    pieces[f"{foreign}.0.SelfAttention.o.weight"] = Piece(f"{local}.self_attn.out_proj.weight")
    if index == 0 or cfg.per_layer_bias:
        bias = f"{foreign}.0.SelfAttention.relative_attention_bias.weight"
        pieces[bias] = Piece(f"{stack}.position_biases.{index}.weight")
    last = 1
    if stack == "decoder":
        last = 2
        attention, cross = f"{foreign}.1.EncDecAttention", f"{local}.encoder_attn"
        pieces[f"{attention}.q.weight"] = Piece(f"{cross}.q_proj.weight")
        pieces |= stacked_pieces([f"{attention}.{letter}.weight" for letter in "kv"], f"{cross}.kv_proj.weight", inner)
        pieces[f"{attention}.o.weight"] = Piece(f"{cross}.out_proj.weight")
        pieces[f"{foreign}.1.layer_norm.weight"] = Piece(f"{local}.encoder_attn_layer_norm.weight")
    dense = f"{foreign}.{last}.DenseReluDense"
    if cfg.is_gated:
        gate = [f"{dense}.wi_0.weight", f"{dense}.wi_1.weight"]
        pieces |= stacked_pieces(gate, f"{local}.feed_forward.wi.weight", cfg.d_ff)
    else:
        pieces[f"{dense}.wi.weight"] = Piece(f"{local}.feed_forward.wi.weight")
    pieces[f"{dense}.wo.weight"] = Piece(f"{local}.feed_forward.wo.weight")
    pieces[f"{foreign}.{last}.layer_norm.weight"] = Piece(f"{local}.final_layer_norm.weight")
    return pieces
