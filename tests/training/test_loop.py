"""Training runs: accumulation, stopping, validation, and resuming exactly where a run was interrupted."""

from __future__ import annotations

import json
import math
import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from seqgen.checkpoints.run_checkpoints import Checkpoints, read_weights, resolve
from seqgen.cli.run_folder import write_config
from seqgen.config import TrainConfig
from seqgen.config.compose import compose
from seqgen.core.errors import CheckpointError, ConfigError
from seqgen.metrics import text_scores
from seqgen.modules.linear import TRAINING
from seqgen.training import training_loop
from seqgen.training.distributed import ProcessGroup
from seqgen.training.run_log import RunLog
from seqgen.training.train import StopSignals
from seqgen.training.trainer import NonFiniteError, Trainer, UpdateResult
from seqgen.training.training_loop import TrainingRun
from seqgen.training.triggers import Triggers
from seqgen.training.validation import ValidationResult
from tests.training_runs import Lab, assert_identical, everything, lab, records

__all__ = ["lab"]


def names(run: Path) -> set[str]:
    return {path.name for path in (run / "checkpoints").iterdir()}


def training_run(lab: Lab, name: str, *overrides: str) -> TrainingRun:
    cfg = lab.config(*overrides)
    folder = lab.root / name
    folder.mkdir(exist_ok=True)
    return TrainingRun(cfg, lab.task(cfg, folder), folder, torch.device("cpu"), ProcessGroup(), StopSignals())


# -- one update -----------------------------------------------------------------------------------------------------


def test_a_resumed_run_keeps_its_kernel(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TRAINING, "onednn", False)
    lab.train("kernel", "optimization.max_update=1")
    TRAINING.onednn = True
    lab.train("kernel", "optimization.max_update=2")
    assert TRAINING.onednn is False


