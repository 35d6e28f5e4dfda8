"""Checkpoints in the formats of several fairseq versions, made from small random models of seqgen."""

import argparse
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor

from seqgen.extend import MODELS, Dictionary, EncoderDecoderModel, FConvConfig, TransformerConfig, TransformerLMConfig
from tests.huggingface_bart import tiny_model

WORDS = 20
_WIDTHS = {"embed_dim": 8, "ffn_embed_dim": 12, "layers": 2, "attention_heads": 2}
_ENCODER: dict[str, Any] = {f"encoder_{key}": value for key, value in _WIDTHS.items()} | {"max_source_positions": 40}
_DECODER: dict[str, Any] = {f"decoder_{key}": value for key, value in _WIDTHS.items()} | {"max_target_positions": 40}
FCONV = FConvConfig(
    encoder_layers="[(8, 3)] * 2 + [(10, 2)]",
    decoder_layers="[(8, 3), (8, 2), (10, 3)]",
    **dict.fromkeys(("encoder_embed_dim", "decoder_embed_dim", "decoder_out_embed_dim"), 8),
    **dict.fromkeys(("max_source_positions", "max_target_positions"), 40),
)
TRANSFORMER = TransformerConfig(**_ENCODER, **_DECODER)
LANGUAGE_MODEL = TransformerLMConfig(**_DECODER)
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


def random_model(
    config: AnyConfig, source: Dictionary | None = None, target: Dictionary | None = None
) -> EncoderDecoderModel:
    """A model in evaluation mode whose parameters are random everywhere."""
    torch.manual_seed(3)
    source = source or dictionary()
    task = SimpleNamespace(source_dictionary=source, target_dictionary=target or source)
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


CODES = ["de", "en", "fr"]
TASK: dict[str, Any] = {
    **{"task": "translation_multi_simple_epoch", "arch": "transformer_wmt_en_de_big", "source_lang": None},
    **{"target_lang": None, "lang_pairs": ["de-en", "en-fr"], "langs": None, "lang_dict": "/x/langs.txt"},
    **{"lang_tok_style": "multilingual", "encoder_langtok": "src", "decoder_langtok": True, "langtoks_specs": ["main"]},
    **{"langtoks": {"main": ("src", "tgt")}, "sampling_method": "temperature", "sampling_temperature": 5.0},
    **{"virtual_epoch_size": None, "fixed_dictionary": None, "extra_data": None, "enable_lang_ids": False},
}


def multilingual(codes: list[str] = CODES, frame: str = "__{}__", last: list[str] | None = None) -> Dictionary:
    """The vocabulary of an M2M-100: that of the file, the tokens of languages, and further ones."""
    made = dictionary()
    for token in [*(frame.format(code) for code in codes), *(["madeupword0", "madeupword1"] if last is None else last)]:
        made.add_symbol(token, 0)
    return made


def as_fairseq(folder: Path, kind: str, saved: Dictionary | None = None, **changes: Any) -> tuple[Any, Path]:
    """A model of transformers, and the same one as fairseq saves it: their names of weights are the same.

    Args:
        folder: where to write.
        kind: ``bart``, ``mbart`` or ``m2m_100``.
        saved: the words of the model.
        changes: options of the checkpoint that say something else.
    """
    is_m2m = kind == "m2m_100"
    words = saved or (multilingual() if is_m2m else dictionary())
    original = tiny_model(kind, vocab_size=len(words), scale_embedding=kind != "bart", encoder_attention_heads=2)
    weights = {
        name.removeprefix("model."): tensor
        for name, tensor in original.state_dict().items()
        if "shared" not in name and name not in ("final_logits_bias", "lm_head.weight")
    }
    if is_m2m:
        weights |= {f"{side}.embed_positions._float_tensor": torch.zeros(1) for side in ("encoder", "decoder")}
        of_kind = TASK
    else:
        original.final_logits_bias.zero_()
        of_kind = {"activation_fn": "gelu", "pooler_activation_fn": "tanh", "relu_dropout": 0.0, **LANGUAGES}
        of_kind |= {"arch": f"{kind}_base", "layernorm_embedding": True, "no_scale_embedding": kind == "bart"}
    options = COMMON | {"share_all_embeddings": True, "max_source_positions": 26, "max_target_positions": 26} | of_kind
    for side in ("encoder", "decoder"):
        layers, ffn = (getattr(original.config, f"{side}_{size}") for size in ("layers", "ffn_dim"))
        own: dict[str, Any] = {"embed_dim": 12, "attention_heads": 2, "layers": layers, "ffn_embed_dim": ffn}
        own |= {"normalize_before": kind != "bart", "learned_pos": not is_m2m}
        own |= {"layerdrop": 0.05} if is_m2m else {"embed_path": None}
        options |= {f"{side}_{key}": value for key, value in own.items()}
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({**in_args({**options, **changes}), "model": weights}, folder / "model.pt")
    words.save(folder / ("model_dict.128k.txt" if is_m2m else "dict.txt"))
    return original, folder / "model.pt"
