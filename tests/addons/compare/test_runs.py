"""``seqgen-show``, the sessions of a run, and records of decodes."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

import seqgen.models
import seqgen.tasks  # noqa: F401  # declares the built-in tasks
from seqgen.addons.compare.curves import charts
from seqgen.addons.compare.runs import (
    MISSING,
    as_dict,
    differences,
    read_run,
    read_runs,
    sort_runs,
    text_table,
)
from seqgen.checkpoints.run_config import flatten
from seqgen.cli.keys import keys_of
from seqgen.cli.provenance import PROVENANCE, read_sessions, versions
from seqgen.cli.record import OUTPUTS, changes, model_digests
from seqgen.config import GenerateConfig, TrainConfig
from seqgen.config.compose import compose
from seqgen.config.values import to_dict
from seqgen.registry import MODELS
from tests.commands import SMALL_FCONV, command, corpus, training_arguments

CURVES = {"a": [(1, 5.0, 0.5), (2, 3.0, 12.25), (3, 4.0, 9.0)], "b": [(1, 6.0, 1.0), (2, 2.0, 3.0)]}


def make_run(folder: Path, *keys: str, curve: str = "a") -> Path:
    """A run folder as an older version wrote it: no record of its sessions."""
    folder.mkdir(parents=True)
    plain = to_dict(compose(TrainConfig, ["checkpoint.best_checkpoint_metric=loss", *keys]))
    del plain["run_dir"]
    (folder / "config.yaml").write_text(yaml.safe_dump(plain, sort_keys=False))
    time = "2026-01-01T00:00:{:02}+00:00"
    log: list[dict[str, Any]] = [{"event": "start", "time": time.format(0), "update": 0, "epoch": 1, "parameters": 77}]
    for update, loss, bleu in CURVES[curve]:
        shared = {"time": time.format(10 * update), "update": update, "epoch": 1}
        log.append({"event": "train", **shared, "loss": loss + 1, "tokens_per_second": 100.0 * update, "lr": 0.1})
        log.append({"event": "valid", **shared, "loss": loss, "BLEU": bleu})
    log.append({"event": "stop", **shared, "reason": "max_update=3 reached", "seconds": 3661.0})
    (folder / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in log))
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one update."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "keys.yaml").write_text("optimization.lr: 0.002\ngeneration: {beam: 2}\n")
    arguments = [*training_arguments(data, folder / "run"), *SMALL_FCONV, "optimization.max_update=1"]
    outcome = command("train", f"config={folder}/keys.yaml", *arguments, "optimization.clip_norm=1.0")
    assert outcome.code == 0, outcome.err
    return folder


def test_what_a_run_is(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "a"))
    assert (run.best, run.best_update, run.metric) == ({"loss": 3.0, "BLEU": 12.25}, 2, "loss")
    assert (run.parameters, run.updates, run.seconds, run.tokens_per_second) == (77, 3, 3661.0, 200.0)
    assert (run.epoch, run.stopped) == (1, "max_update=3 reached")
    assert run.problems == []


def test_the_best_checkpoint_by_a_score_that_should_be_high(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "b", "checkpoint.best_checkpoint_metric=bleu", curve="b"))
    assert (run.best, run.best_update) == ({"loss": 2.0, "BLEU": 3.0}, 2)
    times = [f"2026-01-0{day}T00:00:30+00:00" for day in (1, 3, 4)]
    rows = [json.dumps({"event": "train", "time": time}) for time in times]
    (run.folder / "log.jsonl").write_text("\n".join(rows))
    assert read_run(run.folder).seconds == 3 * 24 * 3600, "of a training that was killed"


def test_a_record_knows_the_files_that_have_changed(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoints" / "last"
    checkpoint.mkdir(parents=True)
    for name in ("model.safetensors", "training_state.json", "training_state.safetensors"):
        (checkpoint / name).write_text(name)
    digests = {str(file): value for file, value in model_digests(checkpoint).items()}
    assert list(digests) == [str(checkpoint / "model.safetensors")], "outputs do not depend on the state of training"
    record = {"files": digests, **versions()}
    assert changes(record) == []
    (checkpoint / "model.safetensors").write_text("others")
    assert changes({**record, "torch": "0.1"}) == [
        f"{checkpoint}/model.safetensors has changed since then",
        f"the version of torch was 0.1 and is now {versions()['torch']}",
    ]
    (checkpoint / "model.safetensors").unlink()
    assert changes(record) == [f"{checkpoint}/model.safetensors does not exist any more"]


def test_differences_leave_out_defaults_of_other_components(tmp_path: Path) -> None:
    """By hand: the models differ, and beside them only what was set."""
    make_run(tmp_path / "a", "model=fconv_tiny", "common.seed=1")
    make_run(tmp_path / "b", "model=transformer_tiny", "common.seed=2", "model.activation_fn=gelu")
    runs = read_runs([tmp_path / "a", tmp_path / "b"])
    found = differences(runs)
    presets = [dict(flatten(to_dict(MODELS.config(name)))) for name in ("fconv_tiny", "transformer_tiny")]
    defaults = [dict(flatten(to_dict(MODELS.entry(name).config()))) for name in ("fconv", "transformer")]
    wanted = {
        f"model.{key}"
        for own, default, other in zip(presets, defaults, presets[::-1], strict=True)
        for key, value in own.items()
        if (key in other and other[key] != value) or (key not in other and value != default[key])
    }
    assert {*found} == {"model._name", "common.seed", "model.activation_fn", *wanted}
    assert found["model.activation_fn"] == [MISSING, "gelu"]


def test_an_older_version_had_fewer_keys(tmp_path: Path) -> None:
    for name in "ab":
        make_run(tmp_path / name)
    plain = yaml.safe_load((tmp_path / "a/config.yaml").read_text())
    del plain["generation"]["beam"], plain["model"]["dropout"]
    plain["dataset"]["gone"] = 1
    (tmp_path / "a/config.yaml").write_text(yaml.safe_dump(plain))
    assert differences(read_runs([tmp_path / "a", tmp_path / "b"])) == {"dataset.gone": [1, MISSING]}


def test_sorting(tmp_path: Path) -> None:
    make_run(tmp_path / "x", "optimization.lr=[0.1]")
    make_run(tmp_path / "y", "optimization.lr=[0.02]", curve="b")
    (tmp_path / "z").mkdir()
    (tmp_path / "z/config.yaml").write_text("{}")
    runs = read_runs([tmp_path / name for name in "xyz"])
    for by, order in (
        ("", "xyz"), ("loss", "yxz"), ("bleu", "xyz"), ("BLEU", "xyz"), ("updates", "yxz"), ("name", "xyz"),
        ("tokens_per_second", "xyz"), ("tokens/s", "xyz"), ("time", "xyz"), ("run", "xyz"), ("optimization.lr", "zyx"),
        ("model._name", "xyz"), ("model", "xyz"), ("optimizer", "xyz"),
    ):  # fmt: skip
        assert "".join(run.name for run in sort_runs(runs, by)) == order, by


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("log.jsonl", b"\xff\n[1]\n{\"event\": \"valid\", \"update\": \"x\", \"loss\": NaN}\n{"),
        ("log.jsonl", None),
        ("scores.json", b"{\"best\": null, \"metric\": 3}"),
        ("config.yaml", b"a: [\n"),
        ("config.yaml", b"[1, 2]"),
        ("config.yaml", b"model: {_name: unheard}\n"),
        (PROVENANCE, b'{"format": "seqgen-provenance", "version": 1, "sessions": [1, {}]}'),
        (PROVENANCE, b"[]"),
    ],
)  # fmt: skip
def test_damaged_runs_are_shown(tmp_path: Path, file: str, content: bytes | None) -> None:
    folders = [make_run(tmp_path / name) for name in "ab"]
    (folders[0] / file).unlink(missing_ok=True)
    if content is not None:
        (folders[0] / file).write_bytes(content)
    runs = read_runs(folders)
    assert text_table(runs).count("a ") >= 1
    if not runs[0].config:
        assert text_table(runs).endswith("what differs is not known: the configuration of a cannot be read")
    assert json.loads(json.dumps(as_dict(runs), allow_nan=False))["runs"][1]["updates"] == 3


def test_a_run_with_numbers_that_json_lacks(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "runs/a")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["optimization"] |= {"lr": float("inf"), "clip_norm": float("nan")}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    make_run(tmp_path / "runs/b", "optimization.lr=[0.1,0.2]")
    for sort in ("", "optimization.clip_norm", "optimization.lr"):
        outcome = command("show", f"{tmp_path}/runs", f"sort={sort}", "json=-")
        assert outcome.code == 0, outcome.err
        found = {run["name"]: run["differs"]["optimization.lr"] for run in json.loads(outcome.out)["runs"]}
        assert found == {"a": None, "b": [0.1, 0.2]}


def test_the_command(tmp_path: Path) -> None:
    make_run(tmp_path / "runs/x/1")
    make_run(tmp_path / "runs/x/2", "common.seed=5", curve="b")
    converted, failed = make_run(tmp_path / "runs/converted"), make_run(tmp_path / "runs/failed")
    (converted / "checkpoints").mkdir()
    for folder in (converted, failed):
        (folder / "log.jsonl").unlink()
    outcome = command("show", f"{tmp_path}/runs", "sort=loss", "json=-")
    assert (outcome.code, outcome.err) == (0, "")
    found = json.loads(outcome.out)["runs"]
    assert [run["name"] for run in found] == ["2", "1", "converted"]
    assert "training did not begin in it" in command("show", f"{failed}").err
    assert found[0]["differs"] == {"common.seed": 5}
    twice = command("show", f"path={tmp_path}/runs", "sort=loss", "sort=bleu")
    assert "sort=loss is not used, because sort=bleu comes later" in twice.err
    table = command("show", f"{tmp_path}/runs/x/1", f"{tmp_path}/runs/x/2", "sort=bleu").out.splitlines()
    assert table[0].split() == ["run", "updates", "BLEU", "loss", "tokens/s", "time"]
    mixed = command("show", f"{tmp_path}/runs/x/1", f"path={tmp_path}/runs/x/2", "sort=bleu")
    assert mixed.out.splitlines() == table
    assert command("show", f"{tmp_path}/runs/x/1", f"{tmp_path}/runs/x/../x/1").out.count("1:01:01") == 1
    assert table[1].split() == ["1", "1", "3", "12.25", "3", "200", "1:01:01"]
    assert [line.split() for line in table[-2:]] == [["common.seed", "1", "1"], ["5", "2"]]


@pytest.mark.slow
def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "runs/x/1")
    monkeypatch.chdir(tmp_path)
    for arguments, words in (
        ([], "nothing to show"),
        ([f"{tmp_path}/no"], "there is no such folder"),
        ([f"{tmp_path}/runs", "page=-"], "page=-: a page is not written to standard output"),
        ([f"{tmp_path}/runs", "page=x", "json=x"], "page=x would overwrite the output x"),
        (["runs", "languages=true", "sort=loss"], "sort=loss has no effect on languages"),
        (["runs", "json"], "json: there is no such folder"),
    ):
        wrong = command("show", *arguments)
        assert (wrong.code, wrong.err.count("\n")) == (2, 1), wrong.err
        assert words in wrong.err


def test_the_page_of_runs(tmp_path: Path) -> None:
    """Each curve is the log's, in a chart of its validation text; names are text."""
    pytest.importorskip("matplotlib")
    shared = ("task=translation", "checkpoint.best_checkpoint_metric=bleu")
    for name, valid, curve in (("<b>", "one", "a"), ("y", "other", "b"), ("z", "one", "b")):
        make_run(tmp_path / "runs" / name, *shared, f"task.valid={valid}", curve=curve)
    runs = read_runs([tmp_path / "runs" / name for name in ("<b>", "y", "z")])
    a, b = ({update: loss for update, loss, _ in CURVES[curve]} for curve in "ab")
    found = charts(runs)
    assert [*found] == ["train/loss", "valid/BLEU, one", "valid/BLEU, other", "valid/loss, one", "valid/loss, other"]
    assert (found["valid/loss, one"], found["valid/loss, other"]) == ({0: a, 2: b}, {1: b})
    assert found["train/loss"][1] == {update: loss + 1 for update, loss in b.items()}
    outcome = command("show", f"{tmp_path}/runs", "sort=loss", f"page={tmp_path}/page.html")
    page = (tmp_path / "page.html").read_text()
    assert (outcome.code, page.count("<svg"), page.count("</li>")) == (0, 5, 3), outcome.err
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert re.search(r"^task.valid +other +1\n +one +2 3<", page, re.MULTILINE), page
    assert "optimization.lr" not in page, "equal in all runs"


