"""A training observer: the layers of the encoder begin to be trained one after another, from the top.

    seqgen-train common.user_dir=examples/extending/training_observer.py run_dir=runs/unfreezing \
        model=transformer_tiny training.observers=[unfreezing] training_observer.unfreezing.patience=1

The next layer follows when ``patience`` validations in a row had no better score. A run that is interrupted continues
with the same layers, because checkpoints contain ``state`` and what is frozen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from seqgen.config import option
from seqgen.extend import TrainingObserver, TrainingRun, ValidationResult, register_training_observer


@dataclass
class UnfreezingConfig:
    """Options of ``unfreezing``."""

    patience: int = option(1, "number of validations without a better score before the next layer", minimum=1)


@register_training_observer("unfreezing", config=UnfreezingConfig)
class Unfreezing(TrainingObserver):
    """Trains a further layer of the encoder whenever the score no longer improves."""

    state = ("left",)

    def begin(self, run: TrainingRun) -> None:
        """Freeze the encoder."""
        layers: Any = run.model.encoder.layers
        self.left = len(layers)
        run.freeze("encoder.*")

    def validation(self, run: TrainingRun, result: ValidationResult) -> None:
        """Train the next layer."""
        if run.stale >= self.cfg.patience and self.left:
            self.left -= 1
            run.unfreeze(f"encoder.layers.{self.left}.*")
            run.message(f"encoder.layers.{self.left} is trained from now on")
