"""A run that is interrupted at any moment and continued ends as one that was not; with which keys it may be."""

import contextlib
import itertools
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seqgen.checkpoints.run_checkpoints import Checkpoints
from seqgen.checkpoints.run_config import MAY_CHANGE, check_resumable
from seqgen.config.compose import compose
from seqgen.config.keys import known_keys
from seqgen.extend import CheckpointError, ConfigError, TrainConfig, to_dict
from seqgen.modules.linear import TRAINING
from seqgen.training.trainer import Trainer
from seqgen.training.validation import Validator
from tests.covering import mostly_slow
from tests.training import test_observers  # noqa: F401  # registers an observer
from tests.training_runs import Lab, assert_identical, everything, names, records


def assert_same_runs(found: Path, wanted: Path) -> None:
    """All checkpoints with their states, and all records."""
    assert names(found) == names(wanted)
    for name in names(found):
        assert_identical(everything(found, name), everything(wanted, name))
    for event in ("train", "valid"):
        assert records(found, event) == records(wanted, event)


RUNS = {
    **{f"optimizer={name}": [f"optimizer={name}"] for name in ("adamw", "nag", "sgd")},
    "optimizer=adafactor": ["optimizer=adafactor", "optimizer.beta1=0.9"],
    "float16": ["common.fp16=true"],
    "frozen": ["optimization.freeze=[encoder.*:4,'*embed_tokens.weight']"],
    "groups": ["optimization.groups={encoder.*:{lr_scale:0.1,weight_decay:0.1}}"],
}


@pytest.mark.parametrize("name", mostly_slow(RUNS, "optimizer=adafactor", "frozen"))
def test_a_run_in_two_parts_is_one(lab: Lab, name: str) -> None:
    keys = [*RUNS[name], "dataset.validate_interval=0"]
    once = lab.train(f"{name}-once", *keys, "optimization.max_update=6")
    for updates in (3, 6):
        twice = lab.train(f"{name}-twice", *keys, f"optimization.max_update={updates}")
    assert_same_runs(twice, once)


# -- kills and signals --------------------------------------------------------------------------------------------

FULL = (
    "optimization.max_update=11 optimization.ema_decay=0.9 optimization.update_freq=[1,2] optimization.lr=[1e-2] "
    "lr_scheduler=reduce_lr_on_plateau lr_scheduler.lr_threshold=0.5 dataset.validate_interval_updates=3 "
    "checkpoint.patience=50 checkpoint.save_interval_updates=2 checkpoint.keep_interval_updates=-1 "
    "training.observers=[steering] training_observer.steering.every=5 training_observer.steering.last=10 "
    "optimization.freeze=[decoder.layers.*:4] optimization.groups={encoder.*:{lr_scale:0.1,weight_decay:0.1}}"
)


@pytest.fixture(scope="module")
def keys_of(lab: Lab) -> dict[str, list[str]]:
    """Keys of a run that does everything, and of one that begins with trained weights."""
    start = lab.train("start", "optimization.max_update=3")
    finetuning = "optimization.max_update=4 optimization.clip_norm=0 dataset.validate_interval_updates=2"
    return {"full": [FULL], "finetuning": [f"checkpoint.finetune_from={start}", finetuning]}


@pytest.fixture(scope="module")
def whole(lab: Lab, keys_of: dict[str, list[str]]) -> dict[str, Path]:
    return {name: lab.train(name, *keys) for name, keys in keys_of.items()}


class Killed(BaseException):
    """Stands for SIGKILL."""


MOMENTS = {"train_update": Trainer, "validate": Validator, "save": Checkpoints}
SIGNALS = {"SIGTERM": 143, "SIGINT": 130}


def disturbed(method: Callable[..., Any], number: int, by: str) -> Callable[..., Any]:
    """A method that is killed, or gets a signal, at the beginning of one of its calls; nothing follows a kill."""
    calls = itertools.count()

    def call(*given: Any) -> Any:
        now = next(calls)
        if by == "SIGKILL" and now >= number:
            raise Killed
        if now == number:
            os.kill(os.getpid(), signal.Signals[by])
        return method(*given)

    return call


