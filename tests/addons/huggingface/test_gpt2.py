"""What is particular to GPT-2: its tokenizer, and prompts in limits and scores."""

import json
from pathlib import Path

import pytest
import torch

from seqgen.core.setup import Limits
from seqgen.extend import load_model, load_pretrained_tokenizer, save_pretrained_tokenizer
from tests.huggingface_gpt2 import END_OF_TEXT, VOCAB, tiny_folder, tiny_tokenizer
from tests.huggingface_t5 import change_config
from tests.tokenizer_texts import HARD, random_ids

transformers = pytest.importorskip("transformers")

# --- the tokenizer

TEXTS = [
    *HARD,
    *("don't we'll I'M it's", "\ufffd\U0010ffff", "ελληνικά العربية 👩‍👩‍👧", "12345 1,000.00 !!??--", "Ġthe Ċ"),
    *(f"a{END_OF_TEXT}b {END_OF_TEXT} {END_OF_TEXT}", "<|endoftext| >"),
]


SETTINGS = {
    "whole": {},
    "old": {},
    "prefix": {"add_prefix_space": True, "pad_token": "!", "tokenizer_class": "GPT2Tokenizer"},
    "renamed": {"tokenizer_class": "PreTrainedTokenizerFast"},
    "cleaned": {"clean_up_tokenization_spaces": True},
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_ids_and_texts_are_the_originals(kind: str, tmp_path: Path) -> None:
    """The same tokenizer as ``tokenizer.json``, as the two older files alone, and with settings."""
    folder = tmp_path / kind
    tiny_tokenizer().save_pretrained(folder)
    change_config(folder, "tokenizer_config.json", **SETTINGS[kind])
    if kind == "old":
        for path in {*folder.iterdir()} - {folder / "vocab.json", folder / "merges.txt"}:
            path.unlink()
        (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "vocab_size": VOCAB + 3}))
    original, ours = transformers.AutoTokenizer.from_pretrained(folder), load_pretrained_tokenizer(folder)
    encoded = original(TEXTS).input_ids
    for text, ids in zip(TEXTS, encoded, strict=True):
        assert ours.encode(text) == ids, repr(text)
    for ids in encoded + random_ids(VOCAB):
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == original.decode(ids, skip_special_tokens=skip), ids
    words = ours.dictionary
    assert (words.eos(), words.bos(), words.unk()) == (original.eos_token_id,) * 3
    assert words.pad() == (original.eos_token_id if original.pad_token_id is None else original.pad_token_id)
    save_pretrained_tokenizer(ours, tmp_path / "again")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    assert again(TEXTS).input_ids == encoded


def test_prompts_begin_as_the_tokenizer_says(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "theirs")
    ids = tiny_tokenizer()("the dog").input_ids
    assert load_model(folder).task.encode_source("the dog").tolist() == ids
    assert load_model(folder).task.encode_source("").tolist() == [VOCAB - 1]
    (folder / "tokenizer.json").unlink()
    change_config(folder, "tokenizer_config.json", add_bos_token=True)
    assert load_model(folder).task.encode_source("the dog").tolist() == [VOCAB - 1, *ids]


# --- decoding


def test_a_prompt_beyond_the_limit_gets_one_token() -> None:
    limits = Limits(max_len_a=-1.0, max_len_b=3, max_len=40)
    assert limits.last_steps(torch.tensor([1, 3, 6])).tolist() == [2, 0, 0]
