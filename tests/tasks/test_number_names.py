"""The built-in example: right names, disjoint splits, the same for everybody."""

import hashlib
from pathlib import Path

import pytest
from num2words import num2words

from seqgen.core.errors import ConfigError
from seqgen.tasks.number_names import LANGUAGES, LIMIT, NumberNamesConfig, NumberNamesTask, number_names, split_numbers

SPLITS = ("train", "valid", "test")


@pytest.mark.parametrize("language", LANGUAGES)
def test_fast_names_are_the_library_s(language: str) -> None:
    numbers = [*range(0, 130, 3), *range(131, LIMIT, 4999), 1000, 1001, 2000, 21_000, LIMIT - 1]
    assert number_names(numbers, language) == [num2words(n, lang=language).replace(",", "") for n in numbers]


def test_splits_are_disjoint_and_fixed() -> None:
    splits = {split: split_numbers(split, 20_000) for split in SPLITS}
    assert {split: len(numbers) for split, numbers in splits.items()} == {"train": 20_000, "valid": 500, "test": 1000}
    assert len(set().union(*splits.values())) == 21_500
    assert set(range(100)) <= set(splits["train"])
    assert all(0 <= n < LIMIT for numbers in splits.values() for n in numbers)
    assert split_numbers("test", 300) == splits["test"]
    assert hashlib.sha256(repr(splits).encode()).hexdigest()[:16] == "17b985aba44c2537", "not everybody's numbers"


def test_task(tmp_path: Path) -> None:
    cfg = NumberNamesConfig(train_size=2000, cache_dir=str(tmp_path / "texts"))
    task = NumberNamesTask.setup_task(cfg, tmp_path / "run")
    assert {split: len(task.dataset(split)) for split in task.splits()} == {"train": 2000, "valid": 500, "test": 1000}
    for split in SPLITS:
        assert task.dataset(split).report() == [], "no character is unknown, no pair is too long"
        for example, reference in zip(task.dataset(split), task.references(split) or [], strict=True):
            assert task.decode(example.target) == reference
    assert dict(zip(task.source_lines("train"), task.references("train") or [], strict=True))["seven"] == "sieben"
    languages = {"source_lang": "fr", "target_lang": "ru", "cache_dir": cfg.cache_dir}
    cfg = NumberNamesConfig(train_size=500, vocab_size=8000, **languages)
    task = NumberNamesTask.setup_task(cfg, tmp_path / "other")
    assert len(task.source_dictionary) < 8000, "as many pieces as the text has"
    assert len(task.dataset("train")) == 500, "another text, in the same folder"
    with pytest.raises(ConfigError, match="there is no split 'dev'"):
        task.dataset("dev")
