"""Group beam search by Hugging Face's rules against transformers: tokens and scores of every hypothesis."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from tests.huggingface_decoding import EOS, WrappedModel, assert_same, decode, original, sharp_model
from tests.huggingface_t5 import seqgen_model

pytest.importorskip("transformers")

SOURCES = [(4, 5, 9, 7, EOS), (6, EOS), (3, 10, 9, 4, 6, 7, 8, EOS), (EOS,)]
sharp = functools.cache(sharp_model)

OPTIONS = [
    ({}, {}),
    ({"early_stopping": True}, {"early_stopping": "true"}),
    ({"early_stopping": "never", "length_penalty": 2.0}, {"early_stopping": "never", "lenpen": 2.0}),
    ({"length_penalty": 0.0}, {"lenpen": 0.0}),
    ({"length_penalty": -1.0, "early_stopping": "never"}, {"lenpen": -1.0, "early_stopping": "never"}),
    ({"min_new_tokens": 4, "early_stopping": True}, {"min_len": 4, "early_stopping": "true"}),
    ({"max_new_tokens": 3}, {"max_len": 3}),
    ({"max_new_tokens": 1}, {"max_len": 1}),
]


@pytest.mark.parametrize(("theirs", "ours"), OPTIONS, ids=[str(theirs) for theirs, _ in OPTIONS])
@pytest.mark.parametrize(("beam", "groups", "strength"), [(4, 2, 0.5), (6, 3, 1.5), (3, 3, 0.2)])
def test_group_beam_search(
    beam: int, groups: int, strength: float, theirs: dict[str, Any], ours: dict[str, Any]
) -> None:
    """In batches on either side."""
    for variant, seed in (("t5", 3), ("umt5", 0)):
        model = sharp(variant, seed)
        values = {"num_beams": beam, "num_beam_groups": groups, "diversity_penalty": strength, **theirs}
        wanted = original(model, SOURCES, **values)
        keys = {"beam": beam, "diverse_beam_groups": groups, "diverse_beam_strength": strength, **ours}
        for decoded in (WrappedModel(model), seqgen_model(model)):
            for got, hypotheses in zip(decode(decoded, SOURCES, **keys), wanted, strict=True):
                assert_same(got, hypotheses)
