"""One update: forward, backward, gradient clipping, optimizer, learning rate, average of the weights."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from seqgen.checkpoints.run_checkpoints import fit
from seqgen.config import TrainConfig
from seqgen.errors import ConfigError, UserError
from seqgen.model import EncoderDecoderModel
from seqgen.modules.inspection import freeze, num_parameters
from seqgen.registry import CRITERIA
from seqgen.structures import Batch
from seqgen.task import Task
from seqgen.training.criteria import Criterion, CriterionOut
from seqgen.training.distributed import ProcessGroup
from seqgen.training.ema import EMA
from seqgen.training.lr_schedulers import build_lr_scheduler
from seqgen.training.optimizers import build_optimizer
from seqgen.training.scores import move_scalars
from seqgen.training.seeding import seed_everything

SKIPS = 100
"""Maximum number of consecutive updates that are skipped for a non-finite loss before training stops."""


class NonFiniteError(UserError):
    """The loss or the gradient has become NaN or infinite."""


@dataclass
class UpdateResult:
    """What one update did.

    Attributes:
        sums: values summed over the update's batches in all ranks: ``loss``, ``sample_size`` and the values that the
            criterion logs.
        gnorm: L2 norm of the gradient of the mean loss, before clipping.
        lr: the learning rate of this update.
        skipped: why the update was skipped; empty if it was not.
    """

    sums: dict[str, float] = field(default_factory=dict)
    gnorm: float = 0.0
    lr: float = 0.0
    skipped: str = ""


class Trainer:
    """Makes the updates of a model's weights.

    Args:
        cfg: the whole configuration.
        task: computes the loss of a batch.
        model: the model, on its device.
        device: where to compute.
        group: this process's rank in the process group; ``None`` for a single process.

    Attributes:
        update: number of updates made so far.
        ema: the exponential moving average of the weights; ``None`` if ``optimization.ema_decay`` is 0.

    Raises:
        ConfigError: options exclude each other, or a pattern of ``optimization.freeze`` matches no parameter.
    """

    def __init__(
        self,
        cfg: TrainConfig,
        task: Task,
        model: EncoderDecoderModel,
        device: torch.device,
        group: ProcessGroup | None = None,
    ):
        if cfg.common.bf16 and cfg.common.fp16:
            raise ConfigError("common.bf16 and common.fp16 cannot both be true; choose one")
        self.cfg, self.task, self.model, self.device = cfg, task, model, device
        self.group = group or ProcessGroup()
        self.criterion: Criterion = CRITERIA.of(cfg.criterion).component(cfg.criterion, task)
        _freeze(model, cfg.optimization.freeze)
        named = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
        self.names = [name for name, _ in named]
        self.params = [param for _, param in named]
        self.optimizer = build_optimizer(cfg.optimizer, self.params)
        self.scheduler = build_lr_scheduler(cfg.lr_scheduler, cfg.optimization)
        decay = cfg.optimization.ema_decay
        self.ema = EMA(model, decay) if decay else None
        self.scaler = torch.amp.GradScaler(device.type, init_scale=2.0**7) if cfg.common.fp16 else None
        self.update = 0
        self.skips = 0  # in a row

    @property
    def eval_model(self) -> EncoderDecoderModel:
        """The model for validation and decoding: the one with averaged weights, if there is one."""
        return self.ema.model if self.ema is not None else self.model

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The context of the forward pass: autocast to bfloat16 or float16, if configured."""
        if not (self.cfg.common.bf16 or self.cfg.common.fp16):
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16 if self.cfg.common.bf16 else torch.float16)

    def train_update(self, batches: Sequence[Batch | None], epoch: int) -> UpdateResult:
        """Make one update from the gradients of several batches.

        The gradient is that of the summed loss of all batches in all ranks, divided by the sum of their sample sizes.
        It does not depend on how sentences are distributed over batches and ranks.

        Args:
            batches: this rank's batches; ``None`` in place of a batch if only other ranks still have one.
            epoch: the current epoch, from 1.

        Returns:
            The sums over the batches, the gradient norm, and whether the update was skipped.

        Raises:
            NonFiniteError: the loss or the gradient is NaN or infinite, and ``optimization.nonfinite_loss=stop``.
        """
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        outs = [self._backward(batch, place) for place, batch in enumerate(batches) if batch is not None]
        ids = [batch.ids for batch in batches if batch is not None]
        local, bad = _sum_outs(outs, ids)
        sums = self.group.sum(local)
        result = UpdateResult(sums, lr=self.scheduler.lr_at(self.update, epoch))
        if not math.isfinite(sums["loss"]):
            bad = [sentence for part in self.group.gather(bad) for sentence in part]
            return self._leave_out(result, f"the loss is {sums['loss']} on a batch with the sentences {_some(bad)}")
        self.group.sum_gradients(self.params)
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        norm = self._normalize_gradients(sums["sample_size"])
        result.gnorm = float(norm)
        if not math.isfinite(result.gnorm) and self.scaler is None:
            every = [i for part in self.group.gather(torch.cat(ids).tolist() if ids else []) for i in part]
            return self._leave_out(result, f"the gradient's norm is {result.gnorm} on the sentences {_some(every)}")
        self._step(result)
        return result

    def _backward(self, batch: Batch, place: int) -> CriterionOut:
        """Add a batch's gradient. The random seed depends on the index of the batch in the update, over all ranks."""
        group = self.group
        seed_everything((self.cfg.common.seed, self.update, place * group.world_size + group.rank))
        with self.autocast():
            out: CriterionOut = self.task.train_step(
                batch.to(self.device, non_blocking=True), self.model, self.criterion
            )
        loss = out.loss if self.scaler is None else self.scaler.scale(out.loss)
        torch.autograd.backward(loss)
        return out

    @torch.no_grad()
    def _normalize_gradients(self, sample_size: float) -> Tensor:
        """Divide the gradients by the sample size and clip them, in one pass; return the L2 norm before clipping."""
        grads = [param.grad for param in self.params if param.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads) / sample_size
        clip = self.cfg.optimization.clip_norm
        factor = (clip / (norm + 1e-6)).clamp(max=1.0) if clip else torch.ones_like(norm)
        torch._foreach_mul_(grads, factor / sample_size)
        return norm

    def _step(self, result: UpdateResult) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = result.lr * group.get("lr_scale", 1.0)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            if not math.isfinite(result.gnorm):
                self._leave_out(result, "float16 overflow; the loss scale was halved", expected=True)
                return
        self.update += 1
        self.skips = 0
        if self.ema is not None:
            self.ema.update(self.model, self.update)

    def _leave_out(self, result: UpdateResult, reason: str, expected: bool = False) -> UpdateResult:
        """Drop the gradients and note the reason, or raise ``NonFiniteError``, unless the overflow is ``expected``."""
        self.optimizer.zero_grad(set_to_none=True)
        self.skips += 1
        if self.cfg.optimization.nonfinite_loss == "stop" and not expected:
            raise NonFiniteError(
                f"update {self.update + 1}: {reason}; a lower optimization.lr or optimization.clip_norm may help, and "
                "optimization.nonfinite_loss=skip skips such updates"
            )
        if self.skips >= SKIPS:
            raise NonFiniteError(f"update {self.update + 1}: {reason}, {SKIPS} times in a row; training stops")
        result.skipped = reason
        return result

    def weights(self) -> dict[str, Tensor]:
        """The weights for decoding, by name; those of ``eval_model``."""
        return dict(self.eval_model.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """The training state without ``weights``: nested plain values and tensors."""
        state = self.optimizer.state_dict()
        return {
            "update": self.update,
            "skips": self.skips,
            "optimizer": {
                "state": {self.names[int(index)]: values for index, values in state["state"].items()},
                "groups": [{k: v for k, v in group.items() if k != "params"} for group in state["param_groups"]],
            },
            "lr_scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict() if self.scaler is not None else {},
            "trained_weights": dict(self.model.state_dict()) if self.ema is not None else {},
        }

    def load_state_dict(self, weights: dict[str, Tensor], state: dict[str, Any], where: str) -> None:
        """Restore weights and training state.

        Args:
            weights: what ``weights`` returned.
            state: what ``state_dict`` returned.
            where: the checkpoint's path, for messages.

        Raises:
            CheckpointError: the weights do not fit the model.
        """
        if self.ema is not None:
            fit(self.ema.model, weights, where)
            self.ema.model.load_state_dict(weights)
            weights = state["trained_weights"]
        fit(self.model, weights, where)
        self.model.load_state_dict(weights)
        self._load_optimizer(state["optimizer"])
        self.scheduler.load_state_dict(state["lr_scheduler"])
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])
        self.update, self.skips = state["update"], state["skips"]

    def _load_optimizer(self, saved: dict[str, Any]) -> None:
        current = self.optimizer.state_dict()
        indices = {name: index for index, name in enumerate(self.names)}
        groups = []
        for group, values in zip(current["param_groups"], saved["groups"], strict=True):
            # JSON has no tuples; fused and foreach depend on the device, not on the run
            values = {k: tuple(v) if isinstance(group.get(k), tuple) else v for k, v in values.items()}
            groups.append({**group, **values, **{k: group[k] for k in ("fused", "foreach") if k in group}})
        state = {indices[name]: values for name, values in saved["state"].items()}
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})


