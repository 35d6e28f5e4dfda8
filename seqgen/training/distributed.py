"""Several processes train one model: their process group, and how the model's gradients and weights are exchanged.

The model is shared by torch: ``DistributedDataParallel`` (DDP) or ``fully_shard`` (FSDP2). Both work by hooks on the
``forward`` of modules, but the loss is computed by the task; ``LossModule`` therefore makes one module of model and
loss. Both average gradients over the ranks, where the trainer needs their sum.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import init_device_mesh
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from seqgen.checkpoints.model_weights import fit
from seqgen.config import DistributedConfig
from seqgen.core.errors import ConfigError, ResourceError
from seqgen.core.model import EncoderDecoderModel
from seqgen.core.structures import Batch
from seqgen.modules.dropout import LayerDropList
from seqgen.training.criteria import CriterionOut

if TYPE_CHECKING:  # at run time, it is imported where a model is sharded, because that takes half a second
    from torch.distributed.tensor import DTensor

T = TypeVar("T")


# What Gloo says of a lost rank. The first has its source file in front; the second, which the operations that were
# pending get after another one has timed out, has not. Gloo raises a plain RuntimeError for all of them.
LOST_CONNECTION = ("gloo", "Application timeout caused pair closure", "Connection closed by peer")


class LostRanksError(ResourceError):
    """Another rank of the process group has ended or does not answer; ``torchrun`` reports which one."""


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
        """True if this is rank 0, which logs and saves."""
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

    @contextmanager
    def collective(self) -> Iterator[None]:
        """Turn the failure of a collective operation into an error message for the user.

        Raises:
            LostRanksError: instead of the error of ``torch.distributed``; other errors are passed on.
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
    """The rank and world size that ``torchrun`` has set; a single process if it did not start this one."""
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
            store, _, _ = next(dist.rendezvous("env://", group.rank, group.world_size, timeout=patience))  # type: ignore[no-untyped-call]
            # torchrun keeps its store when it restarts the processes; it has the addresses of those that have ended
            attempt = f"{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')} of {group.world_size}"
            store = dist.PrefixStore(attempt, store)
            dist.init_process_group(chosen, store=store, rank=group.rank, world_size=group.world_size, timeout=patience)


def leave() -> None:
    """Leave the process group; does nothing if this process is in none."""
    if dist.is_initialized():
        dist.destroy_process_group()


_COMPRESSION = {"bfloat16": default_hooks.bf16_compress_hook, "float16": default_hooks.fp16_compress_hook}
_KEY = "distributed_training"


class LossModule(nn.Module):
    """A model and its loss.

    Args:
        model: the model.
        loss: computes the loss of a batch.
    """

    def __init__(self, model: EncoderDecoderModel, loss: Callable[[Batch, EncoderDecoderModel], CriterionOut]):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Batch) -> tuple[Tensor, CriterionOut]:
        """Compute the loss of a batch.

        Returns:
            The loss, also by itself: the hooks look for tensors in tuples, not in dataclasses.
        """
        out = self.loss(batch, self.model)
        return out.loss, out


def unused_keys(cfg: DistributedConfig, group: ProcessGroup) -> list[str]:
    """A sentence that names the keys of ``distributed_training`` that are set, but have no effect in one process."""
    several = {"sharding": cfg.sharding == "fsdp", "param_dtype": cfg.param_dtype, "reduce_dtype": cfg.reduce_dtype}
    found = " and ".join(f"{_KEY}.{key}={getattr(cfg, key)}" for key, is_set in several.items() if is_set)
    alone = found and group.world_size == 1
    return [f"{found} without effect: there is one process; start several by torchrun"] if alone else []


def parallelize(module: LossModule, cfg: DistributedConfig, group: ProcessGroup, device: torch.device) -> nn.Module:
    """Connect the gradients of a module with those of the other ranks.

    Args:
        module: the model with its loss; with ``sharding=fsdp`` its parameters become ``DTensor`` s, of which this rank
            has a part.
        cfg: the ``distributed_training`` group.
        group: the process group; all ranks call this.
        device: where the model is.

    Returns:
        The module to call instead of ``module``; ``module`` itself for a single process.

    Raises:
        ConfigError: the model cannot be sharded.
        LostRanksError: another rank has ended or does not answer.
    """
    if group.world_size == 1:
        return module
    with group.collective():
        return _sharded(module, cfg, group, device) if cfg.sharding == "fsdp" else _replicated(module, cfg)


