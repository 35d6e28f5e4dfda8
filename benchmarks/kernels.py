"""Which kernel multiplies few rows fastest here, which one is chosen, and how long the memory needs for the weights.

    python -m benchmarks.kernels [--shapes 512x512 2048x512 ...] [--rows 1 5 32] [--threads 1 2]
        [--formats float32 bfloat16 int8] [--rounds 5]

A shape is outputs x inputs; by default, those of the decoder of t5-small. Each figure is in microseconds: the median
over the rounds, in which all kernels are timed by turns, with as many matrices as do not fit into the processor's
caches. ``read`` is the time in which the memory gives as many bytes as the weights have; a star marks the choice.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from seqgen.modules.kernel_choice import MatrixProduct
from seqgen.modules.kernels import Kernel, kernels_for

ALL_BYTES = 128 * 2**20
"""Bytes of the matrices of one shape: more than caches hold."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.float32}
BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}


DECODER = ["1536x512", "512x512", "2048x512", "512x2048", "32128x512"]
"""Outputs and inputs of the matrices of t5-small's decoder."""


def median_seconds(calls: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
    """The median time of each call; in each round all run once, by turns."""
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, seconds in zip(calls, found, strict=True):
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
    return [statistics.median(seconds) for seconds in found]


def seconds_per_byte(rounds: int) -> float:
    """The time in which memory gives one byte to all threads."""
    values = torch.ones(2 * ALL_BYTES // 4)
    return median_seconds([values.sum], rounds)[0] / values.nbytes


def seconds_of(
    kernels: Sequence[Kernel], outputs: int, inputs: int, dtype: torch.dtype, rows: int, rounds: int
) -> list[float]:
    """The time of one product by each kernel, with matrices that come from memory."""
    count = max(2, ALL_BYTES // (4 * outputs * inputs))
    matrices = [torch.randn(outputs, inputs).mul_(0.05).to(dtype) for _ in range(count)]
    x = torch.randn(rows, inputs).to(dtype)

    def all_products(kernel: Kernel) -> Callable[[], None]:
        layouts = [kernel.arrange(matrix) for matrix in matrices]

        def multiply() -> None:
            for layout in layouts:
                kernel.multiply(layout, x, None)

        multiply()  # the first call may compile a kernel
        return multiply

    return [seconds / count for seconds in median_seconds([all_products(kernel) for kernel in kernels], rounds)]


@torch.inference_mode()
def measure(options: argparse.Namespace) -> list[str]:
    """The lines of the table."""
    lines = []
    for threads in options.threads:
        torch.set_num_threads(threads)
        per_byte = seconds_per_byte(options.rounds)
        lines.append(f"{threads} threads; memory gives {1e-9 / per_byte:.0f} GB/s")
        for name in options.formats:
            every = kernels_for(DTYPES[name], name == "int8")
            for shape in options.shapes:
                outputs, inputs = map(int, shape.split("x"))
                for rows in options.rows:
                    kernels = [kernel for kernel in every if kernel.suits(rows, 1)]
                    found = seconds_of(kernels, outputs, inputs, DTYPES[name], rows, options.rounds)
                    product = MatrixProduct(torch.empty(outputs, inputs, dtype=DTYPES[name]), every)
                    choice = product.choose(rows)
                    times = "  ".join(
                        f"{kernel.name} {seconds * 1e6:.0f}{'*' if kernel is choice else ''}"
                        for kernel, seconds in zip(kernels, found, strict=True)
                    )
                    read = per_byte * outputs * inputs * BYTES[name] * 1e6
                    lines.append(f"  {name:8} {shape:>10}, {rows:3} rows:  {times}  read {read:.0f}")
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=DECODER)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 5, 32])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--formats", nargs="+", choices=DTYPES, default=["float32", "bfloat16", "int8"])
    parser.add_argument("--rounds", type=int, default=5)
    print("\n".join(measure(parser.parse_args(argv))))


if __name__ == "__main__":
    main()
