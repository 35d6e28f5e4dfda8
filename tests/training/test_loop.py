"""Training runs: accumulation, stopping, validation, and resuming exactly where a run was interrupted."""

import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from seqgen.checkpoints.run_checkpoints import Checkpoints, read_weights, resolve
from seqgen.config.compose import compose
from seqgen.extend import TrainConfig, ValidationResult
from seqgen.metrics import text_scores
from seqgen.training.run_log import RunLog
from seqgen.training.trainer import Trainer, UpdateResult
from seqgen.training.triggers import Triggers
from tests.training_runs import Lab, assert_identical, everything, names, records

# -- one update -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "decay"), [("fconv_tiny", 0.0), ("fconv_tiny", 0.5), ("transformer_tiny", 0.5)])
def test_train_validate_train_again(lab: Lab, model: str, decay: float) -> None:
    """Validation leaves nothing behind in training, nor training in a later validation (no stale cached weight)."""
    options = [f"optimization.ema_decay={decay}", "dataset.validate_decode=20", "optimization.lr=[1e-2]"]
    if model == "fconv_tiny":
        tiny = [f"model.{side}_{key}" for side in ("encoder", "decoder") for key in ("embed_dim=8", "layers=[(8,3)]*2")]
        options = [f"model={model}", *tiny, *options]
    one, other = lab.run(f"{model}-1", *options), lab.run(f"{model}-2", *options)
    losses = []
    for _ in range(4):
        for run in (one, other):
            run._update([next(iter(run.iterator))], epoch=1)
        scores = one.validator.validate().scores
        losses.append(scores["loss"])
    assert len(set(losses[1:])) == 3  # the first update of a warm-up changes nothing
    assert_identical(one.trainer.weights(), other.trainer.weights())
    fresh = lab.run(f"{model}-3", *options)
    fresh.trainer.load_state_dict(one.trainer.weights(), one.trainer.state_dict(), "memory")
    assert fresh.validator.validate().scores == scores


def test_the_loss_of_a_mixture_is_that_of_all_parts(lab: Lab) -> None:
    run = lab.run("mixture")
    validator, model = run.validator, run.trainer.model.eval()
    parts = {"a": validator.iterators[""], "b": replace(run.iterator, max_tokens=100, shuffle=False)}
    sums = [validator._sums(model, iterator, None) for iterator in parts.values()]
    validator.iterators = parts
    scores = validator._loss(model)
    losses, sizes = ([one[name] for one in sums] for name in ("loss", "sample_size"))
    assert scores["loss"] == pytest.approx(sum(losses) / sum(sizes), rel=1e-12)
    assert [scores["a.loss"], scores["b.loss"]] == [loss / size for loss, size in zip(losses, sizes, strict=True)]


@pytest.mark.parametrize("precision", ["common.seed=2", "common.bf16=true", "common.fp16=true"])
def test_it_learns(lab: Lab, precision: str) -> None:
    run = lab.train(precision, precision, "optimization.max_update=8", "optimization.lr=[1e-2]")
    losses = [row["loss"] for row in records(run)]
    assert losses[-1] < losses[0] - 0.1
    assert all(w.dtype == torch.float32 for w in read_weights(resolve(run)).values())


# -- the loop -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["optimization.max_update=3"], "max_update=3 reached"),
        (["optimization.max_epoch=1"], "max_epoch=1 reached"),
        (["checkpoint.patience=2", "optimization.lr=[0.0]"], "no better score in patience=2 validations"),
    ],
)
def test_reasons_to_stop(lab: Lab, overrides: list[str], reason: str, request: pytest.FixtureRequest) -> None:
    run = lab.train(f"stop-{reason[:8]}", *overrides)
    stop = records(run, "stop")[-1]
    assert stop["reason"] == reason
    if "patience" in reason:
        assert len(records(run, "valid")) == 3  # the best one and two that are not better
    assert {"best", "last"} <= names(run)
    update = stop["update"]
    lab.train(f"stop-{reason[:8]}", *overrides)  # again: it knows that it has ended
    assert records(run, "stop")[-1]["update"] == update


