"""What the checks of models and of other components share: vocabularies, small random models, the device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

import seqgen.models  # noqa: F401  # declares the built-in models
from seqgen.config import CommonConfig
from seqgen.data.dictionary import Dictionary
from seqgen.errors import ConfigError, UserError
from seqgen.model import EncoderDecoderModel
from seqgen.registry import MODELS

SMALL = {
    "encoder_embed_dim": 16,
    "decoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 24,
    "decoder_ffn_embed_dim": 24,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "dropout": 0.0,
}


class Vocabularies:
    """Has one vocabulary for source and target, which is all that a model needs of its task."""

    def __init__(self, words: Dictionary):
        self.source_dictionary = self.target_dictionary = words


def small_transformer(name: str = "transformer") -> Any:
    """The configuration of a transformer with 16 features, without dropout."""
    config = MODELS.config(name)
    return replace(config, **{key: value for key, value in SMALL.items() if hasattr(config, key)})


def new_model(config: Any, words: Dictionary, seed: int = 0) -> EncoderDecoderModel:
    """Build a model in float64 with newly initialized weights.

    Args:
        config: the configuration of a registered model.
        words: its vocabulary.
        seed: seed of the weights.

    Raises:
        UserError: it cannot be built.
    """
    component: Any = MODELS.of(config).component
    torch.manual_seed(seed)
    try:
        model: EncoderDecoderModel = component.build_model(config, Vocabularies(words))
    except UserError:
        raise
    except Exception as error:  # the model is the user's, and may raise anything
        raise ConfigError(
            f"the model cannot be built from its keys and the dictionaries of a task: {type(error).__name__}: {error}; "
            "correct build_model, or check a trained run with path=RUN"
        ) from error
    return model.double()


def refuse_device(common: CommonConfig) -> None:
    """Refuse a device other than the CPU.

    Raises:
        ConfigError: the user chose one.
    """
    if common.device not in ("auto", "cpu"):
        raise ConfigError(f"common.device={common.device}: the checks run on the CPU; remove the key")
