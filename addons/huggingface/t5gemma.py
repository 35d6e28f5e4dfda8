"""T5Gemma in Hugging Face's layout: its ``config.json`` and the names of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seqgen.addons.huggingface.architecture import Architecture, JSONConfig, activation_name
from seqgen.addons.huggingface.llama import attention_pieces, layer_pieces, read_rope, read_types
from seqgen.addons.huggingface.t5gemma_model import SIDE_KEYS, T5GemmaConfig, T5GemmaModel
from seqgen.extend import CheckpointError, ConfigError, DecodingConfig, DecodingTask, Layout, Piece, Tokenizer, shown

SIDES = ("encoder", "decoder")
OUTPUT, _EMBEDDING = "lm_head.out_proj.weight", "model.decoder.embed_tokens.weight"

_SHARED: dict[str, Any] = {
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "attn_logit_softcapping": 50.0,
    "vocab_size": 256000,
}
"""Values that the file has for each side and seqgen for both, with their defaults."""

NORMS = {
    **{"pre_self_attn": "self_attn_layer_norm", "post_self_attn": "self_attn_post_norm"},
    **{"pre_feedforward": "final_layer_norm", "post_feedforward": "final_post_norm"},
}
"""The normalizations of a layer by their names in the file."""

_IDS = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
"""Defaults of the special ids of the decoder."""

_OFF = ("rope_scaling", "pruned_heads", "tie_encoder_decoder")
"""Keys that change the computation and are not supported."""


class T5GemmaArchitecture(Architecture):
    """T5Gemma; see ``Architecture``."""

    model_class = T5GemmaModel
    head, tying = OUTPUT, "tie_word_embeddings"
    name = "t5gemma"
    """The name of the model."""

    shared: Mapping[str, Any] = _SHARED
    """Values that the file has for each side and seqgen for both, with their defaults."""

    read_rope = staticmethod(read_rope)
    merges = False
    """Whether the decoder has one attention to target and source."""

    final_bound, longest = 30.0, 8192
    """The defaults of the bound of the logits and of the number of positions."""

    def read_config(self, config: JSONConfig) -> T5GemmaConfig:
        """Turn a folder's ``config.json`` into a configuration."""
        flat = self.flattened(config)
        flat.check_kind(self.name, [*_OFF, *(f"{side}.{key}" for side in SIDES for key in _OFF)])
        values: dict[str, Any] = {"_name": self.name}
        for side in SIDES:
            names = [(f"{side}.{key}", f"{side}_{local}") for key, local in SIDE_KEYS.items()]
            sizes = flat.read_table([(key, local, getattr(T5GemmaConfig, local)) for key, local in names], 1)
            values |= {**sizes, **self.positions(flat, side)}
            types = read_types(flat, f"{side}.layer_types", values[f"{side}_layers"], self.period(flat, side))
            values[f"{side}_layer_types"] = types
        shared = self._shared(flat)
        activation = flat.activation(shared.pop("hidden_activation"), "encoder.hidden_activation")
        values |= {**shared, "activation_fn": activation}
        values["final_logit_softcapping"] = flat.bound("decoder.final_logit_softcapping", self.final_bound)
        values |= {key: flat.get(key, 0.0) for key in ("dropout_rate", "attention_dropout")}
        values["tie_word_embeddings"] = flat.get("tie_word_embeddings", True)
        values["decoder_start_token_id"] = flat.get("decoder_start_token_id", -1, minimum=-1)
        for side, key in (("encoder", "max_source_positions"), ("decoder", "max_target_positions")):
            values[key] = flat.get(f"{side}.max_position_embeddings", self.longest, minimum=1)
        cfg: T5GemmaConfig = config.model(values)
        return cfg

    def flattened(self, config: JSONConfig) -> JSONConfig:
        """The file with ``encoder.KEY`` and ``decoder.KEY`` in place of its two parts.

        Raises:
            CheckpointError: a part does not hold keys and values.
        """
        values = {key: value for key, value in config.values.items() if key not in SIDES}
        for side in SIDES:
            values |= {f"{side}.{key}": value for key, value in config.part(side).items()}
        return JSONConfig(config.path, values, config.asked)

    def positions(self, config: JSONConfig, side: str) -> dict[str, Any]:
        """The values of the rotary positions of a side.

        Args:
            config: the flattened file.
            side: ``encoder`` or ``decoder``.

        Raises:
            CheckpointError: the positions are scaled, or a value is not a number.
        """
        theta = config.get(f"{side}.rope_theta", 10000.0)
        found = self.read_rope(config, (f"{side}.rope_parameters",), theta, ("default",))
        return {f"{side}_rope_theta": found["rope_theta"]}

    def period(self, config: JSONConfig, side: str) -> int:
        """Every so many layers of a side one is full, unless their types are listed; see ``positions``."""
        return 2

    def _shared(self, config: JSONConfig) -> dict[str, Any]:
        """The values of ``shared``, which must be the same for both sides.

        Raises:
            CheckpointError: they differ.
        """
        shared = {}
        for key, default in self.shared.items():
            first, second = (
                config.bound(f"{side}.{key}", default)
                if key == "attn_logit_softcapping"
                else config.get(f"{side}.{key}", default, minimum=1)
                for side in SIDES
            )
            if first != second:
                raise CheckpointError(
                    f"{config.path}: encoder.{key}={shown(first)} and decoder.{key}={shown(second)} differ, which is "
                    f"not supported for a {self.name}"
                )
            shared[key] = first
        return shared

    def make_task(self, cfg: T5GemmaConfig, path: Path, tokenizer: Tokenizer) -> DecodingTask:
        """The task that decodes; the configuration gets the first decoder input."""
        config = self.flattened(JSONConfig.read(path / "config.json"))
        bos = config.get("bos_token_id", config.get("decoder.bos_token_id", _IDS["bos_token_id"]))
        eos = tokenizer.dictionary.eos()
        cfg.decoder_start_token_id = self.first_decoder_input(path, cfg.decoder_start_token_id, bos, eos)
        return DecodingTask(DecodingConfig(), tokenizer, tokenizer)

    def generation_defaults(self, config: JSONConfig) -> dict[str, Any]:
        """The special ids of the decoder; see ``Architecture.generation_defaults``."""
        return {key: value for key in _IDS if (value := self.flattened(config).value(f"decoder.{key}")) is not None}

    def reading_notes(self, config: JSONConfig) -> list[str]:
        """Notes about keys that are unknown; see ``Architecture.reading_notes``."""
        return super().reading_notes(self.flattened(config))

    def special_ids(self, model: T5GemmaModel, tokenizer: Tokenizer | None) -> dict[str, int]:
        """The special ids of the files of a folder."""
        eos = _IDS["eos_token_id"] if tokenizer is None else tokenizer.dictionary.eos()
        start = model.start_token(eos)
        bos = None if tokenizer is None else tokenizer.dictionary.bos()
        pad = model.encoder.padding_idx
        return {
            **{"pad_token_id": pad, "eos_token_id": eos, "bos_token_id": start if bos is None else bos},
            "decoder_start_token_id": start,
        }

    def write_config(self, model: T5GemmaModel) -> dict[str, Any]:
        """The content of a model's ``config.json``.

        Raises:
            ConfigError: the sizes of source and target vocabulary differ.
        """
        cfg = model.cfg
        rows = {model.encoder.embed_tokens.num_embeddings, model.decoder.embed_tokens.num_embeddings}
        if len(rows) > 1:
            raise ConfigError(
                "a t5gemma whose source and target vocabularies differ in size cannot be written in Hugging Face's "
                "layout, which has one tokenizer; train it with task.joined_dictionary=true"
            )
        shared = {
            "vocab_size": rows.pop(),
            "hidden_activation": activation_name(cfg.activation_fn).replace("gelu_new", "gelu_pytorch_tanh"),
            "rms_norm_eps": cfg.rms_norm_eps,
            "attention_bias": cfg.attention_bias,
            "attn_logit_softcapping": cfg.attn_logit_softcapping or None,
            "final_logit_softcapping": cfg.final_logit_softcapping or None,
            "pad_token_id": model.encoder.padding_idx,
        }
        dropout = {"dropout_rate": cfg.dropout_rate, "attention_dropout": cfg.attention_dropout}
        longest = {"encoder": cfg.max_source_positions, "decoder": cfg.max_target_positions}
        sides: dict[str, dict[str, Any]] = {}
        for side in SIDES:
            theta = getattr(cfg, f"{side}_rope_theta")
            sides[side] = {
                "model_type": "t5_gemma_module",
                **{foreign: getattr(cfg, f"{side}_{local}") for foreign, local in SIDE_KEYS.items()},
                **shared,
                "layer_types": cfg.layer_types(side),
                "max_position_embeddings": longest[side],
                "rope_theta": theta,  # of version 4 of transformers
                "rope_parameters": {"rope_type": "default", "rope_theta": theta},
                "is_decoder": side == "decoder",
            }
        if cfg.decoder_start_token_id >= 0:
            sides["decoder"]["bos_token_id"] = cfg.decoder_start_token_id
        sides["decoder"]["cross_attention_hidden_size"] = cfg.encoder_hidden_size
        return {
            **{"architectures": ["T5GemmaForConditionalGeneration"], "model_type": "t5gemma"},
            **{"is_encoder_decoder": True, **sides, **dropout, "tie_word_embeddings": cfg.tie_word_embeddings},
            **{"vocab_size": shared["vocab_size"], "use_cache": True},
        }

    def layout(self, cfg: T5GemmaConfig) -> Layout:
        """The names of the weights."""
        pieces: dict[str, Piece] = {}
        for side in SIDES:
            pieces[f"model.{side}.embed_tokens.weight"] = Piece(f"{side}.embed_tokens.weight")
            pieces[f"model.{side}.norm.weight"] = Piece(f"{side}.layer_norm.weight")
            for index in range(getattr(cfg, f"{side}_layers")):
                pieces |= self.layer(cfg, side, f"model.{side}.layers.{index}", f"{side}.layers.{index}")
        if cfg.tie_word_embeddings:
            return Layout(pieces, tied={OUTPUT: _EMBEDDING})
        return Layout({**pieces, OUTPUT: Piece("decoder.output_projection.weight")})

    def layer(self, cfg: Any, side: str, foreign: str, local: str) -> dict[str, Piece]:
        """The weights of a layer.

        Args:
            cfg: the configuration.
            side: ``encoder`` or ``decoder``.
            foreign: the name of the layer in a folder.
            local: its name in the model.
        """
        sizes = cfg.of_side(side)
        if side == "encoder" or self.merges:
            return layer_pieces(sizes, foreign, local, NORMS, side == "decoder")
        norms = {**NORMS, "pre_cross_attn": "encoder_attn_layer_norm", "post_cross_attn": "encoder_attn_post_norm"}
        cross = attention_pieces(sizes, f"{foreign}.cross_attn", f"{local}.encoder_attn", True)
        return layer_pieces(sizes, foreign, local, norms) | cross


ARCHITECTURE = T5GemmaArchitecture()