def _freeze(model: EncoderDecoderModel, patterns: Sequence[str]) -> None:
    """Freeze the parameters that ``optimization.freeze`` names."""
    try:
        freeze(model, patterns)
    except ConfigError as error:
        raise ConfigError(f"optimization.freeze: {error}") from None
    if not num_parameters(model, trainable_only=True):
        raise ConfigError(f"optimization.freeze=[{','.join(patterns)}] leaves no parameter to train; remove a pattern")


def _sum_outs(outs: Sequence[CriterionOut], ids: Sequence[Tensor]) -> tuple[dict[str, float], list[int]]:
    """Sum the criterion's values over batches.

    Args:
        outs: what the criterion returned for each batch.
        ids: ``(N,)`` int64 sentence numbers of each batch.

    Returns:
        The sums by name, and the sentence numbers of the batches whose loss is not finite.
    """
    sums = {"loss": 0.0, "sample_size": 0.0}
    rows = [{**out.logging, "loss": out.loss, "sample_size": float(out.sample_size)} for out in outs]
    values = iter(move_scalars([value for row in rows for value in row.values()]))
    bad: list[int] = []
    for row, sentences in zip(rows, ids, strict=True):
        for name in row:
            value = next(values)
            sums[name] = sums.get(name, 0.0) + value
            if name == "loss" and not math.isfinite(value):
                bad += sentences.tolist()
    return sums, bad


def _some(ids: Sequence[int], limit: int = 10) -> str:
    more = f" and {len(ids) - limit} more" if len(ids) > limit else ""
    return f"{', '.join(str(i) for i in sorted(ids)[:limit])}{more} (numbered from 0)"
