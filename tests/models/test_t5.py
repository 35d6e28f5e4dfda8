"""T5: its initialization and dropout are the original's, and half precision holds what overflows."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from seqgen.addons.huggingface.t5 import ARCHITECTURE
from seqgen.extend import Dropout, RMSNorm, T5Config, T5Model
from seqgen.modules.positions import relative_position_bucket
from tests.huggingface_t5 import seqgen_model, tiny_model


@pytest.mark.parametrize("variant", ["t5", "t5_v1_1", "umt5"])
def test_initialization_is_the_originals(variant: str) -> None:
    """Each weight's standard deviation, at a size at which chance moves it by little."""
    shape = {"vocab_size": 500, "d_model": 96, "d_kv": 24, "d_ff": 160, "num_heads": 6, "num_layers": 2}
    original = tiny_model(variant, **shape)
    for module in original.modules():  # the helper above has changed some
        original._init_weights(module)
    cfg = seqgen_model(original).cfg
    torch.manual_seed(1)
    ours = dict(T5Model(replace(cfg), 0).named_parameters(remove_duplicate=False))
    theirs = original.state_dict()
    for name, piece in ARCHITECTURE.layout(cfg).pieces.items():
        got, wanted = piece.of(ours[piece.parameter]).detach(), theirs[name]
        if got.dim() == 1:
            assert torch.equal(got, wanted)
            continue
        chance = 5 / (2 * got.numel()) ** 0.5  # five standard errors of a standard deviation, relative
        assert abs(got.std() / wanted.std() - 1) < 2 * chance, name
        assert abs(got.mean()) < 5 * got.std() / got.numel() ** 0.5, name


def test_dropout_is_everywhere_the_original_has_it() -> None:
    """Counts of dropouts that act in training: embedding, weights, hidden features, each part's output, the end."""
    original = tiny_model("t5", num_layers=1, dropout_rate=0.25).train()
    model = seqgen_model(original).train()
    acted: list[torch.nn.Module] = []
    for module in (*model.modules(), *original.modules()):
        if isinstance(module, Dropout | torch.nn.Dropout):
            assert module.p == 0.25
            module.register_forward_hook(lambda own, *_: acted.append(own))
    tokens = torch.tensor([[5, 9, 20, 1]])
    model(tokens, torch.tensor([4]), tokens)
    ours = len(acted)
    original(input_ids=tokens, decoder_input_ids=tokens)
    attentions = 3  # the original drops attention weights by a function, which no hook sees
    assert ours == len(acted) - ours + attentions
    assert ours > attentions


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "longest"), [(32, 128), (8, 10), (4, 3)])
def test_buckets_of_distances_are_the_originals(buckets: int, longest: int, bidirectional: bool) -> None:
    transformers = pytest.importorskip("transformers")
    distances = torch.arange(-5000, 5001)
    attention = transformers.models.t5.modeling_t5.T5Attention
    wanted = attention._relative_position_bucket(distances, bidirectional, buckets, longest)
    assert relative_position_bucket(distances, buckets, longest, bidirectional).tolist() == wanted.tolist()


def test_root_mean_square_norm_in_few_bits() -> None:
    """The mean is taken in float32: squares of 300 are beyond float16's range."""
    norm = RMSNorm(4).half()
    out = norm(torch.full((2, 4), 300.0).half())
    assert out.dtype == torch.float16
    torch.testing.assert_close(out, torch.ones(2, 4).half())
    assert norm(torch.full((2, 4), 1e6)).dtype == torch.float16, "a residual stream in float32"


# --- half precision

CFG = T5Config(vocab_size=50, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=3)
GATED = replace(CFG, feed_forward_proj="gated-gelu", tie_word_embeddings=False, num_decoder_layers=1)

both_kinds = pytest.mark.parametrize("cfg", [CFG, GATED], ids=["1.0", "1.1"])


def model_of(cfg: T5Config, seed: int = 0) -> T5Model:
    torch.manual_seed(seed)
    return T5Model(cfg, padding_idx=0).eval()


def run(model: T5Model) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    sources, targets = (torch.randint(1, 50, (3, length), generator=generator) for length in (7, 5))
    logits: Tensor = model(sources, torch.full((3,), 7), targets).logits
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
