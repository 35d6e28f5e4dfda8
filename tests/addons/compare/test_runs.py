"""``seqgen-show``, the sessions of a run, and records of decodes."""

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from seqgen.addons.compare.curves import charts
from seqgen.addons.compare.runs import MISSING, as_dict, differences, read_run, read_runs, sort_runs, text_table
from seqgen.cli.keys import keys_of
from seqgen.cli.provenance import PROVENANCE, read_sessions, versions
from seqgen.cli.record import OUTPUTS, changes
from seqgen.config import GenerateConfig, TrainConfig, to_dict
from seqgen.config.compose import compose
from tests.commands import command, refused

CURVES = {"a": [(1, 5.0, 0.5), (2, 3.0, 12.25), (3, 4.0, 9.0)], "b": [(1, 6.0, 1.0), (2, 2.0, 3.0)]}


def make_run(folder: Path, *keys: str, curve: str = "a", data: str = "") -> Path:
    """A run folder, by default as an older version wrote it: no record of its sessions and their data."""
    folder.mkdir(parents=True)
    plain = to_dict(compose(TrainConfig, ["checkpoint.best_checkpoint_metric=loss", *keys]))
    del plain["run_dir"]
    (folder / "config.yaml").write_text(yaml.safe_dump(plain, sort_keys=False))
    time = "2026-01-01T00:00:{:02}+00:00"
    log: list[dict[str, Any]] = [{"event": "start", "time": time.format(0), "update": 0, "epoch": 1, "parameters": 77}]
    for update, loss, bleu in CURVES[curve]:
        shared = {"time": time.format(10 * update), "update": update, "epoch": 1}
        log.append({"event": "train", **shared, "loss": loss + 1, "tokens_per_second": 100.0 * update**2, "lr": 0.1})
        log.append({"event": "valid", **shared, "loss": loss, "BLEU": bleu})
    log.append({"event": "stop", **shared, "reason": "max_update=3 reached", "seconds": 3661.0})
    (folder / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in log))
    if data:
        sessions = [{"data": {"valid": digest * 64}} for digest in data]
        record = {"format": "seqgen-provenance", "version": 1, "sessions": sessions}
        (folder / PROVENANCE).write_text(json.dumps(record))
    return folder


def test_what_a_run_is(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "a"))
    assert (run.best, run.best_update, run.metric) == ({"loss": 3.0, "BLEU": 12.25}, 2, "loss")
    assert (run.parameters, run.updates, run.seconds, run.tokens_per_second) == (77, 3, 3661.0, 400.0)
    assert (run.epoch, run.stopped, run.problems) == (1, "max_update=3 reached", [])
    run = read_run(make_run(tmp_path / "b", "checkpoint.best_checkpoint_metric=bleu", curve="b"))
    assert (run.best, run.best_update) == ({"loss": 2.0, "BLEU": 3.0}, 2), "a score that should be high"
    times = [f"2026-01-0{day}T00:00:30+00:00" for day in (1, 3, 4)]
    (run.folder / "log.jsonl").write_text("\n".join(json.dumps({"event": "train", "time": time}) for time in times))
    assert read_run(run.folder).seconds == 3 * 24 * 3600, "of a training that was killed"


def test_differences_are_from_the_presets(tmp_path: Path) -> None:
    """Also of a component that is not registered here: what all of its runs have is no difference."""
    for name, keys in (("a", ("model=fconv_tiny",)), ("b", ("model=transformer_tiny", "model.activation_fn=gelu")),
                       ("c", ("model=transformer", "model.dropout=0.3")), ("d", ("model=t5",))):  # fmt: skip
        config = make_run(tmp_path / name, *keys) / "config.yaml"
        config.write_text(config.read_text().replace("_name: t5", "_name: unheard"))
    assert differences(read_runs([tmp_path / name for name in "abcd"])) == {
        "model._name": ["fconv_tiny", "transformer_tiny", "transformer", "unheard"],
        "model.activation_fn": [MISSING, "gelu", "relu", MISSING],
        "model.dropout": [0.1, 0.1, 0.3, MISSING],
    }


