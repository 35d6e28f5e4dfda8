"""One update: forward, backward, gradient clipping, optimizer, learning rate."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from seqgen.checkpoints.model_weights import named
from seqgen.config import TrainConfig
from seqgen.core.errors import ConfigError, UserError
from seqgen.core.model import EncoderDecoderModel
from seqgen.core.structures import Batch
from seqgen.decoding.building import name_key_in_errors
from seqgen.modules.linear import TRAINING
from seqgen.registry import CRITERIA, LR_SCHEDULERS
from seqgen.system.devices import out_of_memory, seed_everything
from seqgen.task import Task
from seqgen.training import distributed
from seqgen.training.criteria import Criterion, CriterionOut, TrainingContext, check_out, sum_outs
from seqgen.training.distributed import LossModule, PlainCopy, ProcessGroup
from seqgen.training.lr_schedulers import LRScheduler
from seqgen.training.optimizers import build_optimizer
from seqgen.training.parameters import freeze, names_like, parameter_groups, untrained_rows

SKIPS = 100
"""Maximum number of consecutive updates that are skipped for a non-finite loss before training stops."""


Spare = Callable[[], Batch] | None
"""A function that returns any batch; see ``Trainer.train_update``."""


class NonFiniteError(UserError):
    """The loss or the gradient has become NaN or infinite."""


@dataclass
class UpdateResult:
    """The result of one update.

    Attributes:
        sums: values summed over the update's batches in all ranks: ``loss``, ``sample_size`` and the values that the
            criterion logs.
        gnorm: L2 norm of the gradient of the mean loss, before clipping; that of the last optimizer step.
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
        group: this process's rank in the process group.

    Attributes:
        update: number of updates made so far.
        lr: the learning rate in place of that of the schedule; ``None`` for the schedule.
        frozen: names of parameters that updates leave as they are, besides those of ``optimization.freeze``.
        sharded: whether each rank has only a part of the weights.
        eval_model: the model for validation and decoding, and whose weights are saved; see ``plain``.

    Raises:
        ConfigError: options exclude each other, or a pattern of ``optimization.freeze`` matches no parameter.
    """

    def __init__(
        self, cfg: TrainConfig, task: Task, model: EncoderDecoderModel, device: torch.device, group: ProcessGroup
    ):
        if cfg.common.bf16 and cfg.common.fp16:
            raise ConfigError("common.bf16 and common.fp16 cannot both be true; choose one")
        self.cfg, self.task, self.model, self.device, self.group = cfg, task, model, device, group
        self.criterion: Criterion = CRITERIA.of(cfg.criterion).component(cfg.criterion, task)
        self.criterion.begin_training(model)
        self.criterion.module.to(next(model.parameters()))
        self._trainable = {name for name, param in model.named_parameters() if param.requires_grad}
        self._frozen_until = freeze(model, cfg.optimization.freeze)
        self.eval_model = model
        self._parallelize(model)
        every = (*model.named_parameters(), *self.criterion.module.named_parameters("criterion"))
        self.named_params = {name: param for name, param in every if param.requires_grad}
        self.params = list(self.named_params.values())
        start = model.start_token(task.target_dictionary.eos())
        self._masks = [(weight, distributed.part_like(mask, weight)) for weight, mask in untrained_rows(model, start)]
        self.lr: float | None = None
        self.frozen: set[str] = set()
        with name_key_in_errors("optimization.groups"):
            groups = parameter_groups(self.named_params, cfg.optimization.groups, self.trained_names)
        self.optimizer = build_optimizer(cfg, groups)
        self._names = [name for group in groups for name in group["names"]]
        self.scheduler: LRScheduler = LR_SCHEDULERS.of(cfg.lr_scheduler).component(cfg.lr_scheduler, cfg.optimization)
        self.scaler = torch.amp.GradScaler(device.type, init_scale=2.0**7, enabled=cfg.common.fp16)
        self.update = 0
        self.skips = 0  # in a row
        self._optimizer_step = 0  # of the current update

    def _parallelize(self, model: EncoderDecoderModel) -> None:
        """Connect the model with the other ranks; see ``parallelize``."""
        cfg, sharding = self.cfg, self.cfg.distributed_training
        if sharding.param_dtype and sharding.sharding != "fsdp":
            raise ConfigError(
                f"distributed_training.param_dtype={sharding.param_dtype} needs distributed_training.sharding=fsdp; "
                "otherwise use common.bf16 or common.fp16"
            )
        self.sharded = sharding.sharding == "fsdp" and self.group.world_size > 1
        if self.sharded and cfg.common.fp16:
            raise ConfigError("common.fp16 is not possible with distributed_training.sharding=fsdp; use common.bf16")
        if self.group.world_size > 1 and cfg.optimization.out_of_memory == "skip":
            raise ConfigError(
                "optimization.out_of_memory=skip is for one process, since several exchange gradients during a batch; "
                "remove it"
            )
        self._copy, self._criterion_copy = (PlainCopy(part, self.sharded) for part in (model, self.criterion.module))
        if cfg.optimization.checkpoint_activations:
            distributed.recompute_activations(model)
        loss = LossModule(
            model, lambda batch, model: check_out(self.criterion, self.task.train_step(batch, model, self.criterion))
        )
        loss.add_module("criterion", self.criterion.module)
        self._loss_module: Any = distributed.parallelize(loss, sharding, self.group, self.device)

    def trained_names(self, patterns: Iterable[str]) -> set[str]:
        """The names of the parameters that are trained and match a pattern, such as ``encoder.*``.

        Raises:
            ConfigError: a pattern matches no parameter that is trained.
        """
        found = names_like({"": self.model, "criterion": self.criterion.module}, patterns)
        for pattern, names in found.items():
            if not {*names} & {*self.named_params}:
                by = "optimization.freeze" if {*names} & self._trainable else "the model itself"
                raise ConfigError(f"{by} freezes all parameters {pattern!r}; remove the pattern")
        return {name for names in found.values() for name in names if name in self.named_params}

    def lr_at(self, epoch: int) -> float:
        """The learning rate of the next update, in an epoch (from 1)."""
        return self.scheduler.lr_at(self.update, epoch) if self.lr is None else self.lr

    @contextlib.contextmanager
    def plain(self, model: EncoderDecoderModel) -> Iterator[EncoderDecoderModel]:
        """The model with all of its weights; all ranks call this. It is a copy if the weights are sharded."""
        with self.group.collective(), self._copy.of(model) as copy:
            yield copy

    def _passes(self, model: EncoderDecoderModel, needed: int) -> int:
        """The number of passes through a model for a criterion; see ``TrainingContext``."""
        shared = self.sharded and model is self.model
        return max(self.group.gather(needed)) if shared else needed

    @contextlib.contextmanager
    def _whole_model(self, model: EncoderDecoderModel) -> Iterator[EncoderDecoderModel]:
        """``plain``, for a criterion, which is called in the forward pass; in evaluation the model is already plain."""
        if not self.sharded or model is not self.model:
            yield model
            return
        self._loss_module.reshard()  # its weights are gathered during its forward pass
        with self.plain(model) as copy:
            yield copy
        self._loss_module.unshard()

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[EncoderDecoderModel]:
        """``eval_model`` in evaluation mode, with all of its weights; all ranks call this."""
        self.criterion.begin_update(TrainingContext(self.update, self._whole_model, self._passes))
        module = self.criterion.module
        with self.plain(self.eval_model) as model, self._criterion_copy.of(module) as self.criterion.module:
            parts = nn.ModuleList([model, self.criterion.module]).eval()
            try:
                yield model
            finally:
                parts.train()
                self.criterion.module = module

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The context of the forward pass: autocast to bfloat16 or float16, if configured."""
        cfg = self.cfg.common
        dtype = torch.float16 if cfg.fp16 else torch.bfloat16
        return torch.autocast(self.device.type, dtype, enabled=cfg.bf16 or cfg.fp16)

    def train_update(self, batches: Sequence[Batch | None], epoch: int, spare: Spare = None) -> UpdateResult:
        """Make one update from the gradients of several batches.

        The gradient is that of the summed loss of all batches in all ranks, divided by the sum of their sample sizes.
        It does not depend on how sentences are distributed over batches and ranks. A criterion can ask for several
        optimizer steps with the same batches; ``update`` counts them as one.

        Args:
            batches: this rank's batches, as many as those of each other rank; ``None`` if only others still have one.
            epoch: the current epoch, from 1.
            spare: returns any batch. All ranks compute the same number of batches, because they exchange weights or
                gradients meanwhile: where ``batches`` has ``None``, the gradient of this one is multiplied by 0.

        Returns:
            The sums over the batches, the gradient norm, and whether the update was skipped.

        Raises:
            NonFiniteError: the loss or the gradient is NaN or infinite, and ``optimization.nonfinite_loss=stop``; or
                too many updates in a row were skipped.
        """
        self._loss_module.train()
        result = UpdateResult(lr=self.lr_at(epoch))
        self.criterion.begin_update(TrainingContext(self.update, self._whole_model, self._passes, {}))
        steps = self.criterion.optimizer_steps
        for self._optimizer_step in range(steps):
            self._make_step(result, batches, spare)
            if result.skipped:
                return result
        self.update += 1
        self.skips = 0
        self.criterion.after_update(result.sums)
        return result

    def _make_step(self, result: UpdateResult, batches: Sequence[Batch | None], spare: Spare) -> None:
        """Make an optimizer step and add its values to the result."""
        sums, problem = self._gradient(result, batches, spare)
        if problem:
            return self._leave_out(result, problem, expected=not sums)
        for name, value in sums.items():
            result.sums[name] = result.sums.get(name, 0.0) + value
        return self._step(result, lambda: self._gradient_again(result, batches, spare))

    def _gradient(
        self, result: UpdateResult, batches: Sequence[Batch | None], spare: Spare
    ) -> tuple[dict[str, float], str]:
        """Compute the gradient of the mean loss, clipped.

        Args:
            result: gets the gradient's norm.
            batches: see ``train_update``.
            spare: see ``train_update``.

        Returns:
            The sums over the batches; and the reason to skip the update, empty if there is none. The sums are empty if
            the batches could not be computed.
        """
        self.optimizer.zero_grad(set_to_none=True)
        outs, problem = self._gradients(batches, spare)
        if problem:
            return {}, problem
        ids = [batch.ids for batch in batches if batch is not None]
        local_sums, losses = sum_outs(outs)
        sums = self.group.sum(local_sums)
        if not math.isfinite(sums["loss"]):
            bad = self._sentences([part for part, loss in zip(ids, losses, strict=True) if not math.isfinite(loss)])
            return sums, f"the loss is {sums['loss']} on a batch with the sentences {bad}"
        for name in self.frozen.union(*(names for until, names in self._frozen_until if self.update < until)):
            self.named_params[name].grad = None
        for weight, mask in self._masks:
            if weight.grad is not None:
                weight.grad.mul_(mask)
        self.scaler.unscale_(self.optimizer)
        result.gnorm = float(self._normalize_gradients(sums["sample_size"]))
        if not math.isfinite(result.gnorm) and not self.scaler.is_enabled():
            return sums, f"the gradient's norm is {result.gnorm} on the sentences {self._sentences(ids)}"
        return sums, ""

    def _gradient_again(self, result: UpdateResult, batches: Sequence[Batch | None], spare: Spare) -> float:
        """Compute the gradient with the present weights, for an optimizer that needs several; return the mean loss."""
        sums, problem = self._gradient(result, batches, spare)
        if problem:  # the optimizer has changed the weights, so that the update cannot be skipped
            raise NonFiniteError(f"update {self.update + 1}: {problem}, after the optimizer had changed the weights")
        return sums["loss"] / (sums["sample_size"] or 1.0)

    def _gradients(self, batches: Sequence[Batch | None], spare: Spare) -> tuple[list[CriterionOut], str]:
        """Add the gradients of batches, those of all ranks with the last one.

        Returns:
            The losses of this rank's batches, and the reason to skip the update, empty if there is none.
        """
        outs: list[CriterionOut] = []
        for place, batch in enumerate(batches):
            with distributed.synchronize_gradients(self._loss_module, last=place == len(batches) - 1):
                try:
                    if batch is not None:
                        outs.append(self._backward(batch, place))
                    elif spare is not None:
                        self._backward(spare(), place, weight=0)
                    continue
                except Exception as error:
                    if self.cfg.optimization.out_of_memory != "skip" or not out_of_memory(error):
                        raise
            # outside of the handler, which keeps the tensors of the failed pass alive
            torch.cuda.empty_cache()
            sentences = self._sentences([batch.ids] if batch is not None else [])
            return outs, f"memory ran out on a batch with the sentences {sentences}"
        return outs, ""

    def _sentences(self, ids: Sequence[Tensor], limit: int = 10) -> str:
        """The numbers of sentences of all ranks, for a message; all ranks call this."""
        mine = [number for of_batch in ids for number in of_batch.tolist()]
        every = sorted(number for of_rank in self.group.gather(mine) for number in of_rank)
        more = f" and {len(every) - limit} more" if len(every) > limit else ""
        return f"{', '.join(map(str, every[:limit]))}{more} (numbered from 0)"

    def _backward(self, batch: Batch, place: int, weight: int = 1) -> CriterionOut:
        """Add a batch's gradient. The random seed depends on the index of the batch in the update, over all ranks.

        Each optimizer step of an update has other random numbers.
        """
        out: CriterionOut
        group = self.group
        index = place * group.world_size + group.rank + (self._optimizer_step << 32)
        seed_everything((self.cfg.common.seed, self.update, index))
        with group.collective():
            with self.autocast():
                loss, out = self._loss_module(batch.to(self.device))
            loss = self.scaler.scale(loss)
            torch.autograd.backward(loss if weight == 1 else loss * weight)
        return out

    @torch.no_grad()
    def _normalize_gradients(self, sample_size: float) -> Tensor:
        """Divide the gradients by the sample size and clip them, in one pass; return the L2 norm before clipping."""
        sample_size /= self.group.world_size  # the gradients are means over the ranks
        if not (grads := [param.grad for param in self.params if param.grad is not None]):
            raise ConfigError(f"all parameters are frozen in update {self.update + 1}; let some of them be trained")
        with self.group.collective():
            norm: Tensor = distributed.gather_whole(torch.nn.utils.get_total_norm(grads)) / sample_size
        clip = self.cfg.optimization.clip_norm
        factor = (clip / (norm + 1e-6)).clamp(max=1.0) if clip else torch.ones_like(norm)
        torch._foreach_mul_([distributed.local(grad) for grad in grads], factor / sample_size)
        return norm

    def _step(self, result: UpdateResult, gradient_again: Callable[[], float]) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = result.lr * group.get("lr_scale", 1.0)
        if getattr(self.optimizer, "needs_closure", False):
            self.optimizer.step(gradient_again)
            return
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if not math.isfinite(result.gnorm):
            self._leave_out(result, "float16 overflow; the loss scale was halved", expected=True)

    def _leave_out(self, result: UpdateResult, reason: str, expected: bool = False) -> None:
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
        done = self._optimizer_step
        result.skipped = f"{reason}, after {done} of its optimizer steps" if done else reason

    def weights(self, model: EncoderDecoderModel | None = None) -> dict[str, Tensor]:
        """The weights of a model that checkpoints contain, by name; all ranks call this.

        Args:
            model: the trained model; ``None`` for ``eval_model``.

        Returns:
            The weights; see ``gather_tensors``.
        """
        model = self.eval_model if model is None else model
        with self.group.collective():
            saved = named(model.state_dict(keep_vars=True), model.saved_weights)
            return distributed.gather_tensors(saved, self.group.is_main)

    def state_dict(self) -> dict[str, Any]:
        """The training state without ``weights``: nested plain values and tensors. All ranks call this."""
        state = self.optimizer.state_dict()
        gather = functools.partial(distributed.gather_tensors, keep=self.group.is_main)
        with self.group.collective():
            values = {self._names[int(index)]: gather(value) for index, value in state["state"].items()}
            trained = self.weights(self.model) if self.eval_model is not self.model else {}
            of_criterion = gather(self.criterion.module.state_dict(keep_vars=True))
        return {
            "update": self.update,
            "skips": self.skips,
            "lr": self.lr,
            "frozen": sorted(self.frozen),
            "onednn": TRAINING.onednn,
            "criterion": self.criterion.state_dict(),
            "criterion_weights": of_criterion,
            "optimizer": {
                "state": values,
                "groups": [{k: v for k, v in group.items() if k != "params"} for group in state["param_groups"]],
            },
            "lr_scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
            "trained_weights": trained,
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
        distributed.load(self.eval_model, weights, where)
        distributed.load(self.model, state["trained_weights"] or weights, where)
        distributed.load(self.criterion.module, state["criterion_weights"], f"{where}, parameters of the criterion")
        self._load_optimizer(state["optimizer"])
        self.scheduler.load_state_dict(state["lr_scheduler"])
        self.scaler.load_state_dict(state["scaler"])
        self.update, self.skips, TRAINING.onednn = state["update"], state["skips"], state["onednn"]
        self.criterion.load_state_dict(state["criterion"])

    def load_steering(self, state: dict[str, Any]) -> None:
        """Restore what observers have changed, see ``TrainingRun``; ``state`` is what ``state_dict`` returned."""
        self.lr, self.frozen = state["lr"], set(state["frozen"])

    def load_initial(self, model: EncoderDecoderModel) -> None:
        """Begin with the weights of a model of the same architecture, also as the average of the weights."""
        for one in (self.model, self.eval_model):
            if one is not model:
                distributed.load(one, model.state_dict(), "the weights to begin with")

    def _load_optimizer(self, saved: dict[str, Any]) -> None:
        indices = {name: index for index, name in enumerate(self._names)}
        pairs = zip(self.optimizer.state_dict()["param_groups"], saved["groups"], strict=True)
        # fused and foreach depend on the device, not on the run
        groups = [{**new, **old, **{k: new[k] for k in ("fused", "foreach") if k in new}} for new, old in pairs]
        state = {
            indices[name]: {key: distributed.part_like(value, self.named_params[name]) for key, value in values.items()}
            for name, values in saved["state"].items()
        }
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
