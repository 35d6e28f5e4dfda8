"""A folder without a tokenizer is decoded by ids."""

from __future__ import annotations

from pathlib import Path

import pytest

from seqgen import Translator, load_model
from seqgen.config import ReadingConfig
from seqgen.errors import CheckpointError
from tests.huggingface_t5 import change_config, tiny_model

IDS = ReadingConfig(tokenizer="ids")

transformers = pytest.importorskip("transformers")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_model("t5").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_ids_in_and_ids_out(folder: Path, tmp_path: Path) -> None:
    import torch

    original = transformers.T5ForConditionalGeneration.from_pretrained(folder).eval()
    wanted = original.generate(
        torch.tensor([[4, 5, 9, 1]]), num_beams=4, num_return_sequences=4, max_new_tokens=6, do_sample=False
    )
    translator = Translator(load_model(folder, reading=IDS), beam=4, nbest=4, max_len_b=5)
    (got,) = translator.translate(["4 5 9"])
    whole = [item.tokens.tolist() for item in got.hypotheses]
    assert whole == [row[1 : 1 + len(own)] for row, own in zip(wanted.tolist(), whole, strict=True)]
    assert got.text == " ".join(str(token) for token in got.hypotheses[0].tokens.tolist() if token != 1)
    (tmp_path / "allowed.ids").write_text("6 7\n8\n", encoding="utf-8")
    (got,) = translator.translate(["4 5 9"], prefix_trie=str(tmp_path / "allowed.ids"), certificate=True, nbest=2)
    assert sorted(item.text for item in got.hypotheses) == ["6 7", "8"]
    assert got.exact
    assert got.bound == -float("inf")


def test_words_that_are_no_ids_are_noted(folder: Path) -> None:
    translator = Translator(load_model(folder, reading=IDS), max_len_b=3)
    (got,) = translator.translate(["4 x 99999"])
    assert any("x" in note and "vocabulary" in note for note in got.notes)


def test_what_it_needs(folder: Path) -> None:
    change_config(folder, pad_token_id=None)
    with pytest.raises(CheckpointError, match="pad_token_id"):
        load_model(folder, reading=IDS)
