"""The cheap dropout: right on average, reproducible, and the same forward and backward."""

import pytest
import torch
from torch import Tensor

from seqgen.extend import Dropout, LayerDropList, TransformerConfig
from seqgen.modules.transformer_layer import TransformerEncoderLayer


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
def test_share_and_mean(p: float) -> None:
    torch.manual_seed(0)
    n = 1_000_003  # not a multiple of four: the last random word is used in part
    out = Dropout(p)(torch.ones(n))
    dropped = (out == 0).double().mean().item()
    assert abs(dropped - p) < 4 * (p * (1 - p) / n) ** 0.5 + 1 / 65536
    kept = out[out != 0]
    assert kept.min() == kept.max()
    assert kept[0].item() == pytest.approx(1 / (1 - p), rel=1e-4)
    assert out.double().mean().item() == pytest.approx(1, abs=4 * (p / (1 - p) / n) ** 0.5)


def test_neighbours_are_independent() -> None:
    """The four decisions that share a random word, and those of neighbouring words, are uncorrelated."""
    torch.manual_seed(0)
    kept = (Dropout(0.3)(torch.ones(400_000)) != 0).double()
    for distance in range(1, 9):
        a, b = kept[:-distance], kept[distance:]
        correlation = ((a - a.mean()) * (b - b.mean())).mean() / kept.var()
        assert abs(correlation.item()) < 4 / 400_000**0.5
    by_place = kept.view(-1, 4).mean(0)
    assert (by_place - 0.7).abs().max() < 4 * (0.21 / 100_000) ** 0.5


def test_gradient_is_that_of_what_was_kept() -> None:
    torch.manual_seed(0)
    x = torch.randn(50, 7, dtype=torch.float64, requires_grad=True)
    out = Dropout(0.4)(x)
    out.backward(torch.ones_like(out))
    torch.testing.assert_close(out, x * x.grad)
    assert x.grad.unique().tolist() == [0.0, pytest.approx(1 / 0.6, rel=1e-4)]


def test_what_depends_on_the_call() -> None:
    """The seed, the mode, the rate, and the layout and dtype of the input."""
    x, dropout = torch.ones(200), Dropout(0.5)
    torch.manual_seed(3)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(3)
    assert torch.equal(dropout(x), first)
    assert not torch.equal(first, second)
    assert Dropout(0.0)(x) is x
    assert dropout.eval()(x) is x
    strided = torch.randn(6, 8).t()
    out = Dropout(0.5)(strided)
    assert (out == 0).any()
    torch.testing.assert_close(out[out != 0], 2 * strided[out != 0])
    assert Dropout(0.5)(torch.ones(8, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_layer_drop() -> None:
    layers = LayerDropList(0.25, [torch.nn.Identity() for _ in range(8)])
    torch.manual_seed(0)
    counts = [len(list(layers.active())) for _ in range(2000)]
    assert sum(counts) / len(counts) == pytest.approx(6, abs=0.12)
    assert {len(list(layers.eval().active())) for _ in range(5)} == {8}
    assert list(layers.active()) == list(enumerate(layers))


@pytest.mark.parametrize("training", [True, False])
def test_the_feed_forward_network_drops_features_after_the_activation(training: bool) -> None:
    sizes = {"encoder_embed_dim": 8, "encoder_ffn_embed_dim": 500, "encoder_attention_heads": 2}
    cfg = TransformerConfig(**sizes, activation_dropout=0.4, activation_fn="tanh")  # type: ignore[arg-type]
    layer = TransformerEncoderLayer(cfg, "encoder").train(training)
    read: list[Tensor] = []
    layer.fc2.register_forward_pre_hook(lambda _, given: read.append(given[0]))
    layer(torch.randn(2, 5, 8))
    assert float((read[0] == 0).double().mean()) == pytest.approx(0.4 if training else 0.0, abs=0.05)
