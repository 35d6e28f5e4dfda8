"""What training shows and what it keeps a record of."""

import json
import math
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

from seqgen.system.devices import seed_everything, seed_of
from seqgen.training.criteria import mean_scores
from seqgen.training.meter import Meter
from seqgen.training.progress import Divergence, ProgressLines
from seqgen.training.run_log import RunLog, lower_is_better
from seqgen.training.trainer import UpdateResult
from seqgen.training.validation import pick

RECORD = {"tokens_per_second": 1234.5, "loss": 2.5, "nll_loss": 2.0, "own": 7.0, "lr": 0.001, "accuracy": 40.0}


def test_lines(capsys: pytest.CaptureFixture[str]) -> None:
    lines, nothing = ProgressLines("lines"), UpdateResult()

    def run(update: int, due: bool, left: float | None, save: float | None) -> Any:
        triggers = SimpleNamespace(seconds_left=lambda *given: left)
        told = {"means": RECORD, "triggers": triggers, "meter": Meter(), "seconds_to_save": lambda: save}
        told |= {"shown": math.inf, "message": lambda text: print(text, file=sys.stderr)}
        return SimpleNamespace(update=update, due=due, epoch=1, total=80, **told)

    lines.update(run(1, False, 9.0, None), nothing)
    lines.update(run(2, True, 3661.2, 240.0), nothing)
    printed = capsys.readouterr()
    assert printed.out == ""
    wanted = "update 2/80 | epoch 1 | loss 2.5 | accuracy 40.0 % | own 7 | 1,234 tokens/s | 1:01:01 left"
    assert printed.err == f"{wanted} | next save in 4 min\n"
    ProgressLines("details").update(run(3, True, None, None), nothing)
    assert "loss 2.5 | nll_loss 2 | accuracy 40.0 % | lr 0.001 | own 7 | 1,234 tokens/s\n" in capsys.readouterr().err


def test_divergence() -> None:
    def said(*losses: float, due: bool = True) -> list[int]:
        watch = Divergence(guessing=8.0)
        return [place for place, loss in enumerate(losses) if watch.notices(loss, due)]

    assert said(7.0, 3.0, *[3.9] * 9, 9.0) == []  # noise; a bad batch
    assert said(7.0, 3.0, 4.5, 4.5, 4.5, 4.5, 3.5, 4.5, 4.5, 4.5, 4.5, 4.5, 4.5) == [11]
    assert said(7.0, 3.0, *[4.5] * 20, due=False) == []  # validation overfits
    assert said(3.0, 7.9, 8.1, 9.0) == [2]
    assert said(3.0, math.nan, math.inf, due=False) == [1]


def test_scores_from_sums() -> None:
    sums = {"loss": 30.0, "sample_size": 10.0, "nll_loss": 20.0, "ntokens": 10.0, "correct": 4.0, "gates": 5.0}
    means = {"loss": 3.0, "nll_loss": 2.0, "ppl": math.e**2, "accuracy": 40.0, "gates": 0.5}
    assert mean_scores(sums) == pytest.approx(means)
    assert mean_scores({"loss": 1e6, "sample_size": 1.0})["ppl"] == math.inf
    by_sentence = mean_scores({"loss": 6.0, "nll_loss": 6.0, "sample_size": 2.0, "ntokens": 3.0})
    assert (by_sentence["loss"], by_sentence["nll_loss"], by_sentence["ppl"]) == (3.0, 2.0, math.exp(2.0))


def test_directions_of_metrics() -> None:
    assert all(lower_is_better(name) for name in ("loss", "nll_loss", "ppl", "TER"))
    assert not any(lower_is_better(name) for name in ("bleu", "chrF", "exact_match", "accuracy"))
    assert pick({"chrF": 3.0}, "CHRF") == 3.0


def test_a_meter_goes_on_where_another_stopped() -> None:
    one, other = Meter(), Meter()
    results = [UpdateResult({"loss": n, "sample_size": 2.0, "ntokens": 2.0}, gnorm=n) for n in (1.0, 3.0)]
    one.add(results[0], 1.0)
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    other.add(results[1], 1.0)
    one.add(results[1], 1.0)
    one.add(UpdateResult(skipped="nan"), 1.0)
    assert other.record()["loss"] == one.record()["loss"] == 1.0
    third = Meter()
    third.load_state_dict({**one.state_dict(), "seconds": 3600.0, "busy": 1800.0})
    seconds = third.seconds
    assert 3600 <= seconds < 3610
    assert {**third.state_dict(), "seconds": seconds} == {**one.state_dict(), "seconds": seconds, "busy": 1800.0}
    assert one.record()["gnorm"] == 2.0
    assert one.record()["skipped"] == 1


def test_records_after_the_resumed_update_are_forgotten(tmp_path: Path) -> None:
    first = RunLog(tmp_path, "loss", {})
    for update in (2, 4, 6):
        first.write("train", update, 1, {"loss": math.inf, "note": "größer"})
    with open(tmp_path / "log.jsonl", "a") as file:
        file.write('{"event": "train", "upd')  # what a killed process leaves
    again = RunLog(tmp_path, "loss", {})
    again.restore(4)
    again.write("resume", 4, 1, {})
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(row["event"], row["update"]) for row in rows] == [("train", 2), ("train", 4), ("resume", 4)]
    assert (rows[0]["loss"], rows[0]["note"]) == (None, "größer")


def test_randomness_is_a_function_of_its_place() -> None:
    draws = []
    for parts in ((1, 2, 3), (1, 2, 3), (1, 3, 2), (2, 2, 3)):
        seed_everything(parts)
        draws.append((random.random(), numpy.random.rand(), torch.rand(1).item()))
    assert draws[0] == draws[1]
    assert len({value for draw in draws[1:] for value in draw}) == 9
    assert 0 <= seed_of(0) < 2**63
