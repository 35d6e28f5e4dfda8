"""Damaged and hostile folders in Hugging Face's layout: each is refused by one sentence, and nothing in it is run."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import seqgen.models  # noqa: F401  # declares the checkpoint loader
from seqgen.checkpoints.loading import load_model
from seqgen.core.errors import CheckpointError
from tests.huggingface_t5 import (
    change_config,
    refusal,
    tiny_folder,
)


def test_a_folder_without_weights(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "theirs", "t5")
    (folder / "model.safetensors").unlink()
    assert "has no weights: there is no model.safetensors and no pytorch_model.bin" in refusal(folder)
    (folder / "tf_model.h5").touch()
    assert "tf_model.h5 is of another framework" in refusal(folder)


def test_a_folder_with_half_of_the_shards(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "theirs", "t5", max_shard_size="30KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    for shard in shards[::2]:
        shard.unlink()
    said = refusal(folder)
    assert f"{len(shards[::2])} of {len(shards)} files with weights are missing" in said
    assert shards[0].name in said


def test_a_folder_of_another_architecture(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "theirs", "t5")
    change_config(folder, model_type="prophetnet", architectures=["ProphetNetForConditionalGeneration"])
    said = refusal(folder)
    assert "config.json: model_type='prophetnet' (ProphetNetForConditionalGeneration) is an architecture which" in said
    assert "seqgen does not support; it supports the model types t5, mt5" in said
    change_config(folder, model_type="absent", architectures="absent")
    assert "model_type='' is an architecture which seqgen does not support" in refusal(folder)
    change_config(folder, model_type=["t5"])
    assert "model_type is ['t5'], not a text" in refusal(folder)
    (folder / "config.json").write_text("{")
    assert "config.json: cannot be read as JSON" in refusal(folder)


@pytest.mark.parametrize("safe", [True, False], ids=["safetensors", "bin"])
def test_a_truncated_shard(safe: bool, tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "theirs", "t5", max_shard_size="30KB", safe_serialization=safe)
    shard = sorted(folder.glob("*-00002-of-*"))[0]
    shard.write_bytes(shard.read_bytes()[:-100])
    said = refusal(folder)
    assert shard.name in said
    assert "truncated" in said or "damaged" in said


def test_a_tokenizer_that_does_not_fit(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "theirs", "t5", vocab_size=30)
    assert "has 38 ids but the model's vocabulary only 30" in refusal(folder)
    bare = tiny_folder(tmp_path / "bare", "t5", tokenizer=False)
    assert "spiece.model" in refusal(bare)


def test_weights_that_are_not_those_of_the_config(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "theirs", "t5")
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    weights["encoder.extra.weight"] = torch.zeros(1)
    del weights["decoder.block.1.layer.1.EncDecAttention.k.weight"]
    weights["decoder.final_layer_norm.weight"] = torch.ones(3)
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    said = refusal(folder)
    assert "missing: decoder.block.1.layer.1.EncDecAttention.k.weight" in said
    assert "unknown to the model: encoder.extra.weight" in said
    assert "of another shape: decoder.final_layer_norm.weight ((3,), expected (24,))" in said


def test_sizes_that_the_weights_do_not_have(tmp_path: Path) -> None:
    """They are refused before anything of that size is made."""
    folder = tiny_folder(tmp_path / "theirs", "t5")
    bin_folder = tiny_folder(tmp_path / "bin", "t5", safe_serialization=False)
    original = (folder / "config.json").read_text()
    said = "the weights do not match its config.json, which describes"
    for values, words in (
        ({"num_layers": 10**9}, said),
        ({"num_layers": 2**31 - 1, "d_model": 1, "d_kv": 1, "d_ff": 1, "num_heads": 1}, said),
        ({"d_model": 10**9}, said),
        ({"relative_attention_num_buckets": 10**6, "relative_attention_max_distance": 10**6}, said),
        ({"relative_attention_max_distance": 10**9}, "is above its maximum, 1048576"),
        ({"vocab_size": 10**18}, "a whole number of at most 2147483647"),
        ({"num_heads": 10**400}, "a number of 401 digits"),
        ({"layer_norm_epsilon": float("nan")}, "layer_norm_epsilon is nan, not a number"),
    ):
        for path in (folder, bin_folder):
            (path / "config.json").write_text(original)
            change_config(path, **values)
            with pytest.raises(CheckpointError) as caught:
                load_model(path)
            assert words in str(caught.value)
            assert len(str(caught.value)) < 400
    (folder / "config.json").write_text(original)
    for key in ("num_beams", "max_new_tokens", "min_length", "length_penalty", "top_k", "no_repeat_ngram_size"):
        for value in (10**18, 10**30, 10**400):
            change_config(folder, "generation_config.json", do_sample=True, **{key: value})
            if key != "length_penalty" or value == 10**400:
                words = "a number of 401 digits" if value == 10**400 else f"{key} is 10000"
                with pytest.raises(CheckpointError, match=words):
                    load_model(folder)
        change_config(folder, "generation_config.json", **{key: None})
    for key, value in (
        ("sequence_bias", [[[5], 10**400]]),
        ("exponential_decay_length_penalty", [10**30, 1.1]),
        ("exponential_decay_length_penalty", [1, 10**400]),
        ("eos_token_id", 10**400),
    ):
        change_config(folder, "generation_config.json", **{key: value})
        with pytest.raises(CheckpointError):
            load_model(folder)
        change_config(folder, "generation_config.json", **{key: None})
    load_model(folder)


class Bomb:
    """Pickled, it asks for a folder to be made."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_nothing_in_a_folder_is_run(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "theirs", "t5", safe_serialization=False)
    (folder / "pytorch_model.bin").write_bytes(
        pickle.dumps({"shared.weight": Bomb(tmp_path / "exploded"), "size": bytes(100_000)}, protocol=2)
    )
    assert "contains code" in refusal(folder)
    change_config(folder, auto_map={"AutoModel": "evil.Model"})
    (folder / "evil.py").write_text("raise SystemExit(3)")
    assert "contains code" in refusal(folder)
    assert not (tmp_path / "exploded").exists()
    index = {"weight_map": {"shared.weight": "../outside.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "names files outside its folder" in refusal(folder)


def test_only_the_models_own_module_is_imported(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "theirs", "t5")
    script = """
import sys, seqgen.models
from seqgen.checkpoints.loading import load_model
load_model(sys.argv[1])
assert not {"seqgen.models.fconv", "seqgen.models.transformer", "transformers"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script, str(folder)], check=True)
