"""Gemma 3 with its vision tower in Hugging Face's layout, of which only the language model is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from seqgen.addons.huggingface.architecture import HEAD, JSONConfig
from seqgen.addons.huggingface.llama import EMBEDDING, LlamaArchitecture
from seqgen.extend import Layout, LlamaConfig

_TEXT = "language_model."


class Gemma3Architecture(LlamaArchitecture):
    """The language model of a Gemma 3; folders are only read. See ``Architecture``."""

    model_class = None
    head = _TEXT + HEAD

    def read_config(self, config: JSONConfig) -> LlamaConfig:
        """Turn a folder's ``config.json`` into a configuration."""
        return super().read_config(_of_text(config))

    def vocab_size(self, cfg: LlamaConfig, config: JSONConfig) -> int:
        """The size of the vocabulary."""
        return super().vocab_size(cfg, _of_text(config))

    def generation_defaults(self, config: JSONConfig) -> dict[str, Any]:
        """See ``Architecture.generation_defaults``."""
        return super().generation_defaults(_of_text(config))

    def reading_notes(self, config: JSONConfig) -> list[str]:
        """See ``Architecture.reading_notes``."""
        note = f"{config.path.parent}: the weights for images are not read, since seqgen reads text only"
        return [note, *super().reading_notes(config), *super().reading_notes(_of_text(config))]

    def layout(self, cfg: LlamaConfig) -> Layout:
        """The names of the weights; those that version 5 of transformers has in its models are read, too."""
        layout = super().layout(cfg)
        pieces = {_TEXT + name: piece for name, piece in layout.pieces.items()}
        aliases = {name: (f"model.{name.replace('model.model.', 'model.')}",) for name in pieces}
        tied = dict.fromkeys((HEAD, _TEXT + HEAD), _TEXT + EMBEDDING) if layout.tied else {}
        aliases |= {} if tied else {_TEXT + HEAD: (HEAD,)}
        towers = [f"{prefix}{name}." for prefix in ("", "model.") for name in ("vision_tower", "multi_modal_projector")]
        return replace(layout, pieces=pieces, aliases=aliases, tied=tied, left_out=tuple(towers))

    def untie(self, model: Any, weights: Mapping[str, Tensor]) -> None:
        """See ``Architecture.untie``; the projection has one of two names."""
        super().untie(model, dict.fromkeys([self.head], *weights.values()))


def _of_text(config: JSONConfig) -> JSONConfig:
    """The part of the file about the language model."""
    return JSONConfig(config.path, {**config.part("text_config"), "model_type": "gemma3_text"}, config.asked)


ARCHITECTURE = Gemma3Architecture()