def _replicated(module: LossModule, cfg: DistributedConfig) -> DistributedDataParallel:
    # Some batches do not use all parameters, so torch searches for unused ones. If it finds none, it prints a long
    # warning, which Python cannot suppress; this parameter is unused in all batches.
    module.register_parameter("unused", nn.Parameter(next(module.parameters()).new_zeros(1)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # newer versions of torch rename broadcast_buffers
        ddp = DistributedDataParallel(module, broadcast_buffers=False, find_unused_parameters=True)
    if cfg.reduce_dtype:
        ddp.register_comm_hook(None, _COMPRESSION[cfg.reduce_dtype])  # type: ignore[no-untyped-call]
    return ddp


def _sharded(module: LossModule, cfg: DistributedConfig, group: ProcessGroup, device: torch.device) -> nn.Module:
    if any(isinstance(part, LayerDropList) and part.p for part in module.modules()):
        raise ConfigError(
            f"{_KEY}.sharding=fsdp is not possible with layer dropout, because all processes must compute the same "
            f"layers; set model.encoder_layerdrop=0 and model.decoder_layerdrop=0, or {_KEY}.sharding=ddp"
        )
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    param, reduce = (getattr(torch, name) if name else None for name in (cfg.param_dtype, cfg.reduce_dtype))
    mesh = init_device_mesh(device.type, (group.world_size,))
    shard = functools.partial(fully_shard, mesh=mesh, mp_policy=MixedPrecisionPolicy(param, reduce))
    for layer in layers_of(module.model):
        shard(layer)
    shard(module)  # what is in no layer: embeddings, last normalization, output layer, parameters of the criterion
    return module


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The layers of encoder and decoder: the elements of every ``ModuleList`` with the name ``layers``."""
    lists = [part for name, part in model.named_modules() if name.rpartition(".")[2] == "layers"]
    return [layer for part in lists if isinstance(part, nn.ModuleList) for layer in part]


def recompute_activations(model: nn.Module) -> None:
    """Do not store what the layers compute in training; the backward pass computes it again (Chen et al. 2016).

    Raises:
        ConfigError: the model has no layers by this name.
    """
    layers = layers_of(model)
    if not layers:
        raise ConfigError(
            f"optimization.checkpoint_activations=true needs a model with ModuleLists named layers; "
            f"{type(model).__name__} has none"
        )
    for layer in layers:
        layer.forward = functools.partial(_recomputed, layer, layer.forward)  # type: ignore[method-assign]


def _recomputed(layer: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not (layer.training and torch.is_grad_enabled()):
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)


@contextlib.contextmanager
def synchronize_gradients(module: Any, last: bool) -> Iterator[None]:
    """Exchange gradients with the other ranks only if this is the last forward and backward pass of an update.

    Args:
        module: what ``parallelize`` returned.
        last: whether it is the last pass.
    """
    if hasattr(module, "set_is_last_backward"):  # an FSDPModule
        module.set_requires_gradient_sync(last)
        module.set_is_last_backward(last)
    with module.no_sync() if isinstance(module, DistributedDataParallel) and not last else contextlib.nullcontext():
        yield


# -- tensors of which each rank has a part -------------------------------------------------------------------------


def is_part(value: object) -> TypeGuard[DTensor]:
    """True for a ``DTensor``, a tensor of which each rank has a part."""
    return hasattr(value, "full_tensor")


def local(value: Tensor) -> Tensor:
    """This rank's part of a tensor, with the same memory; a plain tensor is returned unchanged."""
    return value.to_local() if is_part(value) else value


def gather_whole(value: Any) -> Any:
    """The whole of a tensor; all ranks call this. What is no ``DTensor`` is returned unchanged."""
    return value.full_tensor() if is_part(value) else value


@torch.no_grad()
def gather_tensors(values: Mapping[str, Any], keep: bool) -> dict[str, Any]:
    """Gather tensors of which each rank has a part, one after another, into the memory of the CPU; all ranks call this.

    Args:
        values: tensors and plain values by name. What is no ``DTensor`` is returned unchanged.
        keep: whether this rank needs the gathered tensors.

    Returns:
        The values by name; a tensor with several names is one object. Without ``keep``, those of a ``DTensor`` are
        ``None``.
    """
    made: dict[int, Any] = {}
    for value in values.values():
        if id(value) not in made:
            complete = gather_whole(value)
            made[id(value)] = complete if complete is value else complete.cpu() if keep else None
    return {name: made[id(value)] for name, value in values.items()}


def part_like(value: Any, model: Tensor) -> Any:
    """The part of a tensor that this rank has of another one.

    Args:
        value: the whole tensor, the same in all ranks. A number, also as a tensor, and a ``DTensor`` are returned
            unchanged.
        model: a parameter. If it is a ``DTensor`` of another shape, every rank has the whole value.
    """
    if not is_part(model) or not isinstance(value, Tensor) or is_part(value) or not value.dim():
        return value
    from torch.distributed.tensor import Replicate, distribute_tensor

    placements = model.placements if value.shape == model.shape else [Replicate()]
    return distribute_tensor(value.to(model.device), model.device_mesh, placements, src_data_rank=None)


def load(model: nn.Module, weights: Mapping[str, Tensor], where: str) -> None:
    """Load whole weights into a model, each rank its parts; weights that are not saved may be missing, and stay.

    Args:
        model: the model.
        weights: weights by name.
        where: their origin, for messages.

    Raises:
        CheckpointError: they do not fit the model.
    """
    fit(model, weights, where)
    current = model.state_dict()
    model.load_state_dict({name: part_like(value, current[name]) for name, value in weights.items()}, strict=False)


class PlainCopy:
    """A plain copy of a model that is sharded later; it has weights only while it is used.

    Args:
        model: the model, not yet sharded.
        sharded: whether it will be; if not, no copy is made, and ``of`` returns the model that it is given.
    """

    def __init__(self, model: nn.Module, sharded: bool):
        self.model = copy.deepcopy(model).requires_grad_(False) if sharded else None
        self._empty()

    @contextlib.contextmanager
    def of(self, sharded: nn.Module) -> Iterator[Any]:
        """A plain model with the weights of a sharded one; all ranks call this.

        Args:
            sharded: the sharded model, of the same architecture.
        """
        if self.model is None:
            yield sharded
            return
        parts = zip(self.model.parameters(), sharded.parameters(), strict=True)
        for plain, part in (*parts, *zip(self.model.buffers(), sharded.buffers(), strict=True)):
            plain.data = gather_whole(part.detach())
        try:
            yield self.model
        finally:
            self._empty()

    def _empty(self) -> None:
        for value in self.model.parameters() if self.model is not None else ():
            value.data = value.new_empty(0)
