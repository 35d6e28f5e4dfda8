"""The benchmarks run, and compare what they say they compare."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import catalogue
from benchmarks.decode import main
from benchmarks.decoding import matrix_worker
from benchmarks.decoding.matrix_worker import MatrixProducts
from benchmarks.decoding.models import random_sources, save_random_t5
from benchmarks.decoding.process import WorkerError
from benchmarks.decoding.seqgen_worker import Seqgen
from benchmarks.decoding.workload import Comparison, Toolkit, Workload
from seqgen.checkpoints.loading import load_model
from seqgen.modules.kernels import PLAIN
from seqgen.modules.linear import Projection

pytestmark = pytest.mark.slow

WORK = Workload("m", sentences=2, batch=1, beam=1, source=4, length=3, semantics="huggingface")


class Scripted:
    """Writes given outputs; the score of an output is the mean of its ids, as a logarithm might be."""

    def __init__(self, outputs: list[list[int]] | None):
        self.outputs, self.failed, self.asked = outputs, False, 0

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if "outputs" in request:
            return {"scores": [-sum(output) / len(output) for output in request["outputs"]]}
        self.asked += 1
        if self.outputs is None:
            raise WorkerError("out of order")
        figures = {"seconds": [0.5, 1.5], "processor_seconds": 2.0, "peak_bytes": 70, "used_bytes": 30}
        return {"outputs": self.outputs, **figures}

    def close(self) -> None:
        pass


def comparison(*toolkits: tuple[str, str, list[list[int]] | None]) -> Comparison:
    return Comparison([WORK], [Toolkit(name, form, Scripted(outputs)) for name, form, outputs in toolkits], 10)


def arguments(folder: Path) -> argparse.Namespace:
    return argparse.Namespace(models=[str(folder)], format="float32", device="cpu", threads=1, vocabulary=0)


def run_tiny(work: str, folder: Path, *options: str) -> list[dict[str, Any]]:
    file = folder / "figures.json"
    main([work, "--tiny", "--rounds", "1", "--threads", "1", "--json", str(file), *options])
    rows: list[dict[str, Any]] = json.loads(file.read_text())["rows"]
    return rows


def test_all_of_benchmark_a(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = run_tiny("a", tmp_path, "--inside")
    assert [(row["batch"], row["beam"]) for row in rows[::3]] == [(1, 1), (1, 5), (4, 5)]
    assert [row["toolkit"] for row in rows[:3]] == ["seqgen", "matrix products", "... with attention"]
    for row in rows:
        assert row["tokens_per_second"] == pytest.approx(row["sentences"] * row["length"] / sum(row["seconds"][0]))
    limit = rows[1]
    assert limit["ratios"]["same format"] == pytest.approx(rows[0]["tokens_per_second"] / limit["tokens_per_second"])
    assert "t5_tiny, 4 sentences in batches of 4, beam 5, source 6, 5 tokens" in capsys.readouterr().out


def test_the_benchmark_of_language_models(tmp_path: Path) -> None:
    rows = run_tiny("f", tmp_path, "--huggingface", sys.executable)
    assert [row["toolkit"] for row in rows] == ["seqgen", "huggingface"] * 3
    assert all(row["same"] == 1 for row in rows)


def test_the_benchmark_of_catalogues(capsys: pytest.CaptureFixture[str]) -> None:
    """All ways find the same allowed outputs."""
    sizes = ["--preset", "t5_tiny", "--vocabulary", "300", "--sizes", "60", "--beams", "4", "--queries", "1", "2"]
    catalogue.main([*sizes, "--rounds", "1", "--original"])
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if "agree" not in line and "trie of" not in line]
    assert [(row[2], " ".join(row[3:-8])) for row in rows] == [
        ("1", "edges"), ("1", "all scores"), ("1", "transformers"), ("2", "edges"), ("2", "all scores"),
    ]  # fmt: skip
    assert all(row[-6] == row[-4].rstrip(",") and row[-3] == "0" for row in rows), lines


def test_outputs_in_float32_must_be_the_same_up_to_ties() -> None:
    ours = [[1, 2, 3], [4, 5, 6]]
    compared = comparison(
        ("seqgen", "float32", ours),
        ("tie", "float32", [[3, 2, 1], [4, 5, 6]]),
        ("other", "float32", [[1, 2, 3], [4, 5, 9]]),
        ("coarse", "int8", [[1, 2, 3], [4, 5, 9]]),
    )
    seqgen, tie, other, coarse = compared.run(1)
    assert (seqgen.same, tie.same, other.same, coarse.same) == (1, 0.5, 0.5, 0.5)
    assert (tie.drift, other.drift, coarse.drift) == (0, 0.5, 0.5)  # (15 - 18) / 3 in one of two sentences
    assert [line.split(" does not agree")[0] for line in compared.disagreements] == ["other"]


def test_the_matrix_products_are_those_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Projection, "packs", False)  # nobody counts the operations of packed products
    monkeypatch.setattr(matrix_worker, "kernels_for", lambda *_: (PLAIN,))
    save_random_t5("t5_tiny", 200, tmp_path / "t5")
    sources, length = random_sources([5, 5], 200, eos=1), 7
    model = load_model(tmp_path / "t5").model
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        tokens = torch.tensor(sources)
        model(tokens, torch.tensor([6, 6]), torch.zeros(2, length, dtype=torch.long))
    expected = sum(flops for name, flops in counter.get_flop_counts()["Global"].items() if "mm" in str(name))
    attention = sum(flops for name, flops in counter.get_flop_counts()["Global"].items() if "bmm" in str(name))
    with FlopCounterMode(display=False) as counter:
        MatrixProducts(arguments(tmp_path / "t5")).decode(sources, {"beam": 1, "length": length})
    assert counter.get_total_flops() == expected - attention


def test_outputs_have_exactly_the_length(tmp_path: Path) -> None:
    save_random_t5("t5_tiny", 200, tmp_path / "t5")
    worker = Seqgen(arguments(tmp_path / "t5"))
    request = WORK.request(200)
    assert [len(source) for source in request["sources"]] == [4, 4]
    answer = worker.answer(request)
    assert [len(output) for output in answer["outputs"]] == [3, 3]
    assert len(answer["seconds"]) == 2
    plain = worker.answer({**request, "beam": 5, "switches": {"use_cache": False}})
    assert plain["outputs"] == worker.answer({**request, "beam": 5})["outputs"]
    scores = worker.answer({**request, "outputs": answer["outputs"]})["scores"]
    with torch.inference_mode():
        source, output = torch.tensor(request["sources"][:1]), torch.tensor(answer["outputs"][0])
        previous = torch.cat([torch.tensor([0]), output[:-1]]).unsqueeze(0)
        out = worker.models[0](source, torch.tensor([source.size(1)]), previous)
        expected = out.logits[0].log_softmax(-1).gather(1, output.unsqueeze(1)).mean()
    assert scores[0] == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["a", "--formats", "int8"], "--formats must begin with float32"),
        (["c", "--against", "HEAD"], "benchmark c does not use --against"),
        (["b", "--fairseq", "python", "--tiny"], "leave out --tiny"),
        (["a", "--json", "no/such/folder/x.json"], "there is no folder no/such/folder"),
    ],
)
def test_wrong_options(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(options)
    assert message in capsys.readouterr().err
