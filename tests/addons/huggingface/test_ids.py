"""A folder without a tokenizer is decoded by ids."""

from pathlib import Path

import pytest
import torch

from seqgen import Translator, load_model
from seqgen.extend import ReadingConfig, Resources, load_tokenizer
from tests import huggingface_gpt2, huggingface_t5
from tests.huggingface_t5 import change_config, tiny_model

IDS = ReadingConfig(tokenizer="ids")

transformers = pytest.importorskip("transformers")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_model("t5").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_ids_in_and_ids_out(folder: Path) -> None:
    original = transformers.T5ForConditionalGeneration.from_pretrained(folder).eval()
    wanted = original.generate(
        torch.tensor([[4, 5, 9, 1]]), num_beams=4, num_return_sequences=4, max_new_tokens=6, do_sample=False
    )
    translator = Translator(load_model(folder, reading=IDS), beam=4, nbest=4, max_len_b=5)
    (got,) = translator.translate(["4 5 9 1"])
    whole = [item.tokens.tolist() for item in got.hypotheses]
    assert whole == [row[1 : 1 + len(own)] for row, own in zip(wanted.tolist(), whole, strict=True)]
    assert got.text == " ".join(str(token) for token in got.hypotheses[0].tokens.tolist() if token != 1)


def test_a_source_has_exactly_the_ids_of_its_line(folder: Path) -> None:
    """Nothing is added or replaced: T5Gemma's and mBART's sources do not end with end-of-sentence alone."""
    loaded = load_model(folder, reading=IDS)
    for line in ("4 5 9", "4 1 9 1", "1", "2 39 1 7", "4 0 5 1"):
        assert loaded.task.encode_source(line).tolist() == [int(word) for word in line.split()]
    assert loaded.task.encode_target("4 9").tolist() == [4, 9, 1]
    (got,) = Translator(loaded, max_len_b=3).translate(["4 0 5 1"])
    assert "the source contains padding (id 0), which the model does not attend to" in got.notes


def test_several_ends(folder: Path) -> None:
    change_config(folder, eos_token_id=[3, 1])
    change_config(folder, "generation_config.json", eos_token_id=[3, 1])
    loaded = load_model(folder, reading=IDS)
    assert loaded.task.target_dictionary.eos() == 3
    assert loaded.generation["end_symbols"] == ["1"]


def test_a_byte_nul_in_the_settings_of_a_byt5(tmp_path: Path) -> None:
    """Id 3 is the character NUL, which no text has."""
    huggingface_t5.tiny_folder(tmp_path / "model", "byt5", tokenizer=False, vocab_size=259)
    (tmp_path / "model" / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer", "extra_ids": 0}')
    change_config(tmp_path / "model", "generation_config.json", eos_token_id=[1, 3], bad_words_ids=[[3]])
    loaded = load_model(tmp_path / "model")
    assert Resources(loaded.task.target_dictionary).tokens(loaded.generation["end_symbols"]) == [3]
    assert loaded.generation["bad_words"] == ["ids:3"]
    assert Translator(loaded, max_len_b=2).translate(["a"])[0].hypotheses


def test_a_carriage_return_that_is_read_is_noted(tmp_path: Path) -> None:
    """Bytes are read; a tokenizer that takes it for a space is not affected."""
    wanted = "the line ends with a carriage return, which the model reads; convert the file to Unix lines"
    for name, is_read in (("bytes", True), ("sentencepiece", False)):
        huggingface_t5.tiny_folder(tmp_path / name, "byt5", tokenizer=not is_read, vocab_size=259)
        if is_read:
            (tmp_path / name / "tokenizer_config.json").write_text(
                '{"tokenizer_class": "ByT5Tokenizer", "extra_ids": 0}'
            )
        found = Translator(load_model(tmp_path / name), max_len_b=2).translate(["the dog\r", "the dog"])
        assert [wanted in line.notes for line in found] == [is_read, False]


def test_a_language_model_without_padding(tmp_path: Path) -> None:
    """Its prompts are padded by any id in a batch."""
    huggingface_gpt2.tiny_model().save_pretrained(tmp_path / "model")
    translator = Translator(load_model(tmp_path / "model", reading=IDS), beam=3, max_len_a=0, max_len_b=5)
    prompts = ["4 5 9", "299 7"]
    together, alone = translator.translate(prompts), [translator.translate([prompt])[0] for prompt in prompts]
    assert [one.text for one in together] == [one.text for one in alone]


def test_a_run_made_from_ids_reads_ids(folder: Path, tmp_path: Path) -> None:
    load_model(folder, reading=IDS).save_tokenizers(tmp_path)
    tokenizer = load_tokenizer(tmp_path / "tokenizer")
    assert tokenizer.encode_source("4 1 5") == [4, 1, 5]
    assert tokenizer.fingerprint() == load_model(folder, reading=IDS).task.source_tokenizer.fingerprint()
