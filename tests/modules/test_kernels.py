"""Every kernel multiplies alike, the fastest is chosen for the number of rows, and gradients are PyTorch's."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from seqgen.modules import dtypes, kernel_choice as module, linear as linear_module
from seqgen.modules.kernel_choice import MatrixProduct, measure_all
from seqgen.modules.kernels import PADDED, PLAIN, PREPACKED, TRANSPOSED, WIDENED, Kernel, kernels_for, onednn_product
from seqgen.modules.linear import TRAINING, TrainingKernel, linear
from seqgen.training.cross_entropy import cross_entropy

needs_int8 = pytest.mark.skipif(not dtypes._has_int8_instructions(), reason="no instructions for int8 here")
each_int8 = pytest.mark.parametrize("kernel", kernels_for(torch.float32, int8=True), ids=lambda kernel: kernel.name)


@torch.no_grad()
def test_a_bfloat16_product_in_float32() -> None:
    """Of the other kernels test_linear.py tests the products."""
    torch.manual_seed(0)
    matrix, bias, x = (torch.randn(shape).bfloat16() for shape in ((33, 64), (33,), (3, 64)))
    wanted = F.linear(x.float(), matrix.float(), bias.float()).bfloat16()
    assert torch.equal(WIDENED.multiply(WIDENED.arrange(matrix), x, bias), wanted)


@torch.no_grad()
@pytest.mark.parametrize("kernel", kernels_for(torch.bfloat16), ids=lambda kernel: kernel.name)
def test_a_mapped_weight_of_16_bits_has_one_layout_in_blocks(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_mapped", lambda parameter: True)
    monkeypatch.setattr(module, "_BLOCK", 10 * 64)
    fastest = kernel.name
    monkeypatch.setattr(module, "time_kernels", lambda ks, *_: {one.name: 1 + (one.name != fastest) for one in ks})
    matrix, bias, x = (torch.randn(shape).bfloat16() for shape in ((33, 64), (33,), (40, 64)))
    product = MatrixProduct(matrix, kernels_for(torch.bfloat16), [matrix])
    for rows in (40, 3, 1):
        found = [product.bound(x[:rows], added)(x[:rows]) for added in (bias, None)]
        torch.testing.assert_close(found, [F.linear(x[:rows], matrix, added) for added in (bias, None)])
        assert product.choose(rows).arrange is kernel.arrange
        fastest = PLAIN.name if kernel is PREPACKED else PREPACKED.name
    assert [len(layouts) for layouts in product._layouts.values()] == [4]


@needs_int8
@torch.no_grad()
@each_int8
def test_int8_multiplies_rounded_factors(kernel: Kernel) -> None:
    """A row of zeros gives the bias."""
    torch.manual_seed(0)
    matrix, x, bias = torch.randn(33, 64), torch.randn(9, 64), torch.randn(33)
    x[::2] *= 100
    x[1], matrix[3] = 0, 0
    rounded = []
    for rows in (x.double(), matrix.double()):
        scale = (rows.abs().amax(1, keepdim=True) / 127).clamp(min=1e-30)
        rounded.append((rows / scale).round() * scale)
    wanted, layout = F.linear(*rounded).float(), kernel.arrange(matrix)
    for given, product in ((None, wanted), (bias, wanted + bias)):
        for rows in (slice(None), slice(0, 1), slice(1, 2), slice(0, 0)):
            torch.testing.assert_close(kernel.multiply(layout, x[rows], given), product[rows], rtol=0, atol=2e-3)
    three = kernel.multiply(layout, x.unsqueeze(1), bias)
    torch.testing.assert_close(three.squeeze(1), wanted + bias, rtol=0, atol=2e-3)


def test_the_fastest_is_chosen_unless_measurements_do_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels, names = [PREPACKED, PADDED, PLAIN, TRANSPOSED], ["prepacked", "padded", "plain", "transposed"]
    rows = [
        ([3.0, 2.0, 1.5, 1.0], {0: PREPACKED, 1: TRANSPOSED, 4: PLAIN, 32: PLAIN}),  # transposed is for one row only
        ([3.0, 2.0, 1.05, 1.0], {1: PLAIN}),  # the first of two that are alike
        ([3.0, 1.0, 4.0, 4.0], {1: PADDED, 4: PREPACKED, 32: PREPACKED}),  # only one row is padded
    ]
    for times, wanted in rows:
        given = dict(zip(names, times, strict=True))
        monkeypatch.setattr(module, "time_kernels", lambda some, *_, given=given: {k.name: given[k.name] for k in some})
        assert {count: MatrixProduct(torch.randn(32, 64), kernels).choose(count) for count in wanted} == wanted


@torch.no_grad()
def test_what_a_job_measures_is_all_that_its_workers_need(monkeypatch: pytest.MonkeyPatch) -> None:
    has_int8 = dtypes._has_int8_instructions()
    measure_all(torch.get_num_threads(), has_int8)
    monkeypatch.setattr(module, "time_calls", lambda calls: pytest.fail("a worker measures by itself"))
    for dtype, int8 in ((torch.float32, False), (torch.bfloat16, False), (torch.float32, has_int8)):
        for outputs, rows in itertools.product((64, 32128), (1, 5, 100)):
            matrix = torch.empty(outputs, 16, dtype=dtype)
            assert MatrixProduct(matrix, kernels_for(dtype, int8)).choose(rows).suits(rows, 64)


# --- products of training


training = pytest.mark.usefixtures("always")


def inputs(*shape: int, out_features: int = 11, bias: bool = True) -> list[Tensor]:
    torch.manual_seed(0)
    sizes = [shape, (out_features, shape[-1]), *([(out_features,)] if bias else [])]
    return [torch.randn(size, requires_grad=True) for size in sizes]


@pytest.fixture(name="always")
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    """All products are computed by oneDNN."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("PyTorch has no oneDNN here")
    monkeypatch.setattr(linear_module, "_LARGE_PRODUCT", 0)
    monkeypatch.setattr(TRAINING, "onednn", True)


