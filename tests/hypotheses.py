"""Comparison of hypotheses."""

from collections.abc import Sequence

import pytest
import torch

from seqgen.core.structures import Hypothesis

Pairs = list[tuple[tuple[int, ...], float]]
"""Tokens and score of each hypothesis."""


def assert_same(one: list[list[Hypothesis]], two: list[list[Hypothesis]], tolerance: float = 1e-10) -> None:
    """The n-best lists of all sentences have the same tokens, scores, attention, ends and most probable tokens."""
    assert len(one) == len(two)
    close = {"atol": tolerance, "rtol": 0, "check_dtype": False}
    for first, second in zip(one, two, strict=True):
        assert [h.tokens.tolist() for h in first] == [h.tokens.tolist() for h in second]
        for h, k in zip(first, second, strict=True):
            assert h.score == pytest.approx(k.score, abs=tolerance)
            assert h.forced_end == k.forced_end
            torch.testing.assert_close(h.positional_scores, k.positional_scores, **close)
            for one_, two_ in ((h.attention, k.attention), (h.top_scores, k.top_scores)):
                assert (one_ is None) == (two_ is None)
                if one_ is not None:
                    torch.testing.assert_close(one_, two_, **close)
            if h.top_tokens is not None:
                possible = h.top_scores > -torch.inf
                assert h.top_tokens[possible].tolist() == k.top_tokens[possible].tolist()
            for name in h.fields.keys() & k.fields.keys():
                torch.testing.assert_close(h.fields[name], k.fields[name], **close)


def as_pairs(hypotheses: Sequence[Hypothesis]) -> Pairs:
    """Tokens and score of each hypothesis."""
    return [(tuple(h.tokens.tolist()), h.score) for h in hypotheses]


def assert_same_pairs(got: Pairs, wanted: Pairs) -> None:
    """The tokens are equal, and the scores up to rounding."""
    assert [tokens for tokens, _ in got] == [tokens for tokens, _ in wanted]
    assert [score for _, score in got] == pytest.approx([score for _, score in wanted], abs=1e-10)
