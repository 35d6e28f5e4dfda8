"""T5Gemma folders that transformers 5 saved (see tests/transformers5.py), and folders written here.

The oracle is the model of transformers 4.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from seqgen.addons.huggingface.checkpoint import save_pretrained
from seqgen.addons.huggingface.t5gemma2_model import T5Gemma2Model
from seqgen.addons.huggingface.t5gemma_model import T5GemmaModel
from seqgen.extend import LoadedModel, ReadingConfig, load_model, load_pretrained_tokenizer
from tests.huggingface_decoding import source_batch
from tests.huggingface_t5 import change_config

RECORDED = Path(__file__).parents[2] / "recorded" / "transformers5_t5gemma"
SOURCES = [(2, 5, 9, 7, 4, 8, 6, 1), (2, 6, 3, 1), (3, 10, 9, 4, 6, 7), (2,)]
TARGET = [2, 9, 4, 10, 0, 7, 6, 1]


def read(folder: Path) -> LoadedModel:
    return load_model(folder, reading=ReadingConfig(tokenizer="ids"))


@torch.no_grad()
def logits(model: Any, target: Sequence[int] = TARGET) -> Tensor:
    source = source_batch(SOURCES).source
    out: Tensor = model(source.src_tokens, source.src_lengths, torch.tensor([target] * len(SOURCES))).logits
    return out


def assert_near(got: Tensor, wanted: Any) -> None:
    torch.testing.assert_close(got, torch.as_tensor(wanted), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["tied", "untied", "sizes", "uncapped"])
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Unequal lengths with padding, and windows of one to three tokens; what is written says the same.

    Windows of the encoder are smaller by one token in version 4, and it masks padding in the target.
    """
    transformers = pytest.importorskip("transformers")
    loaded = read(RECORDED / name)
    assert isinstance(loaded.model, T5GemmaModel)
    assert save_pretrained(loaded.model, tmp_path / "again") == []
    again = read(tmp_path / "again")
    assert (again.notes, loaded.notes, again.model.cfg) == ([], [], loaded.model.cfg)
    assert torch.equal(logits(again.model), logits(loaded.model))
    target = [token or 3 for token in TARGET]
    shutil.copytree(RECORDED / name, tmp_path / "recorded")
    for folder in (tmp_path / "recorded", tmp_path / "again"):
        config = json.loads((folder / "config.json").read_text())
        for side in ("encoder", "decoder"):  # a key of version 5
            config[side]["rope_theta"] = config[side].pop("rope_parameters")["rope_theta"]
        config["encoder"]["sliding_window"] += 1
        change_config(folder, **config)
        original = transformers.T5GemmaForConditionalGeneration.from_pretrained(folder, attn_implementation="eager")
        source = source_batch(SOURCES).source
        mask = torch.arange(source.src_tokens.size(1)) < source.src_lengths.unsqueeze(1)
        given = {"attention_mask": mask.long(), "decoder_input_ids": torch.tensor([target] * len(SOURCES))}
        with torch.no_grad():
            wanted = original.eval()(source.src_tokens, **given, use_cache=False)
        assert_near(logits(loaded.model, target), wanted.logits)


def test_an_output_projection_of_its_own(tmp_path: Path) -> None:
    """Version 5 writes all folders as tied; a projection that differs from the embedding is used."""
    folder = tmp_path / "untied"
    shutil.copytree(RECORDED / "untied", folder)
    change_config(folder, tie_word_embeddings=True)
    loaded = read(folder)
    assert not loaded.model.cfg.tie_word_embeddings
    assert_near(logits(loaded.model), logits(read(RECORDED / "untied").model))