def test_accumulated_batches_are_one_large_batch(lab: Lab) -> None:
    """The gradient is that of the mean over all tokens, however they are spread over batches."""
    parts = []
    for batches in (1, 3):
        run = training_run(lab, "accumulate", "model.dropout=0.0", "optimizer=sgd", "optimization.clip_norm=0")
        run.trainer.model.double()
        examples = [run.iterator.dataset.example(i, epoch=1, seed=1) for i in range(9)]
        chunks = [examples[start : start + 9 // batches] for start in range(0, 9, 9 // batches)]
        result = run.trainer.train_update([run.iterator.collate(chunk) for chunk in chunks], epoch=9)
        assert result.sums["sample_size"] == sum(len(example.target) for example in examples)
        parts.append((result.gnorm, result.sums["loss"], [param.grad.clone() for param in run.trainer.params]))
    assert parts[0][0] == pytest.approx(parts[1][0], rel=1e-6)
    assert parts[0][1] == pytest.approx(parts[1][1], rel=1e-6)
    for one, other in zip(parts[0][2], parts[1][2], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("clip", [0.0, 0.01, 100.0])
def test_clipping(lab: Lab, clip: float) -> None:
    run = training_run(lab, "clip", f"optimization.clip_norm={clip}")
    result = run.trainer.train_update([next(iter(run.iterator))], epoch=1)
    norm = math.sqrt(sum(param.grad.square().sum().item() for param in run.trainer.params))
    assert norm == pytest.approx(min(result.gnorm, clip) if clip else result.gnorm, rel=1e-3)


def test_the_average_follows_the_weights(lab: Lab) -> None:
    run = training_run(lab, "ema", "optimization.ema_decay=0.25", "lr_scheduler=fixed")
    name, param = next(iter(run.trainer.model.named_parameters()))
    wanted = param.detach().clone()
    for update in range(1, 6):
        run.trainer.train_update([next(iter(run.iterator))], epoch=1)
        decay = min(0.25, update / (update + 9))
        wanted = decay * wanted + (1 - decay) * param.detach()
    torch.testing.assert_close(run.trainer.weights()[name], wanted)
    assert not torch.equal(param, wanted)


@pytest.mark.parametrize("model", ["fconv_tiny", "transformer_tiny"])
@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_train_validate_train_again(lab: Lab, model: str, decay: float) -> None:
    """Validation leaves nothing behind in training, nor training in a later validation (no stale cached weight)."""
    options = [f"optimization.ema_decay={decay}", "dataset.validate_decode=20", "optimization.lr=[1e-2]"]
    if model == "fconv_tiny":
        tiny = [f"model.{side}_{key}" for side in ("encoder", "decoder") for key in ("embed_dim=8", "layers=[(8,3)]*2")]
        options = [f"model={model}", *tiny, *options]
    one, other = training_run(lab, f"{model}-1", *options), training_run(lab, f"{model}-2", *options)
    losses = []
    for _ in range(4):
        for run in (one, other):
            run.trainer.train_update([next(iter(run.iterator))], epoch=1)
        scores = one.validator.validate().scores
        losses.append(scores["loss"])
    assert len(set(losses[1:])) == 3  # the first update of a warm-up changes nothing
    assert_identical(one.trainer.weights(), other.trainer.weights())
    fresh = training_run(lab, f"{model}-3", *options)
    fresh.trainer.load_state_dict(one.trainer.weights(), one.trainer.state_dict(), "memory")
    assert fresh.validator.validate().scores == scores


def test_the_loss_of_a_mixture_is_that_of_all_parts(lab: Lab) -> None:
    run = training_run(lab, "mixture")
    validator, model = run.validator, run.trainer.model.eval()
    parts = {
        "a": validator.iterators[""],
        "b": replace(run.iterator, max_tokens=100, shuffle=False),
    }
    sums = [validator._sums(model, iterator, None) for iterator in parts.values()]
    validator.iterators = parts
    scores = validator._loss(model)
    losses, sizes = ([one[name] for one in sums] for name in ("loss", "sample_size"))
    assert scores["loss"] == pytest.approx(sum(losses) / sum(sizes), rel=1e-12)
    assert [scores["a.loss"], scores["b.loss"]] == [loss / size for loss, size in zip(losses, sizes, strict=True)]


class SecondOfTwo(ProcessGroup):
    """Rank 1 of two; the other rank's outputs are ``?``."""

    def gather(self, value: Any, patience: Any = None) -> list[Any]:
        return [["?"] * (5 - len(value)), value]


def test_each_rank_decodes_its_share_of_the_validation_sentences(lab: Lab) -> None:
    """Random weights give outputs that differ in their length alone, which is that of the source."""
    short = ["generation.match_source_len=true", "generation.beam=1", "generation.max_len_b=200"]
    run = training_run(lab, "shares", "dataset.validate_decode=5", *short)
    alone = [sample.hypothesis for sample in run.validator._decode_part(run.trainer.model, "")]
    run.trainer.group = SecondOfTwo(1, 2)
    shared = [sample.hypothesis for sample in run.validator._decode_part(run.trainer.model, "")]
    assert alone[0] != alone[1] != alone[3]
    assert shared == ["?", alone[1], "?", alone[3], "?"]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision(lab: Lab, precision: str) -> None:
    run = lab.train(precision, f"common.{precision}=true", "optimization.max_update=8", "optimization.lr=[1e-2]")
    losses = [row["loss"] for row in records(run)]
    assert losses[-1] < losses[0]
    assert all(w.dtype == torch.float32 for w in read_weights(resolve(run)).values())


def test_both_low_precisions(lab: Lab) -> None:
    with pytest.raises(ConfigError, match="cannot both be true"):
        training_run(lab, "both", "common.bf16=true", "common.fp16=true")


# -- losses that are not finite ---------------------------------------------------------------------------------------


@pytest.fixture
def nan_at(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Updates (from 1) whose loss is NaN."""
    updates: set[int] = set()
    original = Trainer._backward

    def poisoned(self: Trainer, batch: Any, place: int) -> Any:
        out = original(self, batch, place)
        if self.update + 1 in updates:
            out.loss = out.loss * math.nan
        return out

    monkeypatch.setattr(Trainer, "_backward", poisoned)
    return updates


def test_a_loss_that_is_not_finite_stops(lab: Lab, nan_at: set[int]) -> None:
    nan_at.add(5)
    with pytest.raises(NonFiniteError, match=r"update 5: the loss is nan on a batch with the sentences \d+, \d+.*skip"):
        lab.train("nan", "optimization.max_update=8")


def test_a_loss_that_is_not_finite_can_be_skipped(lab: Lab, nan_at: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    run = training_run(lab, "skip", "optimization.nonfinite_loss=skip")
    batches = iter(run.iterator)
    run.trainer.train_update([next(batches)], epoch=1)
    before = run.trainer.state_dict(), {k: v.clone() for k, v in run.trainer.weights().items()}
    nan_at.add(2)
    result = run.trainer.train_update([next(batches)], epoch=1)
    assert result.skipped
    assert run.trainer.update == 1
    assert_identical(run.trainer.weights(), before[1])
    nan_at.clear()
    assert not run.trainer.train_update([next(batches)], epoch=1).skipped
    nan_at.add(3)
    monkeypatch.setattr("seqgen.training.trainer.SKIPS", 4)
    batch = next(iter(run.iterator))
    for _ in range(3):
        assert run.trainer.train_update([batch], epoch=1).skipped
    run.trainer.load_state_dict(run.trainer.weights(), run.trainer.state_dict(), "the checkpoint")  # as a resumed run
    with pytest.raises(NonFiniteError, match="4 times in a row"):
        run.trainer.train_update([batch], epoch=1)


# -- the loop -----------------------------------------------------------------------------------------------------


def test_it_learns(lab: Lab) -> None:
    run = lab.train("learn", "optimization.max_epoch=8", "optimization.lr=[2e-2]")
    losses = [row["loss"] for row in records(run, "valid")]
    assert len(losses) == 8
    assert losses[-1] < losses[0] - 0.5


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


def test_a_postponed_validation_belongs_to_the_epoch_of_its_update(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the update ended its epoch, the iterator is already in the next one."""
    run = training_run(lab, "postponed")
    places: list[tuple[int, bool]] = []
    monkeypatch.setattr(run, "_after_update", lambda *place: places.append(place) or "")
    for ended in (True, False):
        run.iterator.epoch, run.pending = 4, ended
        run._catch_up()
    assert places == [(3, True), (4, False)]


@pytest.mark.parametrize(
    ("metric", "told", "best"),
    [
        ("accuracy", [-50.0, -40.0, -60.0], [True, False, True, False]),
        ("loss", [50.0, 40.0, 60.0], [True, True, False, False]),
    ],
)
def test_schedules_and_the_best_checkpoint_know_the_direction_of_a_metric(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, metric: str, told: list[float], best: list[bool]
) -> None:
    run = training_run(lab, metric, f"checkpoint.best_checkpoint_metric={metric}")
    values, scores = iter([50.0, 40.0, 60.0, math.nan]), list[float]()
    monkeypatch.setattr(run.trainer.scheduler, "on_validation", scores.append)
    monkeypatch.setattr(run, "log", mock.Mock(), raising=False)
    monkeypatch.setattr(run, "_note_divergence", mock.Mock())
    monkeypatch.setattr(run.validator, "validate", lambda: ValidationResult({metric: next(values)}))
    assert [run._validate(1) for _ in range(4)] == best
    assert scores[:3] == told


def test_what_is_saved_when(lab: Lab) -> None:
    run = lab.train(
        "saves",
        "optimization.max_update=14",
        "checkpoint.save_interval_updates=4",
        "checkpoint.keep_interval_updates=2",
        "checkpoint.keep_last_epochs=1",
        "dataset.validate_interval=0",
    )
    epochs = {path for path in names(run) if path.startswith("epoch")}
    assert names(run) == {"last", "update_8", "update_12"} | epochs
    assert len(epochs) == 1
    assert everything(run)["state"]["update"] == 14
    assert not records(run, "valid")


def test_best_is_by_any_metric(lab: Lab) -> None:
    run = lab.train(
        "best",
        "optimization.max_epoch=5",
        "optimization.lr=[2e-2]",
        "checkpoint.best_checkpoint_metric=chrF",
        "dataset.validate_decode=20",
        "checkpoint.keep_last_epochs=-1",
    )
    valid = records(run, "valid")
    assert {"loss", "nll_loss", "ppl", "accuracy", "bleu", "chrf", "exact_match"} <= valid[0].keys()
    assert all(row["ppl"] == pytest.approx(math.exp(row["nll_loss"])) for row in valid)
    best = max(valid, key=lambda row: row["chrf"])
    assert everything(run, "best")["state"]["update"] == best["update"]
    assert everything(run, "best")["state"]["best"] == best["chrf"]


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
            assert entry["scores"] == {key: value for key, value in row.items() if key not in clock}
            assert [entry[key] for key in clock[:3]] == [row[key] for key in clock[:3]]
        assert everything(run, "best")["state"]["update"] == content["best"]["update"]
        assert content["metric"] == "bleu"
        scored = text_scores(["a"], ["a"])
        assert content["signatures"] == {name: scored[name].signature for name in ("bleu", "chrf")}

    check()
    # a process was killed after it had validated and before it saved: its scores are forgotten with its updates
    update = everything(run)["state"]["update"] + 1
    killed = RunLog(run, update, lab.config(*decoding), {}, None, is_main=True)
    killed.write("valid", update, 4, {"bleu": 100.0, "loss": math.nan})
    assert json.loads((run / "scores.json").read_text())["best"]["scores"] == {"bleu": 100.0, "loss": None}
    lab.train("scores", "optimization.max_epoch=4", *decoding)
    check()


def test_scores_of_a_task_with_other_metrics_have_no_signature(lab: Lab) -> None:
    def metrics(self: Any, hypotheses: Any, references: Any) -> dict[str, float]:
        return {"bleu": 7.0}

    cfg = lab.config()
    task = lab.task(cfg, lab.root / "own")
    assert set(task.metric_signatures()) == {"bleu", "chrf"}
    scored = type("Scored", (type(task),), {"metrics": metrics})
    assert scored.metric_signatures(task) == {}


def test_a_metric_that_is_not_computed_is_noticed_before_training(lab: Lab) -> None:
    with pytest.raises(ConfigError, match=r"set dataset\.validate_decode"):
        lab.train("metric", "checkpoint.best_checkpoint_metric=bleu")
    for decoded, names in (("0", "loss, nll_loss, ppl, accuracy;"), ("1", "loss, nll_loss, ppl, accuracy, .*bleu")):
        with pytest.raises(ConfigError, match=f"not among the validation scores: {names}"):
            lab.train("metric", "checkpoint.best_checkpoint_metric=speed", f"dataset.validate_decode={decoded}")
    assert not (lab.root / "metric" / "log.jsonl").exists()
    run = lab.train("metric", "checkpoint.best_checkpoint_metric=accuracy", "optimization.max_update=1")
    assert json.loads((run / "scores.json").read_text())["best"]["scores"]["accuracy"] >= 0


def test_checkpoints_in_time(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within an epoch, minutes after the last one, and replaced by the next one; resuming from it is exact."""
    keys = ["checkpoint.save_interval=0", "dataset.validate_interval=0", "checkpoint.save_interval_minutes=5"]
    wanted = lab.train("undisturbed", *keys, "optimization.max_update=9")
    clock = [0.0]
    saved: list[tuple[int, list[str]] | None] = []

    class Killed(Exception):
        """Stands for a kill."""

    def train_update(trainer: Trainer, *args: Any) -> UpdateResult:
        if trainer.update == 5 and saved.pop(0) is None:
            raise Killed
        clock[0] += 120
        return original(trainer, *args)

    def save(checkpoints: Checkpoints, chosen: list[str], weights: Any, state: Any) -> None:
        saved.append((state["update"], chosen))
        written(checkpoints, chosen, weights, state)

    original, written = Trainer.train_update, Checkpoints.save
    monkeypatch.setattr(Trainer, "train_update", train_update)
    monkeypatch.setattr(Checkpoints, "save", save)
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    lab.train("never", "checkpoint.save_interval=0", "checkpoint.save_interval_minutes=0", "optimization.max_update=4")
    assert [one and one[0] for one in saved] == [4]
    saved.clear()
    keys.append("optimization.max_update=9")
    run = lab.root / "timed"
    saved.append(None)
    with pytest.raises(Killed):
        lab.train("timed", *keys)
    assert saved == [(3, ["last"])]
    assert names(run) == {"last"}
    lab.train("timed", *keys)  # takes the first save from the list, too
    assert [one and one[0] for one in saved] == [6, 9]
    assert_identical(everything(run), everything(wanted))
    assert records(run) == records(wanted)


def test_divergence_and_examples_longer_than_a_batch_are_said(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["optimization.max_update=3", "common.log_format=lines"]
    lab.train("calm", *few)
    said = capsys.readouterr().err
    assert "diverges" not in said
    assert "longer than" not in said
    lab.train("wild", *few, "optimization.lr=[1e5]", "optimization.clip_norm=0", "dataset.max_tokens=20")
    said = capsys.readouterr().err
    assert said.count("training diverges: at update") == 1
    cfg = lab.config()
    lengths = lab.task(cfg, lab.root / "calm").dataset("train").lengths(1, 1).max(1)
    longer = f"{(lengths > 20).sum()} examples of train are longer than dataset.max_tokens=20, the longest has "
    assert f"{longer}{lengths.max()} tokens" in said
    assert "of valid are longer" not in said  # max_tokens_valid is large


def test_finetune_begins_anew_from_weights(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    source = lab.train("source", "optimization.max_update=3")
    write_config(source, lab.config("optimization.max_update=3"))
    start = [f"checkpoint.finetune_from={source}", "lr_scheduler.warmup_updates=9", "optimization.ema_decay=0.99"]
    run = lab.train("finetuned", "optimization.max_update=1", *start)
    # the first update of a warm-up has a learning rate of zero, so weights and average are still those of the source
    for name in ("best", "last"):
        assert_identical(read_weights(run / "checkpoints" / name), read_weights(resolve(source)))
    assert everything(run)["state"]["update"] == 1
    with pytest.raises(CheckpointError, match=r"finetune_from: .*no such file"):
        lab.train("finetuned2", "checkpoint.finetune_from=nowhere")
    monkeypatch.setattr(lab, "shared", lab.root / "other_vocabulary")
    with pytest.raises(CheckpointError, match=r"finetune_from: .*vocabulary does not fit"):
        lab.train("finetuned3", f"checkpoint.finetune_from={source}", "task.vocab_size=50")


FINETUNING = ("optimization.max_update=4", "dataset.validate_interval_updates=2", "optimization.clip_norm=0")


@pytest.fixture(scope="module")
def start(lab: Lab) -> str:
    folder = lab.train("start", "optimization.max_update=3")
    write_config(folder, lab.config("optimization.max_update=3"))
    return f"checkpoint.finetune_from={folder}"


@pytest.mark.parametrize(
    ("lr", "ranks"), [("1e-3", ["best so far"] * 3), ("2", ["best so far", *["worse than the start"] * 2])]
)
def test_the_weights_to_finetune_are_validated(
    lr: str, ranks: list[str], lab: Lab, start: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are the best checkpoint until an update improves the score."""
    run = lab.train(f"tuned-{lr}", start, *FINETUNING, f"optimization.lr=[{lr}]", "common.log_format=lines")
    assert re.findall(
        r"valid at update ([024]) .*\| (best so far|worse than the start)$", capsys.readouterr().err, re.M
    ) == [(str(update), rank) for update, rank in zip((0, 2, 4), ranks, strict=True)]
    assert everything(run, "best")["state"]["update"] == (4 if ranks[-1] == "best so far" else 0)
    assert [record["update"] for record in records(run, "valid")] == [0, 2, 4]


@pytest.mark.parametrize("moment", ["train_update", "validate", "save"])
def test_a_run_that_is_killed_before_its_first_update(
    moment: str, lab: Lab, start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = {"train_update": Trainer, "validate": training_loop.Validator, "save": Checkpoints}[moment]
    with monkeypatch.context() as patch:
        patch.setattr(owner, moment, mock.Mock(side_effect=Killed))
        with pytest.raises(Killed):
            lab.train(f"tuned-{moment}", start, *FINETUNING)
    killed, whole = (lab.train(name, start, *FINETUNING) for name in (f"tuned-{moment}", "tuned"))
    for name in ("best", "last"):
        assert_identical(everything(killed, name), everything(whole, name))
    assert records(killed, "valid") == records(whole, "valid")


def test_a_signal_while_the_weights_to_finetune_are_validated(
    lab: Lab, start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(training_loop.Validator, "validate", mock.Mock(side_effect=training_loop.Interrupted))
        lab.train("tuned-signal", start, *FINETUNING)
    run = lab.train("tuned-signal", start, *FINETUNING)
    assert [record["update"] for record in records(run, "valid")] == [0, 2, 4]


def test_tensorboard_has_scalars_and_samples(lab: Lab) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    overrides = ["common.tensorboard=true", "dataset.validate_decode=5"]
    run = lab.train("board", "optimization.max_update=4", *overrides)
    for _ in range(2):  # the second time nothing is left to do
        lab.train("board", "optimization.max_update=8", *overrides)
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    assert {"train/loss", "train/ppl", "train/gnorm", "train/lr", "train/tokens_per_second"} <= {
        *events.Tags()["scalars"]
    }
    assert {"valid/loss", "valid/bleu"} <= {*events.Tags()["scalars"]}
    assert [event.step for event in events.Scalars("train/loss")] == [2, 4, 6, 8]
    assert "valid/samples/text_summary" in events.Tags()["tensors"]
    assert not [tag for tag in events.Tags()["scalars"] if tag.startswith(("start/", "resume/", "stop/"))]


# -- resuming -------------------------------------------------------------------------------------------------------

FULL = [
    "optimization.max_update=11",
    "optimization.ema_decay=0.9",
    "optimization.update_freq=[1,2]",
    "optimization.lr=[1e-2]",
    "lr_scheduler=reduce_lr_on_plateau",
    "lr_scheduler.lr_threshold=0.5",
    "checkpoint.patience=50",
    "dataset.validate_interval_updates=3",
    "checkpoint.save_interval_updates=2",
    "checkpoint.keep_interval_updates=-1",
]


@pytest.fixture(scope="module")
def uninterrupted(lab: Lab) -> Path:
    return lab.train("uninterrupted", *FULL)


@pytest.mark.parametrize(
    "update", [n if n in (1, 4) else pytest.param(n, marks=pytest.mark.nightly) for n in range(1, 11)]
)
def test_resuming_after_any_update_is_exact(
    lab: Lab, uninterrupted: Path, update: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM after any update, also in the middle of an epoch: nothing in the end is different."""
    original = Trainer.train_update

    def interrupt(self: Trainer, *args: Any) -> UpdateResult:
        result = original(self, *args)
        if self.update == update:
            os.kill(os.getpid(), signal.SIGTERM)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_update", interrupt)
        run = lab.train(f"interrupted-{update}", *FULL)
    assert lab.exit_code == 143
    assert everything(run)["state"]["update"] == update
    lab.train(f"interrupted-{update}", *FULL)
    assert lab.exit_code == 0
    assert names(run) == names(uninterrupted)
    for name in names(run):
        assert_identical(everything(run, name), everything(uninterrupted, name))
    for event in ("train", "valid"):
        assert records(run, event) == records(uninterrupted, event)


class Killed(BaseException):
    """Stands for SIGKILL."""


@pytest.mark.parametrize("moment", ["train_update", "validate", "save"])
@pytest.mark.parametrize("count", [1, 4])
def test_resuming_after_a_kill_is_exact(
    lab: Lab, uninterrupted: Path, moment: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = {"train_update": Trainer, "validate": training_loop.Validator, "save": Checkpoints}[moment]
    calls = []

    def kill(*_: Any) -> Any:
        calls.append(1)
        if len(calls) > count:
            raise Killed
        return original(*_)

    original = getattr(owner, moment)
    name = f"killed-{moment}-{count}"
    with monkeypatch.context() as patch:
        patch.setattr(owner, moment, kill)
        with pytest.raises(Killed):
            lab.train(name, *FULL)
    run = lab.train(name, *FULL)
    assert names(run) == names(uninterrupted)
    for checkpoint in names(run):
        assert_identical(everything(run, checkpoint), everything(uninterrupted, checkpoint))
    for event in ("train", "valid"):
        assert records(run, event) == records(uninterrupted, event)


def test_a_signal_during_validation_saves_and_catches_up(
    lab: Lab, uninterrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = training_loop.Validator.validate

    def interrupted(self: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return original(self)

    with monkeypatch.context() as patch:
        patch.setattr(training_loop.Validator, "validate", interrupted)
        run = lab.train("validating", *FULL)
    assert lab.exit_code == 130
    assert everything(run)["state"]["update"] == 3
    assert not records(run, "valid")
    lab.train("validating", *FULL)
    assert_identical(everything(run), everything(uninterrupted))
    assert records(run, "valid") == records(uninterrupted, "valid")


@pytest.mark.parametrize(
    ("optimizer", "precision"),
    [*((name, "fp32") for name in ("adam", "adamw", "nag", "sgd", "adafactor")), ("adam", "fp16")],
)
def test_every_optimizer_resumes_exactly(lab: Lab, optimizer: str, precision: str) -> None:
    options = [f"optimizer={optimizer}", "dataset.validate_interval=0", *(["common.fp16=true"] * (precision == "fp16"))]
    if optimizer == "adafactor":
        options.append("optimizer.beta1=0.9")
    once = lab.train(f"{optimizer}-{precision}-once", *options, "optimization.max_update=6")
    twice = lab.train(f"{optimizer}-{precision}-twice", *options, "optimization.max_update=3")
    lab.train(f"{optimizer}-{precision}-twice", *options, "optimization.max_update=6")
    assert_identical(everything(twice)["weights"], everything(once)["weights"])
    assert_identical(everything(twice)["state"]["optimizer"], everything(once)["state"]["optimizer"])


def test_the_checkpoint_before_a_damaged_one_is_resumed(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """One update is made again, with the same result; without any readable checkpoint, training stops."""
    options = ["checkpoint.save_interval_updates=1", "checkpoint.keep_interval_updates=-1", "common.log_format=lines"]
    once = lab.train("undamaged", *options, "optimization.max_update=4")
    run = lab.train("damaged", *options, "optimization.max_update=3")
    capsys.readouterr()
    for name in ("last", "best", "epoch_1", "update_3"):
        path = run / "checkpoints" / name / "training_state.safetensors"
        if path.exists():
            path.write_bytes(path.read_bytes()[:-10])
    lab.train("damaged", *options, "optimization.max_update=4")
    said = capsys.readouterr().err
    assert "last/training_state.safetensors: its checksum differs" in said
    assert "an older checkpoint is used in its place" in said
    assert f"resuming from {run / 'checkpoints' / 'update_2'} at update 2" in said
    assert_identical(everything(run), everything(once))
    for path in run.glob("checkpoints/*/SHA256SUMS"):
        path.unlink()
    with pytest.raises(CheckpointError, match=r"no checkpoint of this run can be read: .*SHA256SUMS is missing"):
        lab.train("damaged", *options, "optimization.max_update=5")
