"""Checkpoints in the formats of several fairseq versions, made from small random models of seqgen."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor

from seqgen.core.model import EncoderDecoderModel
from seqgen.data.dictionary import Dictionary
from seqgen.models.fconv import FConvConfig
from seqgen.models.transformer import TransformerConfig
from seqgen.models.transformer_lm import TransformerLMConfig
from seqgen.registry import MODELS

WORDS = 20
FCONV = FConvConfig(
    encoder_embed_dim=8,
    encoder_layers="[(8, 3)] * 2 + [(10, 2)]",
    decoder_embed_dim=8,
    decoder_layers="[(8, 3), (8, 2), (10, 3)]",
    decoder_out_embed_dim=8,
    max_source_positions=40,
    max_target_positions=40,
)
TRANSFORMER = TransformerConfig(
    encoder_embed_dim=8,
    encoder_ffn_embed_dim=12,
    encoder_layers=2,
    encoder_attention_heads=2,
    decoder_embed_dim=8,
    decoder_ffn_embed_dim=12,
    decoder_layers=2,
    decoder_attention_heads=2,
    max_source_positions=40,
    max_target_positions=40,
)
LANGUAGE_MODEL = TransformerLMConfig(
    decoder_embed_dim=8,
    decoder_ffn_embed_dim=12,
    decoder_layers=2,
    decoder_attention_heads=2,
    max_target_positions=40,
)
AnyConfig = FConvConfig | TransformerConfig | TransformerLMConfig

# what every fairseq-train adds, whatever the model
COMMON = {
    **{"seed": 1, "lr": [0.25], "optimizer": "adam", "criterion": "cross_entropy", "adam_betas": "(0.9, 0.98)"},
    **{"fp16": False, "max_tokens": 4000, "save_dir": "checkpoints", "left_pad_source": "True", "data": "data-bin"},
}
LANGUAGES = {"task": "translation", "source_lang": "en", "target_lang": "de"}


def dictionary(words: int = WORDS, first: str = "w") -> Dictionary:
    made = Dictionary()
    for number in range(words):
        made.add_symbol(f"{first}{number}", words - number)
    return made


class _Task:
    def __init__(self, source: Dictionary, target: Dictionary):
        self.source_dictionary, self.target_dictionary = source, target


def random_model(
    config: AnyConfig, source: Dictionary | None = None, target: Dictionary | None = None
) -> EncoderDecoderModel:
    """A model in evaluation mode whose parameters are random everywhere."""
    torch.manual_seed(3)
    source = source or dictionary()
    task = _Task(source, target or source)
    model: EncoderDecoderModel = MODELS.of(config).component.build_model(config, task)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def fairseq_weights(model: EncoderDecoderModel) -> dict[str, Tensor]:
    """A model's weights under the names of the current fairseq."""
    weights: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        name = name.replace("parametrizations.weight.original0", "weight_g")
        name = name.replace("parametrizations.weight.original1", "weight_v")
        for fused, letters in (("in_proj", "qkv"), ("kv_proj", "kv")):
            if f".{fused}." in name:
                parts = tensor.chunk(len(letters))
                weights |= {name.replace(fused, f"{letter}_proj"): p for letter, p in zip(letters, parts, strict=True)}
                break
        else:
            weights[name] = tensor
    weights["decoder.version"] = torch.tensor([3.0])
    return weights


NOT_FAIRSEQS = frozenset(
    {
        *("position_offset", "sinusoids", "share_encoder_decoder_embed", "output_bias", "decoder_start_token_id"),
        *("embedding_dropout", "layer_norm_epsilon", "scale_attn_weights", "scale_attn_by_inverse_layer_idx"),
        "positions_from_zero",
    }
)
"""Keys of the models' configurations that fairseq does not have."""


def options_of(config: AnyConfig) -> dict[str, Any]:
    own = {key: value for key, value in asdict(config).items() if key not in NOT_FAIRSEQS}
    if isinstance(config, TransformerLMConfig):
        task = {"task": "language_modeling", "sample_break_mode": "none", "tokens_per_sample": 40}
        return {**COMMON, **task, "arch": "transformer_lm", "self_target": False, "output_dictionary_size": -1, **own}
    return {**COMMON, **LANGUAGES, "arch": "fconv" if isinstance(config, FConvConfig) else "transformer", **own}


def in_args(options: dict[str, Any]) -> dict[str, Any]:
    """The options as versions before 0.10 saved them."""
    return {"args": argparse.Namespace(**options), "optimizer_history": [{"num_updates": 7}]}


def in_dict(options: dict[str, Any]) -> dict[str, Any]:
    """The options as version 0.12 saves them."""
    of_task = ("source_lang", "target_lang", "tokens_per_sample", "self_target", "output_dictionary_size")
    task = {"_name": options["task"], **{key: options[key] for key in of_task if key in options}}
    model = argparse.Namespace(**{**options, "_name": options["arch"]})
    return {"args": None, "cfg": {"model": model, "task": task, "common": {"seed": 1}}}


def in_omegaconf(options: dict[str, Any]) -> dict[str, Any]:
    """The options as OmegaConf nodes with a namespace, as versions from 0.10 to 0.12 saved them."""
    plain = in_dict(options)["cfg"]
    cfg = OmegaConf.create({key: plain[key] for key in ("task", "common")}, flags={"allow_objects": True})
    cfg.model = plain["model"]
    return {"args": None, "cfg": cfg}


def in_groups(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a transformer as OmegaConf nodes in groups, with a reference."""
    model: dict[str, Any] = {"_name": "transformer", "encoder": {}, "decoder": {}, "quant_noise": {"pq": 0.0}}
    for key in asdict(TRANSFORMER).keys() - NOT_FAIRSEQS:
        group, _, name = key.partition("_")
        if group in ("encoder", "decoder"):
            model[group][name] = options[key]
        else:
            model[key] = options[key]
    model["decoder"]["output_dim"] = "${model.decoder.embed_dim}"
    task = in_dict(options)["cfg"]["task"]
    return {"args": None, "cfg": OmegaConf.create({"model": model, "task": task})}


def write(
    folder: Path,
    model: EncoderDecoderModel,
    described: dict[str, Any],
    weights: dict[str, Tensor] | None = None,
    zipped: bool = True,
    name: str = "model.pt",
) -> Path:
    """Write a checkpoint and the dictionary in the same folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    content = {**described, "model": weights or fairseq_weights(model), "extra_state": {"val_loss": 2.5, "epoch": 3}}
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    dictionary().save(folder / "dict.txt")
    return path


def write_random(folder: Path, config: Any) -> Path:
    """Write a checkpoint of a random model with the options of ``config``."""
    return write(folder, random_model(config), in_args(options_of(config)))
