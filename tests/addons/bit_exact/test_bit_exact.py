"""Bit-exact decoding: a sentence has the same tokens and scores, bit by bit, in every batch and order."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqgen.addons.bit_exact import functions as forms
from seqgen.addons.bit_exact.decoding import exactly
from seqgen.addons.bit_exact.functions import BitExact
from seqgen.extend import Batch, ConfigError, EncoderDecoderModel, GenerationConfig, SequenceGenerator, build_setup
from seqgen.modules.dtypes import to_dtype
from seqgen.text.translator import Translator
from tests.covering import covering
from tests.model_zoo import VOCAB, ZOO, sharp
from tests.refusals import refusals
from tests.scripted_model import batch_of, dictionary
from tests.text_models import TEXTS, WORDS, text_model

LENGTHS = (0, 1, 2, 3, 5, 8, 13, 16, 17, 30)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def random_sources(count: int, lengths: Sequence[int] = LENGTHS, seed: int = 0) -> list[tuple[int, ...]]:
    words = random.Random(seed)
    return [(*(words.randrange(4, VOCAB) for _ in range(lengths[i % len(lengths)])), 2) for i in range(count)]


def batch_for(models: Sequence[EncoderDecoderModel], sources: Sequence[tuple[int, ...]], ids: Sequence[int]) -> Batch:
    read = [batch_of(sources, left=model.left_pad_source) for model in models]
    batch = replace(read[0], ids=torch.tensor(ids))
    return batch if len(read) == 1 else replace(batch, member_sources=[own.source for own in read])


def differences(generator: SequenceGenerator, batchings: int, count: int = 20, sources: Any = None) -> int:
    """Decode sentences alone, and in random batches; how many hypothesis lists differ in any bit."""
    sources = sources or random_sources(count)
    models, draw, found = generator.setup.ensemble.models, random.Random(1), 0

    def decode(numbers: Sequence[int]) -> list[Any]:
        decoded = generator.generate(batch_for(models, [sources[i] for i in numbers], numbers))
        return [[(one.tokens.tolist(), one.score, one.positional_scores.tolist()) for one in own] for own in decoded]

    torch.set_num_threads(1)
    alone = [decode([number])[0] for number in range(len(sources))]
    for batching in range(batchings):
        torch.set_num_threads(1 + batching % 2)
        batch = draw.sample(range(len(sources)), min(len(sources), draw.choice([1, 2, 3, 7, 16, len(sources)])))
        found += sum(alone[i] != own for i, own in zip(batch, decode(batch), strict=True))
    return found


def generator_of(models: Sequence[EncoderDecoderModel], exact: bool = True, **options: Any) -> SequenceGenerator:
    cfg = GenerationConfig(**{"beam": 4, "nbest": 1, "max_len_b": 12, "bit_exact": exact, **options})
    return SequenceGenerator(build_setup(models, dictionary(VOCAB - 4), cfg))


def single(name: str, seed: int = 0) -> EncoderDecoderModel:
    return sharp(name, seed=seed).float()


@pytest.fixture
def linear(monkeypatch: pytest.MonkeyPatch) -> mock.Mock:
    """Notes whether an exact function is called; in small models, the usual one may give the same bits."""
    noted = mock.Mock(side_effect=forms.linear)
    monkeypatch.setitem(forms.REPLACED, F.linear, noted)
    return noted


def test_every_batching_gives_the_same_bits(linear: mock.Mock) -> None:
    exact, usual = (generator_of([single("transformer_tiny")], exact) for exact in (True, False))
    assert differences(usual, batchings=2, count=8) > 0, "so that the other tests can fail"
    linear.assert_not_called()
    assert differences(exact, batchings=3, count=8) == 0
    linear.assert_called()


STRATEGIES = {
    "greedy": {"search": "greedy", "beam": 1},
    "sampling": {"sampling": True, "top_p": 0.9},
    "diverse": {"search": "diverse_beam", "components": {"search.groups": 2}},
    "contrastive": {"search": "contrastive", "beam": 1},
    "penalties": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "length_penalty": 0.7, "coverage_penalty": 0.2},
    "huggingface": {"semantics": "huggingface", "early_stopping": "never", "temperature": 1.3},
    "guidance": {"guidance_scale": 1.5},
    "prompt lookup": {"prompt_lookup": 2, "beam": 1, "search": "greedy"},
}
FOUR = ["fconv_tiny", "transformer_tiny", "t5_tiny", "lstm_tiny"]
WEIGHTS = {"combination.weights": [0.4, 0.3, 0.2, 0.1]}
CASES: list[tuple[list[str], str, int, dict[str, Any]]] = [
    *(([name], "float32", 200, {}) for name in ZOO),
    *(
        ([name], "float32", 30, STRATEGIES[strategy])
        for strategy, name in covering(list(STRATEGIES), ["transformer_shared", "fconv_shared", "transformer_lm_tiny"])
    ),
    *(([name], dtype, 30, {}) for name in FOUR[:3] for dtype in ("bfloat16", "int8")),
    *((FOUR, "float32", 40, {"combination": form, "components": WEIGHTS}) for form in ("probability", "log")),
]


@pytest.mark.nightly
@pytest.mark.parametrize(("names", "dtype", "batchings", "keys"), CASES)
def test_random_batchings_give_the_same_bits(
    names: list[str], dtype: str, batchings: int, keys: dict[str, Any]
) -> None:
    try:
        generator = generator_of([to_dtype(single(name), dtype) for name in names], **keys)
        generator.generate(batch_for(generator.setup.ensemble.models, [(5, 2)], [0]))
    except ConfigError as error:
        pytest.skip(f"{names} cannot be decoded so: {error}")
    assert differences(generator, batchings) == 0


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["fconv_tiny", "transformer_tiny", "t5_tiny", "transformer_lm_tiny"])
def test_sources_and_outputs_of_more_than_a_tile(name: str) -> None:
    """More than 128 source positions, and outputs of more than 128 tokens."""
    sources = random_sources(6, lengths=(3, 90, 127, 128, 140, 200))
    generator = generator_of([single(name)], beam=3, min_len=150, max_len_b=160)
    assert differences(generator, batchings=12, sources=sources) == 0


def test_a_translator_scores_with_the_same_bits(linear: mock.Mock) -> None:
    model = text_model(sharpness=0.9)
    model.model.float()
    targets = [" ".join(f"w{place % WORDS}" for place in range(count)) for count in (3, 20, 1, 11, 17)]

    def scores(exact: bool, lines: int) -> list[Any]:
        found = Translator(model).score(TEXTS, targets, bit_exact=exact, batch_size=lines)
        return [(one.score, one.positional_scores.tolist()) for one in found]

    assert scores(False, 1) != scores(False, 64)
    linear.assert_not_called()
    assert scores(True, 1) == scores(True, 2) == scores(True, 64)
    linear.assert_called()


def test_attention_is_that_of_the_batch() -> None:
    """Padded sources are not seen from outside: attention has the columns of the batch, on the model's side."""
    for name in ("fconv_tiny", "transformer_tiny"):
        model = single(name)
        batch = batch_for([model], random_sources(4), range(4))
        exact, usual = (
            SequenceGenerator(replace(generator_of([model], exact).setup, need_attention=True)).generate(batch)
            for exact in (True, False)
        )
        for one, other in zip(exact, usual, strict=True):
            assert one[0].attention is not None
            assert torch.allclose(one[0].attention, other[0].attention, atol=1e-5)
            assert torch.equal(one[0].alignment, other[0].alignment)


PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    **{"sigmoid": torch.sigmoid, "silu": F.silu, "elu": F.elu, "softplus": F.softplus},
    **{"gelu": lambda x: F.gelu(x, approximate="tanh"), "logaddexp": lambda x: torch.logaddexp(x, 0.3 * x + 1)},
    **{"power": lambda x: x.abs() ** 0.7, "base": lambda x: 1.7**x},
}


@pytest.mark.parametrize("name", PLAIN)
def test_functions_do_not_depend_on_the_place(name: str) -> None:
    x = draw(5000) * 4
    with BitExact():
        exact = PLAIN[name](x)
        assert all(torch.equal(PLAIN[name](x[start:]), exact[start:]) for start in range(3, 40))
        assert all(torch.equal(PLAIN[name](x.clone()[:n]), exact[:n]) for n in range(1, 60))


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def attention(keys: int = 4, **named: Any) -> Tensor:
    return F.scaled_dot_product_attention(draw(2, 4, 5, 8), draw(2, keys, 9, 8), draw(2, keys, 9, 8, seed=1), **named)


def lstm(packed: bool) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    module, x = nn.LSTM(5, 6, 2, batch_first=True, bidirectional=True).eval(), draw(4, 7, 5)
    if not packed:
        out, state = module(x, (draw(4, 4, 6), draw(4, 4, 6, seed=1)))
        return out, *state
    lengths = torch.tensor([7, 2, 5, 1])
    out, state = module(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
    return out.data, *state


CELL = nn.LSTMCell(5, 6)


PAIRS = torch.tensor([[-torch.inf, -torch.inf, torch.inf, 1.0], [-torch.inf, 0.0, torch.inf, -torch.inf]])
SHAPES = [(3, 1, 7, 5), (1, 5, 130, 40), (9, 20, 16, 33), (2, 17, 300, 16)]
CALLS: dict[str, Callable[[], Any]] = {
    **{name: partial(function, torch.tensor([0, 30, -30, *draw(99) * 4])) for name, function in PLAIN.items()},
    "glu": lambda: F.glu(draw(3, 10)),
    "logaddexp of infinities": lambda: torch.logaddexp(*PAIRS),
    **{f"product {size}": partial(torch.bmm, draw(*size[:3]), draw(size[0], *size[2:])) for size in SHAPES},
    "product with a vector": lambda: (draw(5, 7) @ draw(7), draw(7) @ draw(7, 5), draw(7) @ draw(7)),
    "attention, hidden": lambda: attention(attn_mask=draw(2, 1, 5, 9) > -0.5),
    "attention, added": lambda: attention(attn_mask=draw(2, 4, 5, 9, seed=2), scale=0.7),
    "attention, causal": lambda: attention(is_causal=True),
    "attention, shared keys": lambda: attention(keys=2, enable_gqa=True),
    "lstm": lambda: lstm(packed=False),
    "lstm, packed": lambda: lstm(packed=True),
    "lstm cell": lambda: CELL(draw(4, 5)),
}


@pytest.mark.parametrize("name", CALLS)
def test_functions_are_those_of_pytorch(name: str) -> None:
    with torch.no_grad():
        usual = CALLS[name]()
        with BitExact():
            exact = CALLS[name]()
    torch.testing.assert_close(exact, usual, atol=1e-5 if "product" not in name else 1e-4, rtol=1e-5)


@pytest.mark.parametrize("outputs", [1, 2, 5, 11, 12, 13, 16])
def test_few_outputs_are_filled_up(outputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries have other kernels for fewer than 12 columns, whose bits depend on the row; none of them is called."""
    weight, bias, x = draw(outputs, 37), draw(outputs), draw(8, 37, seed=1)
    monkeypatch.setattr(forms, "_agree", {})
    linear, matmul = (mock.Mock(side_effect=function) for function in (F.linear, torch.matmul))
    monkeypatch.setattr(F, "linear", linear)
    monkeypatch.setattr(torch, "matmul", matmul)
    found = [forms.linear(x, weight, bias), forms.linear(x, weight) + bias, forms._matmul(x, weight.t()) + bias]
    widths = [call.args[1].size(0) for call in linear.mock_calls]
    assert min([*widths, *(call.args[1].size(-1) for call in matmul.mock_calls)]) >= 12
    for product in found:
        torch.testing.assert_close(product, (x.double() @ weight.t().double() + bias).float())
    for row in range(8):
        assert torch.equal(forms.linear(x[row : row + 1], weight, bias)[0], found[0][row])


def test_a_kernel_that_depends_on_the_number_of_rows_is_called_by_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "_agree", {})
    product = mock.Mock(side_effect=lambda rows: rows * 2 + len(rows) * 1e-6)
    x = draw(40, 3)
    assert torch.equal(forms.weight_product(product, "planted", x), x * 2 + 16e-6)
    # compared once, then by tiles
    assert [len(call.args[0]) for call in product.mock_calls] == [48, 16, 16, 16, 16, 16, 16]
    assert torch.equal(forms.weight_product(product, "planted", x[:5]), x[:5] * 2 + 16e-6)


def in_decoding(call: Callable[[], Any]) -> None:
    with exactly():
        call()


test_functions_without_an_exact_form = refusals(
    (lambda: in_decoding(lambda: nn.GRU(3, 3)(draw(2, 2, 3))), "the model calls gru"),
    (lambda: in_decoding(lambda: torch.einsum("ij,jk->ik", draw(2, 2), draw(2, 2))), "the model calls einsum"),
)