@pytest.mark.slow
def test_sessions(trained: Path, tmp_path: Path) -> None:
    """A continued run has another session, and a changed version or text is among the differences."""
    run = tmp_path / "run"
    shutil.copytree(trained / "run", run)
    assert command("train", f"run_dir={run}", f"config={run}/config.yaml", "optimization.max_update=2").code == 0
    first, second = read_sessions(run)
    assert read_sessions(trained / "run") == [first]
    assert {*first["data"]} == {"train", "valid"}
    assert second["command"] == [first["command"][0], f"config={run}/config.yaml", "optimization.max_update=2"]
    record = json.loads((run / PROVENANCE).read_text())
    record["sessions"][-1] |= {"torch": "0.1", "data": {**second["data"], "train": "0" * 64}}
    (run / PROVENANCE).write_text(json.dumps(record))
    table = text_table(read_runs([trained / "run", run]))
    for name, one, other in (
        ("torch", versions()["torch"], "0.1"),
        ("data of train", first["data"]["train"][:12], "0" * 12),
        ("optimization.max_update", "1", "2"),
    ):
        assert re.search(rf"^{name} +{re.escape(one)} +1\n +{other} +2$", table, re.MULTILINE), table


def test_outputs_are_not_recorded() -> None:
    """A decode that is repeated would overwrite them; a job has no record."""
    outputs = {key.name.partition(".")[0] for key in keys_of(GenerateConfig) if key.role == "output_path"}
    assert outputs - {"job"} <= {*OUTPUTS}


