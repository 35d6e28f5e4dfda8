"""The training loop: epochs of updates, with validation, saving and stopping between updates."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqgen.checkpoints.loading import initialize
from seqgen.checkpoints.run_checkpoints import FOLDER, Checkpoints, read_training_state, read_weights
from seqgen.checkpoints.serialization import pack
from seqgen.config import TrainConfig
from seqgen.core.errors import CheckpointError, ConfigError, DataError, ResourceError
from seqgen.core.structures import Batch
from seqgen.decoding.building import name_key_in_errors
from seqgen.modules.inspection import num_parameters
from seqgen.modules.linear import TRAINING
from seqgen.system.devices import memory_errors, seed_everything
from seqgen.system.processes import NotedSignals
from seqgen.system.switches import KERNEL_CHOICE
from seqgen.task import Task
from seqgen.training.batches import RunBatches
from seqgen.training.distributed import ProcessGroup, unused_keys
from seqgen.training.observers import EMA, TrainingObserver, build_observers
from seqgen.training.progress import Divergence, ProgressLines
from seqgen.training.run_log import RunLog, is_better, lower_is_better
from seqgen.training.tensorboard import TensorBoard
from seqgen.training.trainer import Trainer
from seqgen.training.training_run import Requests, TrainingRun
from seqgen.training.validation import Interrupted, Validator, pick

_SAVED = ("best", "start", "stale", "pending", "means", "due")


class TrainingLoop(TrainingRun):
    """The loop of a training in one process; with several processes, each has an instance.

    Args:
        cfg: the whole configuration.
        task: the task.
        folder: the run's folder.
        device: where to compute.
        group: this process's rank in the process group.
        signals: receives the signals that ask training to stop.

    Raises:
        ConfigError: options exclude each other, or do not fit the model or the task.
    """

    def __init__(
        self,
        cfg: TrainConfig,
        task: Task,
        folder: Path,
        device: torch.device,
        group: ProcessGroup,
        signals: NotedSignals,
    ):
        seed_everything((cfg.common.seed,))
        model = task.build_model(cfg.model).to(device)
        trainer, batches = Trainer(cfg, task, model, device, group), RunBatches(cfg, task, model, group)
        super().__init__(cfg, task, folder, trainer, batches.train())
        self.signals = signals
        self.validator = Validator(self.trainer, batches.valid(), lambda: bool(signals.received))
        self.notes = [*unused_keys(cfg.distributed_training, group), *batches.notes]
        self.checkpoints = Checkpoints(folder) if group.is_main else None
        self.start: float | None = None  # the score before the first update, if it was computed
        # whether the last update, whose validation and saving are to be done, ended its epoch; ``None`` if none are
        self.pending: bool | None = None
        self.own_observers = build_observers(cfg.training)
        self.observers: list[TrainingObserver] = [EMA(trainer, d) for d in [cfg.optimization.ema_decay] if d]
        if group.is_main:
            log = RunLog(folder, cfg.checkpoint.best_checkpoint_metric, task.metric_signatures())
            lines, divergence = ProgressLines(cfg.common.log_format), Divergence(math.log(len(task.target_dictionary)))
            self.observers += [log, *([TensorBoard()] if cfg.common.tensorboard else []), lines, divergence]
        self.observers += self.own_observers.values()

    # -- the loop -------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Train until there is a reason to stop.

        Returns:
            The exit code; see ``train.train``.

        Raises:
            UserError: see ``train.train``.
        """
        state = self._resume()
        self.resumed = state is not None
        if not self.resumed and self.cfg.checkpoint.finetune_from:
            self._begin_with(self.cfg.checkpoint.finetune_from)
        TRAINING.choose()
        self.total = self.triggers.total_updates(self._updates_in_epoch())
        self._announce()
        reason, self.epoch = "", self.iterator.epoch
        begun: list[TrainingObserver] = []
        try:
            for observer in self.observers:
                self._tell([observer], "begin")
                begun.append(observer)
            self._restore_observers(state)
            # validation has fixed kernels, so that a resumed run gets the same scores
            with KERNEL_CHOICE.off():
                stopped = self._catch_up() or self._limit(self.iterator.epoch - 1)
                while not stopped:
                    stopped = self._epoch()
            reason, self.epoch = stopped, self.iterator.epoch
        finally:
            self._tell(begun, "end", reason)
        return self.signals.exit_code if reason == "interrupted" else 0

    def _tell(self, observers: Sequence[TrainingObserver], event: str, *given: Any) -> None:
        """Call a method of observers, with the same random numbers in all ranks and in a continued run."""
        if self.own_observers:
            seed_everything((self.cfg.common.seed, self.update * (event != "begin")))
        for observer in observers:
            with name_key_in_errors(f"{type(observer).__name__}.{event}"):
                getattr(observer, event)(self, *given)

    def _epoch(self) -> str:
        """Train the rest of the current epoch; return the reason to stop, empty if there is none."""
        epoch = self.epoch = self.iterator.epoch
        if not self.iterator.first + self.iterator.consumed:
            self._tell(self.observers, "epoch")
        freq = self.triggers.update_freq(epoch)
        rounds = self.iterator.rounds
        with closing(iter(self.iterator)) as batches:
            for done in range(0, rounds, freq):
                group: list[Batch | None] = list(itertools.islice(batches, freq))
                group += [None] * (min(freq, rounds - done) - len(group))  # another rank has more batches
                ended = done + freq >= rounds
                if ended:
                    next(batches, None)  # moves the iterator to the next epoch before its state is saved
                if (self._update(group, epoch) or ended) and (reason := self._after_update(epoch, ended)):
                    return reason
        return ""

    def _update(self, group: list[Batch | None], epoch: int) -> bool:
        """Make an update; return false if it was skipped."""
        begun = time.perf_counter()
        with memory_errors(self._smaller_updates):
            result = self.trainer.train_update(group, epoch, self.iterator.spare)
        self.meter.add(result, time.perf_counter() - begun)
        if result.skipped:
            self.message(f"update {self.update + 1} was skipped: {result.skipped}")
            return False
        self.means, self.due = {**self.meter.record(), "lr": result.lr}, self.update % self.cfg.common.log_interval == 0
        if self.due:
            self.meter.reset()
        self._tell(self.observers, "update", result)
        return True

    def _after_update(self, epoch: int, ended: bool) -> str:
        """Validate, save and decide whether to stop, after an update.

        Args:
            epoch: the update's epoch.
            ended: whether this update was the last of its epoch.

        Returns:
            The reason to stop, empty if there is none.
        """
        self.epoch, left = epoch, self.seconds_to_save()
        # clocks differ
        asked = self.group.gather((bool(self.signals.received), left is not None and left <= 0, self.requests))
        if any(stop for stop, *_ in asked):
            return self._interrupt(ended)
        place = self.update, epoch, ended
        completed = epoch if ended else epoch - 1
        requests = sum((one for *_, one in asked), Requests())
        self.requests = Requests(requests.stop)
        limit = self._limit(completed)
        improved = False
        validates = self.cfg.dataset.validate_interval or self.cfg.dataset.validate_interval_updates
        if any(self.triggers.due("validate", *place)) or requests.validate or (limit and validates):
            try:
                improved = self._validate(epoch)
            except (Interrupted, ResourceError) as error:  # save the updates before reporting an error
                self.requests = requests
                stopped = self._interrupt(ended)
                if isinstance(error, Interrupted):
                    return stopped
                raise
            requests += self.requests
            self.requests.save = False
            limit = limit or self._limit(completed)
        if improved or limit or asked[0][1] or requests.save or any(self.triggers.due("save", *place)):
            self._save(self.triggers.checkpoint_names(*place, improved))
        return limit

    def _interrupt(self, ended: bool) -> str:
        """Save after an update but before its validation, which is done when training resumes."""
        self.pending = ended
        self._save(["last"])
        return "interrupted"

    def _catch_up(self) -> str:
        """Do the validation and saving that are to be done; return the reason to stop, empty if there is none."""
        if self.pending is None:
            return ""
        ended, self.pending = self.pending, None
        return self._after_update(self.iterator.epoch - ended, ended)

    def _limit(self, epochs: int) -> str:
        """The reason to stop after a number of completed epochs, empty if there is none; the same in all ranks."""
        place = self.update, epochs, self.meter.seconds, self.stale, self.trainer.lr_at(epochs + 1)
        reason = self.triggers.reason_to_stop(*place) or self.requests.stop
        if not self.cfg.optimization.stop_time_hours:
            return reason
        return next((one for one in self.group.gather(reason) if one), "")  # the clocks of the ranks differ

    # -- validating and saving ------------------------------------------------------------------------------------

    def _validate(self, epoch: int) -> bool:
        """Validate; return whether the score is the best so far."""
        smaller = (
            f"in the validation at update {self.trainer.update}, whose weights were saved; choose a smaller "
            "dataset.max_tokens_valid, or generation.beam or generation.batch_size if it decodes, and run the command "
            "again"
        )
        with memory_errors(lambda: smaller):
            result = self.validator.validate()
        metric = self.cfg.checkpoint.best_checkpoint_metric
        score = pick(result.scores, metric)
        self.trainer.scheduler.on_validation(score if lower_is_better(metric) else -score)
        improved = is_better(score, self.best, metric)
        self.best, self.stale = (score, 0) if improved else (self.best, self.stale + 1)
        if not self.trainer.update:
            self.start = score
        worse = self.start is not None and is_better(self.start, score, metric)
        result.rank = "worse than the start" if worse else "best so far" * improved
        self._tell(self.observers, "validation", result)
        return improved

    def _save(self, names: list[str]) -> None:
        """Save checkpoints under these names and delete those that are too old; all ranks call this."""
        state, weights = self._state(), self.trainer.weights()
        if self.checkpoints is not None:
            self.checkpoints.save(names, weights, state)
            self.checkpoints.prune("epoch", self.cfg.checkpoint.keep_last_epochs)
            self.checkpoints.prune("update", self.cfg.checkpoint.keep_interval_updates)
        self.saved = time.monotonic()
        for name in names:
            self._tell(self.observers, "checkpoint", self.folder / FOLDER / name)

    def _state(self) -> dict[str, Any]:
        """The training state without the weights; see ``Trainer.state_dict``."""
        return {
            **self.trainer.state_dict(),
            "iterator": self.iterator.state_dict(),
            "meter": self.meter.state_dict(),
            **{name: getattr(self, name) for name in _SAVED},
            "requests": asdict(self.requests),
            "observers": {name: observer.state_dict() for name, observer in self.own_observers.items()},
            "processes": self.group.world_size,
            "batches_in_update": self._batches_in_update(),
        }

    def _load_state(self, path: Path, weights: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Restore the state that ``_state`` returned.

        Raises:
            CheckpointError: it does not belong to this run.
        """
        try:
            self.trainer.load_state_dict(weights, state, str(path))
            self.notes += filter(None, [self.iterator.load_state_dict(state["iterator"])])
            self.meter.load_state_dict(state["meter"])
            vars(self).update({name: state[name] for name in _SAVED})
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise CheckpointError(
                f"{path}: its training state does not belong to this run ({type(error).__name__}: "
                f"{str(error)[:200]}); if you delete {path}, the run continues from an older checkpoint"
            ) from error

    def _restore_observers(self, state: dict[str, Any] | None) -> None:
        """Restore what ``begin`` of the observers may have changed, if the run was continued; check their states."""
        if state is not None:
            self.trainer.load_steering(state)
            self.requests = Requests(self.requests.stop) + Requests(**state["requests"])
            self.iterator.dataset.load_state_dict(state["iterator"]["dataset"]["next"])
        for name, observer in self.own_observers.items():
            try:
                if state is not None:
                    observer.load_state_dict(state["observers"][name])
                pack(observer.state_dict())
            except (AttributeError, LookupError, TypeError) as error:
                raise ConfigError(f"training observer {name}: its state: {type(error).__name__}: {error}") from error

    def _resume(self) -> dict[str, Any] | None:
        """Resume from the newest checkpoint that all ranks can read; return its state, or ``None`` without one.

        Raises:
            CheckpointError: there are some, but none can be read.
        """
        damaged: list[str] = []
        for path in self.group.gather(self.checkpoints.resumable() if self.checkpoints is not None else [])[0]:
            try:
                weights, state, problem = read_weights(path), read_training_state(path), ""
            except CheckpointError as error:
                problem = str(error)
            problem = next(filter(None, self.group.gather(problem)), "")
            if not problem:
                self._load_state(path, weights, state)
                self.notes += [f"{said}; an older checkpoint is used in its place" for said in damaged]
                self.notes.append(f"resuming from {path} at update {self.trainer.update}{self._regrouped(state)}")
                return state
            damaged.append(problem)
        if damaged:
            raise CheckpointError(f"no checkpoint of this run can be read: {damaged[0]}")
        return None

    def _begin_with(self, given: str) -> None:
        """Begin with the weights of a trained model, to fine-tune them."""
        try:
            with self.trainer.plain(self.trainer.model) as model:
                compared = () if self.cfg.checkpoint.other_languages else self.task.language_pair
                messages = initialize(model, given, self.task, compared)
                self.trainer.load_initial(model)
        except (CheckpointError, DataError) as error:
            raise CheckpointError(f"checkpoint.finetune_from: {error}") from None
        self.notes += messages
        self.pending = True  # the weights are validated and saved first, as those of an epoch 0

    def _regrouped(self, state: dict[str, Any]) -> str:
        """A message on the effects of a changed number of processes; empty if it has not changed."""
        before, batches = state.get("processes"), state.get("batches_in_update")
        if before in (None, self.group.world_size):
            return ""
        now = self._batches_in_update()
        kept = "as before" if now == batches else f"not {batches} as before, which changes the training result"
        return (
            f"; the number of processes is {self.group.world_size}, not {before} as before: the rest of the epoch is "
            f"distributed among them, and an update has {now} batches, {kept}"
        )

    def _smaller_updates(self) -> str:
        again = f"start a new run in another run_dir, with checkpoint.finetune_from={self.folder} to keep the weights"
        skip = "" if self.group.world_size > 1 else "optimization.out_of_memory=skip skips such updates, or "
        return (
            f"in update {self.trainer.update + 1}; {skip}choose a smaller dataset.max_tokens, with a larger "
            "optimization.update_freq for as many tokens in an update"
            + (f"; since this changes the run, {again}" if any(self.folder.glob("checkpoints/*/")) else "")
        )

    # -- messages -------------------------------------------------------------------------------------------------

    def _announce(self) -> None:
        for note in self.notes:
            self.message(note)
        params = sum(param.numel() for param in self.trainer.params)
        frozen = num_parameters(self.trainer.model) - num_parameters(self.trainer.model, trainable_only=True)
        shown = f"{params:,} parameters" + (f" and {frozen:,} frozen ones" if frozen else "")
        self.message(f"{shown}, {self._updates_in_epoch():,} updates per epoch, on {self.trainer.device}")

    def _updates_in_epoch(self) -> int:
        """Number of updates in the current epoch: that of the rank with the most batches."""
        return math.ceil(self.batches_in_epoch / self.triggers.update_freq(self.iterator.epoch))

    def _batches_in_update(self) -> int:
        """Number of batches in one update, over all ranks."""
        return self.group.world_size * self.triggers.update_freq(self.iterator.epoch)
