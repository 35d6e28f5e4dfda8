"""Unsupervised objectives: lengths, densities, and that nothing of a text is lost."""

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from seqgen.data.noising import (
    OBJECTIVES,
    NoiseTokens,
    SpanCorruption,
    random_segmentation,
    replace_spans,
    span_counts,
)
from seqgen.errors import DataError

EOS, WORDS, SENTINELS = 1, np.arange(3, 500), np.arange(2999, 500, -1)
NOISE = NoiseTokens(EOS, SENTINELS, WORDS)


def text(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).choice(WORDS, length)


def restore(source: np.ndarray, target: np.ndarray) -> list[int]:
    """Put the spans that a target lists where their sentinels stand in the input."""
    spans: dict[int, list[int]] = {}
    for token in target[:-1].tolist():
        if token in SENTINELS:
            spans[token] = current = []
        else:
            current.append(token)
    restored = []
    for token in source[:-1].tolist():
        restored += spans.pop(token) if token in SENTINELS else [token]
    assert all(not rest for rest in spans.values()), "only the closing sentinel has no span"
    return restored


@pytest.mark.parametrize(
    ("input_length", "density", "mean_span", "raw", "target"),
    [(512, 0.15, 3.0, 568, 114), (128, 0.15, 3.0, 141, 29), (64, 0.5, 3.0, 94, 64), (100, 0.25, 1.0, 99, 51)],
)
def test_the_raw_length_fills_the_input(
    input_length: int, density: float, mean_span: float, raw: int, target: int
) -> None:
    """By hand: 141 tokens give 21 hidden ones in 7 spans, an input of 120 + 7 + 1 and a target of 21 + 7 + 1."""
    assert OBJECTIVES["span_corruption"](density, mean_span).raw_length(input_length) == raw
    assert SpanCorruption(density, mean_span).lengths(raw)[1] == target


@settings(max_examples=60, deadline=None)
@given(st.integers(4, 700), st.floats(0.02, 0.9), st.floats(1, 12))
def test_no_longer_text_fits(input_length: int, density: float, mean_span: float) -> None:
    objective = SpanCorruption(density, mean_span)
    raw = objective.raw_length(input_length)
    assert objective.lengths(raw)[0] <= input_length
    assert objective.lengths(raw + 1)[0] > input_length or density == 0.5


def test_span_counts_by_hand() -> None:
    assert span_counts(568, 0.15, 3.0) == (85, 28)
    assert span_counts(10, 0.15, 3.0) == (2, 1)
    assert span_counts(1, 0.15, 3.0) == (1, 1)
    assert span_counts(4, 0.99, 1.0) == (3, 1), "each hidden span follows a visible token"


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 10**6))
def test_segments_are_not_empty_and_sum_to_the_total(total: int, parts: int, seed: int) -> None:
    sizes = random_segmentation(max(total, parts), parts, np.random.default_rng(seed))
    assert len(sizes) == parts
    assert sizes.min() >= 1
    assert sizes.sum() == max(total, parts)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 600), st.floats(0.001, 0.999), st.floats(1, 20), st.integers(0, 10**6))
def test_span_corruption_keeps_every_token(length: int, density: float, mean_span: float, seed: int) -> None:
    objective, tokens = SpanCorruption(density, mean_span), text(length, seed)
    source, target = objective(tokens, NOISE, np.random.default_rng(seed))
    assert restore(source, target) == tokens.tolist()
    assert source[-1] == target[-1] == EOS
    assert (len(source), len(target)) == objective.lengths(length)
    sentinels = [token for token in source.tolist() if token in SENTINELS]
    assert sentinels == SENTINELS[: len(sentinels)].tolist(), "numbered in order"
    assert len(sentinels) <= objective.sentinels_needed(length)
    if length > 1:
        noise, spans = span_counts(length, density, mean_span)
        assert len(sentinels) == spans
        assert sum(token not in SENTINELS for token in target[:-1].tolist()) == noise


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 300), st.floats(0, 1), st.integers(0, 10**6))
def test_hidden_tokens_restore_the_text(length: int, density: float, seed: int) -> None:
    tokens = text(length, seed)
    objective = OBJECTIVES["iid_spans"](density, 3.0)
    source, target = objective(tokens, NOISE, np.random.default_rng(seed))
    assert restore(source, target) == tokens.tolist()
    assert len(source) <= objective.lengths(length)[0]
    assert len(target) <= objective.lengths(length)[1]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["span_drop", "iid_drop"]), st.integers(1, 200), st.integers(0, 10**6))
