"""Records of training in the run folder: ``log.jsonl``, ``scores.json`` and TensorBoard events."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from seqgen.system.files import disk_errors, open_own, write_atomically
from seqgen.system.reading import open_regular, parse_json
from seqgen.training.validation import Sample, pick

LOG = "log.jsonl"
SCORES = "scores.json"
EVENTS = "tensorboard"
CURVES = ("train", "valid")
"""Events whose values are curves in TensorBoard; the others occur once."""


_LOWER_IS_BETTER = ("loss", "ppl", "ter", "wer", "cer", "error")


def lower_is_better(metric: str) -> bool:
    """True if lower values of a metric are better, by its name: losses, perplexities and error rates."""
    return metric.lower().endswith(_LOWER_IS_BETTER)


def is_better(score: Any, best: float | None, metric: str) -> bool:
    """True if a score is a finite number, and better than the best one so far; ``None`` for none."""
    if not isinstance(score, int | float) or not math.isfinite(score):
        return False
    return best is None or (score < best if lower_is_better(metric) else score > best)


_FIELDS = ("event", "time", "update", "epoch")


class ScoresFile:
    """Writes ``scores.json`` from the validation records of the log, so that both agree even after a kill.

    The file has ``metric``, the name of the score that ranks checkpoints; ``best`` and ``last``, each with ``update``,
    ``epoch``, ``time`` and ``scores`` by name; and ``signatures``, the sacreBLEU signatures by score name.

    Args:
        run: the run's folder.
        metric: name of the score that ranks checkpoints.
        signatures: sacreBLEU signatures by score name.
    """

    def __init__(self, run: Path, metric: str, signatures: Mapping[str, str]):
        self.path, self.metric, self.signatures = run / SCORES, metric, signatures
        self.best: dict[str, Any] | None = None
        self.last: dict[str, Any] | None = None

    def add(self, record: Mapping[str, Any]) -> None:
        """Add a validation record of the log, which becomes ``last``, and ``best`` if its score is better."""
        scores = {name: value for name, value in record.items() if name not in _FIELDS}
        self.last = {name: record.get(name) for name in _FIELDS[1:]} | {"scores": scores}
        best = pick(self.best["scores"], self.metric) if self.best is not None else None
        if is_better(pick(scores, self.metric), best, self.metric):
            self.best = self.last

    def write(self) -> None:
        """Write the file; without validation records, remove it."""
        if self.last is None:
            self.path.unlink(missing_ok=True)
            return
        names = self.last["scores"]
        kinds = {name: self.signatures.get(name.rpartition(".")[2]) for name in names}  # of "de.bleu": "bleu"
        content = {
            "metric": self.metric,
            "best": self.best,
            "last": self.last,
            "signatures": {name: signature for name, signature in kinds.items() if signature},
        }
        write_atomically(self.path, json.dumps(content, ensure_ascii=False, indent=1) + "\n")


class Records:
    """Writes the records of a run.

    ``log.jsonl`` has one JSON object on each line, with ``event`` (``start``, ``resume``, ``train``, ``valid``,
    ``stop``), ``time`` (UTC), ``update``, ``epoch`` and values by name; a value that is not finite is ``null``. If a
    run was killed, the log may contain updates after its last checkpoint. When the run resumes, it repeats these
    updates, so that their records are removed from the log and purged from TensorBoard.

    Args:
        run: the run's folder.
        update: the update from which training resumes; -1 for a new run.
        tensorboard: whether to write events for TensorBoard.
        scores: the run's ``scores.json``.
    """

    def __init__(self, run: Path, update: int, tensorboard: bool, scores: ScoresFile):
        self.path = run / LOG
        self.scores = scores
        self._restore(update)
        self._events: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            folder = str(run / EVENTS)
            _leave_errors_to_the_next_call()
            with disk_errors(EVENTS):
                self._events = SummaryWriter(folder, purge_step=update + 1, flush_secs=30)  # type: ignore[no-untyped-call]

    def _restore(self, update: int) -> None:
        """Forget what was logged after an update, and restore the scores from the rest."""
        if not self.path.exists():
            return
        with open_regular(self.path) as file:
            lines = file.read().decode(errors="replace").splitlines(keepends=True)
        kept = [line for line in lines if _update_of(line) <= update]
        if len(kept) < len(lines):
            write_atomically(self.path, "".join(kept))
        for line in kept:
            if '"valid"' in line and (record := parse_json(line)).get("event") == "valid":
                self.scores.add(record)
        self.scores.write()

    def write(self, event: str, update: int, epoch: int, values: Mapping[str, Any] | None = None) -> None:
        """Write a record.

        Args:
            event: the kind of the record, such as ``"train"``.
            update: number of updates made so far.
            epoch: the current epoch, from 1.
            values: values by name; numbers of ``CURVES`` are also written to TensorBoard, as ``EVENT/NAME``.
        """
        values = values or {}
        now = datetime.now(UTC).isoformat(timespec="seconds")
        record = {"event": event, "time": now, "update": update, "epoch": epoch}
        record |= {name: _plain(value) for name, value in values.items()}
        with disk_errors(str(self.path)), open_own(self.path) as file:
            file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
        if event == "valid":
            self.scores.add(record)
            self.scores.write()
        for name, value in values.items() if event in CURVES else ():
            if isinstance(value, int | float):
                self._event("add_scalar", f"{event}/{name}", value, update)

    def _event(self, method: str, *args: Any) -> None:
        """Call a method of TensorBoard's writer, if there is one."""
        if self._events is not None:
            with disk_errors(EVENTS):
                getattr(self._events, method)(*args)

    def write_samples(self, update: int, samples: Sequence[Sample]) -> None:
        """Write decoded sentences to TensorBoard, as a table.

        Args:
            update: number of updates made so far.
            samples: the sentences.
        """
        if samples:
            rows = [f"| {_cell(s.source)} | {_cell(s.hypothesis)} | {_cell(s.reference)} |" for s in samples]
            table = "\n".join(["| source | hypothesis | reference |", "|---|---|---|", *rows])
            self._event("add_text", "valid/samples", table, update)

    def flush(self) -> None:
        """Flush the TensorBoard events to their file."""
        self._event("flush")

    def close(self) -> None:
        """Close the TensorBoard events."""
        self._event("close")


def _leave_errors_to_the_next_call() -> None:
    """Print no traceback if TensorBoard's thread cannot write: its next method that is called raises the error."""
    before = threading.excepthook

    def hook(ended: threading.ExceptHookArgs) -> None:
        if not (type(ended.thread).__name__ == "_AsyncWriterThread" and isinstance(ended.exc_value, OSError)):
            before(ended)

    threading.excepthook = hook


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
