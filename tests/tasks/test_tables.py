"""Tables of pairs as the text of translation: the examples of two files, and what bad tables get."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqgen.extend import TranslationConfig, TranslationTask, UserError, read_column
from seqgen.tasks.multilingual_translation import MultilingualTranslationConfig, MultilingualTranslationTask
from tests.commands import corpus, sentences

PAIRS = sentences(0, 300)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus, and the same pairs as tables."""
    folder = corpus(tmp_path_factory.mktemp("data"))
    write(folder / "plain.tsv", PAIRS)
    write(folder / "named.tsv.gz", [("id", "de", "en"), *((str(i), de, en) for i, (en, de) in enumerate(PAIRS))])
    write(folder / "other.tsv", [("German", "English"), *((de, en) for en, de in PAIRS)])
    write(folder / "third.tsv", [(de, "x", en) for en, de in PAIRS])
    write(folder / "pairs.jsonl.gz", [[json.dumps({"de": de, "n": 1, "en": en})] for en, de in PAIRS])
    return folder


def write(path: Path, rows: Sequence[Sequence[str]]) -> None:
    content = "".join("\t".join(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def task(
    folder: Path, train: Path | str, source_column: str = "", target_column: str = "", **further: Any
) -> TranslationTask:
    columns = {"source_column": source_column, "target_column": target_column, **further}
    settings = {"vocab_size": 44, "workers": 1, "valid": str(train), "test": str(train), **columns}
    cfg = TranslationConfig(source_lang="en", target_lang="de", train=str(train), **settings)  # type: ignore[arg-type]
    return TranslationTask.setup_task(cfg, folder)


def examples(given: TranslationTask) -> list[list[list[int]]]:
    return [[example.source.tolist(), example.target.tolist()] for example in given.dataset("train")]


TABLES = {
    "plain.tsv": [("", ""), ("1", "2"), ("", "2")],
    "named.tsv.gz": [("", ""), ("en", "de"), ("en", "2"), ("3", "de")],
    "named.tsv": [("", "")],  # of which only the .gz is there
    "na*.tsv": [("", "")],
    "other.tsv": [("English", "German"), ("English", "1")],
    "third.tsv": [("3", "1")],
    "pairs.jsonl.gz": [("", ""), ("en", "de")],
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_the_examples_of_two_files(name: str, data: Path, tmp_path: Path) -> None:
    wanted = task(tmp_path / "files", data / "train")
    for number, columns in enumerate(TABLES[name]):
        given = task(tmp_path / str(number), data / name, *columns)
        assert given.source_tokenizer.fingerprint() == wanted.source_tokenizer.fingerprint()
        assert examples(given) == examples(wanted)
        assert list(zip(given.source_lines("test"), given.references("test") or (), strict=True)) == PAIRS
        file = data / (name if (data / name).exists() else "named.tsv.gz")
        assert given.data_files(given.cfg, tmp_path, "train") == [file]


def test_a_parquet_table(data: Path, tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    sources, targets = zip(*PAIRS, strict=True)
    nothing = pyarrow.array([], "string")
    for name, table in {
        "p": pyarrow.table({"de": targets, "en": sources, "n": [1] * 300}),
        "null": pyarrow.table({"de": ["a", None], "en": ["b", "c"]}),
        "empty": pyarrow.table({"de": nothing, "en": nothing}),
        "twice": pyarrow.table([["a"], ["b"], ["c"]], names=["en", "de", "en"]),
        "nested": pyarrow.table({"a": [{"b": "no"}], "a.b": ["text"]}),
    }.items():
        parquet.write_table(table, tmp_path / f"{name}.parquet")
    given = task(tmp_path / "run", tmp_path / "p.parquet")
    assert examples(given) == examples(task(tmp_path / "files", data / "train"))
    assert list(given.references("test") or ()) == list(targets)
    (tmp_path / "damaged.parquet").write_bytes((tmp_path / "p.parquet").read_bytes()[:-20])
    assert list(read_column(tmp_path / "nested.parquet", "a.b", "key")) == ["text"]
    for name, columns, words in (
        ("damaged", (), "damaged.parquet after row 0"),
        ("null", (), "null.parquet, row 2: de is None"),
        ("empty", (), "empty.parquet has no rows"),
        ("p", ("eng", "de"), "p.parquet has no column 'eng' .did you mean 'en'.*; set task.source_column"),
        ("twice", (), "twice.parquet has several columns 'en'; rename all but one of them"),
        ("p", ("en", "n"), "p.parquet: the values of 'n' are not text but 'int64'; set task.target_column"),
    ):
        with pytest.raises(UserError, match=words):
            task(tmp_path / "bad", tmp_path / f"{name}.parquet", *columns)


def test_other_columns_are_encoded_again(data: Path, tmp_path: Path) -> None:
    first = task(tmp_path / "run", data / "third.tsv", "3", "1")
    sources = [pair[0] for pair in examples(first)]
    copied = task(tmp_path / "run", data / "third.tsv", "1", "3")
    assert [pair[1] for pair in examples(copied)] == sources
    assert first.dataset("train").source.store.where(4) == "third.tsv, line 5"
    with pytest.raises(UserError, match=r"task.train=.*/plane.tsv: there is no such file.*did you mean 'plain.tsv'"):
        task(tmp_path / "missing", data / "plane.tsv")


def test_columns_of_files_and_tables(tmp_path: Path) -> None:
    """Every kind in every form, in training and in lines that are decoded; texts have a vocabulary of their own."""
    kinds = {"topic": "text", "group": "id", "tags": "ids", "age": "number", "image": [2, 3]}
    images = np.random.default_rng(0).standard_normal((300, 2, 3)).astype("f4")
    rows = [(*PAIRS[i], f"{'ab ' * (i % 3)}{i % 7}", i, f"{i} 0", i / 3, images[i].tolist()) for i in range(300)]
    records = [dict(zip(("en", "de", *kinds), row, strict=True)) for row in rows]
    write(tmp_path / "t.jsonl", [[json.dumps(record)] for record in records])
    write(tmp_path / "t.tsv", [[*records[0]], *(list(map(str, row)) for row in rows)])
    for name in ("en", "de", *kinds):
        write(tmp_path / f"t.{name}", [[str(record[name])] for record in records])
    (tmp_path / "t.image").unlink()
    np.save(tmp_path / "t.image.npy", images)
    tasks: list[Any] = [
        task(tmp_path / f"of-{name}", tmp_path / name, columns=kinds) for name in ("t.jsonl", "t.tsv", "t")
    ]
    files: dict[str, Any] = {"train": f"{tmp_path}/t", "valid": f"{tmp_path}/t", "vocab_size": 44}
    cfg = MultilingualTranslationConfig(pairs=["en-de"], workers=1, columns=kinds, **files)
    for given in [*tasks, MultilingualTranslationTask.setup_task(cfg, tmp_path / "run")]:
        lines, words = list(given.source_lines("valid")), given.columns["topic"].tokenizer
        assert len(words.dictionary) < 30 < len(given.source_dictionary)
        for row in (0, 7, 299):
            text, columns = given.split_columns(lines[row], row)
            assert (text, words.decode(columns["topic"][:-1].tolist())) == (PAIRS[row][0], records[row]["topic"])
            example = given.dataset("valid").example(row, epoch=1, seed=1).columns
            wanted = {"group": row, "tags": [row, 0], "age": np.float32(row / 3), "image": images[row]}
            for name, value in {**wanted, "topic": columns["topic"]}.items():
                assert np.array_equal([example[name], columns[name]], [value, value]), name
