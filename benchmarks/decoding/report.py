"""What was measured as a table: the figures of each toolkit, and how many times faster seqgen is."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import torch

from benchmarks.decoding.work import BEFORE, SEQGEN, Measured, describe

HEAD = (
    f"{'':<30} {'tokens/s':>9} {'sent./s':>8} {'p50 ms':>8} {'p95 ms':>8} {'peak MB':>8} {'kB/hyp.':>8} {'same':>6} "
    f"{'drift':>7} | {'same f.':>7} {'float32':>7} {'best':>7}"
)
LEGEND = """\
tokens/s: of the best hypotheses. p50, p95: of sentences that are decoded one at a time. kB/hyp.: memory besides the
weights, for each row of a batch. same: share of the best hypotheses that are those of seqgen in float32; drift: how
much less their tokens score on average. Right of the bar: how many times faster than this is seqgen in the same number
format, in float32, and in its best one; beside the matrix products, the share of their speed that seqgen reaches."""


def machine(threads: int) -> dict[str, Any]:
    """What was measured on."""
    speeds = {name: matrix_speed(getattr(torch, name)) for name in ("float32", "bfloat16")}
    name = platform.processor() or platform.machine()
    if torch.cuda.is_available():
        name += f", {torch.cuda.get_device_name()}"
    return {"machine": name, "threads": threads, "gflops": speeds, "torch": torch.__version__}


def matrix_speed(dtype: torch.dtype, size: int = 1024, repeats: int = 8) -> float:
    """GFLOP/s of large matrix products on the processor, the best of several."""
    a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        torch.mm(a, b)
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times) / 1e9


def ratios(one: Measured, of_work: Sequence[Measured]) -> dict[str, float | None]:
    """How many times faster than a toolkit seqgen is.

    Args:
        one: the toolkit's figures.
        of_work: all that were measured of the same work.

    Returns:
        The ratios for seqgen in the same dtype, in float32, and in the one in which it is fastest.
    """
    ours = {other.format: other.tokens_per_second for other in of_work if other.toolkit == SEQGEN}
    best = max(ours.values(), default=None)
    speeds = {"same format": ours.get(one.format), "float32": ours.get("float32"), "best": best}
    return {name: speed / one.tokens_per_second if speed else None for name, speed in speeds.items()}


def by_work(measured: Sequence[Measured]) -> Iterator[list[Measured]]:
    """The figures of each work."""
    for _, group in groupby(measured, key=lambda one: one.work):
        yield list(group)


def table(measured: Sequence[Measured]) -> str:
    """Everything, a line for each toolkit and dtype."""
    lines = [HEAD]
    for of_work in by_work(measured):
        lines.append(describe(of_work[0].work))
        lines += [_line(one, of_work) for one in of_work]
    return "\n".join([*lines, "", LEGEND])


def _line(one: Measured, of_work: Sequence[Measured]) -> str:
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
        *(_cell(ratio, 7, 2) for ratio in ratios(one, of_work).values()),
    ]
    return f"{name:<30} {' '.join(cells)}".rstrip()


def _cell(value: float | None, width: int, digits: int, unit: float = 1.0) -> str:
    return " " * width if value is None else f"{value * unit:{width}.{digits}f}"


def growth(measured: Sequence[Measured], base: int = 64) -> str:
    """How the time of a token grows with the output: at each length against that at the length ``base``."""
    lines = [f"time of a token at a length, divided by that at length {base}"]
    at_base = {_but_length(one): one.tokens_per_second for one in measured if one.work.length == base}
    for one in measured:
        if one.work.length > base and _but_length(one) in at_base:
            ratio = at_base[_but_length(one)] / one.tokens_per_second
            lines.append(f"  {one.toolkit}, {one.format}: {describe(one.work)}: {ratio:.2f}")
    return "\n".join(lines) if len(lines) > 1 else ""


def now_to_before(measured: Sequence[Measured]) -> str:
    """The speed of this checkout divided by that of the other one, for each work and dtype.

    Each round gives a ratio, since its two measurements follow one another; the median is over the rounds.
    """
    lines = []
    for of_work in by_work(measured):
        now = {one.format: one for one in of_work if one.toolkit == SEQGEN}
        for before in (one for one in of_work if one.toolkit == BEFORE):
            rounds = [sum(b) / sum(n) for b, n in zip(before.seconds, now[before.format].seconds, strict=False)]
            each = " ".join(f"{ratio:.2f}" for ratio in rounds)
            lines.append(f"  {statistics.median(rounds):.3f} ({each}) {before.format}: {describe(before.work)}")
    return "\n".join(["speed now / before: median (each round)", *lines]) if lines else ""


def _but_length(one: Measured) -> tuple[Any, ...]:
    work = one.work
    return one.toolkit, one.format, work.model, work.sentences, work.batch, work.beam, work.source


def records(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """Everything, for JSON."""
    return [{**one.record(), "ratios": ratios(one, group)} for group in by_work(measured) for one in group]