def test_text_of_a_folder(tmp_path: Path) -> None:
    """The tokenizer is that of the sizes of encoder and decoder; a ``vocab_size`` beside them is not used."""
    tokenizer = load_pretrained_tokenizer(RECORDED / "tokenizer")
    cfg = read(RECORDED / "tied").model.cfg
    rows = len(tokenizer.dictionary) + 4
    torch.manual_seed(0)
    model = T5GemmaModel(replace(cfg, vocab_size=rows), rows, rows, tokenizer.dictionary.pad())
    save_pretrained(model, tmp_path / "folder", tokenizer)
    change_config(tmp_path / "folder", vocab_size=256000)
    loaded = load_model(tmp_path / "folder")
    assert loaded.notes == []
    ids = dict(json.loads((RECORDED / "texts.json").read_text())["tokenizer"]["encoded"])["a dog"]
    assert loaded.task.encode_source("a dog").tolist() == ids
    assert loaded.task.encode_source("").tolist() == [2]
    assert len(load_pretrained_tokenizer(tmp_path / "folder").dictionary) == rows


# --- T5Gemma 2


RECORDED2 = Path(__file__).parents[2] / "recorded" / "transformers5_t5gemma2"
COMPUTED = {name: one["logits"] for name, one in json.loads((RECORDED2 / "logits.json").read_text()).items()}


def note(folder: Path) -> str:
    return f"{folder}: the weights for images are not read, since seqgen reads text only"


@pytest.mark.parametrize("name", COMPUTED)
def test_logits_are_the_originals(name: str) -> None:
    """Unequal lengths with padding, windows shorter than the text, and the end of an image in source and target."""
    loaded = read(RECORDED2 / name)
    assert loaded.notes == [note(RECORDED2 / name)]
    assert isinstance(loaded.model, T5Gemma2Model)
    assert_near(logits(loaded.model), COMPUTED[name])
    embeddings = {side.embed_tokens.weight for side in (loaded.model.encoder, loaded.model.decoder)}
    assert (len({*embeddings, loaded.model.decoder.output_projection.weight}) == 1) == (name != "untied")


def test_types_of_layers_that_the_file_lacks(tmp_path: Path) -> None:
    """Of seven layers, the sixth attends to all positions."""
    change(tmp_path / "folder", {"encoder/text_config/layer_types": None}, RECORDED2 / "sizes")
    assert_near(logits(read(tmp_path / "folder").model), COMPUTED["sizes"])


@pytest.mark.parametrize("name", ["untied", "sizes"])
def test_positions_and_types_of_layers_by_their_old_keys(name: str, tmp_path: Path) -> None:
    """Bases that ``rope_parameters`` lacks, and a pattern in place of the types of layers."""
    config = json.loads((RECORDED2 / name / "config.json").read_text())
    values: dict[str, Any] = {"encoder/text_config/rope_theta": 7.0, "decoder/sliding_window_pattern": 2}
    for place, part in (("encoder/text_config", config["encoder"]["text_config"]), ("decoder", config["decoder"])):
        rope = part["rope_parameters"]
        values[f"{place}/rope_theta"] = rope["full_attention"].pop("rope_theta")
        values[f"{place}/rope_local_base_freq"] = rope["sliding_attention"].pop("rope_theta")
        values[f"{place}/rope_parameters"] = rope
    change(tmp_path / "folder", values, RECORDED2 / name)
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
    shutil.copytree(RECORDED2 / name, tmp_path / "folder")
    file, beginning = tmp_path / "folder" / "model.safetensors", "model.encoder."
    weights = load_file(file)
    for key in [key for key in weights if "vision_tower" not in key and "multi_modal" not in key]:
        weights[key.replace(beginning, f"{beginning}text_model.")] = weights.pop(key)
    save_file(weights, file)
    assert_near(logits(read(tmp_path / "folder").model), COMPUTED[name])


def test_the_tokenizer_has_the_size_of_the_text(tmp_path: Path) -> None:
    shutil.copytree(RECORDED / "tokenizer", tmp_path / "folder")
    rows = len(load_pretrained_tokenizer(tmp_path / "folder").dictionary) + 4
    config = {"model_type": "t5gemma2", "encoder": {"text_config": {"vocab_size": rows}}}
    (tmp_path / "folder" / "config.json").write_text(json.dumps(config))
    assert len(load_pretrained_tokenizer(tmp_path / "folder").dictionary) == rows


def change(folder: Path, values: dict[str, Any], original: Path = RECORDED2 / "tied") -> None:
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
