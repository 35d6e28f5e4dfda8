"""Folders as transformers 5 saves them, with what it computes of them; ``tests/transformers5.py`` records them.

Its files have ``dtype`` for ``torch_dtype``, all embeddings of an untied model, ``tie_word_embeddings`` whether or not
the output projection is the embedding, other scales of tied and untied models, and tokenizers with other fields.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from seqgen.addons.huggingface.checkpoint import save_pretrained
from seqgen.data.tokenizers.byte_pairs import GPT2Tokenizer
from seqgen.extend import load_model, load_pretrained_tokenizer, save_pretrained_tokenizer
from tests.huggingface_bart import write_tokenizer

transformers = pytest.importorskip("transformers")

RECORDED = Path(__file__).parents[2] / "recorded"
FOLDERS = {
    RECORDED / family / name: wanted
    for family in ("transformers5", "transformers5_bart")
    for name, wanted in json.loads((RECORDED / family / "logits.json").read_text()).items()
}
TEXTS: dict[Path, Any] = {
    RECORDED / family / name: wanted
    for family in ("transformers5", "transformers5_language_models", "transformers5_t5gemma")
    for name, wanted in json.loads((RECORDED / family / "texts.json").read_text()).items()
}


@pytest.mark.parametrize("recorded", FOLDERS, ids=lambda path: path.name)
def test_recorded_folders(recorded: Path, tmp_path: Path) -> None:
    """They are read, and what is written from them says the same to transformers 4, unless a note denies it."""
    folder, config = tmp_path / "folder", json.loads((recorded / "config.json").read_text())
    shutil.copytree(recorded, folder)
    pad, eos = config["pad_token_id"], config["eos_token_id"]
    write_tokenizer(folder, config["vocab_size"], pad, eos)
    sources, prefixes, wanted = (torch.tensor(FOLDERS[recorded][key]) for key in ("sources", "prefixes", "logits"))
    loaded = load_model(folder)
    assert loaded.notes == []
    assert loaded.model.start_token(eos) == config["decoder_start_token_id"]
    notes = save_pretrained(loaded.model, tmp_path / "again", loaded.task.target_tokenizer)
    differs_in_4 = recorded.name in ("umt5-own", "pegasus-untied")
    assert len(notes) == differs_in_4
    with torch.no_grad():
        mask = sources.ne(pad)
        for model in (loaded.model, load_model(tmp_path / "again").model):
            got = model(sources, mask.sum(1), prefixes).logits
            torch.testing.assert_close(got, wanted, rtol=0, atol=1e-4)
        if not differs_in_4:
            original = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "again").eval()
            theirs = original(input_ids=sources, attention_mask=mask.long(), decoder_input_ids=prefixes).logits
            torch.testing.assert_close(theirs, wanted, rtol=0, atol=1e-4)


def assert_tokenizer(folder: Path, wanted: dict[str, Any]) -> None:
    tokenizer = load_pretrained_tokenizer(folder)
    encode = tokenizer.encode if isinstance(tokenizer, GPT2Tokenizer) else tokenizer.encode_source
    for text, ids in wanted["encoded"]:
        assert encode(text) == ids, text
    for ids, text, whole in wanted["decoded"]:
        assert (tokenizer.decode(ids), tokenizer.decode(ids, skip_special_tokens=False)) == (text, whole), ids


@pytest.mark.parametrize("recorded", TEXTS, ids=lambda path: path.name)
def test_recorded_tokenizers(recorded: Path, tmp_path: Path) -> None:
    """They are written so that transformers 4 reads them too, which has other spaces at the special tokens of ByT5."""
    wanted = TEXTS[recorded]
    assert_tokenizer(recorded, wanted)
    save_pretrained_tokenizer(load_pretrained_tokenizer(recorded), tmp_path)
    assert_tokenizer(tmp_path, wanted)
    original = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text, ids in wanted["encoded"]:
        assert original(text).input_ids == ids, text
    for ids, text, whole in wanted["decoded"]:
        assert original.decode(ids, skip_special_tokens=True) == text
        assert original.decode(ids) == whole or "bytes" in recorded.name


def test_tokenizers_without_a_class_of_their_own(tmp_path: Path) -> None:
    """Version 5 names ``TokenizersBackend`` for that of an umT5."""
    shutil.copytree(RECORDED / "transformers5" / "tokenizer-t5", tmp_path / "umt5")
    config = tmp_path / "umt5" / "tokenizer_config.json"
    config.write_text(config.read_text().replace('"T5Tokenizer"', '"TokenizersBackend"'))
    assert_tokenizer(tmp_path / "umt5", TEXTS[RECORDED / "transformers5" / "tokenizer-t5"])
