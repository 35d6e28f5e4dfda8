"""The commands of examples/papers: one prepares a file, and another one decodes with it as Python does."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from examples.documents import DocumentsConfig, main as decode_documents
from examples.papers.knn_mt import BuildConfig, KnnMT, build
from examples.papers.latency import LatencyConfig, report as report_latency
from examples.papers.medusa import TrainHeadsConfig, main as train_heads
from examples.papers.watermark import DetectConfig, report as report_watermark
from seqgen.cli.command import run as run_command
from seqgen.registry import REWRITERS
from seqgen.text.translator import Translator
from tests.commands import SMALL_TRANSFORMER, Outcome, corpus, done, training_arguments
from tests.examples.test_simultaneous import lagging

pytestmark = pytest.mark.slow

PAPERS = Path(__file__).parent.parent.parent / "examples" / "papers"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one update, beside its data."""
    folder = tmp_path_factory.mktemp("commands")
    arguments = training_arguments(corpus(folder / "DATA"), folder / "run")
    done("train", *arguments, *SMALL_TRANSFORMER, "optimization.max_update=1")
    return folder / "run"


def generate(run: Path, file: str, *keys: str) -> Outcome:
    """Decodes the test set with a file of examples/papers."""
    own = [f"common.user_dir={PAPERS / file}"] if file else []
    return done("generate", *own, f"path={run}", f"input={run.parent}/DATA/test.en", "common.threads=1", *keys)


def ended(schema: Any, main: Any, *arguments: str) -> int:
    """The exit code of a command of an example."""
    with pytest.raises(SystemExit) as exit_:
        run_command(schema, main, "", [*arguments, "common.threads=1"])
    return int(exit_.value.code or 0)


def lines_of(run: Path, language: str) -> list[str]:
    return (run.parent / "DATA" / f"test.{language}").read_text(encoding="utf-8").splitlines()


def test_knn_mt(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "knn"
    names = [
        f"source={run.parent}/DATA/test.en",
        f"target={run.parent}/DATA/test.de",
        f"datastore={store}",
        f"path={run}",
    ]
    assert [ended(BuildConfig, build, *names) for _ in range(2)] == [0, 2]  # the second time, the folder exists
    assert "does not exist yet" in capsys.readouterr().err
    keys = ("combination.interpolation=0.9", "combination.temperature=1")
    found = generate(run, "knn_mt.py", "generation.combination=knn_mt", f"combination.datastore={store}", *keys)
    combination = KnnMT(datastore=str(store), interpolation=0.9, temperature=1.0)
    by_object = Translator(str(run)).translate(lines_of(run, "en"), combination=combination)
    assert found.out.splitlines() == [line.text for line in by_object]
    assert {*found.out.splitlines()} & {*lines_of(run, "de")}, "hardly trained, but the datastore has the references"


def test_wait_k(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One command decodes and writes the delays, and another one prints the average lagging."""
    file, task = tmp_path / "latency.jsonl", Translator(str(run)).task
    generate(run, "simultaneous.py", "generation.search=wait_k", "search.k=2", f"search.latency={file}")
    lines = {line["line"]: line for line in map(json.loads, file.read_text().splitlines())}
    sources, references = lines_of(run, "en"), lines_of(run, "de")
    assert sorted(lines) == list(range(len(sources)))
    plain, adaptive = [], []
    for number, (source, reference) in enumerate(zip(sources, references, strict=True)):
        size, delays = len(task.encode_source(source)) - 1, lines[number]["delays"]
        assert (lines[number]["source"], delays) == (size, [min(2 + t, size) for t in range(len(delays))])
        plain.append(lagging(delays, size, len(delays)))
        adaptive.append(lagging(delays, size, max(len(delays), len(task.encode_target(reference)) - 1)))
    assert (
        ended(LatencyConfig, report_latency, f"path={run}", f"latency={file}", f"reference={run.parent}/DATA/test.de")
        == 0
    )
    count = len(sources)
    wanted = f"{count} lines, AL {sum(plain) / count:.2f}, LAAL {sum(adaptive) / count:.2f} source tokens"
    assert wanted in capsys.readouterr().out


def test_medusa(run: Path, tmp_path: Path) -> None:
    files = [
        f"source={run.parent}/DATA/test.en",
        f"target={run.parent}/DATA/test.de",
        f"heads={tmp_path / 'heads'}",
        "count=2",
    ]
    assert ended(TrainHeadsConfig, train_heads, f"path={run}", *files) == 0
    keys = ("generation.beam=1", "generation.max_len=6")
    drafted = generate(run, "medusa.py", *keys, "generation.search=medusa", f"search.heads={tmp_path / 'heads'}")
    assert drafted.out == generate(run, "", *keys).out
    assert "drafted tokens were verified" in drafted.err


def test_watermark(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The text is found to be marked with its own key, and not with another one."""
    keys = ("generation.processors=[watermark]", "processor.watermark.delta=8", "generation.max_len_b=30")
    marked, text = (
        generate(run, "watermark.py", *keys, "generation.sampling=true", "generation.beam=1"),
        tmp_path / "out",
    )
    text.write_text(marked.out, encoding="utf-8")
    results = []
    for key in (15485863, 3):
        assert ended(DetectConfig, report_watermark, f"path={run}", f"text={text}", f"watermark.key={key}") == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line["line"] for line in lines] == [*range(20), "all"]
        results.append(lines[-1]["p"])
    assert results[0] < 1e-4 < results[1]


def test_documents(run: Path, tmp_path: Path) -> None:
    """Documents are separated by empty lines, as their translations are."""
    first, second, third = lines_of(run, "en")[:3]
    (tmp_path / "documents").write_text(f"{first}\n{second}\n\n\n{third}\n")
    files = [f"input={tmp_path}/documents", f"output={tmp_path}/out"]
    assert ended(DocumentsConfig, decode_documents, f"path=[{run}]", *files) == 0
    assert [bool(line) for line in (tmp_path / "out").read_text().splitlines()].index(False) == 2


def test_rewriters(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job writes what one process writes, and outputs say where they come from."""
    for names in (sys.modules, REWRITERS._entries):  # workers import files, not modules of other tests
        monkeypatch.delitem(names, "examples.pool" if names is sys.modules else "pool", raising=False)
    pool = f"rewriter.pool.decodes={{wide:{{beam:6}},drawn:{{path:{run},sampling:true,seed:3,beam:2,max_len_b:9}}}}"
    keys = ("generation.rewriters=[pool]", pool, "generation.beam=2", "generation.max_len_b=9", "generation.nbest=2")
    lines = [json.loads(line) for line in generate(run, "../pool.py", *keys, "format=json").out.splitlines()]
    origins = {item.get("origin", "") for line in lines for item in line["hypotheses"]}
    assert {"pool:wide"} < origins <= {"", "pool:wide", "pool:drawn"}
    table = (*keys[:-1], "format=tsv", "generation.mbr=chrf")
    plain = generate(run, "../pool.py", *table).out
    assert plain.splitlines()[0].endswith("\torigin")
    generate(run, "../pool.py", *table, f"output={tmp_path}/job", "job.part_lines=7", "job.workers=2")
    assert (tmp_path / "job").read_text(encoding="utf-8") == plain
    fusing = ("generation.rewriters=[qe_fusion]", "rewriter.qe_fusion.utility=chrf", *keys[2:])
    ranking = ("generation.rerank=fusion", "reranker.utility=chrf", "format=json")
    for line in map(json.loads, generate(run, "qe_fusion.py", *fusing, *ranking).out.splitlines()):
        best, *others = (item["rerank_score"] for item in line["hypotheses"])
        assert all(best >= other for other in others)