@pytest.mark.slow
def test_a_record_repeats_a_decode(trained: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = tmp_path / "in.en"
    lines.write_text("the dog sees a man\nthe man has a tree\n")
    (tmp_path / "keys.yaml").write_text("generation.beam: 3\n")
    output, record = tmp_path / "out", tmp_path / "record.json"
    given = [f"config={tmp_path}/keys.yaml", f"path={trained}/run", f"input={lines}", f"output={output}"]
    given += ["generation.length_penalty=1", f"trace={tmp_path}/t.jsonl", "trace_options.sentences=1"]
    (tmp_path / "1").write_text("")
    monkeypatch.chdir(tmp_path)  # where a file has the name of a value
    assert command("generate", *given, f"record={record}", "format=json").code == 0
    found = json.loads(record.read_text())
    assert found["keys"] == {"generation.beam": "3", "path": f"{trained}/run", "input": str(lines), "format": "json",
        "generation.length_penalty": "1"}  # fmt: skip
    assert "1" not in found["files"]
    assert (found["settings"]["beam"], found["input"]["lines"], found["output"]["lines"]) == (3, 2, 2)
    assert found["output"]["sha256"] == __import__("hashlib").sha256(output.read_bytes()).hexdigest()
    assert {Path(name).name for name in found["files"]} >= {"model.safetensors", "config.yaml", "in.en"}
    again = command("generate", f"config={record}", f"output={tmp_path}/again")
    assert (again.code, "changed" in again.err) == (0, False), again.err
    assert (tmp_path / "again").read_bytes() == output.read_bytes()
    with lines.open("a") as file:
        file.write("a man\n")
    assert f"{lines} has changed since then" in command("generate", f"config={record}").err
    for arguments, words in (
        (("train", f"config={record}"), "which is for seqgen-generate"),
        (("generate", *given, "record=-"), "record=- is not possible"),
        (("generate", *given, f"record={output}"), "would overwrite"),
        (("generate", *given, f"record={tmp_path}/no/r.json"), "does not exist"),
    ):
        wrong = command(*arguments)
        assert wrong.code == 2
        assert words in wrong.err
