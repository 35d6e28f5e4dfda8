"""Tokenizers in Hugging Face's layout: their class, their languages, their rows, and training with them."""

import json
import pickle
from pathlib import Path

import pytest

from seqgen.data.tokenizers.language_tokens import with_languages
from seqgen.data.tokenizers.pretrained import load_pretrained_tokenizer, save_pretrained_tokenizer
from seqgen.extend import DataError, DecodingConfig, DecodingTask, TargetLanguage, load_model, load_tokenizer
from tests.commands import corpus, done
from tests.pretrained_folders import write_folder

transformers = pytest.importorskip("transformers")

BY_MODEL = {
    **{"bart": "BartTokenizer", "marian": "MarianTokenizer", "mbart": "MBartTokenizer"},
    **{"m2m_100": "M2M100Tokenizer", "pegasus": "PegasusTokenizer", "umt5": "T5Tokenizer", "t5": "T5Tokenizer"},
}


@pytest.mark.parametrize("kind", BY_MODEL)
def test_class_if_none_is_named(tmp_path: Path, kind: str) -> None:
    folder = write_folder(tmp_path / "folder", BY_MODEL[kind])
    (folder / "tokenizer_config.json").unlink()
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    tokenizer, oracle = load_pretrained_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    for text in ("a dog runs", "  two   people ", "Hund <mask>"):
        assert tokenizer.encode_source(text) == oracle(text).input_ids


