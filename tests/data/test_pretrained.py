"""Folders of tokenizers that are damaged, incomplete or unusual, and training with them."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from seqgen.checkpoints.loaders import DecodingConfig, DecodingTask
from seqgen.checkpoints.loading import load_model
from seqgen.core.errors import ConfigError, DataError, UserError
from seqgen.data.tokenizers.base import load_tokenizer
from seqgen.data.tokenizers.language_tokens import with_languages
from seqgen.data.tokenizers.languages import TargetLanguage
from seqgen.data.tokenizers.pretrained import load_pretrained_tokenizer, make_tokenizer, save_pretrained_tokenizer
from tests.commands import command, corpus
from tests.pretrained_folders import files_of, write_folder

NAMES = ["BartTokenizer", "MBartTokenizer", "MBart50Tokenizer", "NllbTokenizer", "M2M100Tokenizer"]
NAMES += ["MarianTokenizer", "PegasusTokenizer"]
PARTS = {
    "BartTokenizer": ("vocab.json", "merges.txt"),
    "MBartTokenizer": ("sentencepiece.bpe.model",),
    "MBart50Tokenizer": ("sentencepiece.bpe.model",),
    "NllbTokenizer": ("sentencepiece.bpe.model",),
    "M2M100Tokenizer": ("sentencepiece.bpe.model", "vocab.json"),
    "MarianTokenizer": ("source.spm", "target.spm", "vocab.json"),
    "PegasusTokenizer": ("spiece.model",),
}


@pytest.mark.parametrize(("name", "file"), [(name, file) for name in NAMES for file in PARTS[name]])
def test_missing_and_damaged_files(tmp_path: Path, name: str, file: str) -> None:
    folder = write_folder(tmp_path / "folder", name)
    content = (folder / file).read_bytes()
    (folder / file).unlink()
    assert f"has no {file}; copy the files that it was saved with" in refusal(folder)
    damaged = [b"", b"\xff\xfe", b"{", b"[]", b"null", content[: len(content) // 3], content[:-1] + b"\xff", b"x" * 99]
    messages = []
    for wrong in damaged:
        (folder / file).write_bytes(wrong)
        messages.append(refusal(folder))
    assert [bool(message) for message in messages[:5]] == [True] * 5
    assert all("\n" not in message and len(message) < 700 for message in messages), messages


def refusal(folder: Path) -> str:
    """The error message of a tokenizer; empty if it is read."""
    try:
        load_pretrained_tokenizer(folder).target_side  # noqa: B018
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("content", ['{"</s>": "0"}', '{"a": 0, "b": 0}', '{"a": 0, "b": 2}', '{"</s>": 0}', "{}"])
@pytest.mark.parametrize("name", ["M2M100Tokenizer", "MarianTokenizer"])
def test_damaged_vocabularies(tmp_path: Path, name: str, content: str) -> None:
    folder = write_folder(tmp_path / "folder", name)
    (folder / "vocab.json").write_text(content)
    with pytest.raises(DataError, match=r"vocab\.json (does not contain|is damaged)"):
        load_pretrained_tokenizer(folder)


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        (
            "NllbTokenizer",
            {"src_lang": "de"},
            r"src_lang: the model has no language 'de' \(did you mean 'deu_Latn'\?\)",
        ),
        ("NllbTokenizer", {"additional_special_tokens": []}, "the model has no language 'eng_Latn'"),
        ("BartTokenizer", {"vocab_file": "/x/vocab.json"}, "vocab_file is '/x/vocab.json', which .* copy a file"),
        ("MarianTokenizer", {"separate_vocabs": True}, ""),
    ],
)
def test_wrong_values(tmp_path: Path, name: str, config: dict[str, Any], message: str) -> None:
    folder = write_folder(tmp_path / "folder", name, config)
    if not message:  # the target's vocabulary is missing, which only the target needs
        with pytest.raises(DataError, match=r"has no target_vocab\.json"):
            load_pretrained_tokenizer(folder).target_side  # noqa: B018
        return
    with pytest.raises(UserError, match=message):
        load_pretrained_tokenizer(folder)


def test_a_pipeline_that_adds_other_tokens(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    for name in ("BartTokenizerFast", "PegasusTokenizerFast"):
        folder = tmp_path / name
        getattr(transformers, name).from_pretrained(write_folder(tmp_path / f"{name}0", name)).save_pretrained(folder)
        for file, change in (("tokenizer_config", {"tokenizer_class": name}), ("tokenizer", {"post_processor": None})):
            content = json.loads((folder / f"{file}.json").read_text())
            load_pretrained_tokenizer(folder)
            (folder / f"{file}.json").write_text(json.dumps({**content, **change}))
        with pytest.raises(DataError, match=r"adds other tokens to a text than .*</s>"):
            load_pretrained_tokenizer(folder)


@pytest.mark.parametrize("kind", ["bart", "marian", "mbart", "m2m_100", "pegasus"])
def test_class_if_none_is_named(tmp_path: Path, kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    name = {"bart": "BartTokenizer", "marian": "MarianTokenizer", "mbart": "MBartTokenizer"}.get(kind)
    name = name or {"m2m_100": "M2M100Tokenizer", "pegasus": "PegasusTokenizer"}[kind]
    folder = write_folder(tmp_path / "folder", name)
    (folder / "tokenizer_config.json").unlink()
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    tokenizer, oracle = load_pretrained_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    for text in ("a dog runs", "  two   people ", "Hund <mask>"):
        assert tokenizer.encode_source(text) == oracle(text).input_ids


@pytest.mark.parametrize("name", NAMES)
def test_copies_give_the_same_ids(tmp_path: Path, name: str) -> None:
    tokenizer = load_pretrained_tokenizer(write_folder(tmp_path / "folder", name))
    copy = pickle.loads(pickle.dumps(tokenizer.target_side))
    assert copy.encode_target("two dog") == tokenizer.target_side.encode_target("two dog")
    save_pretrained_tokenizer(tokenizer, tmp_path / "copy")
    for file in files_of(name):
        assert (tmp_path / "copy" / file).read_bytes() == (tmp_path / "folder" / file).read_bytes()
    again = make_tokenizer(tokenizer.files)
    assert again.fingerprint() == tokenizer.fingerprint()


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


@pytest.mark.parametrize(
    ("name", "source_lang"),
    [
        *(("MBartTokenizer", "en_XX"), ("MBart50Tokenizer", "en_XX")),
        *(("NllbTokenizer", "eng_Latn"), ("M2M100Tokenizer", "en")),
    ],
)
def test_the_default_source_language(tmp_path: Path, name: str, source_lang: str) -> None:
    """That of transformers where the folder names none; every source has its token."""
    config = {"src_lang": None, **({"additional_special_tokens": None} if name.startswith("Nllb") else {})}
    tokenizer = load_pretrained_tokenizer(write_folder(tmp_path / "folder", name, config))
    languages = tokenizer.languages
    assert languages is not None
    assert languages.source_lang == source_lang
    assert languages.ids[source_lang] in tokenizer.encode_source("a dog")
    assert tokenizer.encode_source("a dog") == tokenizer.encode_source("a dog", source_lang)


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
    with pytest.raises(DataError, match="ids but the model's vocabulary only 9"):
        load_pretrained_tokenizer(folder, 9)
    tokenizer.save(tmp_path / "saved")
    for copy in (pickle.loads(pickle.dumps(tokenizer)), load_tokenizer(tmp_path / "saved")):
        assert len(copy.target_side.dictionary) == sizes[1] + 3
    for missing in ({}, {"decoder_vocab_size": None}):  # transformers: that of the source
        (folder / "config.json").write_text(json.dumps({"model_type": "marian", "vocab_size": 60, **missing}))
        assert len(load_pretrained_tokenizer(folder).target_side.dictionary) == 60


def test_bytes_outside_the_vocabulary(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = write_folder(tmp_path / "folder", "BartTokenizer")
    ids = json.loads((folder / "vocab.json").read_text())
    kept = [token for token in ids if token not in ("Z", "ð", "Ł")]
    (folder / "vocab.json").write_text(json.dumps({token: index for index, token in enumerate(kept)}))
    tokenizer, oracle = load_pretrained_tokenizer(folder), transformers.BartTokenizerFast.from_pretrained(folder)
    for text in ("aZb ZZ", "😀 a", "dogZ"):
        assert tokenizer.encode_source(text) == oracle(text).input_ids
    assert load_pretrained_tokenizer(folder).dictionary.unk() == 3


@pytest.mark.slow
def test_training_with_a_bart_tokenizer(tmp_path: Path) -> None:
    data = corpus(tmp_path / "data")
    keys = [f"run_dir={tmp_path / 'run'}", "task=translation", "task.source_lang=en", "task.target_lang=de"]
    keys += [
        f"task.train={data}/train",
        f"task.valid={data}/val",
        "task.tokenizer=pretrained",
        "model=transformer_tiny",
    ]
    multilingual = write_folder(tmp_path / "nllb", "NllbTokenizer")
    refused = command("train", *keys, f"task.pretrained_tokenizer={multilingual}")
    assert (refused.code, "of which this task names none; use task=multilingual_translation" in refused.err) == (
        2,
        True,
    )
    folder = write_folder(tmp_path / "bart", "BartTokenizer")
    keys += [f"task.pretrained_tokenizer={folder}", "optimization.max_update=1", "task.workers=1"]
    trained = command("train", *keys)
    assert trained.code == 0, trained.err
    task = load_model(tmp_path / "run").task
    dataset = task.dataset("valid")
    example = dataset.example(0, epoch=1, seed=1)
    source = next(task.source_lines("valid"))
    assert example.source.tolist() == task.encode_source(source).tolist()
    reference = next(iter(task.references("valid") or ()))
    assert example.target.tolist() == task.encode_target(reference).tolist()
    assert example.target[0] == example.source[0] == task.source_dictionary.bos()


def test_a_tokenizer_with_two_sides_needs_parallel_text(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "marian", "MarianTokenizer")
    (tmp_path / "text").write_text("a dog\n")
    keys = [
        "task=language_modeling",
        *(f"task.{split}={tmp_path / 'text'}" for split in ("train", "valid")),
        "task.tokenizer=pretrained",
    ]
    refused = command("train", f"run_dir={tmp_path / 'run'}", *keys, f"task.pretrained_tokenizer={folder}")
    assert (refused.code, "use task=translation" in refused.err) == (2, True)


def test_no_default_language_where_the_file_lists_none(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", "NllbTokenizer", {"additional_special_tokens": ["deu_Latn"]})
    with pytest.raises(ConfigError, match="the model has no language 'eng_Latn'"):
        load_pretrained_tokenizer(folder)


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
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "written", src_lang="gsw_Latn", tgt_lang="eng_Latn")
    assert theirs("the dog").input_ids == tokenizer.encode_source("the dog", "gsw_Latn", "eng_Latn")


@pytest.mark.parametrize("name", ["M2M100Tokenizer", "MBartTokenizer", "MBart50Tokenizer", "BartTokenizer"])
def test_other_tokenizers_with_an_added_language_are_not_written(name: str, tmp_path: Path) -> None:
    tokenizer = with_languages(load_pretrained_tokenizer(write_folder(tmp_path / "tokenizer", name)), [("en", "gsw")])
    with pytest.raises(DataError, match=r"with added languages \(.*gsw\) cannot be written .* only NLLB's tokenizer"):
        save_pretrained_tokenizer(tokenizer, tmp_path / "written")
    assert not (tmp_path / "written").exists()
