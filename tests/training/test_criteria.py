"""The loss over the vocabulary: the lean computations equal the plain formula, in value and in gradient."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from seqgen.extend import Batch, Source, target_logits
from seqgen.training import criteria, cross_entropy as module
from seqgen.training.cross_entropy import cross_entropy, projected_cross_entropy, projection_of
from tests.model_zoo import ZOO, TinyTask, build

ROWS, VOCAB, FEATURES = 13, 11, 5
Results = tuple[Tensor, Tensor, Tensor]


def inputs(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Features, weight, bias, and logits that no operation has computed."""
    torch.manual_seed(0)
    shapes = ((ROWS, FEATURES), (VOCAB, FEATURES), (VOCAB,), (ROWS, VOCAB))
    return [(torch.randn(shape, dtype=dtype) * 2).requires_grad_() for shape in shapes]


TARGET = torch.randint(0, VOCAB, (ROWS,), generator=torch.Generator().manual_seed(1))


def by_the_formula(logits: Tensor, target: Tensor, smoothing: float = 0.0, z_loss: float = 0.0) -> Results:
    """Label smoothing as fairseq's (Szegedy et al., 2016) and the z-loss (Chowdhery et al., 2022), by autograd."""
    lprobs = logits.log_softmax(-1)
    other = smoothing / (logits.size(-1) - 1)
    nll = -lprobs.gather(-1, target[:, None]).sum()
    penalty = z_loss * logits.logsumexp(-1).square().sum()
    loss = (1 - smoothing - other) * nll - other * lprobs.sum() + penalty
    return loss, nll, (logits.argmax(-1) == target).sum().to(logits.dtype)


def values_and_gradients(results: Results, given: list[Tensor]) -> list[Tensor | None]:
    loss, nll, correct = results
    return [loss.detach(), nll.detach(), correct, *torch.autograd.grad(3 * loss, given, allow_unused=True)]


def assert_equal(found: list[Tensor | None], wanted: list[Tensor | None], tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


LAYERS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "a product, whose memory is used again": lambda features, weight, bias, _: F.linear(features, weight, bias),
    "an operation after the product": lambda features, weight, bias, _: F.linear(features, weight) + bias,
    "one whose backward reads its output": lambda features, weight, bias, _: F.linear(features, weight, bias).tanh(),
    "none": lambda *given: given[-1],
}
"""What computes the logits."""


