"""Faults of disks and data during training."""

from __future__ import annotations

import errno
import os
from typing import Any

import numpy as np
import pytest

from seqgen.core.errors import DataError, UserError
from seqgen.data.iterator import EpochIterator
from seqgen.training import run_log as records_module
from tests.training_runs import Lab, lab, records

__all__ = ["lab"]


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


class Numbers:
    """A dataset of examples of given lengths."""

    def __init__(self, *lengths: int):
        self._lengths = np.array(lengths, dtype=np.int32)[:, None]

    def __len__(self) -> int:
        return len(self._lengths)

    def lengths(self, epoch: int, seed: int) -> Any:
        return self._lengths

    def example(self, position: int, *, epoch: int, seed: int) -> Any:
        return position


def test_data_that_changes_between_two_jobs() -> None:
    """As many examples and batches as before, but other ones: refused within an epoch, said at its beginning."""
    begun, ended, same = (EpochIterator(Numbers(3, 4, 5, 6), list, batch_size=2) for _ in range(3))  # type: ignore[arg-type]
    other = EpochIterator(Numbers(3, 4, 6, 5), list, batch_size=2)  # type: ignore[arg-type]
    next(iter(begun))
    list(ended)
    assert same.load_state_dict(begun.state_dict()) == same.load_state_dict(ended.state_dict()) == ""
    with pytest.raises(DataError, match="or examples of other lengths"):
        other.load_state_dict(begun.state_dict())
    said = other.load_state_dict(ended.state_dict())
    assert said == "the training data has changed; the new data is used from epoch 2 on"
