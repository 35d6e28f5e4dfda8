"""Bit-exact decoding: a sentence has the same tokens and scores, bit by bit, in every batch and order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqgen.addons.bit_exact import functions as forms
from seqgen.addons.bit_exact.decoding import exact_scorer, exactly
from seqgen.addons.bit_exact.functions import REPLACED, BitExact
from seqgen.config import GenerationConfig
from seqgen.core.errors import ConfigError
from seqgen.core.model import EncoderDecoderModel
from seqgen.core.sequence_generator import SequenceGenerator
from seqgen.core.structures import Batch, Hypothesis
from seqgen.decoding.options import build_setup
from seqgen.decoding.scorer import SequenceScorer
from seqgen.modules.dtypes import to_dtype
from seqgen.text.translator import Translator
from tests.covering import covering
from tests.model_zoo import VOCAB, ZOO, sharp
from tests.scripted_model import batch_of, dictionary
from tests.text_models import TEXTS, text_model

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


def differing(one: list[Hypothesis], other: list[Hypothesis]) -> bool:
    return len(one) != len(other) or not all(
        torch.equal(a.tokens, b.tokens) and a.score == b.score and torch.equal(a.positional_scores, b.positional_scores)
        for a, b in zip(one, other, strict=True)
    )


def differences(generator: SequenceGenerator, batchings: int, count: int = 20, sources: Any = None) -> int:
    """Decode sentences alone, and in random batches; how many hypothesis lists differ in any bit."""
    sources = sources or random_sources(count)
    models, draw, found = generator.setup.ensemble.models, random.Random(1), 0

    def decode(numbers: Sequence[int]) -> list[list[Hypothesis]]:
        return generator.generate(batch_for(models, [sources[i] for i in numbers], numbers))

    torch.set_num_threads(1)
    alone = [decode([number])[0] for number in range(len(sources))]
    for batching in range(batchings):
        torch.set_num_threads(1 + batching % 2)
        order = list(range(len(sources)))
        draw.shuffle(order)
        size = draw.choice([1, 2, 3, 7, 16, len(sources)])
        batch = order[:size]
        found += sum(differing(alone[i], own) for i, own in zip(batch, decode(batch), strict=True))
    return found


def generator_of(models: Sequence[EncoderDecoderModel], exact: bool = True, **options: Any) -> SequenceGenerator:
    cfg = GenerationConfig(**{"beam": 4, "nbest": 1, "max_len_b": 12, "bit_exact": exact, **options})
    return SequenceGenerator(build_setup(models, dictionary(VOCAB - 4), cfg))


def single(name: str, seed: int = 0) -> EncoderDecoderModel:
    return sharp(name, seed=seed).float()


def test_every_batching_gives_the_same_bits() -> None:
    assert differences(generator_of([single("fconv_tiny")]), batchings=4, count=8) == 0


@pytest.mark.nightly
@pytest.mark.parametrize("name", list(ZOO))
def test_200_batchings_give_the_same_bits(name: str) -> None:
    assert differences(generator_of([single(name)]), batchings=200) == 0


@pytest.mark.nightly
def test_without_it_bits_differ() -> None:
    """So the tests above can fail."""
    assert differences(generator_of([single("transformer_tiny")], exact=False), batchings=6, count=12) > 0


STRATEGIES = {
    "greedy": {"search": "greedy", "beam": 1},
    "sampling": {"sampling": True, "top_p": 0.9},
    "diverse": {"search": "diverse_beam", "components": {"search.groups": 2}},
    "siblings": {"search": "diverse_siblings", "components": {"search.rate": 0.3}},
    "contrastive": {"search": "contrastive", "beam": 1},
    "penalties": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "length_penalty": 0.7, "coverage_penalty": 0.2},
    "huggingface": {"semantics": "huggingface", "early_stopping": "never", "temperature": 1.3},
    "guidance": {"guidance_scale": 1.5},
    "prompt lookup": {"prompt_lookup": 2, "beam": 1, "search": "greedy"},
    "wu": {"length_penalty_form": "wu", "length_penalty": 0.37},
}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("strategy", "name"), covering(list(STRATEGIES), ["transformer_shared", "fconv_shared", "transformer_lm_tiny"])
)
def test_every_strategy(strategy: str, name: str) -> None:
    try:
        generator = generator_of([single(name)], **STRATEGIES[strategy])
        generator.generate(batch_for(generator.setup.ensemble.models, [(5, 2)], [0]))
    except ConfigError as error:
        pytest.skip(f"{name} cannot be decoded so: {error}")
    assert differences(generator, batchings=30) == 0


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("name", ["fconv_tiny", "transformer_tiny", "t5_tiny"])
def test_other_dtypes(name: str, dtype: str) -> None:
    try:
        model = to_dtype(single(name), dtype)
    except ConfigError as error:
        pytest.skip(str(error))
    assert differences(generator_of([model]), batchings=30) == 0


@pytest.mark.nightly
@pytest.mark.parametrize("combination", ["probability", "log"])
def test_ensembles(combination: str) -> None:
    models = [single(name) for name in ("fconv_tiny", "transformer_tiny", "t5_tiny", "lstm_tiny")]
    weights = {"combination.weights": [0.4, 0.3, 0.2, 0.1]}
    generator = generator_of(models, combination=combination, components=weights)
    assert differences(generator, batchings=40) == 0


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["fconv_tiny", "transformer_tiny", "t5_tiny", "transformer_lm_tiny"])
def test_sources_and_outputs_of_more_than_a_tile(name: str) -> None:
    """More than 128 source positions, and outputs of more than 128 tokens."""
    sources = random_sources(6, lengths=(3, 90, 127, 128, 140, 200))
    generator = generator_of([single(name)], beam=3, min_len=150, max_len_b=160)
    assert differences(generator, batchings=12, sources=sources) == 0


def test_known_targets_are_scored_with_the_same_bits() -> None:
    model = single("transformer_tiny")
    sources, targets = random_sources(9), random_sources(9, lengths=(3, 20, 0, 11, 17, 1, 15, 8, 33), seed=3)
    scorer = exact_scorer(SequenceScorer([model], 1, 2), True)

    def score(numbers: Sequence[int]) -> list[Hypothesis]:
        batch = batch_for([model], [sources[i] for i in numbers], numbers)
        longest = max(len(targets[i]) for i in numbers)
        rows = [(*targets[i], *[1] * (longest - len(targets[i]))) for i in numbers]
        shifted = [(2, *row[:-1]) for row in rows]
        return [
            one.hypothesis
            for one in scorer.score(replace(batch, target=torch.tensor(rows), prev_output_tokens=torch.tensor(shifted)))
        ]

    alone = [score([number])[0] for number in range(9)]
    for numbers in ([8, 3, 0], list(range(9)), [4, 5]):
        assert not any(differing([alone[i]], [own]) for i, own in zip(numbers, score(numbers), strict=True))


def test_a_translator_scores_with_the_same_bits() -> None:
    model = text_model(sharpness=0.9)
    model.model.float()
    targets = [TEXTS[(number + 1) % len(TEXTS)] for number in range(len(TEXTS))]

    def scores(exact: bool, lines: int) -> list[float]:
        return [one.score for one in Translator(model).score(TEXTS, targets, bit_exact=exact, batch_size=lines)]

    assert scores(True, 1) == scores(True, 64)
    assert scores(False, 1) != scores(False, 64)


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


PLAIN = {
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "glu": lambda x: F.glu(torch.stack([x, x.flip(0)], 1), 1),
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "elu": F.elu,
    "softplus": F.softplus,
    "logaddexp": lambda x: torch.logaddexp(x, 0.3 * x + 1),
    "power": lambda x: x.abs() ** 0.7,
    "base": lambda x: 1.7**x,
}


@pytest.mark.parametrize("name", PLAIN)
def test_functions_are_right_and_do_not_depend_on_the_place(name: str) -> None:
    x = torch.randn(5000) * 4
    x[:3] = torch.tensor([0.0, 30.0, -30.0])
    with BitExact():
        exact = PLAIN[name](x)
        starts = range(3, 40) if name != "glu" else ()
        assert all(torch.equal(PLAIN[name](x[start:]), exact[start:]) for start in starts)
        assert all(torch.equal(PLAIN[name](x.clone()[:n]), exact[:n]) for n in range(1, 60) if name != "glu")
    torch.testing.assert_close(exact, PLAIN[name](x), atol=2e-6, rtol=2e-6)


def test_logaddexp_of_infinities() -> None:
    x = torch.tensor([-torch.inf, -torch.inf, torch.inf, 1.0])
    y = torch.tensor([-torch.inf, 0.0, torch.inf, -torch.inf])
    with BitExact():
        assert torch.equal(torch.logaddexp(x, y), torch.tensor([-torch.inf, 0.0, torch.inf, 1.0]))


def products_of(a: Tensor, b: Tensor) -> list[Tensor]:
    with BitExact():
        return [a @ b, torch.matmul(a, b), torch.bmm(a, b), F.linear(a, b[0].t()) if len(b) == 1 else a @ b]


@pytest.mark.parametrize("shape", [(3, 1, 7, 5), (1, 5, 130, 40), (9, 20, 16, 33), (2, 17, 300, 16)])
def test_products_are_right(shape: tuple[int, int, int, int]) -> None:
    count, rows, inner, columns = shape
    a, b = torch.randn(count, rows, inner), torch.randn(count, inner, columns)
    for product in products_of(a, b):
        torch.testing.assert_close(product, (a.double() @ b.double()).float(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("outputs", range(1, 17))
def test_few_outputs_are_filled_up(outputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries have other kernels for fewer than 12 columns, whose bits depend on the row; none of them is called."""
    called: list[int] = []

    def spied(function: Any) -> Any:
        def call(*args: Any) -> Tensor:
            called.append(function(*args).size(-1))
            return function(*args)

        return call

    weight, bias, x = torch.randn(outputs, 37), torch.randn(outputs), torch.randn(8, 37)
    monkeypatch.setattr(forms, "_agree", {})
    monkeypatch.setattr(F, "linear", spied(F.linear))
    monkeypatch.setattr(torch, "matmul", spied(torch.matmul))
    found = [forms.linear(x, weight, bias), forms.linear(x, weight) + bias, forms._matmul(x, weight.t()) + bias]
    assert min(called) >= 12
    for product in found:
        torch.testing.assert_close(product, (x.double() @ weight.t().double() + bias).float())
    for row in range(8):
        assert torch.equal(forms.linear(x[row : row + 1], weight, bias)[0], found[0][row])


