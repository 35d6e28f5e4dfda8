"""T5 in half precision, with other vocabularies, and its norm and buckets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from seqgen.core.errors import ConfigError
from seqgen.core.structures import Batch, Source
from seqgen.models.t5 import T5Config, T5Model
from seqgen.modules.positions import relative_position_bucket
from seqgen.modules.rms_norm import RMSNorm
from tests.model_zoo import registered

CFG = T5Config(vocab_size=50, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=3)
GATED = replace(CFG, feed_forward_proj="gated-gelu", tie_word_embeddings=False, num_decoder_layers=1)

both_kinds = pytest.mark.parametrize("cfg", [CFG, GATED], ids=["1.0", "1.1"])


def model_of(cfg: T5Config, seed: int = 0) -> T5Model:
    torch.manual_seed(seed)
    return T5Model(cfg, padding_idx=0).eval()


def batch(rows: int = 3, source: int = 7, target: int = 5) -> Batch:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, 50, (rows, source), generator=generator)
    targets = torch.randint(1, 50, (rows, target), generator=generator)
    return Batch(torch.arange(rows), Source(tokens, torch.full((rows,), source)), targets, targets)


def run(model: T5Model) -> Tensor:
    example = batch()
    assert example.prev_output_tokens is not None
    logits: Tensor = model(example.source.src_tokens, example.source.src_lengths, example.prev_output_tokens).logits
    return logits


def huge(model: T5Model, name: str, factor: float = 4e4) -> T5Model:
    """Let one weight give numbers beyond float16's largest, in all layers."""
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.endswith(name):
                parameter.mul_(factor)
    return model


@both_kinds
@torch.no_grad()
def test_float16_holds_what_overflows_in_the_published_models(cfg: T5Config) -> None:
    """The last projection of the feed-forward part, and the residual stream, go beyond 65,504."""
    model = huge(model_of(cfg), "feed_forward.wo.weight")
    wanted = run(model)
    seen: list[float] = []
    model.encoder.layers[-1].register_forward_hook(lambda _, __, out: seen.append(float(out[0].abs().max())))
    half = model.half()
    got = run(half)
    assert got.dtype == torch.float16
    assert seen[0] > 65504
    assert half.encoder.layers[0].feed_forward.wo.weight.dtype == torch.float32
    assert half.encoder.layers[0].feed_forward.wi.weight.dtype == torch.float16
    torch.testing.assert_close(got.float(), wanted, rtol=0.05, atol=0.05 * float(wanted.abs().max()))


@both_kinds
def test_float16_autocast_holds_it_too(cfg: T5Config) -> None:
    model = huge(model_of(cfg), "feed_forward.wo.weight")
    with torch.autocast("cpu", dtype=torch.float16):
        logits = run(model)
    assert bool(logits.isfinite().all())
    logits.float().square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)])
def test_root_mean_square_norm(shape: tuple[int, ...]) -> None:
    """By its formula, and by its gradient as differences give it; training and evaluation agree."""
    norm = RMSNorm(4, eps=1e-3).double()
    torch.manual_seed(0)
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    wanted = norm.weight * x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt()
    torch.testing.assert_close(norm(x), wanted, rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(norm(x), wanted, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(lambda x, _: norm(x), (x, norm.weight))
    by_hand = RMSNorm(4, eps=0.0)(torch.tensor([3.0, 4.0, 0.0, 0.0]))  # the root of 25 / 4 is 2.5
    torch.testing.assert_close(by_hand, torch.tensor([1.2, 1.6, 0.0, 0.0]))


def test_root_mean_square_norm_in_few_bits() -> None:
    """The mean is taken in float32: squares of 300 are beyond float16's range."""
    norm = RMSNorm(4).half()
    out = norm(torch.full((2, 4), 300.0).half())
    assert out.dtype == torch.float16
    torch.testing.assert_close(out, torch.ones(2, 4).half())
    assert norm(torch.full((2, 4), 1e6)).dtype == torch.float16, "a residual stream in float32"


def test_buckets_by_hand() -> None:
    """The published ones: 16 exact distances, then wider and wider up to 128; half of that each side for encoders."""

    def buckets(distances: list[int], bidirectional: bool) -> list[int]:
        return relative_position_bucket(torch.tensor(distances), 32, 128, bidirectional).tolist()

    assert buckets([0, -1, -15, -16, -18, -19, -112, -113, -128, -5000], False) == [
        0,
        1,
        15,
        16,
        16,
        17,
        30,
        31,
        31,
        31,
    ]
    assert buckets([3, 500], False) == [0, 0]
    assert buckets([0, -1, -7, -8, -11, -12, -90, -91, -128], True) == [0, 1, 7, 8, 8, 9, 14, 15, 15]
    assert buckets([1, 7, 8, 11, 12, 90, 91, 5000], True) == [17, 23, 24, 24, 25, 30, 31, 31]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"relative_attention_num_buckets": 9}, "relative_attention_num_buckets=9 must be even"),
        (
            {"relative_attention_max_distance": 16},
            "must be even and less than twice model.relative_attention_max_distance=16",
        ),
    ],
)
def test_configurations_that_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        registered("t5", joint=True, **changes)()
    assert message in str(error.value)
