"""What training shows and records: lines on standard error, ``log.jsonl``, ``scores.json`` and TensorBoard events."""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from seqgen.config import TrainConfig
from seqgen.system.error_messages import printable
from seqgen.system.files import disk_errors, open_own, write_atomically
from seqgen.system.progress import clock, duration
from seqgen.system.reading import open_regular, parse_json
from seqgen.training.validation import Sample, ValidationResult, pick

LOG = "log.jsonl"
SCORES = "scores.json"
EVENTS = "tensorboard"


def lower_is_better(metric: str) -> bool:
    """True if lower values of a metric are better, by its name: losses, perplexities and error rates."""
    return metric.lower().endswith(("loss", "ppl", "ter", "wer", "cer", "error"))


def is_better(score: Any, best: float | None, metric: str) -> bool:
    """True if a score is a finite number, and better than the best one so far; ``None`` for none."""
    if not isinstance(score, int | float) or not math.isfinite(score):
        return False
    return best is None or (score < best if lower_is_better(metric) else score > best)


_FIELDS = ("event", "time", "update", "epoch")
_SHOWN = ("loss", "nll_loss", "ppl", "accuracy", "lr", "gnorm", "skipped")

DETAILS = ("nll_loss", "ppl", "gnorm", "lr")
"""Values of a record that a line leaves out unless ``common.log_format=details`` is set."""


