"""The process group of a training run: collective operations on numbers and gradients."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.nn import Parameter

from seqgen.config import DistributedConfig
from seqgen.errors import ResourceError
from seqgen.memory import out_of_memory
from seqgen.renamed import former_names

globals()["__getattr__"] = former_names(__name__)  # a function would hide misspelt names from type checkers

T = TypeVar("T")
_BUCKET = 1 << 24
"""Maximum number of gradient elements in one all-reduce, unless one parameter has more."""


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

    def sum_gradients(self, params: Sequence[Parameter]) -> None:
        """Replace each gradient by its sum over all ranks, in place.

        A parameter without a gradient in any rank gets none, as with a single process.

        Args:
            params: the parameters, in the same order in all ranks.

        Raises:
            LostRanksError: another rank has ended or does not answer.
        """
        if self.world_size > 1:
            with self.collective():
                self._sum_gradients(params)

    @contextmanager
    def collective(self) -> Iterator[None]:
        """Turn the failure of a collective operation into an error message for the user.

        Raises:
            LostRanksError: in place of torch's error, unless memory ran out.
        """
        try:
            yield
        except RuntimeError as error:
            if out_of_memory(error):
                raise
            reason = str(error).splitlines()[0][:200]
            raise LostRanksError(
                f"training process {self.rank} of {self.world_size} cannot continue without the others: one of them "
                "has ended, or did not answer within distributed_training.timeout seconds; run the same command again "
                f"to continue from the last checkpoint ({reason})"
            ) from error

    def _sum_gradients(self, params: Sequence[Parameter]) -> None:
        used = torch.tensor([param.grad is not None for param in params], dtype=torch.int32, device=params[0].device)
        dist.all_reduce(used, dist.ReduceOp.MAX)
        shared = [param for param, flag in zip(params, used.tolist(), strict=True) if flag]
        for param in shared:
            if param.grad is None:
                param.grad = torch.zeros_like(param)
        for bucket in _buckets(shared):
            grads = [param.grad for param in bucket if param.grad is not None]
            flat = torch.cat([grad.flatten() for grad in grads])
            dist.all_reduce(flat)
            for grad, part in zip(grads, torch.split(flat, [grad.numel() for grad in grads]), strict=True):
                grad.copy_(part.view_as(grad))


def _buckets(params: Iterable[Parameter]) -> Iterator[list[Parameter]]:
    """Split parameters into lists of one dtype with at most ``_BUCKET`` elements."""
    bucket: list[Parameter] = []
    size = 0
    for param in params:
        if bucket and (size + param.numel() > _BUCKET or param.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(param)
        size += param.numel()
    if bucket:
        yield bucket


def group_from_environment() -> ProcessGroup:
    """The rank and world size that ``torchrun`` set; a single process if it did not start this one."""
    return ProcessGroup(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))


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
            dist.init_process_group(chosen, rank=group.rank, world_size=group.world_size, timeout=patience)


def leave() -> None:
    """Leave the process group; does nothing if this process is in none."""
    if dist.is_initialized():
        dist.destroy_process_group()
