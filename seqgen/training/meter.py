"""Sums of the values of updates, and their means since the last record."""

from __future__ import annotations

import time
from typing import Any

from seqgen.training.criteria import mean_scores
from seqgen.training.trainer import UpdateResult


class Meter:
    """Sums of the criterion's values over the updates since the last log record, and the time of these updates.

    The sums are saved in checkpoints, so that the first record after resuming covers the same updates as without the
    interruption. The training times of the interrupted and the resumed process are added.
    """

    def __init__(self) -> None:
        self._begun = time.perf_counter()
        self.reset()

    @property
    def seconds(self) -> float:
        """Training time so far, including validation and saving."""
        return time.perf_counter() - self._begun

    def reset(self) -> None:
        """Start a new record: set all sums to zero."""
        self.sums: dict[str, float] = {}
        self.gnorm = self.busy = 0.0
        self.updates = self.skipped = 0

    def add(self, result: UpdateResult, seconds: float) -> None:
        """Add the values of an update and the time that it took; if it was skipped, only count it."""
        self.busy += seconds
        if result.skipped:
            self.skipped += 1
            return
        for name, value in result.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.gnorm += result.gnorm
        self.updates += 1

    def record(self) -> dict[str, float]:
        """The means since the last record, by name: ``mean_scores``, ``gnorm``, ``tokens_per_second``, ``skipped``."""
        tokens = self.sums.get("ntokens", self.sums.get("sample_size", 0.0))
        scores = mean_scores(self.sums)
        scores["gnorm"] = self.gnorm / max(1, self.updates)
        scores["tokens_per_second"] = tokens / self.busy if self.busy else 0.0
        if self.skipped:
            scores["skipped"] = self.skipped
        return scores

    def state_dict(self) -> dict[str, Any]:
        """The state needed to resume."""
        names = ("sums", "gnorm", "busy", "updates", "skipped", "seconds")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that ``state_dict`` returned."""
        vars(self).update({name: state[name] for name in self.state_dict() if name != "seconds"})
        self._begun = time.perf_counter() - state["seconds"]