@pytest.mark.parametrize(
    ("name", "moment", "number", "by"),
    [
        *(("full", *at, "SIGKILL") for at in (("train_update", 4), ("validate", 1), ("save", 4))),
        ("finetuning", "save", 0, "SIGKILL"),
        *(
            pytest.param(*case, "SIGKILL", marks=pytest.mark.slow)
            for case in (("full", "save", 1), ("finetuning", "train_update", 0), ("finetuning", "validate", 0))
        ),
        ("finetuning", "train_update", 3, "SIGKILL"),  # after the first checkpoint with an update
        ("finetuning", "validate", 0, "SIGTERM"),
        ("full", "validate", 0, "SIGINT"),  # validation is done when the run is continued
        # within an epoch, and at its end
        *(
            pytest.param("full", "train_update", n, "SIGTERM", marks=[] if n == 4 else [pytest.mark.nightly])
            for n in range(10)
        ),
    ],
)
def test_a_run_that_is_continued_is_one_that_was_not_interrupted(
    lab: Lab, keys_of: dict[str, list[str]], whole: dict[str, Path], name: str, moment: str, number: int, by: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    folder, keys = f"{name}-{moment}-{number}-{by}", keys_of[name]
    with monkeypatch.context() as patch:
        patch.setattr(MOMENTS[moment], moment, disturbed(getattr(MOMENTS[moment], moment), number, by))
        if by == "SIGKILL":
            with pytest.raises(Killed):
                lab.train(folder, *keys)
        else:
            run = lab.train(folder, *keys)
            assert lab.exit_code == SIGNALS[by]
            saved = {"full": {"train_update": number + 1, "validate": 1}, "finetuning": {"validate": 0}}[name][moment]
            assert everything(run)["state"]["update"] == saved
            assert moment == "train_update" or not records(run, "valid")
    for _ in range(2):  # a run that has ended stays as it is
        run = lab.train(folder, *keys)
        assert lab.exit_code == 0
        assert_same_runs(run, whole[name])


def test_a_run_that_is_continued_does_not_begin_again(
    lab: Lab, keys_of: dict[str, list[str]], whole: dict[str, Path]
) -> None:
    """The weights that it began with are not needed any more."""
    keys = ["checkpoint.finetune_from=" + str(lab.root / "base"), *keys_of["finetuning"][1:]]
    shutil.copytree(lab.root / "start", lab.root / "base")
    lab.train("continued", *keys, "optimization.max_update=2")
    shutil.rmtree(lab.root / "base")
    assert_same_runs(lab.train("continued", *keys), whole["finetuning"])


# -- what else happens the second time ----------------------------------------------------------------------------


def test_a_resumed_run_keeps_its_kernel(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TRAINING, "onednn", False)
    lab.train("kernel", "optimization.max_update=1")
    TRAINING.onednn = True
    lab.train("kernel", "optimization.max_update=2")
    assert TRAINING.onednn is False


def test_the_checkpoint_before_a_damaged_one_is_resumed(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """One update is made again, with the same result; without any readable checkpoint, training stops."""
    options = ["checkpoint.save_interval_updates=1", "checkpoint.keep_interval_updates=-1", "common.log_format=lines"]
    once = lab.train("undamaged", *options, "optimization.max_update=4")
    run = lab.train("damaged", *options, "optimization.max_update=3")
    capsys.readouterr()
    for name in names(run) & {"last", "best", "epoch_1", "update_3"}:
        path = run / "checkpoints" / name / "training_state.safetensors"
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


# -- keys with which a run may be continued -----------------------------------------------------------------------


def plain(overrides: str) -> dict[str, Any]:
    return to_dict(compose(TrainConfig, overrides.split()))


SAVING = "run_dir=elsewhere common.device=cpu common.log_format=lines checkpoint.save_interval_updates=3"
POLYNOMIAL = "lr_scheduler=polynomial optimization.max_update"
LENGTH = "lr_scheduler.total_num_update=50"
TWO = "distributed_training.distributed_world_size=2"
FREQ = "optimization.update_freq"


@pytest.mark.parametrize(
    ("before", "after", "refusal"),
    [
        ("", f"{SAVING} optimization.max_update=7 generation.beam=2", ""),
        # every difference is listed with both values
        ("", "common.seed=5 optimization.clip_norm=0.25 optimization.max_update=9",
         r"run_dir:\n  optimization.clip_norm: 1.0 -> 0.25\n  common.seed: 1 -> 5$"),
        ("", "model=transformer_tiny", r"choose another run_dir(.|\n)*model\._name: fconv -> transformer"),
        (f"{POLYNOMIAL}=100", f"{POLYNOMIAL}=200", "the length of this run's learning-rate schedule"),
        (f"{POLYNOMIAL}=100 {LENGTH}", f"{POLYNOMIAL}=200 {LENGTH}", ""),
        # the number of processes, and with it `update_freq` if the number of batches per update stays the same
        (f"{TWO} {FREQ}=[1,2]", f"{FREQ}=[1,2]", ""),
        (f"{TWO} {FREQ}=[1,2]", f"{FREQ}=[2,4]", ""),
        (f"{FREQ}=[2,4]", f"{TWO} {FREQ}=[1,2]", ""),
        (f"{TWO} {FREQ}=[1,2]", f"{FREQ}=[2,2]", r"freq: \[1, 2\] -> \[2, 2\](.|\n)*their product stays the same"),
        ("", f"{FREQ}=[2]", r"update_freq: \[1\] -> \[2\]"),
    ],
)  # fmt: skip
def test_the_keys_that_may_change(before: str, after: str, refusal: str) -> None:
    with pytest.raises(ConfigError, match=refusal) if refusal else contextlib.nullcontext():
        check_resumable(plain(before), plain(after))


def test_the_keys_that_may_change_exist() -> None:
    known = {key for key, _, _ in known_keys(compose(TrainConfig, ["task=translation"]))}
    assert known >= MAY_CHANGE - {"model.base"}  # a key of models with a `BaseConfig` alone
