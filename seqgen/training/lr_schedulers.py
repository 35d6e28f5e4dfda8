"""Learning-rate schedules.

A schedule is a function of the number of updates made and the epoch; only ``reduce_lr_on_plateau`` has a state. All
begin with a linear warm-up: after ``u < warmup_updates`` updates, the learning rate is
``warmup_init_lr + (lr - warmup_init_lr) * u / warmup_updates``. As in fairseq, the first update uses the rate for
``u = 0``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from seqgen.config import OptimizationConfig, like, option
from seqgen.core.contract import Hooked
from seqgen.core.errors import ConfigError
from seqgen.registry import register_lr_scheduler


@dataclass
class WarmupConfig:
    """Options of all schedules with a warm-up."""

    warmup_updates: int = option(
        0, "warm-up: number of updates in which the learning rate rises to optimization.lr", minimum=0
    )
    warmup_init_lr: float = option(0.0, "learning rate at the beginning of the warm-up", minimum=0)


class LRScheduler(Hooked):
    """Computes the learning rate; subclass it and register the subclass to add a schedule.

    Args:
        cfg: an instance of the configuration class that the schedule is registered with.
        optimization: the ``optimization`` group, which has ``lr`` and ``max_update``.

    Raises:
        ConfigError: ``optimization.lr`` is empty, or the schedule needs a length of training that is not configured.
    """

    cfg: Any

    def __init__(self, cfg: WarmupConfig, optimization: OptimizationConfig):
        if not optimization.lr:
            raise ConfigError("optimization.lr is empty; set at least one learning rate")
        self.cfg = cfg
        self.lr = list(optimization.lr)
        self.max_update = optimization.last_update()

    def lr_at(self, update: int, epoch: int) -> float:
        """The learning rate of the next update.

        Args:
            update: number of updates made.
            epoch: the current epoch, from 1.
        """
        warmup, start = self.cfg.warmup_updates, self.cfg.warmup_init_lr
        if update < warmup:
            return float(start + (self.peak(epoch) - start) * update / warmup)
        return self.after_warmup(update, epoch)

    def after_warmup(self, update: int, epoch: int) -> float:
        """The learning rate of the next update after the warm-up; see ``lr_at``."""
        raise NotImplementedError

    def peak(self, epoch: int) -> float:
        """The value of ``optimization.lr`` for an epoch (from 1); the last value is reused for later epochs."""
        return self.lr[min(epoch, len(self.lr)) - 1]

    def on_validation(self, score: float) -> None:
        """Receive the validation score by which checkpoints are ranked, negated if needed so that lower is better."""

    def state_dict(self) -> dict[str, Any]:
        """The state needed to resume, as JSON values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that ``state_dict`` returned."""


@dataclass
class InverseSqrtConfig(WarmupConfig):
    """Options of ``inverse_sqrt``."""

    warmup_updates: int = like(WarmupConfig, "warmup_updates", 2000)


@register_lr_scheduler("inverse_sqrt", config=InverseSqrtConfig)
class InverseSqrtSchedule(LRScheduler):
    """Decay by the inverse square root of the update (Vaswani et al. 2017, equation 3).

    With ``warmup_init_lr`` equal to ``lr`` it is the schedule of T5, which is constant before the decay.
    """

    def after_warmup(self, update: int, epoch: int) -> float:
        """``lr * sqrt(warmup_updates / update)``; without a warm-up, ``lr / sqrt(update)``."""
        return self.peak(epoch) * math.sqrt(max(self.cfg.warmup_updates, 1) / max(update, 1))


@dataclass
class FixedConfig(WarmupConfig):
    """Options of ``fixed``."""

    force_anneal: int = option(
        0, "epoch from which every epoch multiplies the learning rate by lr_shrink; 0 for never", minimum=0
    )
    lr_shrink: float = option(0.1, "factor of that decay", minimum=0, maximum=1)


@register_lr_scheduler("fixed", config=FixedConfig)
class FixedSchedule(LRScheduler):
    """The learning rates of ``optimization.lr``, one for each epoch."""

    def after_warmup(self, update: int, epoch: int) -> float:
        """The epoch's value; from epoch ``force_anneal``, the last value times one ``lr_shrink`` per epoch."""
        if not self.cfg.force_anneal or epoch < self.cfg.force_anneal:
            return self.peak(epoch)
        return float(self.lr[-1] * self.cfg.lr_shrink ** (epoch + 1 - self.cfg.force_anneal))


@dataclass
class PolynomialConfig(WarmupConfig):
    """Options of ``polynomial``."""

    total_num_update: int = option(
        0, "update at which end_learning_rate is reached; 0 for optimization.max_update", minimum=0
    )
    end_learning_rate: float = option(0.0, "learning rate after the decay", minimum=0)
    power: float = option(1.0, "exponent of the decay; 1 for linear decay", minimum=0)


