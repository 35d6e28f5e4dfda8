"""``seqgen-calibrate``, and ``seqgen-generate`` with its result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands import SMALL_FCONV, command, corpus, refused, sentences, training_arguments

DECODE = ("generation.beam=2", "generation.max_len_b=14", "common.threads=1")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, a text with references, and a calibration."""
    folder = tmp_path_factory.mktemp("calibrate")
    data = corpus(folder / "data")
    further = ("optimization.lr=[2e-2]", "optimization.max_update=40", "dataset.validate_interval=0")
    outcome = command("train", *training_arguments(data, folder / "run"), *SMALL_FCONV, *further)
    assert outcome.code == 0, outcome.err
    for name, start in (("text", 500), ("other", 700)):
        for side, language in enumerate(("en", "de")):
            lines = "".join(pair[side] + "\n" for pair in sentences(start, 60))
            (folder / f"{name}.{language}").write_text(lines)
    files = (f"output={folder}/made.json", f"json={folder}/made.figures", f"picture={folder}/risk.svg")
    outcome = command("calibrate", *text_of(folder, "text"), *files)
    assert outcome.code == 0, outcome.err
    assert "30 lines, of which" in outcome.out
    return folder


def text_of(place: Path, name: str) -> list[str]:
    return [f"path={place}/run", f"input={place}/{name}.en", f"reference={place}/{name}.de", *DECODE]


def decode(place: Path, name: str, *further: str) -> str:
    outcome = command("generate", f"path={place}/run", f"input={place}/{name}.en", *DECODE, *further,
                      f"generation.confidence={place}/made.json")  # fmt: skip
    assert outcome.code == 0, outcome.err
    return outcome.out


def test_the_calibration_and_its_figures(place: Path) -> None:
    made, figures = (json.loads((place / name).read_text()) for name in ("made.json", "made.figures"))
    assert len(made["good"]) + len(made["bad"]) == figures["lines"] == 30
    assert {*figures["scores"]} == {"confidence", "mean_lprob", "length"}
    assert made["settings"]["beam"] == 2
    assert "<svg" in (place / "risk.svg").read_text()


def test_marks_in_all_formats_and_in_a_job(place: Path, tmp_path: Path) -> None:
    mark = "generation.review_share=0.5"
    lines = decode(place, "text", "format=json", mark).splitlines()
    records = [json.loads(line) for line in lines if line.startswith("{")]
    made = json.loads((place / "made.json").read_text())
    known = sorted([*made["good"], *made["bad"]])
    held_out = [record for record in records if any(abs(record["confidence"] - one) < 1e-6 for one in known)]
    assert len(held_out) == 30
    assert sum(record["review"] for record in held_out) == pytest.approx(15, abs=1), "exact but for equal lines"
    table = [line for line in decode(place, "text", "format=tsv", mark).splitlines() if "\t" in line]
    header, *rows = [line.split("\t") for line in table]
    assert header == ["source", "output", "score", "confidence", "review"]
    assert [row[3] for row in rows] == [f"{record['confidence']:.4f}" for record in records]
    assert [row[4] for row in rows] == ["review" if record["review"] else "" for record in records]
    assert [row[1] for row in rows] == [record["hypotheses"][0]["text"] for record in records]
    output = tmp_path / "out.jsonl"
    arguments = (f"output={output}", "job.part_lines=25", "format=json", mark)
    outcome = command("generate", f"path={place}/run", f"input={place}/text.en", *DECODE, *arguments,
                      f"generation.confidence={place}/made.json")  # fmt: skip
    assert f"{sum(one['review'] for one in records)} of 60 lines are marked for review" in outcome.err
    in_job = [json.loads(line) for line in output.read_text().splitlines()]
    assert [one["review"] for one in in_job] == [one["review"] for one in records]
    decode(place, "text", "format=tsv", mark, f"output={tmp_path}/out.tsv", "job.part_lines=25")
    assert (tmp_path / "out.tsv").read_text().splitlines() == table, "a job has one header, too"
    assert [one["confidence"] for one in in_job] == pytest.approx([one["confidence"] for one in records])


def test_another_text_is_examined(place: Path, tmp_path: Path) -> None:
    made = f"generation.confidence={place}/made.json"
    outcome = command("calibrate", *text_of(place, "other"), made, "generation.review_risk=0.2", "json=-")
    assert outcome.code == 0, outcome.err
    figures = json.loads(outcome.out)
    assert figures["lines"] == 60
    marked = [json.loads(line)["review"] for line in decode(place, "other", "format=json", "generation.review_risk=0.2")
              .splitlines() if line.startswith("{")]  # fmt: skip
    assert figures["marked"] == pytest.approx(sum(marked) / 60)


def test_references_that_are_the_source_look_wrong(place: Path) -> None:
    text = [*text_of(place, "text")[:2], f"reference={place}/text.en", *DECODE]
    outcome = command("calibrate", *text, f"generation.confidence={place}/made.json")
    assert "the references look wrong (another language, or other lines), or the outputs are poor" in outcome.err
    assert "100.0 with the inputs" in outcome.err


def test_what_is_missing_or_has_no_effect_is_refused(place: Path) -> None:
    text, made = text_of(place, "text"), f"generation.confidence={place}/made.json"
    refused(command("calibrate", *text), "set either output=FILE.json")
    refused(command("calibrate", *text, made, "output=x.json"), "set either output=FILE.json")
    refused(command("calibrate", *text, made, "quality=3"), "quality has no effect with generation.confidence")
    refused(command("calibrate", *text, made, "metric=bleu"), "made with metric=chrf, not bleu")
    refused(command("calibrate", *text, "output=x.json", "metric=chfr"), "chfr", "chrf")
    refused(command("calibrate", *text, "output=x.json", "quality=1000"), "outputs reach the quality 1000")
    refused(
        command("calibrate", *text, "output=x.json", "generation.input_split=sentences"), "without generation.input"
    )
    refused(
        command("calibrate", *text, made, "generation.quality_features=[mean_lprob]"),
        "generation.quality_features has no effect",
    )
    refused(command("generate", text[0], text[1], made, "stream=true"), "stream=true writes no probabilities")
    refused(command("calibrate", *text, "output=x.json", "picture=risk.xyz"), "must end in .svg, .png, .pdf")
    refused(command("calibrate", text[0], text[1], "output=x.json"), "set both input=FILE and reference=FILE")
    refused(
        command("calibrate", *text, f"output={place}/made.figures.json", f"json={place}/text.en"),
        "would overwrite the input",
    )
    refused(command("calibrate", *text, "output=x.json", "generation.quality_features=[mean_lprop]"), "mean_lprob")
    refused(
        command("generate", *text, made, "generation.length_penalty=2"), "other values of generation.length_penalty"
    )
    outcome = command("generate", text[0], text[1], *DECODE, made)
    assert "format=text writes no probabilities" in outcome.err
