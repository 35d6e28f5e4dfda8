"""The translation task: from files to batches and back to text, and what bad input gets."""

import gzip
from pathlib import Path

import pytest
import torch

from seqgen.extend import ConfigError, Dictionary, TranslationConfig, TranslationTask

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
        assert torch.equal(example.target, task.encode_target(target))
        assert task.decode(example.target) == target
    assert [example.target for example in task.dataset("test")] == [None] * 12
    assert dataset.report() == []


def test_same_text_gives_the_same_vocabulary(tmp_path: Path, data: Path) -> None:
    """Runs that shall be an ensemble need not know of each other."""
    one, two = (TranslationTask.setup_task(config(data), tmp_path / name) for name in "ab")
    assert one.target_dictionary == two.target_dictionary
    one.load_dataset("train"), two.load_dataset("train")
    files, others = (
        {
            str(file.relative_to(tmp_path / name)): file.read_bytes()
            for file in (tmp_path / name).rglob("*")
            if file.is_file()
        }
        for name in "ab"
    )
    assert files == others
    assert not any(str(tmp_path).encode() in content for content in files.values()), "no absolute path inside"


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


def test_changes_of_a_task(tmp_path: Path, data: Path) -> None:
    """Changed text is encoded again; a task with languages translates; a test set may be missing."""
    task = TranslationTask.setup_task(config(data, test=""), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"trained without task\.test; set input=FILE"):
        task.source_lines("test")
    for line in (EN[0], "two green dogs"):
        write(data, "valid.en", [line, *EN[1:]])
        assert torch.equal(task.load_dataset("valid").example(0).source, task.encode_source(line))
    for ending, translates in (("de", True), ("gsw", True), ("deu_Latn", True), ("summary", False)):
        task.cfg.target_lang = ending
        assert task.translates is translates
