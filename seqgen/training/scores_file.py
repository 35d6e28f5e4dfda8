"""``scores.json``: the last and the best validation scores of a run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seqgen.system.files import write_atomically
from seqgen.training.scores import lower_is_better

SCORES = "scores.json"
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
        if self._rank(self.last) > self._rank(self.best):
            self.best = self.last

    def _rank(self, entry: dict[str, Any] | None) -> float:
        """The score that ranks a validation, negated if lower is better; ``-inf`` if it has no such score."""
        scores = {} if entry is None else entry["scores"]
        value = {name.lower(): score for name, score in scores.items()}.get(self.metric.lower())
        if not isinstance(value, int | float):
            return -math.inf
        return -value if lower_is_better(self.metric) else value

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
