"""Saves checkpoints of a training run, and finds the one to resume from.

Sharded checkpoints are written while training continues, by ``torch.distributed.checkpoint``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future as TorchFuture

from seqgen.checkpoints.run_checkpoints import FOLDER, Checkpoints, read_training_state, read_weights, temporary_folder
from seqgen.checkpoints.serialization import digest, write_checksums, write_json
from seqgen.checkpoints.sharded import STATE, WEIGHTS, file_numbers, is_sharded, pack_shards, read_shards
from seqgen.config import TrainConfig
from seqgen.errors import CheckpointError, UserError
from seqgen.system.files import disk_errors
from seqgen.training.distributed import LostRanksError, ProcessGroup
from seqgen.training.trainer import Trainer


class ShardedSaver:
    """Writes sharded checkpoints of a run in the background; all ranks have one and call its methods together.

    The tensors are copied to CPU memory before ``save`` returns; a thread writes them. These threads
    have a separate process group, so that their communication does not mix with that of training.

    Args:
        run: the run folder, in a file system that all ranks share.
        group: this process's rank in the process group.
        checkpoints: publishes what all ranks have written; only for rank 0.
        timeout: seconds that a rank waits for the slowest one to write.
    """

    def __init__(self, run: Path, group: ProcessGroup, checkpoints: Checkpoints | None, timeout: int):
        self.folder, self.group, self.checkpoints = run / FOLDER, group, checkpoints
        with group.collective():
            self._threads = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
        self._pending: tuple[Path, Future[Any]] | None = None

    def save(
        self,
        names: Sequence[str],
        weights: Mapping[str, Tensor],
        state: Mapping[str, Any],
        after: Callable[[], None],
    ) -> None:
        """Begin to write one checkpoint under one or several names; first waits until the one before is written.

        Args:
            names: folder names; they are replaced in this order.
            weights: the weights to decode with; a weight with several names is the same object under each.
            state: the rest of the training state.
            after: called in rank 0 when the checkpoint is written, in another thread.

        Raises:
            CheckpointError: the checkpoint before could not be written; earlier checkpoints are intact.
            LostRanksError: another rank has ended or does not answer.
        """
        self.wait()
        plain, tensors = pack_shards(weights, state)
        tensors = {name: tensor.detach() for name, tensor in tensors.items()}

        def publish(digests: Mapping[str, str]) -> None:
            def fill(folder: Path) -> None:
                write_json(folder / STATE, plain)
                write_checksums(folder, digests)

            if self.checkpoints is not None:
                self.checkpoints.write(names, fill)
                after()

        writer = _Writer(temporary_folder(self.folder, names[0]), list(tensors), publish)
        future = dcp.async_save(tensors, storage_writer=writer, process_group=self._threads)
        if not isinstance(future, Future):
            raise TypeError("async_save has returned no future")
        self._pending = self.folder / names[0], future

    def wait(self) -> None:
        """Wait until the last checkpoint is written.

        Raises:
            CheckpointError: it could not be written; earlier checkpoints are intact.
            LostRanksError: another rank has ended or does not answer.
        """
        if self._pending is not None:
            (path, future), self._pending = self._pending, None
            with self.group.collective(), _failures(path):
                future.result()


class _Writer(HuggingFaceStorageWriter):
    """Writes two files in each rank, their checksums computed there; then rank 0 publishes the checkpoint.

    Args:
        folder: the temporary folder.
        names: the names of all tensors.
        publish: called in rank 0 with the checksums of all files.
    """

    def __init__(self, folder: Path, names: Sequence[str], publish: Callable[[Mapping[str, str]], None]):
        super().__init__(str(folder), fqn_to_index_mapping=file_numbers(names), save_distributed=True)
        self.folder, self.publish = folder, publish

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> TorchFuture[list[WriteResult]]:
        """Write this rank's files; the results have the name and checksum of the file of each tensor."""
        results = super().write_data(plan, planner).wait()
        digests = {name: digest(self.folder / name) for name in {r.storage_data.relative_path for r in results}}
        named: TorchFuture[list[WriteResult]] = TorchFuture()
        named.set_result(
            [replace(r, storage_data=(name := r.storage_data.relative_path, digests[name])) for r in results]
        )
        return named

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Publish the checkpoint; rank 0 calls this when all ranks have written."""
        self.publish(dict(result.storage_data for part in results for result in part))


@contextmanager
def _failures(path: Path) -> Iterator[None]:
    """Report why a rank could not write a checkpoint.

    Raises:
        CheckpointError: for an error of the operating system. The other errors of a rank are raised unchanged.
    """
    try:
        yield
    except dcp.CheckpointException as error:
        cause = next(iter(error.failures.values()))[0]
        if not isinstance(cause, OSError):
            raise cause from None
        try:
            with disk_errors(f"checkpoint {path}"):
                raise cause
        except UserError as said:
            raise CheckpointError(f"{said}; earlier checkpoints are intact") from cause


@dataclass
class Resumable:
    """A checkpoint that was read.

    Attributes:
        path: its folder.
        weights: the weights to decode with, by name.
        state: the rest of the training state.
        damaged: why newer checkpoints could not be read.
    """

    path: Path
    weights: dict[str, Tensor] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)


class Saving:
    """The checkpoints of a training run: sharded ones if the weights are sharded. All ranks call each method together.

    Args:
        cfg: the whole configuration.
        folder: the run's folder.
        group: this process's rank in the process group.
        trainer: has the weights.
    """

    def __init__(self, cfg: TrainConfig, folder: Path, group: ProcessGroup, trainer: Trainer):
        self.cfg, self.group, self.trainer = cfg.checkpoint, group, trainer
        self.checkpoints = Checkpoints(folder) if group.is_main else None
        self.sharded: ShardedSaver | None = None
        if trainer.sharded:
            self.sharded = ShardedSaver(folder, group, self.checkpoints, cfg.distributed_training.timeout)

    def save(self, names: Sequence[str], state: Callable[[bool], dict[str, Any]]) -> None:
        """Save checkpoints under these names and delete those that are too old; sharded ones in the background.

        Args:
            names: the names of the checkpoints' folders.
            state: returns the training state without the weights; see ``Trainer.state_dict`` for the argument.

        Raises:
            CheckpointError: a checkpoint cannot be written; earlier ones are intact.
        """
        weights, rest = self.trainer.weights(self.trainer.sharded), state(self.trainer.sharded)
        if self.sharded is not None:
            self.sharded.save(names, weights, rest, self._prune)
        elif self.checkpoints is not None:
            self.checkpoints.save(names, weights, rest)
            self._prune()

    def _prune(self) -> None:
        if self.checkpoints is not None:
            self.checkpoints.prune("epoch", self.cfg.keep_last_epochs)
            self.checkpoints.prune("update", self.cfg.keep_interval_updates)

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Finish the checkpoint that is being written at the end of a block, also after an error of this rank."""
        try:
            yield
        except LostRanksError:
            raise
        except UserError:
            with suppress(UserError):
                self._wait()
            raise
        self._wait()

    def _wait(self) -> None:
        if self.sharded is not None:
            self.sharded.wait()

    def newest(self) -> Resumable | None:
        """Read the newest checkpoint that all ranks can read; ``None`` if there is no checkpoint.

        Raises:
            CheckpointError: there are some, but none can be read.
        """
        damaged: list[str] = []
        for path in self.group.gather(self.checkpoints.resumable() if self.checkpoints is not None else [])[0]:
            found, problem = Resumable(path, damaged=damaged), ""
            try:
                self._read(found)
            except CheckpointError as error:
                problem = str(error)
            problem = next((said for said in self.group.gather(problem) if said), "")
            if not problem:
                return found
            damaged.append(problem)
        if damaged:
            raise CheckpointError(f"no checkpoint of this run can be read: {damaged[0]}")
        return None

    def _read(self, found: Resumable) -> None:
        if self.trainer.sharded and is_sharded(found.path):
            found.state = read_shards(found.path, self.trainer.part)
            found.weights = found.state.pop(WEIGHTS)
        else:
            found.weights, found.state = read_weights(found.path), read_training_state(found.path)
