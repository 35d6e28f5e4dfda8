"""The choice of the fastest kernel, and of the number of threads, by measurement.

What is fastest depends on the processor, the number of rows and the number of threads. So each process measures once:
it times the kernels with a matrix of ones when it first needs them, which takes a few hundredths of a second.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from seqgen.modules.kernels import PLAIN, Kernel, Multiply, kernels_for
from seqgen.system.mapped_weights import is_mapped, release_pages
from seqgen.system.switches import KERNEL_CHOICE

Kind: TypeAlias = tuple[tuple[str, ...], torch.dtype, int, int]
"""Key of a measurement: names of the kernels, dtype of matrix and rows, number of rows (see ``_MEASURED_ROWS``), and
number of threads.
"""

TIMES: dict[Kind, dict[str, float]] = {}
"""The measurements of this process: seconds per kernel, keyed by name."""

_MEASURED_ROWS = (1, 4, 32)
"""The numbers of rows that are measured, which stand for one row, for 2 to 8 rows, and for more."""

_MEASURED_SIZES = {1: 2**21, 4: 2**21, 32: 2**19}
"""Numbers of weights that are measured. With few rows, the matrices of all kernels together should not fit into caches
of the processor, since the weights of a model come from memory too; with many, arithmetic takes the time.
"""

_MEASURED_INPUTS = 1024
"""Input size of the matrix that is measured; which kernel is the fastest hardly depends on it."""

_ROUNDS = 3
"""Number of times that each kernel is timed, in turn with the others; the shortest time counts."""

ALIKE = 1.1
"""Kernels that take at most this much longer than the fastest are not distinguished: measurements vary by as much."""


_BLOCK = 2**23
"""Number of weights of a large matrix that are arranged at a time if memory counts."""


def _class_of(rows: int) -> int:
    """The measured number of rows that stands for ``rows``."""
    one, few, many = _MEASURED_ROWS
    return one if rows == 1 else few if rows <= 2 * few else many


def time_kernels(kernels: Sequence[Kernel], dtype: torch.dtype, rows: int) -> dict[str, float]:
    """Time kernels with a matrix of ones, or find the times that were measured for the same kind of matrix.

    Args:
        kernels: the kernels.
        dtype: dtype of the matrix and of the rows.
        rows: the number of rows, one of ``_MEASURED_ROWS``.

    Returns:
        Seconds per kernel, keyed by name.
    """
    kind = tuple(kernel.name for kernel in kernels), dtype, rows, torch.get_num_threads()
    if len(kernels) == 1:
        return {kernels[0].name: 0.0}
    if kind not in TIMES:
        matrix = torch.ones(_MEASURED_SIZES[rows] // _MEASURED_INPUTS, _MEASURED_INPUTS, dtype=dtype)
        x = torch.ones(rows, _MEASURED_INPUTS, dtype=dtype)
        products = {kernel.name: partial(kernel.multiply, kernel.arrange(matrix), x, None) for kernel in kernels}
        TIMES[kind] = time_calls(products)
    return TIMES[kind]


def measure_all(threads: int, int8: bool) -> dict[Kind, dict[str, float]]:
    """Measure all that a model may need, so that processes which get the result in their ``TIMES`` choose alike.

    Args:
        threads: the number of threads of these processes.
        int8: whether they multiply in 8-bit integers.

    Returns:
        ``TIMES``.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    kinds = [(torch.float32, False), (torch.bfloat16, False), *([(torch.float32, True)] if int8 else [])]
    for (dtype, in_integers), rows in itertools.product(kinds, _MEASURED_ROWS):
        kernels = kernels_for(dtype, in_integers)
        time_kernels([kernel for kernel in kernels if kernel.suits(rows, _MEASURED_INPUTS)], dtype, rows)
    torch.set_num_threads(before)
    return TIMES


