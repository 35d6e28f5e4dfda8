"""TensorBoard events of a run."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seqgen.system.files import disk_errors
from seqgen.training.observers import TrainingObserver
from seqgen.training.trainer import UpdateResult
from seqgen.training.training_run import TrainingRun
from seqgen.training.validation import Sample, ValidationResult

EVENTS = "tensorboard"


class TensorBoard(TrainingObserver):
    """Writes the values of training as ``train/NAME``, the scores of validations as ``valid/NAME``, and samples."""

    def __init__(self) -> None:
        self._events: Any = None

    def begin(self, run: TrainingRun) -> None:
        """Open the files; events after the update from which the run continues are purged."""
        from torch.utils.tensorboard import SummaryWriter

        _leave_errors_to_the_next_call()
        purged = run.update + 1 if run.resumed else 0
        with disk_errors(EVENTS):
            self._events = SummaryWriter(str(run.folder / EVENTS), purge_step=purged, flush_secs=30)  # type: ignore[no-untyped-call]

    def update(self, run: TrainingRun, result: UpdateResult) -> None:
        """Write the means since the last record, if a record is due."""
        if run.due:
            self._scalars("train", run.means, run.update)

    def validation(self, run: TrainingRun, result: ValidationResult) -> None:
        """Write the scores, and decoded sentences as a table."""
        self._scalars("valid", result.scores, run.update)
        rows = [[text.replace("|", "\\|").replace("\n", " ") for text in sample] for sample in result.samples]
        if rows:
            lines = (f"| {' | '.join(row)} |" for row in (Sample._fields, ["---"] * 3, *rows))
            self._call("add_text", "valid/samples", "\n".join(lines), run.update)

    def checkpoint(self, run: TrainingRun, path: Path) -> None:
        """Write what is in memory."""
        self._call("flush")

    def end(self, run: TrainingRun, reason: str) -> None:
        """Close the files."""
        self._call("close")

    def _scalars(self, event: str, values: Mapping[str, Any], update: int) -> None:
        for name, value in values.items():
            if isinstance(value, int | float):
                self._call("add_scalar", f"{event}/{name}", value, update)

    def _call(self, method: str, *args: Any) -> None:
        """Call a method of TensorBoard's writer."""
        if self._events is not None:
            with disk_errors(EVENTS):
                getattr(self._events, method)(*args)


def _leave_errors_to_the_next_call() -> None:
    """Print no traceback if TensorBoard's thread cannot write: its next method that is called raises the error."""
    before = threading.excepthook

    def hook(ended: threading.ExceptHookArgs) -> None:
        if not (type(ended.thread).__name__ == "_AsyncWriterThread" and isinstance(ended.exc_value, OSError)):
            before(ended)

    threading.excepthook = hook