@pytest.mark.parametrize("name", ["BartTokenizerFast", "PegasusTokenizerFast"])
def test_a_pipeline_that_adds_other_tokens(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    getattr(transformers, name).from_pretrained(write_folder(tmp_path / "made", name)).save_pretrained(folder)
    for file, change in (("tokenizer_config", {"tokenizer_class": name}), ("tokenizer", {"post_processor": None})):
        content = json.loads((folder / f"{file}.json").read_text())
        load_pretrained_tokenizer(folder)
        (folder / f"{file}.json").write_text(json.dumps({**content, **change}))
    with pytest.raises(DataError, match=r"adds other tokens to a text than .*</s>"):
        load_pretrained_tokenizer(folder)


def test_targets_begin_with_their_language(tmp_path: Path) -> None:
    nllb = load_pretrained_tokenizer(write_folder(tmp_path / "nllb", "NllbTokenizer", {"tgt_lang": "fra_Latn"}))
    assert nllb.languages is not None
    ids, eos = nllb.encode("a dog"), nllb.dictionary.eos()
    assert nllb.languages.target is TargetLanguage.FIRST
    assert nllb.encode_target("a dog") == [nllb.languages.ids["fra_Latn"], *ids, eos]
    assert nllb.encode_target("a dog", "deu_Latn") == [nllb.languages.ids["deu_Latn"], *ids, eos]
    mbart = load_pretrained_tokenizer(write_folder(tmp_path / "mbart", "MBartTokenizer"))
    assert mbart.encode_target("a dog", "de_DE") == [*mbart.encode("a dog"), eos]
    marian = load_pretrained_tokenizer(write_folder(tmp_path / "marian", "MarianTokenizer"))
    assert marian.encode_source("a dog", target_lang="fra") == marian.encode_source(">>fra<< a dog")


def test_a_vocabulary_has_the_rows_of_the_models_embedding(tmp_path: Path) -> None:
    for name in ("T5Tokenizer", "ByT5Tokenizer"):
        folder = write_folder(tmp_path / name, name)
        size = len(load_pretrained_tokenizer(folder).dictionary)
        tokenizer = load_pretrained_tokenizer(folder, size + 28)
        assert len(tokenizer.dictionary) == size + 28
        assert tokenizer.decode([*tokenizer.encode("two dog"), size, size + 27]) == "two dog"
    (folder / "config.json").write_text(json.dumps({"vocab_size": size + 5}))
    assert len(load_pretrained_tokenizer(folder).dictionary) == size + 5, "that of the model in the same folder"


def test_rows_of_marians_embeddings(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", "MarianTokenizer", {"separate_vocabs": True}, separate=True)
    own = load_pretrained_tokenizer(folder)
    sizes = len(own.dictionary), len(own.target_side.dictionary)
    assert sizes[0] != sizes[1]
    config = {"model_type": "marian", "vocab_size": sizes[0] + 2, "decoder_vocab_size": sizes[1] + 3}
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = load_pretrained_tokenizer(folder)
    task = DecodingTask(DecodingConfig(), tokenizer, tokenizer)  # as if both sides were the same
    assert (len(task.source_dictionary), len(task.target_dictionary)) == (sizes[0] + 2, sizes[1] + 3)
    assert task.decode(task.encode_target("deux chien")) == "deux chien"
    tokenizer.save(tmp_path / "saved")
    for copy in (pickle.loads(pickle.dumps(tokenizer)), load_tokenizer(tmp_path / "saved")):
        assert len(copy.target_side.dictionary) == sizes[1] + 3
    for missing in ({}, {"decoder_vocab_size": None}):  # transformers: that of the source
        (folder / "config.json").write_text(json.dumps({"model_type": "marian", "vocab_size": 60, **missing}))
        assert len(load_pretrained_tokenizer(folder).target_side.dictionary) == 60


def test_bytes_outside_the_vocabulary(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", "BartTokenizer")
    ids = json.loads((folder / "vocab.json").read_text())
    kept = [token for token in ids if token not in ("Z", "ð", "Ł")]
    (folder / "vocab.json").write_text(json.dumps({token: index for index, token in enumerate(kept)}))
    tokenizer, oracle = load_pretrained_tokenizer(folder), transformers.BartTokenizerFast.from_pretrained(folder)
    for text in ("aZb ZZ", "😀 a", "dogZ"):
        assert tokenizer.encode_source(text) == oracle(text).input_ids
    assert tokenizer.dictionary.unk() == 3


@pytest.mark.parametrize("unused", [0, 2])
def test_nllb_with_an_added_language_is_written(unused: int, tmp_path: Path) -> None:
    """Also if the embedding has rows without a token before that of the language."""
    folder = write_folder(tmp_path / "nllb", "NllbTokenizer", {"additional_special_tokens": None})
    size = len(load_pretrained_tokenizer(folder).dictionary) + unused
    tokenizer = with_languages(load_pretrained_tokenizer(folder, size), [("eng_Latn", "gsw_Latn")])
    save_pretrained_tokenizer(tokenizer, tmp_path / "written")
    again = load_pretrained_tokenizer(tmp_path / "written", size + 1)
    assert again.dictionary == tokenizer.dictionary
    assert again.languages is not None
    assert again.languages.ids["gsw_Latn"] == size
    for pair in (("gsw_Latn", "eng_Latn"), ("eng_Latn", "gsw_Latn")):
        assert again.encode_source("the dog", *pair) == tokenizer.encode_source("the dog", *pair)
        assert again.encode_target("the dog", pair[1]) == tokenizer.encode_target("the dog", pair[1])
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "written", src_lang="gsw_Latn", tgt_lang="eng_Latn")
    assert theirs("the dog").input_ids == tokenizer.encode_source("the dog", "gsw_Latn", "eng_Latn")


@pytest.mark.slow
def test_training_with_a_bart_tokenizer(tmp_path: Path) -> None:
    data = corpus(tmp_path / "data")
    folder = write_folder(tmp_path / "bart", "BartTokenizer")
    keys = ["task=translation", "task.source_lang=en", "task.target_lang=de", "model=transformer_tiny"]
    keys += [f"task.train={data}/train", f"task.valid={data}/val", "task.workers=1", "optimization.max_update=1"]
    keys += ["task.tokenizer=pretrained", f"task.pretrained_tokenizer={folder}"]
    done("train", f"run_dir={tmp_path / 'run'}", *keys)
    task = load_model(tmp_path / "run").task
    example = task.dataset("valid").example(0, epoch=1, seed=1)
    source, reference = next(task.source_lines("valid")), next(iter(task.references("valid") or ()))
    assert example.source.tolist() == task.encode_source(source).tolist()
    assert example.target.tolist() == task.encode_target(reference).tolist()
    assert example.target[0] == example.source[0] == task.source_dictionary.bos()
