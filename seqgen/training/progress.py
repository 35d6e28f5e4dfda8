"""Progress of training: statistics of the updates, shown as lines on standard error."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from typing import Any

from seqgen.system.error_messages import printable
from seqgen.system.progress import clock, duration
from seqgen.training.criteria import mean_scores
from seqgen.training.trainer import UpdateResult

_SHOWN = ("loss", "ppl", "accuracy", "gnorm", "lr", "skipped")

QUIET_SECONDS = 60.0
"""Seconds without a line after which an update is shown although its record is not due."""

HIGH_RECORDS = 5
"""Number of log records in a row with a high loss after which training is said to diverge."""


class ProgressLines:
    """Shows a line for each record, and one now and then if updates are slow.

    Args:
        total: number of updates until training ends; ``None`` if unknown.
        shown: whether anything is shown.
    """

    def __init__(self, total: int | None, shown: bool = True):
        self.total, self.shown, self.last = total, shown, time.monotonic()

    def update(
        self, update: int, epoch: int, record: Mapping[str, float], due: bool, left: float | None, save: float | None
    ) -> None:
        """Show an update, if its record is due or nothing has been shown for a while.

        Args:
            update: number of the update, from 1.
            epoch: the current epoch, from 1.
            record: means over the updates since the last record that was due, by name.
            due: whether this record is due, by ``common.log_interval``.
            left: estimated seconds until training ends; ``None`` if unknown.
            save: seconds until the next checkpoint; ``None`` if unknown.
        """
        if due or time.monotonic() - self.last >= QUIET_SECONDS:
            of = f"/{self.total}" if self.total else ""
            remaining = f" | {clock(left)} left" if left is not None else ""
            if save is not None and (left is None or save < left):
                remaining += f" | next save in {duration(max(0, save))}"
            self.message(f"update {update}{of} | epoch {epoch} | {describe(record)}{remaining}")

    def message(self, text: str) -> None:
        """Show a line."""
        self.last = time.monotonic()
        if self.shown:
            print(printable(text), file=sys.stderr, flush=True)


def describe(record: Mapping[str, float]) -> str:
    """Format a record as one line: known values first, then those of the criterion, then the speed."""
    names = [name for name in _SHOWN if name in record]
    if "nll_loss" in record and record["nll_loss"] != record.get("loss"):  # as with label smoothing
        names.insert(1, "nll_loss")
    names += [name for name in record if name not in {*_SHOWN, "nll_loss", "tokens_per_second"}]
    parts = [f"{name} {record[name]:.4g}" for name in names]
    if "tokens_per_second" in record:
        parts.append(f"{record['tokens_per_second']:,.0f} tokens/s")
    return " | ".join(parts)


def describe_parts(record: Mapping[str, float]) -> tuple[str, list[str]]:
    """Format the scores of a mixture: ``de.loss`` is the loss of its part ``de``.

    Args:
        record: scores by name.

    Returns:
        The scores of the whole, as ``describe`` formats them, and one line for each part.
    """
    parts: dict[str, dict[str, float]] = {}
    for name, value in record.items():
        part, dot, score = name.rpartition(".")
        if dot:
            parts.setdefault(part, {})[score] = value
    whole = {name: value for name, value in record.items() if "." not in name}
    return describe(whole), [f"  {part}: {describe(scores)}" for part, scores in parts.items()]


class Divergence:
    """Notices once if a loss, in nats per token, shows that training diverges.

    It does if the loss is not finite, if it is twice that of the first update and above that of a model that only
    guesses, or if it is 1 above its best in ``HIGH_RECORDS`` records in a row.

    Args:
        guessing: the loss of a model that only guesses.
    """

    def __init__(self, guessing: float):
        self.guessing, self.first, self.high, self.noted = guessing, math.nan, 0, False
        self.best = math.inf

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


class Meter:
    """Sums of the criterion's values over the updates since the last log record, and the time of these updates.

    The sums are saved in checkpoints, so that the first record after resuming covers the same updates as without the
    interruption. The training times of the interrupted and the resumed process are added.

    Attributes:
        seconds: training time so far, including validation and saving.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._last = time.perf_counter()
        self.reset()

    def reset(self) -> None:
        """Start a new record: set all sums to zero."""
        self.sums: dict[str, float] = {}
        self.gnorm = self.busy = self.decoding = 0.0
        self.updates = self.skipped = 0

    def tick(self, busy: bool = False) -> None:
        """Add the time since the last call to ``seconds``; if ``busy``, also to the time of the updates."""
        now = time.perf_counter()
        self.seconds += now - self._last
        self.busy += now - self._last if busy else 0.0
        self._last = now

    def add(self, result: UpdateResult) -> None:
        """Add the values of an update; if it was skipped, only count it."""
        self.tick(busy=True)
        if result.skipped:
            self.skipped += 1
            return
        for name, value in result.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.gnorm += result.gnorm
        self.decoding += result.decoding_seconds
        self.updates += 1

    def record(self) -> dict[str, float]:
        """The means since the last record, by name: ``mean_scores``, ``gnorm``, ``tokens_per_second``, ``skipped``.

        ``decoding`` is the percentage of the updates' time that a criterion spent decoding.
        """
        tokens = self.sums.get("ntokens", self.sums.get("sample_size", 0.0))
        scores = mean_scores(self.sums)
        scores["gnorm"] = self.gnorm / max(1, self.updates)
        scores["tokens_per_second"] = tokens / self.busy if self.busy else 0.0
        if self.decoding and self.busy:
            scores["decoding"] = 100 * self.decoding / self.busy
        if self.skipped:
            scores["skipped"] = self.skipped
        return scores

    def state_dict(self) -> dict[str, Any]:
        """The state needed to resume."""
        names = ("sums", "gnorm", "busy", "decoding", "updates", "skipped", "seconds")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that ``state_dict`` returned."""
        vars(self).update({name: state[name] for name in self.state_dict()})
        self._last = time.perf_counter()
