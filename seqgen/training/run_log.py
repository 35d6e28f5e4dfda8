"""The records of a run: ``log.jsonl`` and ``scores.json``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from seqgen.system.files import disk_errors, open_own, write_atomically
from seqgen.system.reading import open_regular, parse_json
from seqgen.training.observers import TrainingObserver
from seqgen.training.trainer import UpdateResult
from seqgen.training.training_run import TrainingRun
from seqgen.training.validation import ValidationResult, pick

LOG = "log.jsonl"
SCORES = "scores.json"


def lower_is_better(metric: str) -> bool:
    """True if lower values of a metric are better, by its name: losses, perplexities and error rates."""
    return metric.lower().endswith(("loss", "ppl", "ter", "wer", "cer", "error"))


def is_better(score: Any, best: float | None, metric: str) -> bool:
    """True if a score is a finite number, and better than the best one so far; ``None`` for none."""
    if not isinstance(score, int | float) or not math.isfinite(score):
        return False
    return best is None or (score < best if lower_is_better(metric) else score > best)


_FIELDS = ("event", "time", "update", "epoch")


class RunLog(TrainingObserver):
    """Writes the records of a run.

    ``log.jsonl`` has one JSON object on each line, with ``event`` (``start``, ``resume``, ``train``, ``valid``,
    ``stop``), ``time`` (UTC), ``update``, ``epoch`` and values by name; a value that is not finite is ``null``. A
    validation that decodes has ``samples``: ``source``, ``hypothesis`` and ``reference`` of some lines. If a run was
    killed, the log may contain updates after its last checkpoint. When the run resumes, it repeats these updates, so
    that their records are removed from the log.

    ``scores.json`` is made from the validation records of the log, so that both agree even after a kill. It has
    ``metric``, the name of the score that ranks checkpoints; ``best`` and ``last``, each with ``update``, ``epoch``,
    ``time`` and ``scores`` by name; and ``signatures``, the sacreBLEU signatures by score name.

    Args:
        folder: the run's folder.
        metric: the name of the score that ranks checkpoints.
        signatures: sacreBLEU signatures by score name.
    """

    def __init__(self, folder: Path, metric: str, signatures: Mapping[str, str]):
        self.folder, self.metric, self.signatures = folder, metric, signatures
        self.best: dict[str, Any] | None = None
        self.last: dict[str, Any] | None = None

    def begin(self, run: TrainingRun) -> None:
        """Forget the records after the update from which the run continues, and write one."""
        self.restore(run.update if run.resumed else -1)
        parameters = sum(param.numel() for param in run.trainer.params)
        values = {"parameters": parameters, "batches": run.batches_in_epoch, "processes": run.group.world_size}
        self.write("resume" if run.update else "start", run.update, run.epoch, values)

    def update(self, run: TrainingRun, result: UpdateResult) -> None:
        """Write the means since the last record, if a record is due."""
        if run.due:
            self.write("train", run.update, run.epoch, run.means)

    def validation(self, run: TrainingRun, result: ValidationResult) -> None:
        """Write the scores and the decoded sentences."""
        samples = {"samples": [sample._asdict() for sample in result.samples]} if result.samples else {}
        self.write("valid", run.update, run.epoch, {**samples, **result.scores})

    def end(self, run: TrainingRun, reason: str) -> None:
        """Write the reason, unless it was an error."""
        if reason:
            self.write("stop", run.update, run.epoch, {"reason": reason, "seconds": round(run.meter.seconds, 1)})

    def restore(self, update: int) -> None:
        """Forget what was logged after an update, and restore the scores from the rest."""
        if not (self.folder / LOG).exists():
            return
        with open_regular(self.folder / LOG) as file:
            lines = file.read().decode(errors="replace").splitlines(keepends=True)
        kept = [line for line in lines if _update_of(line) <= update]
        if len(kept) < len(lines):
            write_atomically(self.folder / LOG, "".join(kept))
        for line in kept:
            if '"valid"' in line and (record := parse_json(line)).get("event") == "valid":
                self._add_scores(record)
        self._write_scores()

    def _add_scores(self, record: Mapping[str, Any]) -> None:
        """Add a validation record of the log, which becomes ``last``, and ``best`` if its score is better."""
        scores = {k: value for k, value in record.items() if k not in _FIELDS and not isinstance(value, list)}
        self.last = {name: record.get(name) for name in _FIELDS[1:]} | {"scores": scores}
        best = pick(self.best["scores"], self.metric) if self.best is not None else None
        if is_better(pick(scores, self.metric), best, self.metric):
            self.best = self.last

    def _write_scores(self) -> None:
        """Write ``scores.json``; without validation records, remove it."""
        if self.last is None:
            (self.folder / SCORES).unlink(missing_ok=True)
            return
        kinds = {name: self.signatures.get(name.rpartition(".")[2]) for name in self.last["scores"]}  # de.bleu is bleu
        signatures = {name: signature for name, signature in kinds.items() if signature}
        content = {"metric": self.metric, "best": self.best, "last": self.last, "signatures": signatures}
        write_atomically(self.folder / SCORES, json.dumps(content, ensure_ascii=False, indent=1) + "\n")

    def write(self, event: str, update: int, epoch: int, values: Mapping[str, Any]) -> None:
        """Write a record.

        Args:
            event: the kind of the record, such as ``"train"``.
            update: number of updates made so far.
            epoch: the current epoch, from 1.
            values: values by name.
        """
        now = datetime.now(UTC).isoformat(timespec="seconds")
        record = dict(zip(_FIELDS, (event, now, update, epoch), strict=True))
        for name, value in values.items():
            record[name] = None if isinstance(value, float) and not math.isfinite(value) else value
        with disk_errors(str(self.folder / LOG)), open_own(self.folder / LOG) as file:
            file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
        if event == "valid":
            self._add_scores(record)
            self._write_scores()


def _update_of(line: str) -> float:
    """The update of a log line; infinity for a line that is incomplete because the process was killed."""
    try:
        return int(parse_json(line)["update"]) if line.endswith("\n") else math.inf
    except (ValueError, KeyError, TypeError):
        return math.inf
