"""T5Gemma folders that transformers 5 saved (see tests/transformers5.py), and folders written here.

The oracle is the model of transformers 4.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from seqgen.addons.t5gemma.model import T5GemmaModel
from seqgen.checkpoints.loaders import LoadedModel
from seqgen.checkpoints.loading import load_model
from seqgen.config import ReadingConfig
from seqgen.data.tokenizers.pretrained import load_pretrained_tokenizer, save_pretrained_tokenizer
from seqgen.models.huggingface.checkpoint import save_pretrained
from tests.huggingface_decoding import source_batch
from tests.huggingface_t5 import change_config
from tests.models.huggingface.test_oracle_transformers5 import assert_tokenizer

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


@pytest.mark.parametrize("name", ["tokenizer", "tokenizer-published"])
def test_tokenizers(name: str, tmp_path: Path) -> None:
    wanted = json.loads((RECORDED / "texts.json").read_text())[name]
    assert_tokenizer(RECORDED / name, wanted)
    save_pretrained_tokenizer(load_pretrained_tokenizer(RECORDED / name), tmp_path / name)
    assert_tokenizer(tmp_path / name, wanted)
    transformers = pytest.importorskip("transformers")
    original = transformers.AutoTokenizer.from_pretrained(tmp_path / name)
    for text, ids in wanted["encoded"]:
        assert original(text).input_ids == ids, text


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
