"""The translation task: from files to batches and back to text, and what bad input gets."""

import gzip
import os
import shutil
from pathlib import Path

import pytest
import torch

import seqgen.tasks  # noqa: F401
from seqgen.core.errors import ConfigError, DataError
from seqgen.data.dictionary import Dictionary
from seqgen.tasks.translation import TranslationConfig, TranslationTask

SHARED = Path(os.environ.get("SEQGEN_SHARED", Path(__file__).resolve().parents[3] / "shared"))
MULTI30K = SHARED / "data" / "multi30k"

EN = ["one red cat", "two green dogs\u2028and a cat", "three blue cats\r", "a dog"] * 3
DE = ["eine rote Katze", "zwei grüne Hunde", "drei blaue Katzen", "ein Hund"] * 3


def write(folder: Path, name: str, lines: list[str]) -> None:
    content = "".join(f"{line}\n" for line in lines).encode()
    (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for split in ("train", "valid"):
        write(folder, f"{split}.en", EN)
        write(folder, f"{split}.de.gz", DE)
    write(folder, "test.en", EN)
    return folder


def config(data: Path, **changes: object) -> TranslationConfig:
    settings = {"source_lang": "en", "target_lang": "de", "vocab_size": 40, "hard_vocab_limit": False}
    files = {split: str(data / split) for split in ("train", "valid", "test")}
    return TranslationConfig(**{**settings, **files, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("tokenizer", ["sentencepiece", "whitespace"])
def test_text_to_examples_and_back(tmp_path: Path, data: Path, joined: bool, tokenizer: str) -> None:
    cfg = config(data, joined_dictionary=joined, tokenizer=tokenizer)
    task = TranslationTask.setup_task(cfg, tmp_path / "run")
    assert (task.source_dictionary == task.target_dictionary) == joined
    assert task.splits() == ["train", "valid", "test"]
    assert list(task.source_lines("train")) == EN
    assert list(task.references("train") or []) == DE
    assert task.references("test") is None
    dataset = task.dataset("train")
    assert task.datasets == {"train": dataset}
    for example, source, target in zip(dataset, EN, DE, strict=True):
        assert torch.equal(example.source, task.encode_source(source))
        assert example.target is not None
        assert torch.equal(example.target, task.encode_target(target))
        assert task.decode(example.target) == target
    assert [example.target for example in task.dataset("test")] == [None] * 12
    assert dataset.report() == []


def test_run_folder_can_be_moved_and_needs_no_data(tmp_path: Path, data: Path) -> None:
    task = TranslationTask.setup_task(config(data), tmp_path / "run")
    encoded = task.encode_source("two red dogs").tolist()
    (tmp_path / "run").rename(tmp_path / "moved")
    shutil.rmtree(data)
    moved = TranslationTask.setup_task(config(data), tmp_path / "moved")
    assert moved.encode_source("two red dogs").tolist() == encoded
    assert moved.source_dictionary == task.source_dictionary


def test_same_text_gives_the_same_vocabulary(tmp_path: Path, data: Path) -> None:
    """Runs that shall be an ensemble need not know of each other."""
    one, two = (TranslationTask.setup_task(config(data), tmp_path / name) for name in "ab")
    assert one.target_dictionary == two.target_dictionary
    one.load_dataset("train"), two.load_dataset("train")
    files = {path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*")}
    assert files == {path.relative_to(tmp_path / "b") for path in (tmp_path / "b").rglob("*")}
    for file in files:
        if (tmp_path / "a" / file).is_file():
            assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
            assert str(tmp_path).encode() not in (tmp_path / "a" / file).read_bytes(), "no absolute path inside"


def test_shared_cache_and_several_files(tmp_path: Path, data: Path) -> None:
    write(data, "train2.en.gz", ["a red dog"])
    write(data, "train2.de", ["ein roter Hund"])
    cfg = config(data, train=str(data / "train*"), cache_dir=str(tmp_path / "cache"))
    task = TranslationTask.setup_task(cfg, tmp_path / "run")
    assert len(task.dataset("train")) == 13
    assert list(task.source_lines("train")) == [*EN, "a red dog"]
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"tokenizer"}
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_given_dict_txt(tmp_path: Path, data: Path) -> None:
    Dictionary.from_counts({"cat": 9, "one": 8, "Katze": 7}).save(tmp_path / "dict.txt")
    cfg = config(data, tokenizer="whitespace", srcdict=str(tmp_path / "dict.txt"))
    task = TranslationTask.setup_task(cfg, tmp_path / "run")
    assert task.encode_source("one red cat").tolist() == [5, 3, 4, 2]
    assert "characters or words that are not in the vocabulary: train.en, line 1;" in task.dataset("train").report()[0]


def test_a_task_with_languages_translates(tmp_path: Path, data: Path) -> None:
    task = TranslationTask.setup_task(config(data), tmp_path / "run")
    for ending, translates in (("de", True), ("gsw", True), ("deu_Latn", True), ("summary", False)):
        task.cfg.target_lang = ending
        assert task.translates is translates


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source_lang": ""}, "task.source_lang is missing"),
        ({"target_lang": "en"}, "must differ"),
        ({"train": ""}, r"task.train is missing; set task.train=PREFIX of the files PREFIX.en and PREFIX.de"),
        ({"train": "no/such"}, "task.train=no/such: there is neither no/such.en nor no/such.en.gz"),
        ({"spm_model": "no.model"}, "there is no SentencePiece model no.model"),
        ({"tgtdict": "no.txt"}, "task.tgtdict needs separate vocabularies"),
        ({"vocab_size": 5000, "hard_vocab_limit": True}, r"set task.vocab_size to at most \d+"),
        ({"vocab_size": 6}, r"set task.vocab_size to at least \d+"),
    ],
)
def test_bad_settings(tmp_path: Path, data: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        TranslationTask.setup_task(config(data, **changes), tmp_path / "run")
    assert not list(tmp_path.glob("run/*")), "nothing half-made is left"


def test_a_model_that_was_trained_without_a_test_split(tmp_path: Path, data: Path) -> None:
    task = TranslationTask.setup_task(config(data, test=""), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"trained without task\.test; set input=FILE"):
        task.source_lines("test")


def test_bad_files(tmp_path: Path, data: Path) -> None:
    task = TranslationTask.setup_task(config(data), tmp_path / "run")
    write(data, "valid.de.gz", DE[:-1])
    with pytest.raises(DataError, match=r"valid\.en has 12 lines but .*valid\.de\.gz has 11"):
        task.dataset("valid")
    with pytest.raises(DataError, match=r"valid\.en has 12 lines but .*valid\.de\.gz has 11"):
        task.references("valid")
    write(data, "valid.de.gz", [])
    with pytest.raises(DataError, match=r"valid\.de\.gz is empty"):
        task.dataset("valid")
    (data / "valid.de.gz").write_bytes(gzip.compress(b"\n".join([b"x"] * 11 + [b"\xe4\n"])))
    with pytest.raises(DataError, match=r"valid\.de\.gz, line 12: byte 1 \(0xe4\) is not valid UTF-8"):
        task.dataset("valid")
    with pytest.raises(ConfigError, match="there is no split 'dev'; choose one of: train, valid, test"):
        task.dataset("dev")
    with pytest.raises(DataError, match=r"valid\.de\.gz, line 12"):
        TranslationTask.setup_task(config(data, train=str(data / "valid")), tmp_path / "other")
    (data / "spm.model").write_bytes(b"garbage")
    with pytest.raises(DataError, match=r"spm\.model is not a SentencePiece model, or is damaged"):
        TranslationTask.setup_task(config(data, spm_model=str(data / "spm.model")), tmp_path / "other")


def test_changed_text_is_encoded_again(tmp_path: Path, data: Path) -> None:
    task = TranslationTask.setup_task(config(data), tmp_path / "run")
    before = task.load_dataset("valid").example(0).source.tolist()
    write(data, "valid.en", ["two green dogs", *EN[1:]])
    after = task.load_dataset("valid").example(0).source.tolist()
    assert after != before
    assert after == task.encode_source("two green dogs").tolist()


@pytest.mark.skipif(not MULTI30K.is_dir(), reason="Multi30k is not here")
def test_multi30k(tmp_path: Path) -> None:
    cfg = TranslationConfig(
        source_lang="en",
        target_lang="de",
        train=str(MULTI30K / "train"),
        valid=str(MULTI30K / "val"),
        test=str(MULTI30K / "test_2016_flickr"),
        spm_type="bpe",
    )
    task = TranslationTask.setup_task(cfg, tmp_path)
    assert [len(task.dataset(split)) for split in task.splits()] == [29_000, 1_014, 1_000]
    assert task.dataset("train").report() == []
    for split in ("valid", "test"):
        for line in task.source_lines(split):
            assert task.source_tokenizer.decode(task.source_tokenizer.encode(line)) == " ".join(line.split())
