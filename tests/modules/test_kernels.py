"""Every kernel multiplies alike, and the fastest one is chosen for the number of rows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F

from seqgen.modules import dtypes, kernel_choice as module
from seqgen.modules.kernel_choice import MatrixProduct, measure_all
from seqgen.modules.kernels import (
    PADDED,
    PLAIN,
    PREPACKED,
    TRANSPOSED,
    WIDENED,
    Kernel,
    kernels_for,
)

SHAPES = [(1, 64), (2, 64), (5, 64), (1, 1, 64), (9, 1, 64), (2, 3, 64), (0, 64)]
FLOATS = [PREPACKED, PLAIN, TRANSPOSED]

needs_int8 = pytest.mark.skipif(not dtypes._has_int8_instructions(), reason="no instructions for int8 here")
each_int8 = pytest.mark.parametrize("kernel", kernels_for(torch.float32, int8=True), ids=lambda kernel: kernel.name)


@torch.no_grad()
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("kernel", FLOATS, ids=lambda kernel: kernel.name)
def test_float_kernels_multiply_alike(kernel: Kernel, with_bias: bool) -> None:
    torch.manual_seed(0)
    matrix, bias = torch.randn(33, 64), torch.randn(33) if with_bias else None
    layout = kernel.arrange(matrix)
    for shape in SHAPES:
        x = torch.randn(shape)
        torch.testing.assert_close(kernel.multiply(layout, x, bias), F.linear(x, matrix, bias), rtol=0, atol=1e-4)


@torch.no_grad()
def test_kernels_of_one_row_and_of_bfloat16() -> None:
    torch.manual_seed(0)
    matrix, bias = torch.randn(33, 64), torch.randn(33)
    for shape in ((64,), (1, 64), (1, 1, 64)):
        x = torch.randn(shape)
        product = PADDED.multiply(PADDED.arrange(matrix), x, bias)
        torch.testing.assert_close(product, F.linear(x, matrix, bias), rtol=0, atol=1e-4)
    narrow, x = matrix.bfloat16(), torch.randn(3, 64).bfloat16()
    wanted = F.linear(x.float(), narrow.float(), bias.bfloat16().float()).bfloat16()
    assert torch.equal(WIDENED.multiply(WIDENED.arrange(narrow), x, bias.bfloat16()), wanted)


@needs_int8
@torch.no_grad()
@each_int8
def test_int8_by_hand(kernel: Kernel) -> None:
    """Weights and inputs that integers hold exactly give the exact product; a row of zeros gives the bias."""
    matrix = torch.tensor([[127.0, -1.0, 2.0, 0.0], [0.5, 1.0, -63.5, 0.0], [0.0, 0.0, 0.0, 0.0]])
    x = torch.tensor([[127.0, 3.0, -2.0, 1.0], [0.0, 0.0, 0.0, 0.0], [-0.127, 0.001, 0.0, 0.1]])
    layout, bias = kernel.arrange(matrix), torch.tensor([1.0, -1.0, 2.0])
    for rows in (x, *x.split(1), x.unsqueeze(1), x[:0]):
        for added in (bias, None):
            product = kernel.multiply(layout, rows, added)
            torch.testing.assert_close(product, F.linear(rows, matrix, added), rtol=1e-5, atol=0.02)
    assert kernel.multiply(layout, x, bias)[1].tolist() == [1.0, -1.0, 2.0]
    assert kernel.multiply(layout, x[1:2], bias).tolist() == [[1.0, -1.0, 2.0]]


@needs_int8
@torch.no_grad()
@each_int8
def test_int8_multiplies_rounded_factors(kernel: Kernel) -> None:
    torch.manual_seed(0)
    matrix, x = torch.randn(33, 64), torch.randn(9, 64)
    x[::2] *= 100
    rounded = []
    for rows in (x.double(), matrix.double()):
        scale = rows.abs().amax(1, keepdim=True) / 127
        rounded.append((rows / scale).round() * scale)
    wanted, layout = F.linear(*rounded).float(), kernel.arrange(matrix)
    for product in (
        kernel.multiply(layout, x, None),
        torch.cat([kernel.multiply(layout, row, None) for row in x.split(1)]),
    ):
        torch.testing.assert_close(product, wanted, rtol=0, atol=2e-3)


def chosen(times: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> MatrixProduct:
    """The product of a matrix whose kernels take these times."""

    def given(kernels: Sequence[Kernel], *_: object) -> dict[str, float]:
        return {kernel.name: times[kernel.name] for kernel in kernels}

    monkeypatch.setattr(module, "time_kernels", given)
    matrix = torch.randn(32, 64)
    return MatrixProduct(matrix, [PREPACKED, PADDED, PLAIN, TRANSPOSED])


def test_the_fastest_is_chosen_unless_measurements_do_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"prepacked": 3.0, "padded": 2.0, "plain": 1.5, "transposed": 1.0}
    assert chosen(times, monkeypatch).choose(1) is TRANSPOSED
    assert chosen({**times, "plain": 1.05}, monkeypatch).choose(1) is PLAIN, "the first of two that are alike"
    only_padded = {"prepacked": 3.0, "padded": 1.0, "plain": 4.0, "transposed": 4.0}
    assert chosen(only_padded, monkeypatch).choose(1) is PADDED
    for few_or_many in (4, 32):
        assert chosen(only_padded, monkeypatch).choose(few_or_many) is PREPACKED, "only one row is padded"
        assert chosen(times, monkeypatch).choose(few_or_many) is PLAIN, "transposed is a candidate for one row"
    assert chosen(times, monkeypatch).choose(0) is PREPACKED


@torch.no_grad()
def test_what_a_job_measures_is_all_that_its_workers_need(monkeypatch: pytest.MonkeyPatch) -> None:
    has_int8 = dtypes._has_int8_instructions()
    measure_all(torch.get_num_threads(), has_int8)
    monkeypatch.setattr(module, "time_calls", lambda calls: pytest.fail("a worker measures by itself"))
    for dtype, int8 in ((torch.float32, False), (torch.bfloat16, False), (torch.float32, has_int8)):
        for outputs, rows in itertools.product((64, 32128), (1, 5, 100)):
            matrix = torch.empty(outputs, 16, dtype=dtype)
            assert MatrixProduct(matrix, kernels_for(dtype, int8)).choose(rows).suits(rows, 64)
