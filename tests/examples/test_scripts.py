"""Scripts of examples that are run with Python: documents, retrieval, T5 from scratch, and COMET in another process."""

import functools
import gzip
import json
import random
import re
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from examples import t5_from_scratch
from examples.documents import decode_documents, fields, forced
from examples.papers.context_aware import ContextAware
from seqgen.metrics import Texts, corpus_scores
from seqgen.registry import RERANKERS, UTILITIES
from seqgen.text.translator import Translator
from tests.commands import command, corpus, done
from tests.text_models import text_model

DOCUMENTS = [["w1 w2 w3", "w4", "w5 w6"], ["w7 w8"], ["w9 w1 w2 w3", "w2", "w6 w5 w4", "w8"]]
CONTRAST: dict[str, Any] = {"member_sources": ["field1", "field2"], "combination": ContextAware(0.5)}


def alone(translator: Translator, document: list[str], context: int, settings: dict[str, Any]) -> list[str]:
    """A document alone, line by line, with the earlier outputs as a prefix or the earlier sources as a context."""
    outputs: list[str] = []
    for place, line in enumerate(document):
        first = max(0, place - context)
        read = " ".join(document[first : place + 1])
        if settings:
            (found,) = translator.translate([f"{read}\t{line}"], **settings)
            outputs.append(found.text)
        else:
            before = " ".join(text for text in outputs[first:place] if text)
            (found,) = translator.translate([read], prefixes=[before])
            assert found.text.startswith(before)
            outputs.append(found.text[len(before) :].strip())
    return outputs


@pytest.mark.parametrize("context", [0, 2])
@pytest.mark.parametrize(("compose", "settings"), [(forced, {}), (fields, CONTRAST)], ids=["forced", "fields"])
def test_documents_together_equal_each_alone(compose: Any, context: int, settings: dict[str, Any]) -> None:
    model = text_model()
    translator = Translator([model, model] if settings else model, beam=3, max_len_a=2, max_len_b=4)
    with mock.patch.object(translator, "translate", wraps=translator.translate) as translate:
        together = decode_documents(translator, DOCUMENTS, compose(context), **settings)
    assert [len(call.args[0]) for call in translate.mock_calls] == [3, 2, 2, 1]
    assert together == [alone(translator, document, context, settings) for document in DOCUMENTS]
    assert context == 0 or together != decode_documents(translator, DOCUMENTS, compose(0), **settings)


CAPTION_WORDS = "a dog man two red blue runs sits on in with ball house field tree walks girl boy"


def test_retrieval_from_captions_to_recall(tmp_path: Path) -> None:
    for package in ("sklearn", "bm25s"):
        pytest.importorskip(package)
    draw, folder = random.Random(1), tmp_path / "exp"
    topics = [draw.sample(CAPTION_WORDS.split(), 6) for _ in range(60)]
    for number in range(1, 6):
        texts = (" ".join([f"Own{picture}!", *draw.sample(topic, 4)]) + "\n" for picture, topic in enumerate(topics))
        (tmp_path / f"train.{number}.en.gz").write_bytes(gzip.compress("".join(texts).encode()))
    retrieval = functools.partial(command, "examples.retrieval", f"output={folder}")
    assert retrieval(f"data={tmp_path}", "clusters=3", "queries=20").code == 0
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
    ours, theirs, certified = retrieval(f"found={tmp_path}/found").out.splitlines()
    first = sum(row[0] == one for row, one in zip(found, wanted, strict=True))
    assert f"recall@1 {100 * first / 20:.1f} " in ours
    assert "recall@10 100.0 (100.0 to 100.0)" in ours
    assert theirs.startswith("BM25    recall@1 100.0")  # each picture has a word of its own
    assert certified == "certified exact: 5 of 20 lists"


SMALL = [
    *("--vocab-size=60", "--input-length=32", "--max-tokens=300", "--pretrain-updates=3", "--finetune-updates=3"),
    *("--pairs=40", "--sentences=4", "--beam=2", "--model", "model=t5_tiny", "model.d_model=16", "model.d_kv=8"),
    *("model.d_ff=16", "model.num_heads=2", "model.num_layers=1", "common.threads=1"),
]


@pytest.mark.slow
def test_t5_from_scratch_runs_on_parallel_text_and_names_of_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_this_process(name: str, *arguments: str) -> str:
        return done(name, *arguments).out

    monkeypatch.setattr(t5_from_scratch, "command", in_this_process)
    data = corpus(tmp_path / "data")
    t5_from_scratch.main([str(tmp_path / "runs"), f"--data={data}", "--test=test", *SMALL])
    out = capsys.readouterr().out
    rows = re.findall(r"from (pretrained|scratch)\s+│\s+\d+ s │ to (German|English)\s+│\s+[\d.?]+ │", out)
    assert rows == [("pretrained", "German"), ("pretrained", "English"), ("scratch", "German"), ("scratch", "English")]
    for name in ("from_pretrained.de", "from_pretrained.en", "from_scratch.de", "from_scratch.en"):
        assert len((tmp_path / "runs" / name).read_text().splitlines()) == 4
    t5_from_scratch.main([str(tmp_path / "numbers"), *SMALL])
    assert "from scratch" in capsys.readouterr().out


COMET = """
import types
print("loading")  # as the package does
download_model = lambda name: name + ".ckpt"
class Model:
    def predict(self, rows, **keys):
        return types.SimpleNamespace(scores=[len(row["mt"]) / len(row["src"] + row.get("ref", "")) for row in rows])
def load_from_checkpoint(path):
    assert path in ("Unbabel/wmt22-comet-da.ckpt", "Unbabel/wmt22-cometkiwi-da.ckpt")
    return Model()
"""


@pytest.mark.slow
def test_scores_of_comet_come_from_the_other_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And CometKiwi gets no references."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("seqgen.metrics.CORPUS_METRICS", {})
    for registry in (UTILITIES, RERANKERS):
        monkeypatch.setattr(registry, "_entries", {})
    import examples.comet  # noqa: F401

    (tmp_path / "comet.py").write_text(COMET)
    texts = Texts(["ab", "ö"], ["a", "bcd"], ["xyz", "x"], more_references=[["abcde", "b"]])
    wanted = [100 * (2 / 4 + 2 / 8) / 2, 100 * (1 / 4 + 1 / 2) / 2]
    assert corpus_scores(["comet"], texts)["comet"].sentences == pytest.approx(wanted)
    found = Translator(text_model(), beam=3, nbest=3, max_len_b=6).translate(["w1 w2"], rerank="cometkiwi")
    for item in found[0].hypotheses:
        assert item.rerank_score == pytest.approx(100 * len(item.text) / 5)
    assert "comet" not in sys.modules