@example("span_drop", 1, 0)
def test_dropped_tokens_are_the_target(name: str, length: int, seed: int) -> None:
    tokens = np.arange(3, 3 + length)  # each once, so that the two parts can be merged again
    objective = OBJECTIVES[name](0.3, 3.0)
    source, target = objective(tokens, NOISE, np.random.default_rng(seed))
    assert sorted([*source[:-1].tolist(), *target[:-1].tolist()]) == tokens.tolist()
    assert sorted(target[:-1].tolist()) == target[:-1].tolist(), "in order"
    assert name == "iid_drop" or (len(source), len(target)) == objective.lengths(length)
    assert len(source) <= objective.lengths(length)[0]
    assert len(target) <= objective.lengths(length)[1]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["bert", "mass", "deshuffling", "prefix_lm"]), st.integers(1, 200), st.integers(0, 10**6))
def test_objectives_whose_target_is_text(name: str, length: int, seed: int) -> None:
    tokens = text(length, seed)
    source, target = OBJECTIVES[name](0.15, 3.0)(tokens, NOISE, np.random.default_rng(seed))
    assert source[-1] == target[-1] == EOS
    if name == "prefix_lm":
        assert [*source[:-1], *target[:-1]] == tokens.tolist()
        assert len(target) > 1
        return
    assert target[:-1].tolist() == tokens.tolist()
    assert len(source) == length + 1
    if name == "deshuffling":
        assert sorted(source[:-1].tolist()) == sorted(tokens.tolist())
    if name == "mass":
        assert set(source[:-1][source[:-1] != tokens].tolist()) <= {SENTINELS[0]}


def test_bert_masks_nine_of_ten_and_hides_the_density() -> None:
    tokens = text(100_000)
    source, _ = OBJECTIVES["bert"](0.15, 3.0)(tokens, NOISE, np.random.default_rng(3))
    changed = source[:-1] != tokens
    assert changed.mean() == pytest.approx(0.15, abs=0.004)
    assert (source[:-1][changed] == SENTINELS[0]).mean() == pytest.approx(0.9, abs=0.01)
    others = source[:-1][changed & (source[:-1] != SENTINELS[0])]
    assert np.isin(others, WORDS).all()
    assert len(set(others.tolist())) > 300


def test_masks_by_hand() -> None:
    tokens = np.array([10, 11, 12, 13, 14])
    hidden = np.array([False, True, True, False, True])
    source, target = replace_spans(tokens, hidden, np.array([99, 98, 97]))
    assert source.tolist() == [10, 99, 13, 98]
    assert target.tolist() == [99, 11, 12, 98, 14]
    source, target = replace_spans(tokens, ~hidden, np.array([99, 98, 97]))
    assert source.tolist() == [99, 11, 12, 98, 14]
    assert target.tolist() == [99, 10, 98, 13, 97], "a visible last token adds a closing sentinel"
    source, target = replace_spans(tokens, np.array([True, False, True, False, False]), np.array([99, 98, 97]))
    assert source.tolist() == [99, 11, 98, 13, 14]
    assert target.tolist() == [99, 10, 98, 12, 97]


def test_too_few_sentinels() -> None:
    few = NoiseTokens(EOS, SENTINELS[:3], WORDS)
    with pytest.raises(DataError, match=r"needs 28 sentinels, but the tokenizer has 3; .*task\.mean_span_length"):
        SpanCorruption()(text(568), few, np.random.default_rng(0))
    source, target = OBJECTIVES["iid_spans"](0.5, 3.0)(text(568), few, np.random.default_rng(0))
    assert np.isin(source, SENTINELS).sum() == 2, "spans beyond the budget stay visible; the task asks before"
    assert target[-2] == SENTINELS[2]
