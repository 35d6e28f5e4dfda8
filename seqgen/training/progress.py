"""What training shows: lines of progress, and whether training diverges."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from seqgen.system.progress import clock, duration
from seqgen.training.observers import TrainingObserver
from seqgen.training.trainer import UpdateResult
from seqgen.training.training_run import TrainingRun
from seqgen.training.validation import ValidationResult

_SHOWN = ("loss", "nll_loss", "ppl", "accuracy", "lr", "gnorm", "skipped")

DETAILS = ("nll_loss", "ppl", "gnorm", "lr")
"""Values that a line leaves out unless ``common.log_format=details`` is set."""


class ProgressLines(TrainingObserver):
    """Shows a line on standard error for each record of the updates, and for each validation.

    Args:
        log_format: ``common.log_format``.
    """

    def __init__(self, log_format: str):
        self.log_format = log_format

    def update(self, run: TrainingRun, result: UpdateResult) -> None:
        """Show the means since the last record, if a record is due or nothing has been shown for a minute."""
        if not run.due and time.monotonic() - run.shown < 60:
            return
        of = f"/{run.total}" if run.total else ""
        left, save = run.triggers.seconds_left(run.update, run.total, run.meter.seconds), run.seconds_to_save()
        remaining = f" | {clock(left)} left" if left is not None else ""
        if save is not None and (left is None or save < left):
            remaining += f" | next save in {duration(max(0, save))}"
        run.message(f"update {run.update}{of} | epoch {run.epoch} | {self._described(run.means)}{remaining}")

    def validation(self, run: TrainingRun, result: ValidationResult) -> None:
        """Show the scores, those of each part of a mixture in a line of its own."""
        parts: dict[str, dict[str, float]] = {"": {}}  # de.loss is the loss of the part de
        for name, value in result.scores.items():
            part, _, score = name.rpartition(".")
            parts.setdefault(part, {})[score] = value
        whole, *others = map(self._described, parts.values())
        line = " | ".join(filter(None, [f"valid at update {run.update}", f"epoch {run.epoch}", whole, result.rank]))
        run.message("\n".join([line, *map("  {}: {}".format, list(parts)[1:], others)]))

    def end(self, run: TrainingRun, reason: str) -> None:
        """Say why training ended, unless it was an error."""
        best = "" if run.best is None else f", best {run.cfg.checkpoint.best_checkpoint_metric} {run.best:.4g}"
        if reason:
            run.message(f"training ended at update {run.update}: {reason}{best}; checkpoints in {run.folder}")

    def _described(self, record: Mapping[str, float]) -> str:
        """Format values as one line: known ones first, then those of the criterion, then the speed.

        Only ``common.log_format=details`` shows all.
        """
        hidden = {"tokens_per_second", *(DETAILS if self.log_format != "details" else ())}
        names = [name for name in dict.fromkeys([*_SHOWN, *record]) if name in record.keys() - hidden]
        parts = [f"{n} {record[n]:.1f} %" if n == "accuracy" else f"{n} {record[n]:.4g}" for n in names]
        if "tokens_per_second" in record:
            parts.append(f"{record['tokens_per_second']:,.0f} tokens/s")
        return " | ".join(parts)


HIGH_RECORDS = 5
"""Number of log records in a row with a high loss after which training is said to diverge."""


class Divergence(TrainingObserver):
    """Says once if a loss, in nats per token, shows that training diverges.

    It does if the loss is not finite, if it is twice that of the first update and above that of a model that only
    guesses, or if it is 1 above its best in ``HIGH_RECORDS`` records in a row.

    Args:
        guessing: the loss of a model that only guesses.
    """

    def __init__(self, guessing: float):
        self.guessing, self.first, self.high, self.noted = guessing, math.nan, 0, False
        self.best = math.inf

    def update(self, run: TrainingRun, result: UpdateResult) -> None:
        """Look at the means since the last record."""
        self._say(run, run.means, run.due)

    def validation(self, run: TrainingRun, result: ValidationResult) -> None:
        """Look at the scores."""
        self._say(run, result.scores, due=False)

    def _say(self, run: TrainingRun, scores: Mapping[str, float], due: bool) -> None:
        if self.notices(loss := scores["nll_loss"], due):
            run.message(
                f"training diverges: at update {run.update} the loss is {loss:.4g} nats per token, "
                f"{min(self.first, self.best):.4g} before; stop it (Ctrl-C) and start a new run with a lower "
                "optimization.lr, more lr_scheduler.warmup_updates or a lower optimization.clip_norm"
            )

    def notices(self, loss: float, due: bool) -> bool:
        """Whether to say now that training diverges.

        Args:
            loss: the loss of training, or of validation.
            due: whether it is that of a record of training that is due; only these are compared with the best.
        """
        self.first = loss if math.isnan(self.first) else self.first
        if due:
            self.best = min(self.best, loss)
            self.high = self.high + 1 if loss > self.best + 1 else 0
        found = not self.noted and (not loss <= max(2 * self.first, self.guessing) or self.high >= HIGH_RECORDS)
        self.noted |= found
        return found
