"""What a user is told of a T5Gemma folder whose configuration, weights or tokenizer cannot be used."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from seqgen.addons.huggingface.checkpoint import save_pretrained
from seqgen.data.tokenizers.pretrained import load_pretrained_tokenizer
from tests.addons.huggingface.test_oracle_t5gemma import RECORDED, RECORDED2, change, read
from tests.huggingface_t5 import change_config
from tests.refusals import Row, refusals


def config(values: dict[str, Any], *words: str, folder: Path = RECORDED / "tied") -> Row:
    def changed(tmp_path: Path) -> None:
        change(tmp_path / "folder", values, folder)
        read(tmp_path / "folder")

    return changed, *words


def config2(values: dict[str, Any], *words: str) -> Row:
    return config(values, *words, folder=RECORDED2 / "tied")


ROPE = "decoder/rope_parameters"


def rope(kind: str) -> dict[str, Any]:
    return {"factor": 2.0, "rope_type": kind}


test_configurations = refusals(
    config({"encoder/hidden_size": "8"}, "encoder.hidden_size is '8', not a whole number of at least 1"),
    config({"decoder/head_dim": 3}, "cannot be used: rotary positions need an even head_dim"),
    config({"encoder/layer_types": ["full_attention", "x"]}, "encoder_layer_types must have 2 entries, each sliding_"),
    config({"encoder/layer_types": {"a": 1}}, "encoder.layer_types is {'a': 1}, not a list of texts"),
    config({"encoder/rope_parameters": rope("linear")}, f"encoder.rope_parameters={rope('linear')} is not"),
    config({"decoder/vocab_size": 12}, "encoder.vocab_size=11 and decoder.vocab_size=12 differ"),
    config({"encoder": [1]}, "encoder is [1], not keys and values"),
    # T5Gemma 2
    config2({"decoder/decoder_start_token_id": 7}, "decoder.decoder_start_token_id=7 is not supported, only 2"),
    config2({"encoder": [1]}, "encoder is [1], not keys and values"),
    config2({"decoder/layer_types": ["full_attention"]}, "decoder_layer_types must have 3 entries, each"),
    config2({"is_encoder_decoder": False}, "a t5gemma2 with is_encoder_decoder=false is not supported"),
    config2({f"{ROPE}/full_attention": rope("yarn")}, f"{rope('yarn')} is not", "rope_type default or linear"),
    config2({f"{ROPE}/sliding_attention": rope("linear")}, f"{rope('linear')} is not", "rope_type default are"),
)


def weights(name: str) -> Row:
    def changed(tmp_path: Path) -> None:
        shutil.copytree(RECORDED2 / "tied", tmp_path / "folder")
        file = tmp_path / "folder" / "model.safetensors"
        save_file({**load_file(file), name: torch.zeros(1)}, file)
        read(tmp_path / "folder")

    return changed, f"unknown to the model: {name}"


test_weights = refusals(
    # only weights for images are left out
    *map(weights, ("model.encoder.vision.weight", "model.decoder.vision_tower.weight")),
    (lambda tmp_path: save_pretrained(read(RECORDED2 / "tied").model, tmp_path / "x"), "a t5gemma2 cannot be written"),
)


def tokenizer(name: str, values: dict[str, Any], *words: str) -> Row:
    def changed(tmp_path: Path) -> None:
        shutil.copytree(RECORDED / "tokenizer", tmp_path / "tokenizer")
        change_config(tmp_path / "tokenizer", name, **values)
        load_pretrained_tokenizer(tmp_path / "tokenizer")

    return changed, *words


MODEL = json.loads((RECORDED / "tokenizer" / "tokenizer.json").read_text())["model"]
WORDS = {"type": "WordLevel", "vocab": MODEL["vocab"], "unk_token": "<unk>"}

test_tokenizers = refusals(
    tokenizer("tokenizer_config.json", {"add_bos_token": False}, "adds no token to a text", "set add_bos"),
    tokenizer("tokenizer_config.json", {"bos_token": "<start>"}, "has no bos_token; name it in its"),
    tokenizer("tokenizer.json", {"model": WORDS}, "is not a byte-pair encoding, which Gemma's"),
)
