"""Faults of disks during training."""

import errno
import os
from typing import Any

import pytest

from seqgen.core.errors import UserError
from tests.training_runs import Lab, records


def failing(*_: Any, **__: Any) -> Any:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


@pytest.mark.parametrize(
    ("target", "file"), [("seqgen.training.run_log.open_own", "log.jsonl"), ("tempfile.mkstemp", "scores.json")]
)
def test_a_log_that_cannot_be_written(lab: Lab, target: str, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.train(file, "optimization.max_update=2")
    with monkeypatch.context() as patch:
        patch.setattr(target, failing)
        with pytest.raises(UserError, match=rf"^cannot write .*{file}: Read-only file system"):
            lab.train(file, "optimization.max_update=4")
    lab.train(file, "optimization.max_update=4")
    assert records(lab.root / file, "stop")


@pytest.mark.parametrize("method", ["__init__", "write", "flush"])
def test_tensorboard_events_that_cannot_be_written(lab: Lab, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard writes in a thread of its own; the error is raised by a later call."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    keys = ["common.tensorboard=true", "optimization.max_update=4", "common.log_interval=1"]
    monkeypatch.setattr(RecordWriter, method, failing)
    with pytest.raises(UserError, match=r"^cannot write tensorboard: Read-only file system"):
        lab.train(f"events-{method}", *keys)
