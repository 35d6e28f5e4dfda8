"""Sampling by losses: pairs of languages with a higher loss are drawn more often (Sagawa et al. 2020, algorithm 1).

    seqgen-train common.user_dir=examples/papers/group_dro.py run_dir=runs/dro task=group_dro task.pairs=[en-de,de-en] \
        task.train=train task.valid=val model=transformer_tiny training.observers=[group_dro]

Each validation multiplies the rate of a pair by ``exp(step_size * loss)``; the next epoch draws with these rates. The
paper weights the losses of training examples in place of drawing them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from seqgen.config import option
from seqgen.extend import (
    ConfigError,
    JoinedDataset,
    MixtureDataset,
    MultilingualTranslationConfig,
    MultilingualTranslationTask,
    TrainingObserver,
    TrainingRun,
    ValidationResult,
    register_task,
    register_training_observer,
)


class Groups(MixtureDataset):
    """A mixture whose rates are a state."""

    def state_dict(self) -> dict[str, Any]:
        """The rate of each pair."""
        return {"rates": self.rates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the rates."""
        self.rates = state["rates"]


@dataclass
class GroupTaskConfig(MultilingualTranslationConfig):
    """The keys of the task."""


@register_task("group_dro", config=GroupTaskConfig)
class GroupTask(MultilingualTranslationTask):
    """Translation between pairs of languages, which are the groups."""

    def load_dataset(self, split: str) -> JoinedDataset:
        """Load a split."""
        found = super().load_dataset(split)
        return Groups(found.parts, found.rates, found.size) if isinstance(found, MixtureDataset) else found


@dataclass
class GroupConfig:
    """Options of ``group_dro``."""

    step_size: float = option(0.1, "factor of the losses", minimum=0)


@register_training_observer("group_dro", config=GroupConfig)
class GroupObserver(TrainingObserver):
    """Changes the rates after each validation."""

    def begin(self, run: TrainingRun) -> None:
        """Refuse examples without groups."""
        if not isinstance(run.dataset, Groups):
            raise ConfigError("training.observers=[group_dro] needs task=group_dro, whose pairs are the groups")

    def validation(self, run: TrainingRun, result: ValidationResult) -> None:
        """Draw pairs with a higher loss more often from the next epoch on."""
        groups: Any = run.dataset
        losses = [result.scores[f"{name}.loss"] for name in groups.parts]
        weights = [r * math.exp(self.cfg.step_size * x) for r, x in zip(groups.rates, losses, strict=True)]
        groups.rates = [weight / sum(weights) for weight in weights]