def test_sorting(tmp_path: Path) -> None:
    make_run(tmp_path / "x", "optimization.lr=[0.1]")
    make_run(tmp_path / "y", "optimization.lr=[0.02]", curve="b")
    (tmp_path / "z").mkdir()
    (tmp_path / "z/config.yaml").write_text("{}")
    runs = read_runs([tmp_path / name for name in "xyz"])
    for by, order in (
        ("", "xyz"), ("loss", "yxz"), ("bleu", "xyz"), ("updates", "yxz"), ("tokens/s", "xyz"),
        ("optimization.lr", "zyx"), ("model", "xyz"),
    ):  # fmt: skip
        assert "".join(run.name for run in sort_runs(runs, by)) == order, by


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("log.jsonl", b"\xff\n[1]\n{\"event\": \"valid\", \"update\": \"x\", \"loss\": NaN}\n{"),
        ("log.jsonl", None),
        ("config.yaml", b"a: [\n"),
        ("config.yaml", b"[1, 2]"),
        ("config.yaml", b"model: {_name: unheard}\n"),
        (PROVENANCE, b'{"format": "seqgen-provenance", "version": 1, "sessions": [1, {}]}'),
        (PROVENANCE, b"[]"),
    ],
)  # fmt: skip
def test_damaged_runs_are_shown(tmp_path: Path, file: str, content: bytes | None) -> None:
    folders = [make_run(tmp_path / name) for name in "ab"]
    damaged = folders[0] / file
    damaged.write_bytes(content) if content is not None else damaged.unlink()
    runs = read_runs(folders)
    assert [line.split()[:2] for line in text_table(runs).splitlines()[1:3]] == [["1", "a"], ["2", "b"]]
    if not runs[0].config:
        assert text_table(runs).endswith("what differs is not known: the configuration of a cannot be read")
    assert json.loads(json.dumps(as_dict(runs), allow_nan=False))["runs"][1]["updates"] == 3


def test_the_command(tmp_path: Path) -> None:
    one, two = make_run(tmp_path / "runs/x/1"), make_run(tmp_path / "runs/x/2", "common.seed=5", curve="b")
    converted, failed = make_run(tmp_path / "runs/converted"), make_run(tmp_path / "runs/failed")
    (converted / "checkpoints").mkdir()
    for folder in (converted, failed):
        (folder / "log.jsonl").unlink()
    config = converted / "config.yaml"
    config.write_text(re.sub("clip_norm: .*", "clip_norm: .nan", config.read_text()))
    outcome = command("show", f"path={tmp_path}/runs", "sort=bleu", "sort=loss", "json=-")
    assert (outcome.code, "sort=bleu is not used, because sort=loss comes later" in outcome.err) == (0, True)
    found = json.loads(outcome.out)["runs"]
    assert [(run["name"], run["differs"]["common.seed"]) for run in found] == [("2", 5), ("1", 1), ("converted", 1)]
    assert found[2]["differs"]["optimization.clip_norm"] is None, "JSON lacks NaN"
    refused(command("show", f"{failed}"), "training did not begin in it")
    for folders in ((f"{one}", f"{two}"), (f"{one}", f"path={two}"), (f"{one}", f"{one.parent}")):
        table = [line.split() for line in command("show", *folders, "sort=bleu").out.splitlines()]
        assert table[:2] == [["run", "updates", "BLEU", "loss", "tokens/s", "time"],
                             ["1", "1", "3", "12.25", "3", "400", "1:01:01"]]  # fmt: skip
        assert table[-2:] == [["common.seed", "1", "1"], ["5", "2"]]


