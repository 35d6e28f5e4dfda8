"""The training loop: epochs of updates, with validation, saving and stopping between updates."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from seqgen.checkpoints.loading import initialize
from seqgen.config import TrainConfig
from seqgen.core.errors import CheckpointError, ConfigError, DataError, ResourceError
from seqgen.core.structures import Batch
from seqgen.data.combined_datasets import JoinedDataset, PackedDataset, pack
from seqgen.data.iterator import EpochIterator
from seqgen.data.pair_dataset import Dataset, LimitedDataset
from seqgen.modules.inspection import num_parameters
from seqgen.modules.linear import TRAINING
from seqgen.registry import MODELS
from seqgen.system.devices import memory_errors, seed_everything
from seqgen.system.processes import NotedSignals
from seqgen.system.switches import KERNEL_CHOICE
from seqgen.task import Task
from seqgen.training.distributed import ProcessGroup, unused_keys
from seqgen.training.progress import Divergence, Meter, ProgressLines, describe_parts
from seqgen.training.run_log import Records, ScoresFile, is_better, lower_is_better
from seqgen.training.saving import Resumable, Saving
from seqgen.training.trainer import Trainer
from seqgen.training.validation import Interrupted, ValidationResult, Validator, pick


class Triggers:
    """Decides when to validate, save and stop, from the configuration and the counters passed in; it has no state.

    Args:
        cfg: the whole configuration.
    """

    def __init__(self, cfg: TrainConfig):
        self.cfg = cfg

    def is_due(self, what: str, update: int, epoch: int, ended: bool) -> bool:
        """True if validating or saving is due.

        Args:
            what: ``"validate"`` or ``"save"``.
            update: number of updates made.
            epoch: the epoch of the last update, from 1.
            ended: whether this update was the last of its epoch.
        """
        epochs, updates = self._intervals(what)
        return (ended and epochs > 0 and epoch % epochs == 0) or (updates > 0 and update % updates == 0)

    def ever(self, what: str) -> bool:
        """True if ``"validate"`` or ``"save"`` is configured at all, by epochs or by updates."""
        return any(self._intervals(what))

    def _intervals(self, what: str) -> tuple[int, int]:
        group: Any = self.cfg.dataset if what == "validate" else self.cfg.checkpoint
        return getattr(group, f"{what}_interval"), getattr(group, f"{what}_interval_updates")

    def checkpoint_names(self, update: int, epoch: int, ended: bool, improved: bool) -> list[str]:
        """The names of the checkpoints to save, in order. ``last`` comes last, so that it exists only if the others do.

        Args:
            update: number of updates made.
            epoch: the epoch of the last update, from 1.
            ended: whether this update was the last of its epoch.
            improved: whether the validation score is the best so far.
        """
        cfg = self.cfg.checkpoint
        names = []
        if ended and epoch and cfg.keep_last_epochs and cfg.save_interval and epoch % cfg.save_interval == 0:
            names.append(f"epoch_{epoch}")
        if update and cfg.keep_interval_updates and (every := cfg.save_interval_updates) and update % every == 0:
            names.append(f"update_{update}")
        return [*names, *(["best"] if improved else []), "last"]

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
        totals = [cfg.last_update()] if cfg.last_update() else []
        if cfg.max_epoch:
            totals.append(cfg.max_epoch * updates_in_epoch)
        return min(totals, default=None)

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


class TrainingRun:
    """The training of a run in one process; with several processes, each has an instance.

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
        self.cfg, self.task, self.folder, self.group, self.signals = cfg, task, folder, group, signals
        seed_everything((cfg.common.seed,))
        model = task.build_model(cfg.model).to(device)
        self.trainer = Trainer(cfg, task, model, device, group)
        self.triggers = Triggers(cfg)
        self.notes = unused_keys(cfg.distributed_training, group)
        self._iterator = functools.partial(
            EpochIterator,
            seed=cfg.common.seed,
            rank=group.rank,
            world_size=group.world_size,
            num_workers=cfg.dataset.num_workers,
        )
        self.iterator = self._train_iterator()
        self.validator = Validator(self.trainer, self._valid_iterators(), lambda: bool(signals.received))
        self.saving = Saving(cfg, folder, group, self.trainer)
        self.meter = Meter()
        self.best: float | None = None
        self.start: float | None = None  # the score before the first update, if it was computed
        self.divergence = Divergence(math.log(len(task.target_dictionary)))  # of this process
        self.stale = 0  # number of validations since the best one
        # whether the last update, whose validation and saving are to be done, ended its epoch; ``None`` if none are
        self.pending: bool | None = None
        self.display: ProgressLines
        self.records: Records | None = None

    def _dataset(self, split: str, max_tokens: int | None) -> Dataset:
        dataset = self.task.dataset(split)
        if isinstance(dataset, LimitedDataset):
            dataset = dataset.limited(*self.trainer.model.max_positions())
            self.notes += dataset.report()
        longest = dataset.lengths(1, self.cfg.common.seed).max(1)
        if max_tokens is not None and (longer := int((longest > max_tokens).sum())):
            self.notes.append(
                f"{longer} examples of {split} are longer than dataset.max_tokens={max_tokens}, the longest has "
                f"{longest.max()} tokens; each is a batch of its own"
            )
        return dataset

    def _train_iterator(self) -> EpochIterator:
        cfg = self.cfg.dataset
        dataset = self._dataset(cfg.train_subset, cfg.max_tokens)
        make = functools.partial(self._iterator, max_tokens=cfg.max_tokens, batch_size=cfg.batch_size)
        if not cfg.pack:
            return make(dataset, self._collate)
        if not self.trainer.model.supports_packing:
            raise ConfigError(
                f"dataset.pack=true is not possible with model={MODELS.of(self.cfg.model).name}, which cannot keep the "
                "examples of a row apart; choose a t5 or a transformer, or set dataset.pack=false"
            )
        return make(PackedDataset(dataset, cfg.pack_length), self._collate_rows)

    def _valid_iterators(self) -> dict[str, EpochIterator]:
        """The batches of each part of the validation split; that of the whole split is named ``""``."""
        cfg = self.cfg.dataset
        tokens, size = cfg.max_tokens_valid or cfg.max_tokens, cfg.batch_size_valid or cfg.batch_size
        dataset = self._dataset(cfg.valid_subset, tokens)
        parts = dataset.parts if isinstance(dataset, JoinedDataset) else {"": dataset}
        make = functools.partial(self._iterator, collate=self._collate, max_tokens=tokens, batch_size=size)
        return {name: make(part, shuffle=False) for name, part in parts.items()}

    def _collate(self, examples: Sequence[Any]) -> Batch:
        return self.task.collate(examples, self.trainer.model)

    def _collate_rows(self, rows: Sequence[Sequence[Any]]) -> Batch:
        """Collate packed examples: each row has several."""
        batches = [self._collate(row) for row in rows]
        return pack(batches, self.task.source_dictionary.pad(), self.task.target_dictionary.pad())

    def run(self) -> int:
        """Train until there is a reason to stop.

        Returns:
            The exit code; see ``train.train``.

        Raises:
            UserError: see ``train.train``.
        """
        found = self.saving.newest()
        resumed = self._restore(found)
        TRAINING.choose()
        self.total = self.triggers.total_updates(self._updates_in_epoch())
        self.display = ProgressLines(self.total, self.group.is_main and self.cfg.common.log_format != "none")
        if self.group.is_main:
            scores = ScoresFile(self.folder, self.cfg.checkpoint.best_checkpoint_metric, self.task.metric_signatures())
            update = self.trainer.update if found else -1
            self.records = Records(self.folder, update, self.cfg.common.tensorboard, scores)
            self._announce(resumed)
        try:
            # validation has fixed kernels, so that a resumed run gets the same scores
            with KERNEL_CHOICE.off():
                reason = self._catch_up() or self._limit(self.iterator.epoch - 1)
                while not reason:
                    reason = self._epoch()
            self._log_stop(reason)
        finally:
            if self.records is not None:
                self.records.close()
        return self.signals.exit_code if reason == "interrupted" else 0

    # -- the loop -------------------------------------------------------------------------------------------------

    def _epoch(self) -> str:
        """Train the rest of the current epoch; return the reason to stop, empty if there is none."""
        epoch = self.iterator.epoch
        freq = self.triggers.update_freq(epoch)
        rounds = self.iterator.rounds
        total = math.ceil(rounds / freq)
        with closing(iter(self.iterator)) as batches:
            for number in range(math.ceil(self.iterator.consumed / freq) + 1, total + 1):
                group: list[Batch | None] = list(itertools.islice(batches, freq))
                most = min(freq, rounds - (number - 1) * freq)  # of all ranks
                group += [None] * (most - len(group))
                ended = number == total
                if ended:
                    next(batches, None)  # moves the iterator to the next epoch before its state is saved
                if self._update(group, epoch) or ended:
                    reason = self._after_update(epoch, ended)
                    if reason:
                        return reason
        return ""

    def _update(self, group: list[Batch | None], epoch: int) -> bool:
        """Make an update; return false if it was skipped."""
        self.meter.tick()
        with memory_errors(self._smaller_updates):
            result = self.trainer.train_update(group, epoch, self.iterator.spare)
        self.meter.add(result)
        if result.skipped:
            self.display.message(f"update {self.trainer.update + 1} was skipped: {result.skipped}")
            return False
        update = self.trainer.update
        record, due = {**self.meter.record(), "lr": result.lr}, update % self.cfg.common.log_interval == 0
        self._note_divergence(record, due)
        if due:
            self.meter.reset()
            self._write("train", epoch, record)
        left = self.triggers.seconds_left(update, self.total, self.meter.seconds)
        self.display.update(update, epoch, record, due, left, self.saving.seconds_left())
        return True

    def _after_update(self, epoch: int, ended: bool) -> str:
        """Validate, save and decide whether to stop, after an update.

        Args:
            epoch: the update's epoch.
            ended: whether this update was the last of its epoch.

        Returns:
            The reason to stop, empty if there is none.
        """
        left = self.saving.seconds_left()
        asked = self.group.gather((bool(self.signals.received), left is not None and left <= 0))  # clocks differ
        if any(stop for stop, _ in asked):
            return self._interrupt(ended)
        place = self.trainer.update, epoch, ended
        completed = epoch if ended else epoch - 1
        limit = self._limit(completed)
        improved = False
        if self.triggers.is_due("validate", *place) or (limit and self.triggers.ever("validate")):
            try:
                improved = self._validate(epoch)
            except Interrupted:
                return self._interrupt(ended)
            except ResourceError:  # save the updates before reporting the error
                self._interrupt(ended)
                raise
            limit = limit or self._limit(completed)
        if improved or limit or asked[0][1] or self.triggers.is_due("save", *place):
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
        trainer = self.trainer
        self.meter.tick()
        lr = trainer.scheduler.lr_at(trainer.update, epochs + 1)
        reason = self.triggers.reason_to_stop(trainer.update, epochs, self.meter.seconds, self.stale, lr)
        if not self.cfg.optimization.stop_time_hours:
            return reason
        return next((one for one in self.group.gather(reason) if one), "")  # the clocks of the ranks differ

    # -- validating and saving ------------------------------------------------------------------------------------

    def _validate(self, epoch: int) -> bool:
        """Validate; return whether the score is the best so far."""
        self.meter.tick()
        with memory_errors(self._smaller_validation):
            result = self.validator.validate()
        metric = self.cfg.checkpoint.best_checkpoint_metric
        score = pick(result.scores, metric)
        self.trainer.scheduler.on_validation(score if lower_is_better(metric) else -score)
        improved = is_better(score, self.best, metric)
        self.best, self.stale = (score, 0) if improved else (self.best, self.stale + 1)
        if not self.trainer.update:
            self.start = score
        worse = self.start is not None and is_better(self.start, score, metric)
        self._log_validation(result, epoch, "worse than the start" if worse else "best so far" * improved)
        return improved

    def _log_validation(self, result: ValidationResult, epoch: int, rank: str) -> None:
        self._write("valid", epoch, result.scores)
        if self.records is not None:
            self.records.write_samples(self.trainer.update, result.samples)
        whole, parts = describe_parts(result.scores)
        line = " | ".join(filter(None, [f"valid at update {self.trainer.update}", f"epoch {epoch}", whole, rank]))
        self.display.message("\n".join([line, *parts]))
        self._note_divergence(result.scores, due=False)

    def _save(self, names: list[str]) -> None:
        self.meter.tick()
        self.saving.save(names, self._state())
        if self.records is not None:
            self.records.flush()
            self.meter.tick()

    def _state(self) -> dict[str, Any]:
        """The training state without the weights; see ``Trainer.state_dict``."""
        return {
            **self.trainer.state_dict(),
            "iterator": self.iterator.state_dict(),
            "meter": self.meter.state_dict(),
            "best": self.best,
            "start": self.start,
            "stale": self.stale,
            "pending": self.pending,
            "processes": self.group.world_size,
            "batches_in_update": self._batches_in_update(),
        }

    def _load_state(self, found: Resumable) -> None:
        """Restore the state that ``_state`` returned.

        Raises:
            CheckpointError: it does not belong to this run.
        """
        state = found.state
        try:
            self.trainer.load_state_dict(found.weights, state, str(found.path))
            self.notes += filter(None, [self.iterator.load_state_dict(state["iterator"])])
            self.meter.load_state_dict(state["meter"])
            self.best, self.stale, self.pending = state["best"], state["stale"], state["pending"]
            self.start = state.get("start")
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise CheckpointError(
                f"{found.path}: its training state does not belong to this run ({type(error).__name__}: "
                f"{str(error)[:200]}); if you delete {found.path}, the run continues from an older checkpoint"
            ) from error

    def _restore(self, found: Resumable | None) -> str:
        """Resume from a checkpoint of the run or load the weights to fine-tune; return a message that says which."""
        if found is not None:
            self._load_state(found)
            self.notes += [f"{said}; an older checkpoint is used in its place" for said in found.damaged]
            return f"resuming from {found.path} at update {self.trainer.update}{self._regrouped(found.state)}"
        given = self.cfg.checkpoint.finetune_from
        if not given:
            return ""
        try:
            with self.trainer.plain(self.trainer.model) as model:
                compared = () if self.cfg.checkpoint.other_languages else self.task.language_pair
                messages = initialize(model, given, self.task, compared)
                self.trainer.load_initial(model)
        except (CheckpointError, DataError) as error:
            raise CheckpointError(f"checkpoint.finetune_from: {error}") from None
        self.notes += messages[:-1]
        self.pending = True  # the weights are validated and saved first, as those of an epoch 0
        return messages[-1]

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

    def _smaller_validation(self) -> str:
        return (
            f"in the validation at update {self.trainer.update}, whose weights were saved; choose a smaller "
            "dataset.max_tokens_valid, or generation.beam or generation.batch_size if it decodes, and run the command "
            "again"
        )

    # -- messages and records -------------------------------------------------------------------------------------

    def _announce(self, resumed: str) -> None:
        for note in [*self.notes, resumed]:
            if note:
                self.display.message(note)
        params = sum(param.numel() for param in self.trainer.params)
        values = {"parameters": params, "batches": self._rounds_in_epoch(), "processes": self.group.world_size}
        self._write("resume" if self.trainer.update else "start", self.iterator.epoch, values)
        frozen = num_parameters(self.trainer.model) - num_parameters(self.trainer.model, trainable_only=True)
        shown = f"{params:,} parameters" + (f" and {frozen:,} frozen ones" if frozen else "")
        self.display.message(f"{shown}, {self._updates_in_epoch():,} updates per epoch, on {self.trainer.device}")

    def _note_divergence(self, scores: Mapping[str, float], due: bool) -> None:
        """Say once if training diverges."""
        if self.divergence.notices(loss := scores["nll_loss"], due):
            best = min(self.divergence.first, self.divergence.best)
            self.display.message(
                f"training diverges: at update {self.trainer.update} the loss is {loss:.4g} nats per token, {best:.4g} "
                "before; stop it (Ctrl-C) and start a new run with a lower optimization.lr, more "
                "lr_scheduler.warmup_updates or a lower optimization.clip_norm"
            )

    def _log_stop(self, reason: str) -> None:
        self._write("stop", self.iterator.epoch, {"reason": reason, "seconds": round(self.meter.seconds, 1)})
        metric = self.cfg.checkpoint.best_checkpoint_metric
        best = "" if self.best is None else f", best {metric} {self.best:.4g}"
        self.display.message(
            f"training ended at update {self.trainer.update}: {reason}{best}; checkpoints in {self.folder}"
        )

    def _write(self, event: str, epoch: int, values: dict[str, Any]) -> None:
        if self.records is not None:
            self.records.write(event, self.trainer.update, epoch, values)

    def _updates_in_epoch(self) -> int:
        """Number of updates in the current epoch: that of the rank with the most batches."""
        return math.ceil(self._rounds_in_epoch() / self.triggers.update_freq(self.iterator.epoch))

    def _rounds_in_epoch(self) -> int:
        """Number of batches in the whole current epoch, of the rank with the most batches."""
        batches: int = self.iterator.state_dict()["batches"]
        return math.ceil(batches / self.group.world_size)

    def _batches_in_update(self) -> int:
        """Number of batches in one update, over all ranks."""
        return self.group.world_size * self.triggers.update_freq(self.iterator.epoch)
