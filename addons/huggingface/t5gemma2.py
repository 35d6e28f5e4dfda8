"""T5Gemma 2 in Hugging Face's layout: its ``config.json`` and the names of its weights. Folders are only read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from seqgen.addons.huggingface.architecture import JSONConfig
from seqgen.addons.huggingface.t5gemma import OUTPUT, SIDES, T5GemmaArchitecture
from seqgen.addons.huggingface.t5gemma2_model import T5Gemma2Config, T5Gemma2Model
from seqgen.extend import ConfigError, DecodingTask, Layout, Piece, Tokenizer

_VISION = ("model.encoder.vision_tower.", "model.encoder.multi_modal_projector.")
"""The prefixes of the names of weights that compute features of images."""

_SHARED = {
    **{key: value for key, value in T5GemmaArchitecture.shared.items() if key != "attn_logit_softcapping"},
    "vocab_size": 262208,
}


class T5Gemma2Architecture(T5GemmaArchitecture):
    """T5Gemma 2, without its vision tower; see ``Architecture``."""

    model_class = T5Gemma2Model
    name = "t5gemma2"
    shared = _SHARED
    merges = True
    final_bound, longest = 0.0, 131072

    def flattened(self, config: JSONConfig) -> JSONConfig:
        """See ``T5GemmaArchitecture.flattened``; the sizes of the encoder are a part of its part."""
        encoder = {key: value for key, value in config.part("encoder").items() if key != "text_config"}
        parts = {"encoder": config.part("encoder", "text_config"), "eoi_token_index": encoder.get("eoi_token_index")}
        return super().flattened(JSONConfig(config.path, {**encoder, **config.values, **parts}, config.asked))

    def positions(self, config: JSONConfig, side: str) -> dict[str, Any]:
        """See ``T5GemmaArchitecture.positions``; each type of layers has other positions."""
        key = f"{side}.rope_parameters"
        full = self.read_rope(
            config, (key, "full_attention"), config.get(f"{side}.rope_theta", 1e6), ("default", "linear")
        )
        theta = config.get(f"{side}.rope_local_base_freq", 1e4)
        local = self.read_rope(config, (key, "sliding_attention"), theta, ("default",))
        found = {f"{side}_{name}": value for name, value in full.items()}
        return {**found, f"{side}_local_rope_theta": local["rope_theta"]}

    def period(self, config: JSONConfig, side: str) -> int:
        """See ``T5GemmaArchitecture.period``."""
        return config.get(f"{side}.sliding_window_pattern", T5Gemma2Config.period, minimum=1)

    def make_task(self, cfg: Any, path: Path, tokenizer: Tokenizer) -> DecodingTask:
        """See ``Architecture.make_task``.

        Raises:
            CheckpointError: the decoder has another start token than the whole file.
        """
        task = super().make_task(cfg, path, tokenizer)
        config = self.flattened(JSONConfig.read(path / "config.json"))
        start = tokenizer.dictionary.eos() if cfg.decoder_start_token_id < 0 else cfg.decoder_start_token_id
        config.one_of("decoder.decoder_start_token_id", [start], start)
        return task

    def read_config(self, config: JSONConfig) -> T5Gemma2Config:
        """Turn a folder's ``config.json`` into a configuration."""
        cfg: Any = super().read_config(config)
        read: T5Gemma2Config = replace(cfg, end_of_image_id=self.flattened(config).get("eoi_token_index", 256000))
        return read

    def reading_notes(self, config: JSONConfig) -> list[str]:
        """See ``Architecture.reading_notes``."""
        note = f"{config.path.parent}: the weights for images are not read, since seqgen reads text only"
        return [note, *super().reading_notes(config)]

    def write_config(self, model: Any) -> dict[str, Any]:
        """Folders are not written.

        Raises:
            ConfigError: in any case.
        """
        raise ConfigError("a t5gemma2 cannot be written in Hugging Face's layout, which includes weights for images")

    def layout(self, cfg: Any) -> Layout:
        """The names of the weights; in tied models, those of one embedding.

        transformers reads names of the encoder with ``text_model.`` in them, too.
        """
        layout = replace(super().layout(cfg), left_out=_VISION)
        image = {
            f"model.{side}.embed_tokens.eoi_embedding": Piece(f"{side}.embed_tokens.end_of_image") for side in SIDES
        }
        pieces, beginning = {**layout.pieces, **image}, "model.encoder."
        aliases: dict[str, tuple[str, ...]] = {
            name: (name.replace(beginning, f"{beginning}text_model."),) for name in pieces if beginning in name
        }
        if not cfg.tie_word_embeddings:
            return replace(layout, pieces=pieces, aliases=aliases)
        for kind in ("weight", "eoi_embedding"):
            source, target = (f"model.{side}.embed_tokens.{kind}" for side in SIDES)
            aliases[source] = (*aliases[source], target)
            del pieces[target]
        return replace(layout, pieces=pieces, aliases=aliases, tied={OUTPUT: "model.encoder.embed_tokens.weight"})


ARCHITECTURE = T5Gemma2Architecture()