def test_charts_and_what_differs(tmp_path: Path) -> None:
    """Each curve is the log's, in a chart of its validation text, which is known by its content."""
    shared = ("task=translation", "checkpoint.best_checkpoint_metric=bleu")
    for name, valid, curve, data in (("w", "one", "a", "31"), ("x", "other", "b", "1"), ("y", "one", "b", "12"),
                                     ("z", "one", "b", "")):  # fmt: skip
        make_run(tmp_path / name, *shared, f"task.valid={valid}", curve=curve, data=data)
    runs = read_runs([tmp_path / name for name in "wxyz"])
    a, b = ({update: loss for update, loss, _ in CURVES[curve]} for curve in "ab")
    found = charts(runs)
    texts = ["one", f"one {'1' * 12}", f"one {'2' * 12}"]
    assert [*found] == ["train/loss", *(f"valid/{score}, {text}" for score in ("BLEU", "loss") for text in texts)]
    assert [found[f"valid/loss, {text}"] for text in texts] == [{3: b}, {0: a, 1: b}, {2: b}]
    assert found["train/loss"][1] == {update: loss + 1 for update, loss in b.items()}
    assert re.search(r"^data of valid +1{12} +1 2\n +2{12} +3\n +- +4$", text_table(runs), re.MULTILINE)


@pytest.mark.slow
def test_sessions(runs: Path, tmp_path: Path) -> None:
    """A continued run has another session, and a changed version is among the differences."""
    run = tmp_path / "run"
    shutil.copytree(runs / "fconv", run)
    assert command("train", f"run_dir={run}", f"config={run}/config.yaml", "optimization.max_update=31").code == 0
    first, second = read_sessions(run)
    assert read_sessions(runs / "fconv") == [first]
    assert {*first["data"]} == {"train", "valid"}
    assert second["command"] == [first["command"][0], f"config={run}/config.yaml", "optimization.max_update=31"]
    record = json.loads((run / PROVENANCE).read_text())
    record["sessions"][-1]["torch"] = "0.1"
    (run / PROVENANCE).write_text(json.dumps(record))
    table = text_table(read_runs([runs / "fconv", run]))
    for name, one, other in (("torch", versions()["torch"], "0.1"), ("optimization.max_update", "30", "31")):
        assert re.search(rf"^{name} +{re.escape(one)} +1\n +{other} +2$", table, re.MULTILINE), table


def test_outputs_are_not_recorded() -> None:
    """A decode that is repeated would overwrite them; a job has no record."""
    outputs = {key.name.partition(".")[0] for key in keys_of(GenerateConfig) if key.role == "output_path"}
    assert outputs - {"job"} <= {*OUTPUTS}


@pytest.mark.slow
def test_a_record_repeats_a_decode(runs: Path, tmp_path: Path) -> None:
    lines = tmp_path / "in.en"
    lines.write_text("the dog sees a man\nthe man has a tree\n")
    (tmp_path / "keys.yaml").write_text("generation.beam: 3\n")
    output, record = tmp_path / "out", tmp_path / "record.json"
    given = [f"config={tmp_path}/keys.yaml", f"path={runs}/fconv", f"input={lines}", f"output={output}"]
    given += ["generation.length_penalty=1", f"trace={tmp_path}/t.jsonl", "trace_options.sentences=1"]
    assert command("generate", *given, f"record={record}", "format=json").code == 0
    found = json.loads(record.read_text())
    assert found["keys"] == {"generation.beam": "3", "path": f"{runs}/fconv", "input": str(lines), "format": "json",
        "generation.length_penalty": "1"}  # fmt: skip
    assert (found["settings"]["beam"], found["input"]["lines"], found["output"]["lines"]) == (3, 2, 2)
    assert found["output"]["sha256"] == hashlib.sha256(output.read_bytes()).hexdigest()
    assert {Path(name).name for name in found["files"]} >= {"model.safetensors", "config.yaml", "in.en"}
    again = command("generate", f"config={record}", f"output={tmp_path}/again")
    assert (again.code, "changed" in again.err) == (0, False), again.err
    assert (tmp_path / "again").read_bytes() == output.read_bytes()
    assert not any("training_state" in name for name in found["files"]), "outputs do not depend on it"
    lines.write_text("a man\n")
    assert f"{lines} has changed since then" in command("generate", f"config={record}").err
    lines.unlink()
    assert changes({**found, "torch": "0.1"}) == [
        f"{lines} does not exist any more",
        f"the version of torch was 0.1 and is now {versions()['torch']}",
    ]
    refused(command("train", f"config={record}"), "which is for seqgen-generate")
