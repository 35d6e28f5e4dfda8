"""The process group of a training run: collective operations on plain values."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from seqgen.config import DistributedConfig
from seqgen.errors import ResourceError

T = TypeVar("T")


# What Gloo says of a lost rank. The first has its source file in front; the second, which the operations that were
# pending get after another one has timed out, has not. Gloo raises a plain RuntimeError for all of them.
LOST_CONNECTION = ("gloo", "Application timeout caused pair closure", "Connection closed by peer")


class LostRanksError(ResourceError):
    """Another rank of the process group has ended or does not answer; the launcher reports which one."""


@dataclass(frozen=True)
class ProcessGroup:
    """This process's rank in the process group; the default is a single process.

    Attributes:
        rank: rank of this process, from 0.
        world_size: number of processes.
    """

    rank: int = 0
    world_size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which logs and saves."""
        return self.rank == 0

    def gather(self, value: T, patience: timedelta | None = None) -> list[T]:
        """Gather a value from every rank (all-gather); blocks until all ranks have called it.

        Args:
            value: this rank's value, which can be pickled.
            patience: how long to wait for the other ranks; ``None`` for ``distributed_training.timeout``.

        Returns:
            The values of all ranks, in the order of the ranks; the same list in every rank.

        Raises:
            LostRanksError: another rank has ended or does not answer.
        """
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        with self.collective():
            group = None if patience is None else dist.new_group(timeout=patience, backend="gloo")
            dist.all_gather_object(values, value, group)
        return values

    def sum(self, values: Mapping[str, float]) -> dict[str, float]:
        """Sum values by name over all ranks (all-reduce).

        Args:
            values: this rank's values by name; a name that is missing counts as 0.

        Returns:
            The sums by name, the same in every rank.

        Raises:
            LostRanksError: another rank has ended or does not answer.
        """
        total: dict[str, float] = {}
        for part in self.gather(dict(values)):
            for name, value in part.items():
                total[name] = total.get(name, 0.0) + value
        return total

    def any(self, value: bool) -> bool:
        """Whether the value is true in any rank; see ``gather``."""
        return any(self.gather(value))

    @contextmanager
    def collective(self) -> Iterator[None]:
        """Turn the failure of a collective operation into an error message for the user.

        Raises:
            LostRanksError: in place of the error of ``torch.distributed``; other errors are passed on.
        """
        try:
            yield
        except RuntimeError as error:
            if not isinstance(error, dist.DistError) and not any(sign in str(error) for sign in LOST_CONNECTION):
                raise
            reason = str(error).splitlines()[0][:200]
            raise LostRanksError(
                f"training process {self.rank} of {self.world_size} cannot continue without the others: one of them "
                "has ended, or did not answer within distributed_training.timeout seconds; run the same command again "
                f"to continue from the last checkpoint ({reason})"
            ) from error


def group_from_environment() -> ProcessGroup:
    """The rank and world size that ``torchrun`` or Slurm's ``srun`` set; a single process if neither started this one.

    What ``torchrun`` would set is derived from Slurm's variables and added to the environment.
    """
    if "RANK" not in os.environ and int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        for name, value in _from_slurm(os.environ).items():
            os.environ.setdefault(name, value)
    return ProcessGroup(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))


def _from_slurm(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables of ``torchrun`` for a process that ``srun`` has started."""
    # the first host of a list such as gpu[07-09,12],login: gpu07
    first = re.match(r"([^,\[]+)(?:\[(\d+)[^]]*\])?([^,]*)", variables["SLURM_STEP_NODELIST"])
    job, step = int(variables.get("SLURM_JOB_ID", "0")), int(variables.get("SLURM_STEP_ID", "0"))
    return {
        "RANK": variables["SLURM_PROCID"],
        "LOCAL_RANK": variables["SLURM_LOCALID"],
        "WORLD_SIZE": variables["SLURM_STEP_NUM_TASKS"],
        "MASTER_ADDR": "".join(part or "" for part in first.groups()) if first else "",
        "MASTER_PORT": str(20_000 + (job + step) % 10_000),  # the same in all processes, and another one for each job
    }


def join(group: ProcessGroup, cfg: DistributedConfig, device: torch.device) -> None:
    """Initialize the process group from the address in the environment; does nothing for a single process.

    Args:
        group: this process's rank and the world size.
        cfg: the ``distributed_training`` group.
        device: where this process computes; a CUDA device selects NCCL, unless a backend is configured.

    Raises:
        LostRanksError: the other ranks do not connect in time.
    """
    if group.world_size > 1 and not dist.is_initialized():
        backend = cfg.distributed_backend
        chosen = ("nccl" if device.type == "cuda" else "gloo") if backend == "auto" else backend
        patience = timedelta(seconds=cfg.timeout)
        with group.collective():
            store, _, _ = next(dist.rendezvous("env://", group.rank, group.world_size, timeout=patience))  # type: ignore[no-untyped-call]
            # torchrun keeps its store when it restarts the processes; it has the addresses of those that have ended
            attempt = f"{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')} of {group.world_size}"
            dist.init_process_group(
                chosen,
                store=dist.PrefixStore(attempt, store),
                rank=group.rank,
                world_size=group.world_size,
                timeout=patience,
            )


def leave() -> None:
    """Leave the process group; does nothing if this process is in none."""
    if dist.is_initialized():
        dist.destroy_process_group()
