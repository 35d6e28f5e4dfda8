"""The times at which training validates, saves and stops."""

from __future__ import annotations

from typing import Any

from seqgen.config import TrainConfig


class Triggers:
    """Decides when to validate, save and stop, from the configuration and the counters passed in; it has no state.

    Args:
        cfg: the whole configuration.
    """

    def __init__(self, cfg: TrainConfig):
        self.cfg = cfg

    def due(self, what: str, update: int, epoch: int, ended: bool) -> tuple[bool, bool]:
        """Whether validating or saving is due by the number of epochs, and by the number of updates.

        Args:
            what: ``"validate"`` or ``"save"``.
            update: number of updates made.
            epoch: the epoch of the last update, from 1.
            ended: whether this update was the last of its epoch.
        """
        group: Any = self.cfg.dataset if what == "validate" else self.cfg.checkpoint
        epochs, updates = getattr(group, f"{what}_interval"), getattr(group, f"{what}_interval_updates")
        return ended and epochs > 0 and epoch % epochs == 0, updates > 0 and update % updates == 0

    def checkpoint_names(self, update: int, epoch: int, ended: bool, improved: bool) -> list[str]:
        """The names of the checkpoints to save, in order. ``last`` comes last, so that it exists only if the others do.

        Args:
            update: number of updates made.
            epoch: the epoch of the last update, from 1.
            ended: whether this update was the last of its epoch.
            improved: whether the validation score is the best so far.
        """
        by_epoch, by_update = self.due("save", update, epoch, ended)
        wanted = {
            f"epoch_{epoch}": by_epoch and epoch and self.cfg.checkpoint.keep_last_epochs,
            f"update_{update}": by_update and update and self.cfg.checkpoint.keep_interval_updates,
            "best": improved,
        }
        return [*(name for name, is_wanted in wanted.items() if is_wanted), "last"]

    def reason_to_stop(self, update: int, epochs: int, seconds: float, stale: int, lr: float) -> str:
        """The reason why training stops; empty if it continues.

        Args:
            update: number of updates made.
            epochs: number of completed epochs.
            seconds: training time so far.
            stale: number of validations since the best score.
            lr: the learning rate of the next update.
        """
        cfg, patience = self.cfg.optimization, self.cfg.checkpoint.patience
        warming_up = update < self.cfg.lr_scheduler.warmup_updates
        reasons = {
            f"max_update={cfg.last_update()} reached": 0 < cfg.last_update() <= update,
            f"max_epoch={cfg.max_epoch} reached": 0 < cfg.max_epoch <= epochs,
            f"stop_time_hours={cfg.stop_time_hours:g} reached": 0 < cfg.stop_time_hours * 3600 <= seconds
            and update > 0,
            f"stop_min_lr={cfg.stop_min_lr:g} reached": lr <= cfg.stop_min_lr and not warming_up,
            f"no better score in patience={patience} validations": 0 < patience <= stale,
        }
        return next((reason for reason, holds in reasons.items() if holds), "")

    def update_freq(self, epoch: int) -> int:
        """Batches per update in an epoch (from 1); the last value of the list is reused for later epochs."""
        freq = self.cfg.optimization.update_freq or [1]
        return freq[min(epoch, len(freq)) - 1]

    def total_updates(self, updates_in_epoch: int) -> int | None:
        """The update at which training ends, by ``max_update`` or ``max_epoch``, whichever comes first.

        Args:
            updates_in_epoch: number of updates in an epoch.

        Returns:
            The number of updates; ``None`` if neither key is set.
        """
        cfg = self.cfg.optimization
        return min(filter(None, (cfg.last_update(), cfg.max_epoch * updates_in_epoch)), default=None)

    def seconds_left(self, update: int, total: int | None, seconds: float) -> float | None:
        """Estimate the remaining training time at the mean speed so far.

        Args:
            update: number of updates made.
            total: see ``total_updates``.
            seconds: training time so far.

        Returns:
            Seconds until ``total`` or ``stop_time_hours``, whichever comes first; ``None`` if neither is set.
        """
        hours = self.cfg.optimization.stop_time_hours
        left = [hours * 3600 - seconds] if hours else []
        if total is not None:
            left.append((total - update) * seconds / max(1, update))
        return min(left, default=None)
