"""examples/retrieval.py: its files fit each other, and its recall is that of the definition."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

from examples.retrieval import main

pytest.importorskip("sklearn")
pytest.importorskip("bm25s")

WORDS = "a dog man two red blue runs sits on in with ball house field tree walks girl boy"


@pytest.fixture
def captions(tmp_path: Path) -> Path:
    draw = random.Random(1)
    topics = [draw.sample(WORDS.split(), 6) for _ in range(60)]
    for number in range(1, 6):
        text = "".join(
            " ".join([f"Own{picture}!", *draw.sample(topic, 4)]) + "\n" for picture, topic in enumerate(topics)
        )
        (tmp_path / f"train.{number}.en.gz").write_bytes(gzip.compress(text.encode()))
    return tmp_path


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    return int(end.value.code or 0)


def test_from_captions_to_recall(captions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "exp"
    assert run(f"data={captions}", f"output={folder}", "clusters=3", "queries=20") == 0
    lines = {file.name: file.read_text(encoding="utf-8").splitlines() for file in folder.iterdir()}
    assert len(lines["catalogue"]) == len(set(lines["catalogue"])) == len(lines["documents"]) == 60
    assert len(lines["train.query"]) == len(lines["train.id"]) == 240
    assert not {*lines["valid.id"]} & {*lines["test.id"]}
    document = dict(zip(lines["catalogue"], lines["documents"], strict=True))
    for split in ("train", "valid", "test"):
        for query, identifier in zip(lines[f"{split}.query"], lines[f"{split}.id"], strict=True):
            assert query.split()[0] in document[identifier].split()
            assert split != "train" or query in document[identifier]
    wanted = lines["test.id"]
    found = [[*lines["catalogue"][:5], one] if place % 2 else [one] for place, one in enumerate(wanted)]
    records = [{"hypotheses": [{"text": text} for text in row], "exact": place < 5} for place, row in enumerate(found)]
    (tmp_path / "found").write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    capsys.readouterr()
    assert run(f"output={folder}", f"found={tmp_path}/found") == 0
    ours, theirs, certified = capsys.readouterr().out.splitlines()
    first = sum(row[0] == one for row, one in zip(found, wanted, strict=True))
    assert f"recall@1 {100 * first / 20:.1f} " in ours
    assert "recall@10 100.0 (100.0 to 100.0)" in ours
    assert theirs.startswith("BM25    recall@1 100.0")  # each picture has a word of its own
    assert certified == "certified exact: 5 of 20 lists"


def test_mistakes_are_answered_by_a_sentence(
    captions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, words in (
        ([], "either data=FOLDER"),
        ([f"data={captions}"], "fewer than the 2000 queries"),
        ([f"data={tmp_path}/nowhere"], "nowhere"),
    ):
        assert run(f"output={tmp_path}/e", *arguments) == 2
        assert words in capsys.readouterr().err
