"""Faults of disks, data and clocks during training. Tests of other faults:

==================================================  ================================================================
a kill at any operation of saving                   ``test_training_checkpoints``
kills at random moments; kills of each rank         ``test_training_kill``; ``test_training_processes``
a full disk at each operation of saving             ``test_training_checkpoints``
a full disk while text is encoded                   ``test_data_store``
the newest checkpoint damaged                       ``test_training_loop``
two jobs in one folder                              ``test_training_checkpoints``, ``test_training_processes``
NaN in a batch                                      ``test_training_loop``
no memory in one rank                               ``test_training_parallel``
==================================================  ================================================================
"""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqgen.core.errors import DataError, UserError
from seqgen.data.iterator import EpochIterator
from seqgen.training import run_log as records_module
from tests.commands import SMALL_FCONV, corpus, training_arguments
from tests.training_runs import Lab, assert_identical, everything, lab, records

__all__ = ["lab"]

ROOT = Path(__file__).parent.parent.parent
LIMITED = """
import resource, signal, sys
from seqgen.cli.train import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing fails by an error instead
limit = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
main()
"""
"""A quota: no file may be larger than so many bytes."""


@pytest.mark.slow
def test_a_quota_ends_training_by_a_sentence(tmp_path: Path) -> None:
    """With larger and larger quotas, another file is the first that cannot be written; then the run is continued."""
    data = corpus(tmp_path / "data")
    options = [*SMALL_FCONV, "common.tensorboard=true", "common.log_interval=1", "optimization.max_update=6"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def train(folder: Path, limit: int | None) -> tuple[int, str]:
        program = ["-m", "seqgen.cli.train"] if limit is None else ["-c", LIMITED, str(limit)]
        arguments = [sys.executable, *program, *training_arguments(data, folder), *options]
        ended = subprocess.run(arguments, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True, check=False)
        return ended.returncode, ended.stderr

    assert train(tmp_path / "free", None)[0] == 0
    whole = everything(tmp_path / "free")
    largest = max(path.stat().st_size for path in (tmp_path / "free").rglob("*") if path.is_file())
    said = set()
    for limit in [100, 1000, 5000, 20_000, largest // 2, largest - 1]:
        code, text = train(tmp_path / "full", limit)
        assert code == 2, text
        assert "Traceback" not in text
        last = text.splitlines()[-1]
        assert "cannot write" in last
        assert "free some space and run again" in last
        said.add(last.partition("cannot write")[2].split(":")[0])
    assert len(said) > 1
    assert train(tmp_path / "full", None)[0] == 0
    assert_identical(everything(tmp_path / "full"), whole)


def failing(*_: Any, **__: Any) -> Any:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


@pytest.mark.parametrize("target", ["open_own", "write_atomically"])
def test_a_log_that_cannot_be_written(lab: Lab, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"log-{target}"
    lab.train(name, "optimization.max_update=2")
    if target == "open_own":
        monkeypatch.setattr(records_module, target, failing)
    else:
        monkeypatch.setattr("tempfile.mkstemp", failing)  # of scores.json
    with pytest.raises(UserError, match=r"^cannot write .*(log\.jsonl|scores\.json): Read-only file system"):
        lab.train(name, "optimization.max_update=4")
    monkeypatch.undo()
    lab.train(name, "optimization.max_update=4")
    assert records(lab.root / name, "stop")


@pytest.mark.parametrize("method", ["__init__", "write", "flush"])
def test_tensorboard_events_that_cannot_be_written(lab: Lab, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard writes in a thread of its own; the error is raised by a later call."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    keys = ["common.tensorboard=true", "optimization.max_update=4", "common.log_interval=1"]
    monkeypatch.setattr(RecordWriter, method, failing)
    with pytest.raises(UserError, match=r"^cannot write tensorboard: Read-only file system"):
        lab.train(f"events-{method}", *keys)


def test_a_clock_that_goes_backwards(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resuming, too: nothing is decided by the time of day."""
    keys = ["common.tensorboard=true", "checkpoint.save_interval_updates=1", "checkpoint.keep_interval_updates=2"]
    wanted = lab.train("clock", *keys, "optimization.max_update=6")
    backwards = itertools.count(4e9, -1000.0)
    monkeypatch.setattr("time.time", lambda: next(backwards))
    lab.train("backwards", *keys, "optimization.max_update=3")
    run = lab.train("backwards", *keys, "optimization.max_update=6")
    assert_identical(everything(run), everything(wanted))
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == sorted(
        path.name for path in (wanted / "checkpoints").iterdir()
    )


class Numbers:
    """A dataset of examples of given lengths."""

    def __init__(self, lengths: list[int]):
        self._lengths = np.array(lengths, dtype=np.int32)[:, None]

    def __len__(self) -> int:
        return len(self._lengths)

    def lengths(self, epoch: int, seed: int) -> Any:
        return self._lengths

    def example(self, position: int, *, epoch: int, seed: int) -> Any:
        return position


def test_data_that_changes_between_two_jobs() -> None:
    """As many examples and batches as before, but other ones: refused within an epoch, said at its beginning."""

    def iterator(lengths: list[int]) -> EpochIterator:
        collate: Callable[..., Any] = list
        return EpochIterator(Numbers(lengths), collate, batch_size=2)

    before, after = [3, 4, 5, 6], [3, 4, 6, 5]
    begun = iterator(before)
    next(iter(begun))
    within = begun.state_dict()
    ended = iterator(before)
    list(ended)
    assert iterator(before).load_state_dict(within) == ""
    assert iterator(before).load_state_dict(ended.state_dict()) == ""
    with pytest.raises(DataError, match="or examples of other lengths"):
        iterator(after).load_state_dict(within)
    said = iterator(after).load_state_dict(ended.state_dict())
    assert said == "the training data has changed; the new data is used from epoch 2 on"
