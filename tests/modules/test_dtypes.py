"""Models in other dtypes: results close to float32, rows independent of each other, unsupported dtypes refused."""

import pytest
import torch
import torch.nn.functional as F

from seqgen.addons.checks.subject import expand
from seqgen.modules import dtypes, linear
from seqgen.modules.dtypes import DTYPES, to_dtype
from seqgen.modules.linear import Linear, Projection
from seqgen.system.switches import KERNEL_CHOICE
from tests.model_zoo import ZOO, build
from tests.subjects import inputs

BUILT_IN = [name for name in ZOO if name.startswith(("fconv", "transformer", "t5", "llama"))]
TOLERANCE = {"float32": 1e-5, "bfloat16": 0.05, "float16": 0.02, "int8": 0.05}

needs_int8 = pytest.mark.skipif(not dtypes._has_int8_instructions(), reason="no instructions for int8 here")


@pytest.fixture(autouse=True)
def _no_grad() -> object:
    with torch.no_grad():
        yield


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("dtype", [pytest.param(name, marks=needs_int8 if name == "int8" else ()) for name in DTYPES])
def test_every_built_in_model_converts(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits of a decode step by step stay near those of float32, in units of their spread."""
    monkeypatch.setattr(linear, "_LARGE_MATRIX", 1)
    monkeypatch.setattr(Projection, "packs", False)
    batch = inputs(name, [5, 3, 8], target_length=6, rows_per_sentence=2)
    wanted = build(name, torch.float32)(
        batch.src_tokens.repeat_interleave(2, 0), batch.src_lengths.repeat_interleave(2), batch.prev_output_tokens
    ).logits
    monkeypatch.setattr(Projection, "packs", True)
    model = to_dtype(build(name, torch.float32), dtype)
    encoder_out = model.encoder(batch.src_tokens, batch.src_lengths)
    if not model.decoder.shares_encoder_output:
        encoder_out = expand(encoder_out, 2)
    state = model.decoder.new_incremental_state(3, 2)
    steps = [model.decoder(batch.prev_output_tokens[:, : t + 1], encoder_out, state).logits for t in range(6)]
    got = torch.cat(steps, dim=1)
    assert model.get_normalized_probs(got).dtype == torch.float32
    error = (got.float() - wanted).square().mean().sqrt() / wanted.std()
    assert error < TOLERANCE[dtype]
    assert dtype == "float32" or error > 0


@needs_int8
def test_int8_rows_do_not_depend_on_their_neighbours() -> None:
    torch.manual_seed(0)
    layer = Linear(600, 512).eval()
    layer.int8 = True
    x = torch.randn(7, 600)
    together = layer(x)
    x[3] *= 1000  # under one scale for all rows, the others would drown
    assert torch.equal(layer(x)[[0, 6]], together[[0, 6]])
    torch.testing.assert_close(layer(x[6:]), together[6:], rtol=0, atol=1e-5)
    with KERNEL_CHOICE.off():
        assert torch.equal(layer(x[6:]), layer(x)[6:])
    error = (together - F.linear(x, layer.weight, layer.bias))[[0, 6]]
    assert 0 < error.abs().max() < 0.05
    layer.train()
    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
