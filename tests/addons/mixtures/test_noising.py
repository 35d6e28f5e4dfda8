"""Span corruption: lengths, densities, and that nothing of a text is lost."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from seqgen.addons.mixtures.noising import NoiseTokens, SpanCorruption, random_segmentation, replace_spans, span_counts

EOS, WORDS, SENTINELS = 1, np.arange(3, 500), np.arange(2999, 500, -1)
NOISE = NoiseTokens(EOS, SENTINELS)


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
    assert SpanCorruption(density, mean_span).raw_length(input_length) == raw
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


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_any_mask_can_be_undone(mask: list[bool]) -> None:
    """Also one that hides the first token, and one that leaves the last visible, which adds a closing sentinel."""
    tokens = text(len(mask))
    source, target = replace_spans(tokens, np.array(mask), SENTINELS)
    assert restore(np.append(source, EOS), np.append(target, EOS)) == tokens.tolist()
    spans = sum(hidden and not before for before, hidden in zip([False, *mask], mask, strict=False))
    assert source[np.isin(source, SENTINELS)].tolist() == SENTINELS[:spans].tolist()
    assert target[np.isin(target, SENTINELS)].tolist() == SENTINELS[: spans + (not mask[-1])].tolist()
