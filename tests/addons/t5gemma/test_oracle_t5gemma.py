"""T5Gemma folders that transformers 5 saved, and folders written here; see tests/transformers5_t5gemma.py.

The fast tests read recorded folders. The slow one needs ``SEQGEN_TRANSFORMERS5``, see test_oracle_transformers5.py.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import seqgen.models  # noqa: F401  # declares the checkpoint loader
from seqgen.addons.t5gemma.model import T5GemmaModel
from seqgen.checkpoints.loaders import LoadedModel
from seqgen.checkpoints.loading import load_model
from seqgen.config import ReadingConfig
from seqgen.core.errors import UserError
from seqgen.data.tokenizers.pretrained import load_pretrained_tokenizer, save_pretrained_tokenizer
from seqgen.models.huggingface.checkpoint import save_pretrained
from tests.commands import command
from tests.huggingface_decoding import assert_same, decode, source_batch
from tests.huggingface_t5 import change_config
from tests.models.huggingface.test_oracle_transformers5 import assert_tokenizer

RECORDED = Path(__file__).parents[2] / "recorded" / "transformers5_t5gemma"
SCRIPT = Path(__file__).parents[2] / "transformers5_t5gemma.py"
PYTHON = os.environ.get("SEQGEN_TRANSFORMERS5", "")
COMPUTED: dict[str, Any] = json.loads((RECORDED / "computed.json").read_text())
SOURCES = [(2, 5, 9, 7, 4, 8, 6, 1), (2, 6, 3, 1), (3, 10, 9, 4, 6, 7), (2,)]
TARGET = [2, 9, 4, 10, 0, 7, 6, 1]

every_model = pytest.mark.parametrize("name", COMPUTED)


def read(folder: Path, dtype: torch.dtype | None = None) -> LoadedModel:
    return load_model(folder, reading=ReadingConfig(tokenizer="ids"), dtype=dtype)


@torch.no_grad()
def logits(model: Any) -> Tensor:
    source = source_batch(SOURCES).source
    out: Tensor = model(source.src_tokens, source.src_lengths, torch.tensor([TARGET] * len(SOURCES))).logits
    return out


def assert_near(got: Tensor, wanted: Any) -> None:
    torch.testing.assert_close(got, torch.as_tensor(wanted), rtol=0, atol=1e-4)


@every_model
def test_logits_are_the_originals(name: str) -> None:
    """Unequal lengths with padding, and windows of one to three tokens."""
    loaded = read(RECORDED / name)
    assert loaded.notes == []
    assert isinstance(loaded.model, T5GemmaModel)
    assert_near(logits(loaded.model), COMPUTED[name]["logits"])


@every_model
@pytest.mark.parametrize("beams", [1, 3])
def test_hypotheses_are_the_originals(name: str, beams: int) -> None:
    model = read(RECORDED / name).model
    found = decode(model, SOURCES, beam=beams, nbest=beams)
    for got, wanted in zip(found, COMPUTED[name]["nbest"][str(beams)], strict=True):
        assert_same(got, [(tuple(tokens), score) for tokens, score in wanted])


@every_model
def test_what_is_written_says_the_same(name: str, tmp_path: Path) -> None:
    model = read(RECORDED / name).model
    assert save_pretrained(model, tmp_path / "again") == []
    again = read(tmp_path / "again")
    assert again.notes == []
    assert again.model.cfg == model.cfg
    assert torch.equal(logits(again.model), logits(model))


@every_model
def test_what_is_written_is_read_by_version_4(name: str, tmp_path: Path) -> None:
    """Windows of the encoder are smaller by one token there; without windows, logits are the same."""
    transformers = pytest.importorskip("transformers")
    model = read(RECORDED / name).model
    model.cfg.encoder_sliding_window = model.encoder.cfg.encoder_sliding_window = 4096
    save_pretrained(model, tmp_path / "again")
    original = transformers.T5GemmaForConditionalGeneration.from_pretrained(
        tmp_path / "again", attn_implementation="eager"
    ).eval()
    source = source_batch(SOURCES).source
    mask = torch.arange(source.src_tokens.size(1)) < source.src_lengths.unsqueeze(1)
    targets = torch.tensor([TARGET] * len(SOURCES))
    with torch.no_grad():
        wanted = original(source.src_tokens, attention_mask=mask.long(), decoder_input_ids=targets, use_cache=False)
    assert_near(logits(model)[:, :4], wanted.logits[:, :4])  # version 4 masks the padding at position 4


def test_an_output_projection_of_its_own(tmp_path: Path) -> None:
    """Version 5 writes all folders as tied; a projection that differs from the embedding is used."""
    folder = tmp_path / "untied"
    shutil.copytree(RECORDED / "untied", folder)
    change_config(folder, tie_word_embeddings=True)
    loaded = read(folder)
    assert not loaded.model.cfg.tie_word_embeddings
    assert_near(logits(loaded.model), COMPUTED["untied"]["logits"])


def changed(folder: Path, side: str, **values: Any) -> str:
    """The error message for a folder with other values in its configuration."""
    shutil.copytree(RECORDED / "tied", folder)
    config = json.loads((folder / "config.json").read_text())
    (config[side] if side else config).update(values)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError) as error:
        read(folder)
    assert "\n" not in str(error.value)
    return str(error.value).removeprefix(f"{folder}/config.json: ").removeprefix(f"{folder}: ")


@pytest.mark.parametrize(
    ("side", "values", "message"),
    [
        ("encoder", {"hidden_size": "8"}, "encoder.hidden_size is '8', not a whole number of at least 1"),
        (
            "decoder",
            {"head_dim": 3},
            "the configuration of this model cannot be used: rotary positions need an even head_dim",
        ),
        (
            "encoder",
            {"layer_types": ["full_attention", "x"]},
            "encoder_layer_types must have 2 entries, each sliding_attention or full_attention",
        ),
        ("encoder", {"layer_types": {"a": 1}}, "encoder.layer_types is {'a': 1}, not a list of types of layers"),
        (
            "encoder",
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0}},
            "encoder.rope_parameters={'factor': 2.0, 'rope_type': 'linear'} is not",
        ),
        ("decoder", {"vocab_size": 12}, "encoder.vocab_size=11 and decoder.vocab_size=12 differ"),
        ("", {"encoder": [1]}, "encoder is [1], not keys and values"),
    ],
)
def test_hostile_configurations(side: str, values: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert changed(tmp_path / "folder", side, **values).startswith(message)


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
    outcome = command("generate", f"path={tmp_path / 'folder'}", "input=-", "generation.max_len=3", stdin=b"a dog\n")
    assert outcome.code == 0, outcome.err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"add_bos_token": False}, "adds no token to a text, so an empty source would have none; set add_bos"),
        ({"bos_token": "<start>"}, "has no bos_token; name it in its tokenizer_config.json"),
    ],
)
def test_refused_tokenizers(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    shutil.copytree(RECORDED / "tokenizer", tmp_path / "tokenizer")
    change_config(tmp_path / "tokenizer", "tokenizer_config.json", **change)
    with pytest.raises(UserError, match=message):
        load_pretrained_tokenizer(tmp_path / "tokenizer")


def test_tokenizers_of_another_kind(tmp_path: Path) -> None:
    shutil.copytree(RECORDED / "tokenizer", tmp_path / "tokenizer")
    path = tmp_path / "tokenizer" / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"] = {"type": "WordLevel", "vocab": content["model"]["vocab"], "unk_token": "<unk>"}
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="is not a byte-pair encoding, which Gemma's"):
        load_pretrained_tokenizer(tmp_path / "tokenizer")


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON, reason="needs SEQGEN_TRANSFORMERS5, a Python with transformers 5")
def test_what_is_written_is_read_by_version_5(tmp_path: Path) -> None:
    for name in COMPUTED:
        save_pretrained(read(RECORDED / name).model, tmp_path / name)
    tokenizer = load_pretrained_tokenizer(RECORDED / "tokenizer")
    save_pretrained_tokenizer(tokenizer, tmp_path / "tokenizer")

    def transformers5(*arguments: Any) -> Any:
        done = subprocess.run([PYTHON, SCRIPT, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    for folder, values in transformers5("logits", *(str(tmp_path / name) for name in COMPUTED)).items():
        recorded = torch.as_tensor(COMPUTED[Path(folder).name]["logits"])  # on another processor
        torch.testing.assert_close(torch.tensor(values), recorded, rtol=0, atol=1e-3)
    texts = transformers5("texts", str(tmp_path / "tokenizer"))[str(tmp_path / "tokenizer")]
    assert texts == json.loads((RECORDED / "texts.json").read_text())["tokenizer"]
