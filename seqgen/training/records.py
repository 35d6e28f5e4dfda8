"""Records of training in the run folder: ``log.jsonl``, ``scores.json`` and TensorBoard events."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from seqgen.files import disk_errors, write_atomically
from seqgen.reading import open_regular, parse_json
from seqgen.training.scores_file import ScoresFile
from seqgen.training.validation import Sample

LOG = "log.jsonl"
EVENTS = "tensorboard"


class Records:
    """Writes the records of a run.

    ``log.jsonl`` has one JSON object on each line, with ``event`` (``start``, ``resume``, ``train``, ``valid``,
    ``stop``), ``time`` (UTC), ``update``, ``epoch`` and values by name; a value that is not finite is ``null``. If a
    run was killed, the log may contain updates after its last checkpoint. When the run resumes, it repeats these
    updates, so that their records are removed from the log and purged from TensorBoard.

    Args:
        run: the run's folder.
        update: the update from which training resumes; 0 for a new run.
        tensorboard: whether to write events for TensorBoard.
        scores: the run's ``scores.json``.
    """

    def __init__(self, run: Path, update: int, tensorboard: bool, scores: ScoresFile | None = None):
        self.path = run / LOG
        self.scores = scores
        self._forget_after(update)
        self._restore_scores()
        self._events: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            folder = str(run / EVENTS)
            self._events = SummaryWriter(folder, purge_step=update + 1, flush_secs=30)  # type: ignore[no-untyped-call]

    def _forget_after(self, update: int) -> None:
        if not self.path.exists():
            return
        lines = self._lines()
        kept = [line for line in lines if _update_of(line) <= update]
        if len(kept) < len(lines):
            write_atomically(self.path, "".join(kept).encode())

    def _lines(self) -> list[str]:
        with open_regular(self.path) as file:
            return file.read().decode(errors="replace").splitlines(keepends=True)

    def _restore_scores(self) -> None:
        if self.scores is not None and self.path.exists():
            for line in self._lines():
                if '"valid"' in line and (record := parse_json(line)).get("event") == "valid":
                    self.scores.add(record)
            self.scores.write()

    def write(self, event: str, update: int, epoch: int, values: Mapping[str, Any] | None = None) -> None:
        """Write a record.

        Args:
            event: the kind of the record, such as ``"train"``.
            update: number of updates made so far.
            epoch: the current epoch, from 1.
            values: values by name; numbers are also written to TensorBoard, as ``EVENT/NAME``.
        """
        values = values or {}
        now = datetime.now(UTC).isoformat(timespec="seconds")
        record = {"event": event, "time": now, "update": update, "epoch": epoch}
        record |= {name: _plain(value) for name, value in values.items()}
        with disk_errors(str(self.path)), open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
        if self.scores is not None and event == "valid":
            self.scores.add(record)
            self.scores.write()
        if self._events is not None:
            with disk_errors(EVENTS):
                for name, value in values.items():
                    if isinstance(value, int | float):
                        self._events.add_scalar(f"{event}/{name}", value, update)

    def write_samples(self, update: int, samples: Sequence[Sample]) -> None:
        """Write decoded sentences to TensorBoard, as a table.

        Args:
            update: number of updates made so far.
            samples: the sentences.
        """
        if self._events is not None and samples:
            rows = [f"| {_cell(s.source)} | {_cell(s.hypothesis)} | {_cell(s.reference)} |" for s in samples]
            table = "\n".join(["| source | hypothesis | reference |", "|---|---|---|", *rows])
            self._events.add_text("valid/samples", table, update)

    def flush(self) -> None:
        """Flush the TensorBoard events to their file."""
        if self._events is not None:
            with disk_errors(EVENTS):
                self._events.flush()

    def close(self) -> None:
        """Close the TensorBoard events."""
        if self._events is not None:
            self._events.close()


def _update_of(line: str) -> float:
    """The update of a log line; infinity for a line that is incomplete because the process was killed."""
    try:
        return int(parse_json(line)["update"]) if line.endswith("\n") else math.inf
    except (ValueError, KeyError, TypeError):
        return math.inf


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