def test_a_kernel_that_depends_on_the_number_of_rows_is_called_by_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "_agree", {})
    calls = []

    def product(rows: Tensor) -> Tensor:
        calls.append(len(rows))
        return rows * 2 + len(rows) * 1e-6

    x = torch.randn(40, 3)
    found = forms.weight_product(product, "planted", x)
    assert torch.equal(found, x * 2 + 16e-6)
    assert calls == [48, 16, 16, 16, 16, 16, 16]  # compared once, then by tiles
    assert torch.equal(forms.weight_product(product, "planted", x[:5]), x[:5] * 2 + 16e-6)


def test_an_lstm_equals_that_of_pytorch() -> None:
    lstm = nn.LSTM(5, 6, 2, batch_first=True, bidirectional=True).eval()
    x, lengths = torch.randn(4, 7, 5), torch.tensor([7, 2, 5, 1])
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    state = (torch.randn(4, 4, 6), torch.randn(4, 4, 6))
    cell = nn.LSTMCell(5, 6)
    with torch.no_grad():
        usual = [lstm(x, state), lstm(packed), cell(x[:, 0])]
        with BitExact():
            exact = [lstm(x, state), lstm(packed), cell(x[:, 0])]
    torch.testing.assert_close(exact[0], usual[0])
    torch.testing.assert_close(exact[1][0].data, usual[1][0].data)
    torch.testing.assert_close(exact[1][1], usual[1][1])
    torch.testing.assert_close(exact[2], usual[2])


