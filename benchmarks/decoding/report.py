"""Tables of the figures: those of each toolkit, and the speed of seqgen relative to it."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import torch

from benchmarks.decoding.workload import BEFORE, SEQGEN, Measured, Shares, describe

HEAD = (
    f"{'':<30} {'tokens/s':>9} {'sent./s':>8} {'p50 ms':>8} {'p95 ms':>8} {'peak MB':>8} {'kB/hyp.':>8} {'same':>6} "
    f"{'drift':>7} | {'dtype':>7} {'float32':>7} {'best':>7}"
)
LEGEND = """\
tokens/s: tokens of the best hypotheses per second. p50, p95: percentiles of the latency, for batches of one sentence.
kB/hyp.: memory without weights, for each row of a batch. same: share of the best hypotheses that equal those of seqgen
in float32; drift: mean loss of score per token, in nats. Right of the bar: the speed of seqgen divided by the speed in
this line, for seqgen in the same dtype, in float32, and in its fastest dtype."""


def machine(threads: int) -> dict[str, Any]:
    """The machine: processor, threads, speed of matrix products in GFLOP/s, version of torch."""
    speeds = {name: matrix_speed(getattr(torch, name)) for name in ("float32", "bfloat16")}
    name = platform.processor() or platform.machine()
    if torch.cuda.is_available():
        name += f", {torch.cuda.get_device_name()}"
    return {"machine": name, "threads": threads, "gflops": speeds, "torch": torch.__version__}


def matrix_speed(dtype: torch.dtype, size: int = 1024, repeats: int = 8) -> float:
    """GFLOP/s of large matrix products on the CPU; the best of several measurements."""
    a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        torch.mm(a, b)
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times) / 1e9


def ratios(one: Measured, of_workload: Sequence[Measured]) -> dict[str, float | None]:
    """The speed of seqgen divided by that of a toolkit.

    Args:
        one: the toolkit's figures.
        of_workload: all figures of the same workload.

    Returns:
        The ratios for seqgen in the same dtype, in float32, and in its fastest dtype.
    """
    ours = {other.format: other.tokens_per_second for other in of_workload if other.toolkit == SEQGEN}
    best = max(ours.values(), default=None)
    speeds = {"same format": ours.get(one.format), "float32": ours.get("float32"), "best": best}
    return {name: speed / one.tokens_per_second if speed else None for name, speed in speeds.items()}


def by_workload(measured: Sequence[Measured]) -> Iterator[list[Measured]]:
    """Group the figures by workload."""
    for _, group in groupby(measured, key=lambda one: one.workload):
        yield list(group)


def table(measured: Sequence[Measured]) -> str:
    """A table of all figures, one line for each toolkit and dtype."""
    lines = [HEAD]
    for of_workload in by_workload(measured):
        lines.append(describe(of_workload[0].workload))
        lines += [_line(one, of_workload) for one in of_workload]
    return "\n".join([*lines, "", LEGEND])


def _line(one: Measured, of_workload: Sequence[Measured]) -> str:
    name = f"  {one.toolkit}, {one.format}"
    memory = max(one.peak_bytes, default=0) / 1e6
    cells = [
        f"{one.tokens_per_second:9.1f} {one.sentences_per_second:8.2f}",
        *(_cell(one.latency(percent), 8, 1, 1000) for percent in (50, 95)),
        _cell(memory or None, 8, 0),
        _cell(one.bytes_per_hypothesis, 8, 0, 1e-3),
        "      " if one.same is None else f"{one.same:6.1%}",
        _cell(one.drift, 7, 4),
        "|",
        *(_cell(ratio, 7, 2) for ratio in ratios(one, of_workload).values()),
    ]
    return f"{name:<30} {' '.join(cells)}".rstrip()


def _cell(value: float | None, width: int, digits: int, unit: float = 1.0) -> str:
    return " " * width if value is None else f"{value * unit:{width}.{digits}f}"


def shares(measured: Sequence[Shares]) -> str:
    """A table of the share of each part of seqgen in its time, in percent."""
    names = list(measured[0].parts)
    lines = [f"{'share of the time, %':<30} " + " ".join(f"{name:>12}" for name in names)]
    for load, group in groupby(measured, key=lambda one: one.workload):
        lines.append(describe(load))
        lines += [
            f"  {one.toolkit + ', ' + one.format:<28} "
            + " ".join(f"{100 * one.parts[name]:12.1f}" for name in one.parts)
            for one in group
        ]
    return "\n".join(lines)


def growth(measured: Sequence[Measured], base: int = 64) -> str:
    """The time per token at each output length, divided by that at the length ``base``."""
    lines = [f"time per token, divided by that at output length {base}"]
    at_base = {_but_length(one): one.tokens_per_second for one in measured if one.workload.length == base}
    for one in measured:
        if one.workload.length > base and _but_length(one) in at_base:
            ratio = at_base[_but_length(one)] / one.tokens_per_second
            lines.append(f"  {one.toolkit}, {one.format}: {describe(one.workload)}: {ratio:.2f}")
    return "\n".join(lines) if len(lines) > 1 else ""


def now_to_before(measured: Sequence[Measured]) -> str:
    """The speed of this checkout divided by that of the other one, for each workload and dtype.

    Each round gives one ratio, since its two measurements are close in time; the median is over the rounds.
    """
    lines = []
    for of_workload in by_workload(measured):
        now = {one.format: one for one in of_workload if one.toolkit == SEQGEN}
        for before in (one for one in of_workload if one.toolkit == BEFORE):
            rounds = [sum(b) / sum(n) for b, n in zip(before.seconds, now[before.format].seconds, strict=False)]
            each = " ".join(f"{ratio:.2f}" for ratio in rounds)
            lines.append(f"  {statistics.median(rounds):.3f} ({each}) {before.format}: {describe(before.workload)}")
    return "\n".join(["speed now / before: median (each round)", *lines]) if lines else ""


def _but_length(one: Measured) -> tuple[Any, ...]:
    load = one.workload
    return one.toolkit, one.format, load.model, load.sentences, load.batch, load.beam, load.source


def records(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """All figures and ratios, for JSON."""
    return [{**one.record(), "ratios": ratios(one, group)} for group in by_workload(measured) for one in group]
