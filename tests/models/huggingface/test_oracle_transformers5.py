"""Folders that transformers 5 saved, and folders written here that it reads; see tests/transformers5.py.

The fast tests read recorded folders. The slow ones need a Python with transformers 5, torch and sentencepiece, which
``SEQGEN_TRANSFORMERS5`` names::

    SEQGEN_TRANSFORMERS5=/path/to/bin/python python -m pytest tests/models/huggingface/test_oracle_transformers5.py
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import seqgen.models  # noqa: F401  # declares the checkpoint loader
from seqgen.checkpoints.loaders import LoadedModel
from seqgen.checkpoints.loading import load_model
from seqgen.data.tokenizers.pretrained import load_pretrained_tokenizer, save_pretrained_tokenizer
from seqgen.models.huggingface.checkpoint import save_pretrained
from tests.commands import command
from tests.huggingface_t5 import logits, original_logits

pytestmark = pytest.mark.slow

RECORDED = Path(__file__).parent.parent.parent / "recorded" / "transformers5"
SCRIPT = Path(__file__).parent.parent.parent / "transformers5.py"
PYTHON = os.environ.get("SEQGEN_TRANSFORMERS5", "")

needs_transformers5 = pytest.mark.skipif(not PYTHON, reason="needs SEQGEN_TRANSFORMERS5, a Python with transformers 5")


def computed(folder: Path, name: str) -> dict[str, Any]:
    """What transformers 5 made of the folders."""
    values: dict[str, Any] = json.loads((folder / name).read_text())
    return values


def read(folder: Path, tokenizer: Path, copy: Path) -> LoadedModel:
    """Read a copy of a folder, with a tokenizer."""
    shutil.copytree(tokenizer, copy)
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    return load_model(copy)


def assert_near(got: Tensor, wanted: Any) -> None:
    torch.testing.assert_close(got, torch.as_tensor(wanted), rtol=0, atol=1e-5)


def assert_tokenizer(folder: Path, wanted: dict[str, Any]) -> None:
    tokenizer = load_pretrained_tokenizer(folder)
    for text, ids in wanted["encoded"]:
        assert tokenizer.encode_source(text) == ids, text
    for ids, text, whole in wanted["decoded"]:
        assert (tokenizer.decode(ids), tokenizer.decode(ids, skip_special_tokens=False)) == (text, whole), ids


@pytest.mark.parametrize("name", computed(RECORDED, "logits.json"))
def test_recorded_folders(name: str, tmp_path: Path) -> None:
    loaded = read(RECORDED / name, RECORDED / "tokenizer-t5", tmp_path / name)
    wanted = computed(RECORDED, "logits.json")[name]
    assert_near(logits(loaded.model), wanted)
    assert loaded.notes == []
    assert loaded.model.cfg.tie_word_embeddings == name.endswith("-none")
    tied = loaded.model.decoder.output_projection.weight is loaded.model.decoder.embed_tokens.weight
    assert tied == loaded.model.cfg.tie_word_embeddings
    converted = command("convert", f"path={tmp_path / name}", f"output={tmp_path / 'run'}")
    assert converted.code == 0, converted.err
    assert_near(logits(load_model(tmp_path / "run").model), wanted)


@pytest.mark.parametrize("name", computed(RECORDED, "logits.json"))
def test_what_is_written_says_the_same(name: str, tmp_path: Path) -> None:
    """Also to transformers 4, except for an umT5 whose projection is its own and scaled."""
    transformers = pytest.importorskip("transformers")
    loaded = read(RECORDED / name, RECORDED / "tokenizer-t5", tmp_path / name)
    notes = save_pretrained(loaded.model, tmp_path / "again", loaded.task.target_tokenizer)
    wanted = computed(RECORDED, "logits.json")[name]
    assert_near(logits(load_model(tmp_path / "again").model), wanted)
    assert len(notes) == (name == "umt5-own")
    if name != "umt5-own":
        original = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "again").eval()
        assert_near(original_logits(original), wanted)


@pytest.mark.parametrize("name", computed(RECORDED, "texts.json"))
def test_recorded_tokenizers(name: str, tmp_path: Path) -> None:
    """They are written so that transformers 4 reads them too, which has other spaces at the special tokens of ByT5."""
    transformers = pytest.importorskip("transformers")
    wanted = computed(RECORDED, "texts.json")[name]
    assert_tokenizer(RECORDED / name, wanted)
    save_pretrained_tokenizer(load_pretrained_tokenizer(RECORDED / name), tmp_path / name)
    assert_tokenizer(tmp_path / name, wanted)
    original = transformers.AutoTokenizer.from_pretrained(tmp_path / name)
    for text, ids in wanted["encoded"]:
        assert original(text).input_ids == ids, text
    for ids, text, whole in wanted["decoded"]:
        assert original.decode(ids, skip_special_tokens=True) == text
        assert original.decode(ids) == whole or "bytes" in name


def test_tokenizers_without_a_class_of_their_own(tmp_path: Path) -> None:
    """Version 5 names ``TokenizersBackend`` for that of an umT5."""
    shutil.copytree(RECORDED / "tokenizer-t5", tmp_path / "umt5")
    config = tmp_path / "umt5" / "tokenizer_config.json"
    config.write_text(config.read_text().replace('"T5Tokenizer"', '"TokenizersBackend"'))
    assert_tokenizer(tmp_path / "umt5", computed(RECORDED, "texts.json")["tokenizer-t5"])


def transformers5(*arguments: Any) -> Any:
    """Run the script; what it prints as JSON."""
    words = [PYTHON, str(SCRIPT), *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout or "null")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("transformers5")
    transformers5("write", folder)
    return folder


@pytest.mark.slow
@needs_transformers5
def test_folders_that_transformers5_saves(live: Path, tmp_path: Path) -> None:
    """They are read and written again; transformers 5 and this version read the result equally."""
    wanted = computed(live, "logits.json")
    assert len(wanted) == 22
    written = {}
    for name, values in wanted.items():
        loaded = read(live / name, live / "tokenizer-t5", tmp_path / name)
        assert_near(logits(loaded.model), values)
        save_pretrained(loaded.model, tmp_path / f"{name}-again", loaded.task.target_tokenizer)
        written[str(tmp_path / f"{name}-again")] = values
    for folder, values in transformers5("logits", *written).items():
        assert_near(torch.tensor(values), written[folder])


@pytest.mark.slow
@needs_transformers5
def test_tokenizers_that_transformers5_saves(live: Path, tmp_path: Path) -> None:
    """And what is written from them."""
    wanted = computed(live, "texts.json")
    assert len(wanted) == 17
    written = {}
    for name, values in wanted.items():
        assert_tokenizer(live / name, values)
        save_pretrained_tokenizer(load_pretrained_tokenizer(live / name), tmp_path / name)
        written[str(tmp_path / name)] = values
    assert transformers5("texts", *written) == written
