"""Training observers: called at each event of a training, with the run, which they can read and steer.

::

    @register_training_observer("stop_early")
    class StopEarly(TrainingObserver):
        def update(self, run: TrainingRun, result: UpdateResult) -> None:
            if result.sums["nll_loss"] < result.sums["ntokens"]:
                run.stop("less than one nat per token")
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from seqgen.config.compose import component_config
from seqgen.config.training import ObserverConfig
from seqgen.core.contract import Hooked
from seqgen.core.errors import ConfigError
from seqgen.registry import TRAINING_OBSERVERS
from seqgen.training.trainer import UpdateResult
from seqgen.training.training_run import TrainingRun
from seqgen.training.validation import ValidationResult


class TrainingObserver(Hooked):
    """Base class: is called at each event; each method may be left out. Every process has an instance.

    Args:
        cfg: an instance of the configuration class that the observer is registered with.
    """

    state: ClassVar[tuple[str, ...]] = ()
    """The attributes that checkpoints contain: JSON values and tensors."""

    def __init__(self, cfg: Any):
        self.cfg = cfg

    def begin(self, run: TrainingRun) -> None:
        """Called once in each process before the first update; after it, a continued run restores ``state``."""

    def epoch(self, run: TrainingRun) -> None:
        """Called before the first update of an epoch."""

    def update(self, run: TrainingRun, result: UpdateResult) -> None:
        """Called after each update that was not skipped."""

    def validation(self, run: TrainingRun, result: ValidationResult) -> None:
        """Called after each validation."""

    def checkpoint(self, run: TrainingRun, path: Path) -> None:
        """Called when a checkpoint is complete; ``path`` is its folder."""

    def end(self, run: TrainingRun, reason: str) -> None:
        """Called when training has ended; ``reason`` is empty if an error ended it."""

    def state_dict(self) -> dict[str, Any]:
        """The state that checkpoints contain."""
        return {name: getattr(self, name) for name in self.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that ``state_dict`` returned."""
        for name in self.state:
            setattr(self, name, state[name])


def build_observers(cfg: ObserverConfig) -> dict[str, TrainingObserver]:
    """Make the observers that a configuration names.

    Args:
        cfg: the ``training`` group.

    Returns:
        Observers by name.

    Raises:
        ConfigError: a name is not registered or given twice, or the class is no training observer.
    """
    found: dict[str, TrainingObserver] = {}
    for name in cfg.observers:
        entry = TRAINING_OBSERVERS.entry(name)
        if name in found or not issubclass(entry.component, TrainingObserver):
            why = "is given twice" if name in found else f"({entry.defined_in}) does not subclass TrainingObserver"
            raise ConfigError(f"training.observers: {name!r} {why}")
        found[name] = entry.component(component_config(TRAINING_OBSERVERS, name, cfg))
    return found
