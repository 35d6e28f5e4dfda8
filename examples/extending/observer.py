"""An observer: counts, for each step and sentence, what happened to the candidates of the search.

``seqgen-generate common.user_dir=examples/extending/observer.py path=runs/a input=test.en
generation.observers=[outcomes] observer.outcomes.file=outcomes.jsonl``
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from seqgen.extend import FORBIDDEN, Observer, Outcome, StepRecord, option, register_observer


@dataclass
class OutcomesConfig:
    """Configuration of the observer; its fields are the keys ``observer.outcomes.FIELD``."""

    file: str = option("outcomes.jsonl", "JSON lines are appended to this file", role="output_path")


@register_observer("outcomes", config=OutcomesConfig)
class OutcomesObserver(Observer):
    """Writes JSON lines such as ``{"step": 3, "sentence": 0, "continues": 5, "finished": 1, "below_beam": 4}``.

    Args:
        file: JSON lines are appended to it, one for each step and sentence.
    """

    needs = frozenset({FORBIDDEN})  # record.forbidden is computed only on request: it costs a pass over the vocabulary

    def __init__(self, file: str):
        self.file = Path(file)

    def observe(self, record: StepRecord) -> None:
        """Write the counts of a step.

        Args:
            record: the step: context, candidates ``(live, K)``, outcomes ``(live, K)``. Changing it has no effect.
        """
        rows = record.outcomes.tolist()
        with self.file.open("a", encoding="utf-8") as file:
            for sentence, row in zip(record.context.sentences.ids.tolist(), rows, strict=True):
                counts = Counter(Outcome(outcome).name.lower() for outcome in row)
                line = {"step": record.context.step, "sentence": sentence, **counts, "forbidden_by": self.why(record)}
                file.write(json.dumps(line) + "\n")

    def why(self, record: StepRecord) -> dict[str, int]:
        """For each processor, how many of the most probable tokens of the whole batch it forbade in this step."""
        forbidden = record.forbidden
        assert forbidden is not None
        return Counter(forbidden.processors[index] for index in forbidden.by.flatten().tolist() if index >= 0)
