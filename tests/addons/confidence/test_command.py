"""``seqgen-calibrate``, and ``seqgen-generate`` with its result."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.addons.confidence.conftest import DECODE, text_of
from tests.commands import Outcome, command, done

pytestmark = pytest.mark.slow


def decode(place: Path, name: str, *further: str) -> Outcome:
    keys = (*text_of(place, name)[:2], *DECODE, *further, f"generation.confidence={place}/made.json")
    return done("generate", *keys)


def test_the_calibration_and_its_figures(place: Path) -> None:
    made, figures = (json.loads((place / name).read_text()) for name in ("made.json", "made.figures"))
    assert len(made["good"]) + len(made["bad"]) == figures["lines"] == 30
    assert {*figures["scores"]} == {"confidence", "mean_lprob", "length"}
    assert made["settings"]["beam"] == 2
    assert "<svg" in (place / "risk.svg").read_text()


def records_of(outcome: Outcome) -> list[dict[str, Any]]:
    return [json.loads(line) for line in outcome.out.splitlines() if line.startswith("{")]


def test_marks_in_all_formats_and_in_a_job(place: Path, tmp_path: Path) -> None:
    mark = "generation.review_share=0.5"
    records = records_of(decode(place, "text", "format=json", mark))
    made = json.loads((place / "made.json").read_text())
    threshold = sorted([*made["good"], *made["bad"]])[14]
    assert [record["review"] for record in records] == [record["confidence"] <= threshold for record in records]
    assert threshold in [record["confidence"] for record in records], "a line at the threshold is marked"
    table = [line for line in decode(place, "text", "format=tsv", mark).out.splitlines() if "\t" in line]
    header, *rows = [line.split("\t") for line in table]
    named = [dict(zip(header, row, strict=True)) for row in rows]
    assert [[row["output"], row["confidence"], row["review"]] for row in named] == [
        [one["hypotheses"][0]["text"], f"{one['confidence']:.4f}", "review" if one["review"] else ""] for one in records
    ]
    job = decode(place, "text", f"output={tmp_path}/out.tsv", "job.part_lines=25", "format=tsv", mark)
    assert f"{sum(one['review'] for one in records)} of 60 lines are marked for review" in job.err
    assert (tmp_path / "out.tsv").read_text().splitlines() == table, "a job has one header, too"


def test_another_text_is_examined(place: Path, tmp_path: Path) -> None:
    made = f"generation.confidence={place}/made.json"
    outcome = done("calibrate", *text_of(place, "other"), made, "generation.review_risk=0.2", "json=-")
    figures = json.loads(outcome.out)
    marked = [one["review"] for one in records_of(decode(place, "other", "format=json", "generation.review_risk=0.2"))]
    assert 0 < sum(marked) < 60
    assert (figures["lines"], figures["marked"]) == (60, pytest.approx(sum(marked) / 60))


def test_references_that_are_the_source_look_wrong(place: Path) -> None:
    text = [*text_of(place, "text")[:2], f"reference={place}/text.en", *DECODE]
    outcome = command("calibrate", *text, f"generation.confidence={place}/made.json")
    assert "the references look wrong (another language, or other lines), or the outputs are poor" in outcome.err
    assert "100.0 with the inputs" in outcome.err