def test_limits_of_a_training_by_hand() -> None:
    keys = ("optimization.stop_time_hours=2", "optimization.stop_min_lr=1e-3", "lr_scheduler.warmup_updates=10")
    triggers = Triggers(compose(TrainConfig, [*keys, "checkpoint.patience=3", "optimization.update_freq=[1,2,4]"]))

    def reason(update: int = 20, seconds: float = 7199.0, stale: int = 2, lr: float = 0.01) -> str:
        return triggers.reason_to_stop(update, 1, seconds, stale, lr)

    assert reason() == reason(update=9, lr=1e-4) == reason(update=0, seconds=9e9) == ""
    assert reason(seconds=7200.0) == "stop_time_hours=2 reached"
    assert reason(lr=1e-3) == "stop_min_lr=0.001 reached"
    assert reason(stale=3) == "no better score in patience=3 validations"
    assert [triggers.update_freq(epoch) for epoch in (1, 2, 3, 4, 9)] == [1, 2, 4, 4, 4]


@pytest.mark.parametrize(
    ("metric", "told", "best"),
    [
        ("accuracy", [-50.0, -40.0, -60.0, -60.0], [True, False, True, False, False]),
        ("loss", [50.0, 40.0, 60.0, 40.0], [True, True, False, False, False]),
    ],
)
def test_schedules_and_the_best_checkpoint_know_the_direction_of_a_metric(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, metric: str, told: list[float], best: list[bool]
) -> None:
    """Of equal scores the first is the best one, and a score that is no number never is."""
    run = lab.run(metric, f"checkpoint.best_checkpoint_metric={metric}")
    values, scores = iter([*map(abs, told), math.nan]), list[float]()
    monkeypatch.setattr(run.trainer.scheduler, "on_validation", scores.append)
    run.observers.clear()
    monkeypatch.setattr(run.validator, "validate", lambda: ValidationResult({metric: next(values)}))
    assert [run._validate(1) for _ in best] == best
    assert scores[:-1] == told


def test_what_is_saved_when(lab: Lab) -> None:
    keys = "checkpoint.save_interval_updates=4 checkpoint.keep_interval_updates=2 checkpoint.keep_last_epochs=1"
    run = lab.train("saves", keys, "optimization.max_update=14 dataset.validate_interval=0")
    epochs = {path for path in names(run) if path.startswith("epoch")}
    assert names(run) == {"last", "update_8", "update_12"} | epochs
    assert len(epochs) == 1
    assert everything(run)["state"]["update"] == 14
    assert not records(run, "valid")


def test_scores_are_those_of_the_log(lab: Lab) -> None:
    decoding = ("dataset.validate_decode=20", "checkpoint.best_checkpoint_metric=bleu", "optimization.lr=[2e-2]")
    run = lab.train("scores", "optimization.max_epoch=3", *decoding)
    clock = ("time", "update", "epoch", "event")

    def check() -> None:
        rows = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
        valid = [row for row in rows if row["event"] == "valid"]
        content = json.loads((run / "scores.json").read_text())
        for name, row in (("last", valid[-1]), ("best", max(valid, key=lambda row: row["bleu"]))):
            entry = content[name]
            assert [[*sample] for sample in row["samples"]] == [["source", "hypothesis", "reference"]] * 5
            assert entry["scores"] == {key: value for key, value in row.items() if key not in (*clock, "samples")}
            assert [entry[key] for key in clock[:3]] == [row[key] for key in clock[:3]]
        assert everything(run, "best")["state"]["update"] == content["best"]["update"]
        assert content["metric"] == "bleu"
        scored = text_scores(["a"], ["a"])
        assert content["signatures"] == {name: scored[name].signature for name in ("bleu", "chrf")}

    check()
    # a process was killed after it had validated and before it saved: its scores are forgotten with its updates
    update = everything(run)["state"]["update"] + 1
    killed = RunLog(run, "bleu", {})
    killed.restore(update)
    killed.write("valid", update, 4, {"bleu": 100.0, "loss": math.nan})
    assert json.loads((run / "scores.json").read_text())["best"]["scores"] == {"bleu": 100.0, "loss": None}
    lab.train("scores", "optimization.max_epoch=4", *decoding)
    check()


