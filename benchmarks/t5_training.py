"""Training steps of a T5 of the shape of t5-small: those of seqgen and of transformers, alternating.

32 rows of 32 source and 32 target tokens, vocabulary 32,128, fused AdamW, clipping to norm 1, dropout 0.1: the defaults
of both training commands. All steps use the same rows, so that no time is spent on loading data.
"""

from __future__ import annotations

import contextlib
import importlib.util
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import seqgen.models
import seqgen.tasks  # noqa: F401  # declare the built-in components
from seqgen.config import TrainConfig
from seqgen.config.compose import compose
from seqgen.core.structures import Batch
from seqgen.data.pair_dataset import collate
from seqgen.registry import MODELS
from seqgen.training.criteria import Criterion, CriterionOut
from seqgen.training.distributed import ProcessGroup
from seqgen.training.trainer import Trainer

VOCABULARY, ROWS, LENGTH = 32_128, 32, 32
PAD, EOS = 0, 1
OPTIONS = ["model=t5_small", "criterion=cross_entropy", "optimizer=adamw", "lr_scheduler=fixed"]


class Vocabulary:
    """A vocabulary of the size of T5's embedding."""

    def __len__(self) -> int:
        return VOCABULARY

    def pad(self) -> int:
        return PAD

    def eos(self) -> int:
        return EOS


class Steps(SimpleNamespace):
    """A task that has dictionaries and calls the criterion."""

    source_dictionary = target_dictionary = Vocabulary()

    def train_step(self, batch: Batch, model: Any, criterion: Criterion) -> CriterionOut:
        return criterion(model, batch)


@dataclass
class Speed:
    """Target tokens per second of wall time and of CPU time; medians over all steps."""

    wall: float
    processor: float


def batch() -> Batch:
    """A batch of random rows, all of the same length."""
    generator = torch.Generator().manual_seed(1)

    def row() -> torch.Tensor:
        return torch.cat([torch.randint(3, 32_000, (LENGTH - 1,), generator=generator), torch.tensor([EOS])])

    examples = [(number, row(), row()) for number in range(ROWS)]
    return collate(examples, source_pad=PAD, target_pad=PAD, start_token=PAD)


def seqgen_step(bf16: bool) -> Callable[[], None]:
    """A function that makes one training step of seqgen."""
    cfg = compose(TrainConfig, [*OPTIONS, "optimization.lr=[1e-3]", f"common.bf16={str(bf16).lower()}"])
    task: Any = Steps()
    model = MODELS.of(cfg.model).component.build_model(cfg.model, task)  # type: ignore[attr-defined]
    trainer, rows = Trainer(cfg, task, model, torch.device("cpu"), ProcessGroup()), batch()

    def step() -> None:
        trainer.train_update([rows], 1)

    return step


def transformers_step(bf16: bool) -> Callable[[], None]:
    """A function that makes one training step of transformers, like its ``Trainer``."""
    from transformers import T5Config, T5ForConditionalGeneration

    model = T5ForConditionalGeneration(T5Config(vocab_size=VOCABULARY, decoder_start_token_id=PAD)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    rows = batch()
    sources, mask = rows.source.src_tokens, torch.ones_like(rows.source.src_tokens)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16) if bf16 else contextlib.nullcontext():
            loss = model(input_ids=sources, attention_mask=mask, labels=rows.target).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def has_transformers() -> bool:
    """Whether transformers is installed."""
    return importlib.util.find_spec("transformers") is not None


def alternate(steps: dict[str, Callable[[], None]], seconds: float) -> dict[str, Speed]:
    """Time training steps, alternating.

    Args:
        steps: functions that make a step, by name.
        seconds: how long to measure each.

    Returns:
        The speeds by name.
    """
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    start = time.perf_counter()
    while time.perf_counter() - start < seconds * len(steps) or len(taken[next(iter(steps))]) < 3:
        for name, step in steps.items():
            wall, processor = time.perf_counter(), time.process_time()
            step()
            taken[name].append((time.perf_counter() - wall, time.process_time() - processor))
    tokens = ROWS * LENGTH
    return {
        name: Speed(*(tokens / statistics.median(column) for column in zip(*times, strict=True)))
        for name, times in taken.items()
    }


def compare(seconds: float, with_profile: bool) -> dict[str, Any]:
    """Measure float32 and bfloat16 autocast; print a table and return it.

    Args:
        seconds: how long to measure each toolkit and dtype.
        with_profile: whether to print a profile of a step of seqgen.
    """
    results: dict[str, Any] = {}
    if not has_transformers():
        print("transformers is not installed; only seqgen is measured (pip install transformers==4.53.3)")
    print(f"\n{'T5-small, target tokens/s':26} {'seqgen':>9} {'transformers':>13} {'ratio':>6} {'by CPU time':>12}")
    for name, bf16 in (("float32", False), ("bfloat16 autocast", True)):
        steps = {"seqgen": seqgen_step(bf16)} | (
            {"transformers": transformers_step(bf16)} if has_transformers() else {}
        )
        speeds = alternate(steps, seconds)
        ours, other = speeds["seqgen"], speeds.get("transformers")
        ratios = ""
        if other:
            ratios = f"{other.wall:13,.0f} {ours.wall / other.wall:6.2f} {ours.processor / other.processor:12.2f}"
        print(f"{name:26} {ours.wall:9,.0f} {ratios}", flush=True)
        results[name] = {toolkit: vars(speed) for toolkit, speed in speeds.items()}
        if with_profile:
            with profile(activities=[ProfilerActivity.CPU]) as recorded:
                steps["seqgen"]()
            print(recorded.key_averages().table(sort_by="self_cpu_time_total", row_limit=16, max_name_column_width=40))
    return results