def test_a_function_without_an_exact_form_is_refused() -> None:
    with exactly(), pytest.raises(ConfigError, match="the model calls gru"):
        nn.GRU(3, 3)(torch.randn(2, 2, 3))
    with exactly(), pytest.raises(ConfigError, match="the model calls einsum"):
        torch.einsum("ij,jk->ik", torch.ones(2, 2), torch.ones(2, 2))


def test_attention_of_pytorch_is_replaced() -> None:
    q, k, v = (torch.randn(2, 4, n, 8) for n in (5, 9, 9))
    masks: list[dict[str, Any]] = [
        {"attn_mask": torch.rand(2, 1, 5, 9) > 0.3},
        {"attn_mask": torch.randn(2, 4, 5, 9), "scale": 0.7},
        {"is_causal": True},
    ]
    for named in masks:
        with BitExact():
            exact = F.scaled_dot_product_attention(q, k, v, **named)
        torch.testing.assert_close(exact, F.scaled_dot_product_attention(q, k, v, **named), atol=1e-5, rtol=1e-5)
    k, v = k[:, :2], v[:, :2]  # two queries' heads share the keys of each
    with BitExact():
        exact = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    usual = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    torch.testing.assert_close(exact, usual, atol=1e-5, rtol=1e-5)
    assert F.scaled_dot_product_attention in REPLACED
