"""``scores.json``: a run's last validation scores and its best ones."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seqgen.files import write_atomically
from seqgen.training.scores import lower_is_better

SCORES = "scores.json"
_FIELDS = ("event", "time", "update", "epoch")


class ScoresFile:
    """Writes the file from the log's records of validations, so that it says what the log says, also after a kill.

    It holds ``metric``, the name of the score that chooses the best checkpoint; ``best`` and ``last``, each with
    ``update``, ``epoch``, ``time`` and ``scores`` by name; and ``signatures``, what sacreBLEU computed, by name.

    Args:
        run: the run's folder.
        metric: name of the score that chooses the best checkpoint.
        signatures: of the scores of text, by name.
    """

    def __init__(self, run: Path, metric: str, signatures: Mapping[str, str]):
        self.path, self.metric, self.signatures = run / SCORES, metric, signatures
        self.best: dict[str, Any] | None = None
        self.last: dict[str, Any] | None = None

    def add(self, record: Mapping[str, Any]) -> None:
        """Take in a validation's log record."""
        scores = {name: value for name, value in record.items() if name not in _FIELDS}
        self.last = {name: record.get(name) for name in _FIELDS[1:]} | {"scores": scores}
        if self._rank(self.last) > self._rank(self.best):
            self.best = self.last

    def _rank(self, entry: dict[str, Any] | None) -> float:
        """How good a validation was; more is better."""
        scores = {} if entry is None else entry["scores"]
        value = {name.lower(): score for name, score in scores.items()}.get(self.metric.lower())
        if not isinstance(value, int | float):
            return -math.inf
        return -value if lower_is_better(self.metric) else value

    def write(self) -> None:
        """Write the file, or remove that of validations which the log has forgotten."""
        if self.last is None:
            self.path.unlink(missing_ok=True)
            return
        names = self.last["scores"]
        kinds = {name: self.signatures.get(name.rpartition(".")[2]) for name in names}  # a part's are "de.bleu"
        content = {
            "metric": self.metric,
            "best": self.best,
            "last": self.last,
            "signatures": {name: signature for name, signature in kinds.items() if signature},
        }
        write_atomically(self.path, (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode())