def test_checkpoints_in_time(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within an epoch, minutes after the last one, and replaced by the next one."""
    clock, saved = [0.0], []
    original, written = Trainer.train_update, Checkpoints.save

    def train_update(trainer: Trainer, *args: Any) -> UpdateResult:
        clock[0] += 120
        return original(trainer, *args)

    def save(checkpoints: Checkpoints, chosen: list[str], weights: Any, state: Any) -> None:
        saved.append((state["update"], chosen))
        written(checkpoints, chosen, weights, state)

    monkeypatch.setattr(Trainer, "train_update", train_update)
    monkeypatch.setattr(Checkpoints, "save", save)
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    keys = ["checkpoint.save_interval=0", "dataset.validate_interval=0", "optimization.max_update=8"]
    for minutes, updates in ((5, [3, 6, 8]), (0, [8])):
        saved.clear()
        lab.train(f"every-{minutes}", *keys, f"checkpoint.save_interval_minutes={minutes}")
        assert saved == [(update, ["last"]) for update in updates]


def test_divergence_is_said(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["optimization.max_update=3", "common.log_format=lines"]
    lab.train("calm", *few)
    assert "diverges" not in capsys.readouterr().err
    lab.train("wild", *few, "optimization.lr=[1e5]", "optimization.clip_norm=0", "dataset.max_tokens=20")
    assert capsys.readouterr().err.count("training diverges: at update") == 1


@pytest.fixture(scope="module")
def start(lab: Lab) -> str:
    return f"checkpoint.finetune_from={lab.train('start', 'optimization.max_update=3')}"


def test_finetune_begins_anew_from_weights(lab: Lab, start: str) -> None:
    """The first update of a warm-up has a rate of zero, so weights and average are still those of the source."""
    keys = ["optimization.max_update=1", "lr_scheduler.warmup_updates=9", "optimization.ema_decay=0.99"]
    run = lab.train("finetuned", start, *keys)
    for name in ("best", "last"):
        assert_identical(read_weights(run / "checkpoints" / name), read_weights(resolve(lab.root / "start")))
    assert everything(run)["state"]["update"] == 1


@pytest.mark.parametrize(
    ("lr", "ranks"), [("1e-3", ["best so far"] * 3), ("2", ["best so far", *["worse than the start"] * 2])]
)
def test_the_weights_to_finetune_are_validated(
    lr: str, ranks: list[str], lab: Lab, start: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are the best checkpoint until an update improves the score."""
    keys = "optimization.max_update=4 dataset.validate_interval_updates=2 optimization.clip_norm=0"
    run = lab.train(f"tuned-{lr}", start, keys, f"optimization.lr=[{lr}] common.log_format=lines")
    said = re.findall(r"valid at update (\d+) .*\| (best so far|worse than the start)$", capsys.readouterr().err, re.M)
    assert said == [*zip("024", ranks, strict=True)]
    assert everything(run, "best")["state"]["update"] == (4 if ranks[-1] == "best so far" else 0)
    assert [record["update"] for record in records(run, "valid")] == [0, 2, 4]


def test_tensorboard_has_scalars_and_samples(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.summary.writer import event_file_writer

    # The files that one process writes within a second are read in the order of their numbers as text: 10 before 9.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    overrides = ["common.tensorboard=true", "dataset.validate_decode=5"]
    run = lab.train("board", "optimization.max_update=4", *overrides)
    for _ in range(2):  # the second time nothing is left to do
        lab.train("board", "optimization.max_update=8", *overrides)
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    tags = {"train/loss", "train/lr", "train/tokens_per_second", "valid/loss", "valid/bleu"}
    assert tags <= {*events.Tags()["scalars"]}
    assert [event.step for event in events.Scalars("train/loss")] == [2, 4, 6, 8]
    assert "valid/samples/text_summary" in events.Tags()["tensors"]
    assert not [tag for tag in events.Tags()["scalars"] if tag.startswith(("start/", "resume/", "stop/"))]


def test_the_first_validation_is_of_the_whole_split(lab: Lab) -> None:
    """Although some batches were read before, to see whether there is the score that ranks checkpoints."""
    plain, ranked = (lab.run(name, f"checkpoint.best_checkpoint_metric={name}") for name in ("loss", "ppl"))
    for _ in range(2):
        assert ranked.validator.validate().scores == plain.validator.validate().scores
