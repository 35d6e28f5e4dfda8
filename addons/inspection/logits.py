"""Logits of chosen steps of a search."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from seqgen.extend import MEMBER_LOGITS, ConfigError, Observer, StepRecord


class StepLogits(Observer):
    """Keeps the logits of each beam at chosen steps, before processors change them.

    Args:
        steps: numbers of the steps, from 0; step ``t`` predicts token ``t``. ``None`` for all steps.

    Raises:
        ConfigError: a step is not such a number.

    Attributes:
        found: by number of the sentence and step, for each member ``(beam, V)`` logits, divided by the temperature, on
            the CPU. Steps after the end of a sentence are missing.
    """

    needs: ClassVar[frozenset[str]] = frozenset({MEMBER_LOGITS})

    def __init__(self, steps: Sequence[int] | None = None):
        if wrong := [step for step in steps or () if not isinstance(step, int) or step < 0]:
            raise ConfigError(f"StepLogits: {wrong[0]!r} is not the number of a step; the steps are counted from 0")
        self.steps = None if steps is None else frozenset(steps)
        self.found: dict[int, dict[int, list[Tensor]]] = defaultdict(dict)

    def observe(self, record: StepRecord) -> None:
        """See ``Observer.observe``."""
        context = record.context
        if self.steps is not None and context.step not in self.steps:
            return
        members = [context.by_sentence(logits).cpu() for logits in context.outputs.member_logits or []]
        sentences = zip(context.sentences.ids.tolist(), record.was_done.tolist(), strict=True)
        for row, (sentence, done) in enumerate(sentences):
            if not done:
                self.found[sentence][context.step] = [logits[row].clone() for logits in members]