class RunLog:
    """Shows the progress of a run and writes its records, in the main process; in others it does nothing.

    A line is shown for each record, and one now and then if updates are slow.

    ``log.jsonl`` has one JSON object on each line, with ``event`` (``start``, ``resume``, ``train``, ``valid``,
    ``stop``), ``time`` (UTC), ``update``, ``epoch`` and values by name; a value that is not finite is ``null``. If a
    run was killed, the log may contain updates after its last checkpoint. When the run resumes, it repeats these
    updates, so that their records are removed from the log and purged from TensorBoard.

    ``scores.json`` is made from the validation records of the log, so that both agree even after a kill. It has
    ``metric``, the name of the score that ranks checkpoints; ``best`` and ``last``, each with ``update``, ``epoch``,
    ``time`` and ``scores`` by name; and ``signatures``, the sacreBLEU signatures by score name.

    Args:
        run: the run's folder.
        update: the update from which training resumes; -1 for a new run.
        cfg: the whole configuration.
        signatures: sacreBLEU signatures by score name.
        total: number of updates until training ends; ``None`` if unknown.
        is_main: whether this is the main process.
    """

    def __init__(
        self, run: Path, update: int, cfg: TrainConfig, signatures: Mapping[str, str], total: int | None, is_main: bool
    ):
        self.run, self.cfg, self.signatures, self.total = run, cfg, signatures, total
        self.is_main, self.shown_at = is_main, time.monotonic()
        self.best: dict[str, Any] | None = None
        self.last: dict[str, Any] | None = None
        self._events: Any = None
        if is_main:
            self._restore(update)
        if is_main and cfg.common.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            _leave_errors_to_the_next_call()
            with disk_errors(EVENTS):
                self._events = SummaryWriter(str(run / EVENTS), purge_step=update + 1, flush_secs=30)  # type: ignore[no-untyped-call]

    def _restore(self, update: int) -> None:
        """Forget what was logged after an update, and restore the scores from the rest."""
        if not (self.run / LOG).exists():
            return
        with open_regular(self.run / LOG) as file:
            lines = file.read().decode(errors="replace").splitlines(keepends=True)
        kept = [line for line in lines if _update_of(line) <= update]
        if len(kept) < len(lines):
            write_atomically(self.run / LOG, "".join(kept))
        for line in kept:
            if '"valid"' in line and (record := parse_json(line)).get("event") == "valid":
                self._add_scores(record)
        self._write_scores()

    def _add_scores(self, record: Mapping[str, Any]) -> None:
        """Add a validation record of the log, which becomes ``last``, and ``best`` if its score is better."""
        scores = {name: value for name, value in record.items() if name not in _FIELDS}
        self.last = {name: record.get(name) for name in _FIELDS[1:]} | {"scores": scores}
        metric = self.cfg.checkpoint.best_checkpoint_metric
        best = pick(self.best["scores"], metric) if self.best is not None else None
        if is_better(pick(scores, metric), best, metric):
            self.best = self.last

    def _write_scores(self) -> None:
        """Write ``scores.json``; without validation records, remove it."""
        if self.last is None:
            (self.run / SCORES).unlink(missing_ok=True)
            return
        kinds = {name: self.signatures.get(name.rpartition(".")[2]) for name in self.last["scores"]}  # de.bleu is bleu
        signatures = {name: signature for name, signature in kinds.items() if signature}
        metric = self.cfg.checkpoint.best_checkpoint_metric
        content = {"metric": metric, "best": self.best, "last": self.last, "signatures": signatures}
        write_atomically(self.run / SCORES, json.dumps(content, ensure_ascii=False, indent=1) + "\n")

    def write(self, event: str, update: int, epoch: int, values: Mapping[str, Any]) -> None:
        """Write a record.

        Args:
            event: the kind of the record, such as ``"train"``.
            update: number of updates made so far.
            epoch: the current epoch, from 1.
            values: values by name; numbers of ``train`` and ``valid``, which are curves, are also written to
                TensorBoard, as ``EVENT/NAME``.
        """
        if not self.is_main:
            return
        now = datetime.now(UTC).isoformat(timespec="seconds")
        record = dict(zip(_FIELDS, (event, now, update, epoch), strict=True))
        for name, value in values.items():
            record[name] = None if isinstance(value, float) and not math.isfinite(value) else value
        with disk_errors(str(self.run / LOG)), open_own(self.run / LOG) as file:
            file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
        if event == "valid":
            self._add_scores(record)
            self._write_scores()
        for name, value in values.items() if event in ("train", "valid") else ():
            if isinstance(value, int | float):
                self.call_tensorboard("add_scalar", f"{event}/{name}", value, update)

    def message(self, text: str) -> None:
        """Show a line."""
        self.shown_at = time.monotonic()
        if self.is_main and self.cfg.common.log_format != "none":
            print(printable(text), file=sys.stderr, flush=True)

    def update(
        self, update: int, epoch: int, record: Mapping[str, float], due: bool, left: float | None, save: float | None
    ) -> None:
        """Write and show the record of an update, if it is due; if nothing has been shown for a minute, only show it.

        Args:
            update: number of the update, from 1.
            epoch: the current epoch, from 1.
            record: means over the updates since the last record that was due, by name.
            due: whether this record is due, by ``common.log_interval``.
            left: estimated seconds until training ends; ``None`` if unknown.
            save: seconds until the next checkpoint; ``None`` if unknown.
        """
        if due:
            self.write("train", update, epoch, record)
        if due or time.monotonic() - self.shown_at >= 60:
            of = f"/{self.total}" if self.total else ""
            remaining = f" | {clock(left)} left" if left is not None else ""
            if save is not None and (left is None or save < left):
                remaining += f" | next save in {duration(max(0, save))}"
            self.message(f"update {update}{of} | epoch {epoch} | {self._described(record)}{remaining}")

    def validation(self, update: int, epoch: int, result: ValidationResult, rank: str) -> None:
        """Write and show the scores of a validation; decoded sentences are a table in TensorBoard.

        Args:
            update: number of updates made so far.
            epoch: the current epoch, from 1.
            result: the scores and sentences.
            rank: how the score is compared with earlier ones, in words; may be empty.
        """
        self.write("valid", update, epoch, result.scores)
        rows = [[text.replace("|", "\\|").replace("\n", " ") for text in sample] for sample in result.samples]
        if rows:
            lines = (f"| {' | '.join(row)} |" for row in (Sample._fields, ["---"] * 3, *rows))
            self.call_tensorboard("add_text", "valid/samples", "\n".join(lines), update)
        parts: dict[str, dict[str, float]] = {"": {}}  # of a mixture: de.loss is the loss of its part de
        for name, value in result.scores.items():
            part, _, score = name.rpartition(".")
            parts.setdefault(part, {})[score] = value
        whole, *others = map(self._described, parts.values())
        line = " | ".join(filter(None, [f"valid at update {update}", f"epoch {epoch}", whole, rank]))
        self.message("\n".join([line, *map("  {}: {}".format, list(parts)[1:], others)]))

    def _described(self, record: Mapping[str, float]) -> str:
        """Format a record as one line: known values first, then those of the criterion, then the speed.

        Only ``common.log_format=details`` shows all.
        """
        hidden = {"tokens_per_second", *(DETAILS if self.cfg.common.log_format != "details" else ())}
        names = [name for name in dict.fromkeys([*_SHOWN, *record]) if name in record.keys() - hidden]
        parts = [f"{n} {record[n]:.1f} %" if n == "accuracy" else f"{n} {record[n]:.4g}" for n in names]
        if "tokens_per_second" in record:
            parts.append(f"{record['tokens_per_second']:,.0f} tokens/s")
        return " | ".join(parts)

    def call_tensorboard(self, method: str, *args: Any) -> None:
        """Call a method of TensorBoard's writer, such as ``"flush"``, if there is one."""
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


def _update_of(line: str) -> float:
    """The update of a log line; infinity for a line that is incomplete because the process was killed."""
    try:
        return int(parse_json(line)["update"]) if line.endswith("\n") else math.inf
    except (ValueError, KeyError, TypeError):
        return math.inf