@register_lr_scheduler("polynomial", config=PolynomialConfig)
class PolynomialSchedule(LRScheduler):
    """Polynomial decay to ``end_learning_rate``: a power of the remaining fraction of the updates."""

    def __init__(self, cfg: PolynomialConfig, optimization: OptimizationConfig):
        super().__init__(cfg, optimization)
        self.total = _total(cfg.total_num_update, self.max_update, "polynomial", "total_num_update")

    def after_warmup(self, update: int, epoch: int) -> float:
        """``end + (lr - end) * remaining ** power``; ``remaining`` falls from 1 after the warm-up to 0."""
        warmup, end = self.cfg.warmup_updates, self.cfg.end_learning_rate
        remaining = max(0.0, (self.total - update) / max(1, self.total - warmup))
        return float(end + (self.peak(epoch) - end) * remaining**self.cfg.power if update < self.total else end)


@dataclass
class CosineConfig(WarmupConfig):
    """Options of ``cosine``."""

    lr_period_updates: int = option(
        0, "updates in the first period; 0 for optimization.max_update minus the warm-up", minimum=0
    )
    t_mult: float = option(1.0, "ratio of the length of a period to that of the period before it", minimum=1)
    lr_shrink: float = option(
        0.1, "after each period, the maximum and minimum learning rates are multiplied by this", minimum=0, maximum=1
    )
    min_lr: float = option(0.0, "learning rate at the end of the first period", minimum=0)


@register_lr_scheduler("cosine", config=CosineConfig)
class CosineSchedule(LRScheduler):
    """Half a cosine from ``optimization.lr`` to ``min_lr``, with warm restarts (Loshchilov & Hutter 2017)."""

    def __init__(self, cfg: CosineConfig, optimization: OptimizationConfig):
        super().__init__(cfg, optimization)
        rest = self.max_update - cfg.warmup_updates if self.max_update else 0
        self.period = _total(cfg.lr_period_updates, max(rest, 0), "cosine", "lr_period_updates")

    def after_warmup(self, update: int, epoch: int) -> float:
        """Equation 5 of the paper; each restart multiplies maximum and minimum by ``lr_shrink``."""
        done, length, periods = update - self.cfg.warmup_updates, float(self.period), 0
        last = self.max_update and not self.cfg.lr_period_updates  # one period for the whole training: no restart
        while done >= length and not last:
            done, length, periods = done - length, length * self.cfg.t_mult, periods + 1
        shrink = self.cfg.lr_shrink**periods
        low, high = self.cfg.min_lr * shrink, self.peak(epoch) * shrink
        return float(low + 0.5 * (high - low) * (1 + math.cos(math.pi * min(done / length, 1.0))))


@dataclass
class ReduceLROnPlateauConfig(WarmupConfig):
    """Options of ``reduce_lr_on_plateau``."""

    lr_shrink: float = option(
        0.1, "factor on the learning rate when the score has stopped improving", minimum=0, maximum=1
    )
    lr_threshold: float = option(1e-4, "minimum relative improvement of the score that counts as better", minimum=0)
    lr_patience: int = option(
        0, "number of validations without improvement before the learning rate is reduced", minimum=0
    )


@register_lr_scheduler("reduce_lr_on_plateau", config=ReduceLROnPlateauConfig)
class ReduceLROnPlateauSchedule(LRScheduler):
    """Reduce the learning rate when the score of ``checkpoint.best_checkpoint_metric`` has stopped improving."""

    def __init__(self, cfg: ReduceLROnPlateauConfig, optimization: OptimizationConfig):
        super().__init__(cfg, optimization)
        self.factor, self.best, self.bad = 1.0, math.inf, 0

    def after_warmup(self, update: int, epoch: int) -> float:
        """``lr`` times the product of all reductions so far."""
        return self.peak(epoch) * self.factor

    def on_validation(self, score: float) -> None:
        """Count validations without improvement, and reduce the rate after ``lr_patience`` of them."""
        if math.isinf(self.best) or score < self.best - abs(self.best) * self.cfg.lr_threshold:
            self.best, self.bad = score, 0
            return
        self.bad += 1
        if self.bad > self.cfg.lr_patience:
            self.factor, self.bad = self.factor * self.cfg.lr_shrink, 0

    def state_dict(self) -> dict[str, Any]:
        """The factor, the best score, and the number of validations since then."""
        return {"factor": self.factor, "best": None if math.isinf(self.best) else self.best, "bad": self.bad}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that ``state_dict`` returned."""
        self.factor, self.bad = state["factor"], state["bad"]
        self.best = math.inf if state["best"] is None else state["best"]


def _total(given: int, otherwise: int, name: str, key: str) -> int:
    if given or otherwise:
        return given or otherwise
    raise ConfigError(
        f"lr_scheduler={name} needs the length of training: set optimization.max_update (greater than the warm-up) or "
        f"lr_scheduler.{key}"
    )