@pytest.mark.parametrize("weights", [(0.0, 0.0), (0.1, 0.0), (0.0, 0.2), (0.7, 0.2)])
@pytest.mark.parametrize("chunks", [(1, 1), (40, 22), (1 << 20, 1 << 20)])
def test_the_lean_computations_equal_the_formula(
    weights: tuple[float, float], chunks: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the logits of any layer, and in one with the projection."""
    monkeypatch.setattr(module, "_CHUNK_ELEMENTS", chunks[0])
    monkeypatch.setattr(module, "_CACHED_ELEMENTS", chunks[1])
    given = inputs()
    for layer in LAYERS.values():
        found = values_and_gradients(cross_entropy(layer(*given), TARGET, *weights), given)
        wanted = values_and_gradients(by_the_formula(layer(*given), TARGET, *weights), given)
        assert_equal(found, wanted)
    wanted = values_and_gradients(by_the_formula(F.linear(*given[:3]), TARGET, *weights), given)
    assert_equal(values_and_gradients(projected_cross_entropy(*given[:3], TARGET, *weights), given), wanted)
    with torch.no_grad():  # nothing is overwritten, and only the loss of what needs a gradient has one
        before = given[3].clone()
        assert_equal([*cross_entropy(given[3], TARGET, *weights)], [*by_the_formula(before, TARGET, *weights)])
        assert_equal([*projected_cross_entropy(*given[:3], TARGET, *weights)], wanted[:3])
        assert torch.equal(given[3], before)
    frozen = projected_cross_entropy(given[0], given[1].detach(), None, TARGET, *weights)
    without_bias = by_the_formula(F.linear(given[0], given[1]), TARGET, *weights)
    assert_equal(values_and_gradients(frozen, given[:1]), values_and_gradients(without_bias, given[:1]))


def losses_of_both(features: Tensor, weight: Tensor) -> list[Tensor]:
    projected = projected_cross_entropy(features, weight, None, TARGET, 0.0, 0.0)
    return [cross_entropy(F.linear(features, weight), TARGET)[0], projected[0]]


def test_a_second_backward_is_refused() -> None:
    for loss in losses_of_both(*inputs()[:2]):
        loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
        with pytest.raises(RuntimeError, match="overwrote its"):
            loss.backward()  # type: ignore[no-untyped-call]


def test_extreme_logits_stay_finite() -> None:
    large = [(value.detach() * 1e18).requires_grad_() for value in inputs(torch.float32)[:2]]
    for loss in losses_of_both(*large):
        assert torch.isfinite(loss)
        assert all(torch.isfinite(gradient).all() for gradient in torch.autograd.grad(loss, large))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_logits_are_summed_in_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    logits = torch.randn(64, 300).to(dtype).requires_grad_()
    target = torch.randint(0, 300, (64,))
    loss, _, _ = cross_entropy(logits, target, 0.1)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, by_the_formula(logits.float(), target, 0.1)[0], rtol=1e-5, atol=0)
    assert torch.autograd.grad(loss, logits)[0].dtype == dtype


# -- batches ------------------------------------------------------------------------------------------------------


def batch(pad: int = 1, eos: int = 2) -> Batch:
    target = torch.tensor([[5, 6, eos, pad], [7, 8, 9, eos], [eos, pad, pad, pad]])
    shifted = torch.cat([torch.full((3, 1), eos), target[:, :-1].masked_fill(target[:, :-1] == eos, pad)], 1)
    source = Source(torch.tensor([[4, 5, eos], [6, eos, pad], [7, 8, eos]]), torch.tensor([3, 2, 3]))
    return Batch(torch.arange(3), source, shifted, target, ntokens=8)


def plain(z_loss: float = 0.0) -> criteria.CrossEntropyCriterion:
    return criteria.CrossEntropyCriterion(criteria.CrossEntropyConfig(z_loss), TinyTask())


def smoothed() -> criteria.LabelSmoothedCrossEntropyCriterion:
    cfg = criteria.LabelSmoothedCrossEntropyConfig(label_smoothing=0.2)
    return criteria.LabelSmoothedCrossEntropyCriterion(cfg, TinyTask())


def test_z_loss_belongs_to_training() -> None:
    model = build("transformer_tiny")
    assert plain(0.1)(model, batch()).loss == plain()(model, batch()).loss
    for part in model.modules():
        part.training = part is model  # the criterion asks the model; without dropout the logits stay the same
    logits, _ = target_logits(model, batch(), pad=1)
    z = 0.1 * logits.logsumexp(-1).square().sum()
    torch.testing.assert_close(plain(0.1)(model, batch()).loss, plain()(model, batch()).loss + z)


@pytest.mark.parametrize("name", list(ZOO))
def test_padding_is_left_out_before_the_projection(name: str) -> None:
    model = build(name)
    with torch.no_grad():
        logits, target = target_logits(model, batch(), pad=1)
        whole = model(batch().source.src_tokens, batch().source.src_lengths, batch().prev_output_tokens).logits
    real = batch().target != 1
    assert torch.equal(target, batch().target[real])
    torch.testing.assert_close(logits, whole[real], rtol=1e-12, atol=1e-12)


def test_lengths_say_which_tokens_are_padding() -> None:
    """With the lengths of the targets, the id of padding is a token like any other."""
    rows = torch.tensor([[5, 1, 1], [1, 6, 7]])
    known = Batch(torch.arange(2), batch().source, rows, rows, target_lengths=torch.tensor([2, 3]))
    kept = criteria.TargetPositions(known, pad=1)
    assert kept.target.tolist() == [5, 1, 1, 6, 7]
    assert kept.kept.tolist() == [0, 1, 3, 4, 5]


def test_a_model_with_a_forward_of_its_own_is_called() -> None:
    model = build("fconv_tiny")

    class Doubled(type(model)):  # type: ignore[misc]
        def forward(self, *args: Tensor) -> object:
            out = super().forward(*args)
            return out._replace(logits=2 * out.logits)

    with torch.no_grad():
        once, _ = target_logits(model, batch(), pad=1)
        model.__class__ = Doubled
        twice, _ = target_logits(model, batch(), pad=1)
    torch.testing.assert_close(twice, 2 * once)


def test_criteria_sum_the_formula_and_count_tokens_and_sentences() -> None:
    model = build("transformer_tiny")
    logits, target = target_logits(model, batch(), pad=1)
    for criterion, smoothing in ((plain(), 0.0), (smoothed(), 0.2)):
        out = criterion(model, batch())
        loss, nll, correct = by_the_formula(logits, target, smoothing)
        torch.testing.assert_close([out.loss, out.logging["nll_loss"]], [loss, nll])
        assert out.sample_size == out.logging["ntokens"] == 8
        assert (out.logging["nsentences"], out.logging["correct"]) == (3, correct)


# -- the projection and the loss in one ---------------------------------------------------------------------------

FUSED = [name for name in ZOO if build(name).decoder.output_product(torch.zeros(1, 1)) is not None]


@pytest.mark.parametrize("name", FUSED)
def test_criteria_give_the_same_by_either_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(name)
    for criterion in (plain(0.1), smoothed()):
        results = []
        for large in (0, 1 << 40):
            monkeypatch.setattr(module, "_LARGE", large)
            out = criterion(model, batch())
            assert ("Projected" in str(out.loss.grad_fn)) == (large == 0)
            values = out.loss, out.logging["nll_loss"], out.logging["correct"]
            results.append(values_and_gradients(values, list(model.parameters())))
        assert_equal(*results, 1e-10)


def test_there_are_models_with_such_an_output_layer() -> None:
    assert {"fconv_tiny", "t5_tiny", "transformer_tiny"} <= {*FUSED} < {*ZOO}


def test_an_output_layer_of_ones_own_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LARGE", 0)
    model = build("transformer_tiny")
    features = torch.randn(3, 128, dtype=torch.float64)
    assert projection_of(model.decoder, features) is not None

    class Capped(type(model.decoder)):  # type: ignore[misc]
        def output_layer(self, features: Tensor) -> Tensor:
            return super().output_layer(features).tanh()

    model.decoder.__class__ = Capped
    assert projection_of(model.decoder, features) is None
    wanted, _, _ = by_the_formula(*target_logits(model, batch(), pad=1))
    torch.testing.assert_close(plain()(model, batch()).loss, wanted)
