"""Training observers: called at each event of a training, with the run, which they can read and steer.

::

    @register_training_observer("stop_early")
    class StopEarly(TrainingObserver):
        def update(self, run: TrainingRun, result: UpdateResult) -> None:
            if result.sums["nll_loss"] < result.sums["ntokens"]:
                run.stop("less than one nat per token")
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, ClassVar

import torch

from seqgen.config.compose import component_config
from seqgen.config.training import ObserverConfig
from seqgen.core.contract import Hooked
from seqgen.core.errors import ConfigError
from seqgen.registry import TRAINING_OBSERVERS
from seqgen.training.distributed import LossModule, local, parallelize
from seqgen.training.trainer import Trainer, UpdateResult
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
        """Called when a checkpoint is complete, also that of an interrupted run; ``path`` is its folder.

        This checkpoint does not contain what the method changes.
        """

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


class EMA(TrainingObserver):
    """Lets a trainer validate and save averages of the weights over the updates (Polyak & Juditsky 1992).

    After update ``u`` (from 1), each average becomes ``d * average + (1 - d) * weight`` with
    ``d = min(decay, u / (u + 9))``: the decay is smaller at first, so that the initial weights soon lose influence.

    Args:
        trainer: trains the model.
        decay: the maximum of ``d``.

    Attributes:
        model: the model with the averages; it shares no tensors with the trained model.
    """

    def __init__(self, trainer: Trainer, decay: float):
        self.decay = decay
        with trainer.plain(trainer.model) as plain:
            self.model: Any = copy.deepcopy(plain).requires_grad_(False)
        if trainer.sharded:
            module = LossModule(self.model, lambda batch, model: trainer.criterion(model, batch))
            parallelize(module, trainer.cfg.distributed_training, trainer.group, trainer.device)
        trainer.eval_model = self.model

    @torch.no_grad()
    def update(self, run: TrainingRun, result: UpdateResult) -> None:
        """Update the averages."""
        weight = 1.0 - min(self.decay, run.update / (run.update + 9))
        averages, values = ([local(one) for one in (*m.parameters(), *m.buffers())] for m in (self.model, run.model))
        floating = [i for i, value in enumerate(values) if value.is_floating_point()]
        torch._foreach_lerp_([averages[i] for i in floating], [values[i] for i in floating], weight)
        for i in set(range(len(values))).difference(floating):
            averages[i].copy_(values[i])