@pytest.mark.parametrize("shape", [(7, 5), (3, 4, 6), (1, 1), (130, 70), None])
@pytest.mark.parametrize("bias", [False, True])
@training
def test_equals_that_of_pytorch(shape: tuple[int, ...] | None, bias: bool) -> None:
    """Also with tensors that are not contiguous, in the last case."""
    tensors = inputs(*(shape or (9, 6)), bias=bias)
    if shape is None:
        tensors[:2] = [one.t().contiguous().t().detach().requires_grad_() for one in tensors[:2]]
    results = []
    for multiply in (linear, F.linear):
        out = multiply(*tensors)
        results.append([out, *torch.autograd.grad((out * out.detach().cos()).sum(), tensors)])
    made = linear(*tensors).grad_fn
    assert "OneDNN" in str(made) + str(made.next_functions)  # type: ignore[union-attr]
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


@training
def test_only_what_is_wanted_is_computed() -> None:
    x, weight, bias = inputs(4, 5)
    out = linear(x.detach(), weight, bias.detach())
    (gradient,) = torch.autograd.grad(out.sum(), [weight])
    torch.testing.assert_close(gradient, x.detach().sum(0).expand(11, 5))


@training
def test_the_loss_uses_its_memory_again() -> None:
    x, weight, _ = inputs(64, 5)
    logits = linear(x, weight)
    place = logits.data_ptr()
    loss, _, _ = cross_entropy(logits, torch.arange(64) % 11)
    gradient = loss.grad_fn.gradients[0]  # type: ignore[union-attr]
    assert gradient.data_ptr() == place
    plain = F.cross_entropy(F.linear(x, weight), torch.arange(64) % 11, reduction="sum")
    got, wanted = (torch.autograd.grad(one, [x, weight]) for one in (loss, plain))
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_several_processes_compute_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(linear_module, "time_calls", lambda calls: pytest.fail("nothing is measured"))
    kernel = TrainingKernel()
    kernel.choose()
    assert kernel.onednn is None
    assert kernel.uses_onednn()


@training
def test_products_of_gradients_have_no_expanded_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a sum has one element in memory; oneDNN takes half a minute for a product with such a matrix."""
    strides: list[int] = []

    def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        strides.extend([*x.stride(), *weight.stride()])
        return onednn_product(x, weight, bias)

    monkeypatch.setattr(linear_module, "onednn_product", product)
    x, weight = inputs(9, 5, bias=False)
    found, wanted = (torch.autograd.grad(multiply(x, weight).sum(), [x, weight]) for multiply in (linear, F.linear))
    torch.testing.assert_close(found, wanted)
    assert len(strides) == 12
    assert 0 not in strides
