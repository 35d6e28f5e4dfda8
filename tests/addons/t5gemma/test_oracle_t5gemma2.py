"""T5Gemma 2 folders that transformers 5 saved; see tests/transformers5.py."""

from __future__ import annotations

import json
import shutil
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from seqgen.addons.t5gemma.model2 import T5Gemma2Model
from seqgen.data.tokenizers.pretrained import load_pretrained_tokenizer
from tests.addons.t5gemma.test_oracle_t5gemma import RECORDED as T5GEMMA, assert_near, logits, read

RECORDED = Path(__file__).parents[2] / "recorded" / "transformers5_t5gemma2"
COMPUTED = {name: one["logits"] for name, one in json.loads((RECORDED / "logits.json").read_text()).items()}


def note(folder: Path) -> str:
    return f"{folder}: the weights for images are not read, since seqgen reads text only"


@pytest.mark.parametrize("name", COMPUTED)
def test_logits_are_the_originals(name: str) -> None:
    """Unequal lengths with padding, windows shorter than the text, and the end of an image in source and target."""
    loaded = read(RECORDED / name)
    assert loaded.notes == [note(RECORDED / name)]
    assert isinstance(loaded.model, T5Gemma2Model)
    assert_near(logits(loaded.model), COMPUTED[name])
    embeddings = {side.embed_tokens.weight for side in (loaded.model.encoder, loaded.model.decoder)}
    assert (len({*embeddings, loaded.model.decoder.output_projection.weight}) == 1) == (name != "untied")


def test_types_of_layers_that_the_file_lacks(tmp_path: Path) -> None:
    """Of seven layers, the sixth attends to all positions."""
    change(tmp_path / "folder", {"encoder/text_config/layer_types": None}, RECORDED / "sizes")
    assert_near(logits(read(tmp_path / "folder").model), COMPUTED["sizes"])


@pytest.mark.parametrize("name", ["untied", "sizes"])
def test_positions_and_types_of_layers_by_their_old_keys(name: str, tmp_path: Path) -> None:
    """Bases that ``rope_parameters`` lacks, and a pattern in place of the types of layers."""
    config = json.loads((RECORDED / name / "config.json").read_text())
    values: dict[str, Any] = {"encoder/text_config/rope_theta": 7.0, "decoder/sliding_window_pattern": 2}
    for place, part in (("encoder/text_config", config["encoder"]["text_config"]), ("decoder", config["decoder"])):
        rope = part["rope_parameters"]
        values[f"{place}/rope_theta"] = rope["full_attention"].pop("rope_theta")
        values[f"{place}/rope_local_base_freq"] = rope["sliding_attention"].pop("rope_theta")
        values[f"{place}/rope_parameters"] = rope
    change(tmp_path / "folder", values, RECORDED / name)
    loaded = read(tmp_path / "folder")
    assert loaded.notes == [note(tmp_path / "folder")]
    assert_near(logits(loaded.model), COMPUTED[name])
    text = "encoder/text_config"
    change(tmp_path / "pattern", {f"{text}/layer_types": None, f"{text}/sliding_window_pattern": 2})
    types = read(tmp_path / "pattern").model.cfg.layer_types("encoder")
    assert types == ["sliding_attention", "full_attention", "sliding_attention"]


@pytest.mark.parametrize("name", ["tied", "untied"])
def test_names_with_the_model_of_the_text(name: str, tmp_path: Path) -> None:
    """transformers reads both names."""
    shutil.copytree(RECORDED / name, tmp_path / "folder")
    file, beginning = tmp_path / "folder" / "model.safetensors", "model.encoder."
    weights = load_file(file)
    for key in [key for key in weights if "vision_tower" not in key and "multi_modal" not in key]:
        weights[key.replace(beginning, f"{beginning}text_model.")] = weights.pop(key)
    save_file(weights, file)
    assert_near(logits(read(tmp_path / "folder").model), COMPUTED[name])


def test_the_tokenizer_has_the_size_of_the_text(tmp_path: Path) -> None:
    shutil.copytree(T5GEMMA / "tokenizer", tmp_path / "folder")
    rows = len(load_pretrained_tokenizer(tmp_path / "folder").dictionary) + 4
    config = {"model_type": "t5gemma2", "encoder": {"text_config": {"vocab_size": rows}}}
    (tmp_path / "folder" / "config.json").write_text(json.dumps(config))
    assert len(load_pretrained_tokenizer(tmp_path / "folder").dictionary) == rows


def change(folder: Path, values: dict[str, Any], original: Path = RECORDED / "tied") -> None:
    """Copy a folder, with other values in its configuration."""
    shutil.copytree(original, folder)
    config = json.loads((folder / "config.json").read_text())
    for place, value in values.items():
        *parts, key = place.split("/")
        reduce(getitem, parts, config)[key] = value
    (folder / "config.json").write_text(json.dumps(config))


def test_keys_that_have_no_effect(tmp_path: Path) -> None:
    """transformers 5.23 reads no bound of the scores, and writes one anyway."""
    change(tmp_path / "folder", {"decoder/attn_logit_softcapping": 1.0, "decoder/further": 3})
    loaded = read(tmp_path / "folder")
    unknown = f"{tmp_path}/folder/config.json: decoder.further=3 is unknown and is ignored"
    assert loaded.notes == [note(tmp_path / "folder"), unknown]
    assert_near(logits(loaded.model), COMPUTED["tied"])
