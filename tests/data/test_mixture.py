"""Mixtures: their rates, what each epoch draws, and templates."""

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from seqgen.data.combined_datasets import JoinedDataset, MixtureDataset, draws, mixing_rates
from seqgen.data.records import JsonFormat, Template, TsvFormat
from seqgen.data.token_store import TokenEncoder, build_store
from seqgen.extend import AddedTokens, Dictionary, PairDataset, Side, WhitespaceTokenizer

SIZES = {"a": 40, "b": 11, "c": 3}


def pairs(folder: Path, name: str, size: int) -> PairDataset:
    """Each line is one word of its own, ``a7``; every fourth is two."""
    path = folder / name
    path.write_text("".join(f"{name}{i}{' x' * (i % 4 == 0)}\n" for i in range(size)))
    dictionary = Dictionary()
    for word in [*(f"{name}{i}" for i in range(size)), "x"]:
        dictionary.add_symbol(word)
    store = build_store(folder, name, [path], TokenEncoder(WhitespaceTokenizer(dictionary)))
    return PairDataset(*[Side(store, AddedTokens([], [dictionary.eos()]))] * 2, name=name)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PairDataset]:
    folder = tmp_path_factory.mktemp("parts")
    return {name: pairs(folder, name, size) for name, size in SIZES.items()}


def test_rates_by_hand() -> None:
    assert mixing_rates([100, 300], 1) == [0.25, 0.75]
    assert mixing_rates([100, 900], 1, size_limit=300) == [0.25, 0.75]
    assert mixing_rates([100, 900], 2) == pytest.approx([0.25, 0.75])
    assert mixing_rates([100, 900], 1e6) == pytest.approx([0.5, 0.5], abs=1e-5)
    assert mixing_rates([100, 900], 2, size_limit=400) == pytest.approx([1 / 3, 2 / 3])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=6), st.integers(1, 500), st.integers(1, 20))
def test_an_epoch_draws_according_to_the_rates(weights: list[int], size: int, epoch: int) -> None:
    rates = [weight / sum(weights) for weight in weights]
    before, now = draws(rates, size, epoch)
    assert now.sum() == size
    assert before.sum() == size * (epoch - 1)
    assert (np.abs(now - np.array(rates) * size) < 1 + 1e-6).all()
    assert (draws(rates, size, epoch + 1)[0] == before + now).all(), "an epoch continues where the last one stopped"
    assert (np.abs(before + now - np.array(rates) * size * epoch) < 1 + epoch * 0.5).all()


def test_a_rare_source_is_drawn_at_its_rate_over_several_epochs() -> None:
    assert sum(draws([0.999, 0.001], 100, 500))[1] == pytest.approx(0.001 * 100 * 500, abs=2)


def content(dataset: MixtureDataset, epoch: int, seed: int) -> list[tuple[int, ...]]:
    rows = [dataset.example(position, epoch=epoch, seed=seed) for position in range(len(dataset))]
    lengths = dataset.lengths(epoch, seed)
    assert [[len(row.source), len(row.target)] for row in rows if row.target is not None] == lengths.tolist()
    return [(row.id, *row.source.tolist()) for row in rows]


def test_no_example_is_repeated_before_all_are_drawn(parts: dict[str, PairDataset]) -> None:
    mixture = MixtureDataset(parts, [1, 1, 1], 30)
    drawn = Counter(example[0] for epoch in range(1, 12) for example in content(mixture, epoch, 5))
    assert len(drawn) == sum(SIZES.values()), "the ids of all sources differ"
    for first, last in itertools.pairwise(np.cumsum([0, *SIZES.values()]).tolist()):
        times = [drawn[number] for number in range(first, last)]
        assert max(times) - min(times) <= 1
    assert content(MixtureDataset(parts, [1, 1, 1], 30), 3, 5) == content(mixture, 3, 5), "whatever was drawn before"
    assert content(mixture, 3, 5) != content(mixture, 3, 6)


def test_joined_datasets_are_concatenated(parts: dict[str, PairDataset]) -> None:
    joined = JoinedDataset(parts)
    assert len(joined) == sum(SIZES.values())
    assert [joined.example(i, epoch=1, seed=1).id for i in range(len(joined))] == list(range(len(joined)))
    assert joined.lengths().tolist() == [row for part in parts.values() for row in part.lengths().tolist()]
    limited = joined.limited(2, None)
    assert len(limited) == 30 + 8 + 2, "every fourth example is longer"
    assert [limited.example(i, epoch=1, seed=1).id for i in (0, 30)] == [1, 41]
    assert len(limited.report()) == 3


@pytest.mark.parametrize("size", [0, 7, 30])
def test_limits_change_neither_the_rates_nor_the_length_of_an_epoch(size: int, parts: dict[str, PairDataset]) -> None:
    """Of which 0 means all examples; a mixture is limited even if no example is too long."""
    mixture = MixtureDataset(parts, [4, 2, 1], size)
    for limits, longest in (((None, None), 3), ((2, None), 2)):
        limited = mixture.limited(*limits)
        assert len(limited) == len(mixture) == (size or sum(SIZES.values()))
        assert limited.rates == mixture.rates
        assert limited.lengths(1, 1).max() == longest


def test_templates() -> None:
    template = Template("translate {a} to {b}: {source} {{really}}", "here")
    assert template.fields == ["a", "b", "source"]
    assert template.render({"a": "{x}", "b": "Ü", "source": "5 = {a}"}) == "translate {x} to Ü: 5 = {a} {really}"
    assert Template("a: b", "here").render({}) == "a: b"
    assert Template.of_field("a:{b").render({"a:{b": "text"}) == "text"


def test_records() -> None:
    assert TsvFormat(("a", "b")).read("one\t two \r") == {"a": "one", "b": " two "}
    fields = JsonFormat(("text", "number", "yes"))
    line = '{"text": "ü\\n", "number": 1.50, "yes": true, "other": null}'
    assert fields.read(line) == {"text": "ü\n", "number": "1.50", "yes": "true"}