def time_calls(calls: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """The shortest time of each of some calls, in seconds, all timed by turns."""
    for call in calls.values():
        call()  # the first one may compile a kernel
    found = dict.fromkeys(calls, float("inf"))
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            found[name] = min(found[name], time.perf_counter() - start)
    return found


class MatrixProduct:
    """The product of rows with one matrix, by the kernel that is fastest for their number.

    The matrix is arranged for a kernel when that is first chosen. A layout is a copy; of kernels that are about equally
    fast, one whose layout is there already is used. Memory that is mapped from a file is then given back.

    Args:
        matrix: ``(out_features, in_features)``.
        kernels: the kernels to choose from; the first one is used if nothing is measured.
        parameters: the parameters from which the matrix is computed.
    """

    def __init__(self, matrix: Tensor, kernels: Sequence[Kernel], parameters: Sequence[Tensor] = ()):
        self._matrix, self.kernels = matrix, kernels
        self._mapped = [parameter for parameter in parameters if is_mapped(parameter)]
        self._saves_memory = bool(self._mapped) and matrix.element_size() == 2
        self._layouts: dict[Callable[[Tensor], Any], list[Any]] = {}
        if matrix.element_size() == 2 and not self._mapped:
            self._layouts[PLAIN.arrange] = [matrix]  # another layout needs its memory once more
        self._products: dict[tuple[int, int], tuple[Multiply, list[Any]]] = {}

    def bound(self, x: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        """The function that maps inputs of the size of ``x`` to ``(..., out_features)``; it adds the bias, if any."""
        rows = x.numel() // x.size(-1) if KERNEL_CHOICE.is_on() else 0
        key = rows and _class_of(rows), torch.get_num_threads()
        if key not in self._products:
            self._products[key] = self._arranged(self.choose(rows))
        multiply, layouts = self._products[key]
        if len(layouts) > 1:
            biases = [None] * len(layouts) if bias is None else bias.split(self._block_rows())
            pairs = list(zip(layouts, biases, strict=True))
            return lambda x: torch.cat([multiply(layout, x, part) for layout, part in pairs], dim=-1)
        if multiply is PLAIN.multiply:
            return partial(F.linear, weight=layouts[0], bias=bias)
        return lambda x: multiply(layouts[0], x, bias)

    def choose(self, rows: int) -> Kernel:
        """The kernel for a number of rows; 0 for the one that is used if nothing is measured.

        Of those that are about equally fast, it is one whose layout already exists, or else the first. A mapped weight
        of 16 bits has one layout only, since memory is what they save.
        """
        if rows == 0:
            return self.kernels[0]
        rows = _class_of(rows)
        kernels = [kernel for kernel in self.kernels if kernel.suits(rows, self._matrix.size(0))]
        seconds = time_kernels(kernels, self._matrix.dtype, rows)
        if self._saves_memory:
            kernels = [kernel for kernel in kernels if kernel.arrange in self._layouts] or kernels
        fastest = min(seconds[kernel.name] for kernel in kernels)
        fast = [kernel for kernel in kernels if seconds[kernel.name] <= ALIKE * fastest]
        return min(fast, key=lambda kernel: kernel.arrange not in self._layouts)

    def _arranged(self, kernel: Kernel) -> tuple[Multiply, list[Any]]:
        """What multiplies, and the layouts that it reads, one for each block of rows."""
        if kernel.arrange not in self._layouts:
            self._layouts[kernel.arrange] = layouts = []
            for block in self._matrix.split(self._block_rows()):
                layouts.append(kernel.arrange(block))
                for parameter in self._mapped if layouts[-1] is not block else ():
                    release_pages(parameter)
        return kernel.multiply, self._layouts[kernel.arrange]

    def _block_rows(self) -> int:
        """How many rows are arranged at a time; also PyTorch's function makes a copy of its matrix in 16 bits."""
        rows, size = self._matrix.shape
        return max(_BLOCK // size, 1) if self._saves_memory and rows * size > 2 * _BLOCK else rows


def set_threads(count: int) -> None:
    """Compute with a number of threads that the user has chosen: ``fastest_threads`` does not change it."""
    torch.set_num_threads(count)
    _given.add(count)


_given: set[int] = set()
"""The numbers of threads that a user has chosen."""


@contextmanager
def fastest_threads(rows: int, device: torch.device) -> Iterator[None]:
    """In the ``with`` block, use one thread if products of few rows are faster with one than with all.

    They are where two processors are threads of one core, or where other programs are running.

    Args:
        rows: number of rows; the number of threads is not changed for many rows, and if nothing is measured.
        device: where products are computed.
    """
    threads, rows = torch.get_num_threads(), _class_of(rows)
    few = threads > 1 and rows < _MEASURED_ROWS[-1] and device.type == "cpu"
    if not few or threads in _given or not KERNEL_CHOICE.is_on():
        yield
        return
    try:
        torch.set_num_threads(_threads(rows, threads))
        yield
    finally:
        torch.set_num_threads(threads)


@cache
def _threads(rows: int, available: int) -> int:
    """1 or ``available``, whichever multiplies ``rows`` rows faster."""
    kernels, fastest = [kernel for kernel in kernels_for(torch.float32) if kernel.suits(rows, _MEASURED_INPUTS)], {}
    for threads in (available, 1):
        torch.set_num_threads(threads)
        fastest[threads] = min(time_kernels(kernels, torch.float32, rows).values())
    return 1 if fastest[1] * ALIKE < fastest[available] else available
