"""Group beam search by Hugging Face's rules against transformers: tokens and scores of every hypothesis."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from tests.huggingface_decoding import EOS, WrappedModel, assert_same, decode, original, sharp_model
from tests.huggingface_t5 import seqgen_model

pytestmark = pytest.mark.slow

pytest.importorskip("transformers")

SOURCES = [(4, 5, 9, 7, EOS), (6, EOS), (3, 10, 9, 4, 6, 7, 8, EOS), (EOS,)]
sharp = functools.cache(sharp_model)

OPTIONS = [
    ({}, {}),
    ({"early_stopping": True}, {"early_stopping": "true"}),
    ({"early_stopping": "never", "length_penalty": 2.0}, {"early_stopping": "never", "length_penalty": 2.0}),
    ({"length_penalty": 0.0}, {"length_penalty": 0.0}),
    ({"length_penalty": -1.0, "early_stopping": "never"}, {"length_penalty": -1.0, "early_stopping": "never"}),
    ({"min_new_tokens": 4, "early_stopping": True}, {"min_len": 4, "early_stopping": "true"}),
    ({"max_new_tokens": 3}, {"max_len": 3}),
    ({"max_new_tokens": 1}, {"max_len": 1}),
    # these change what the penalty has left of a score
    ({"forced_bos_token_id": 4}, {"forced_first": "w4"}),
    ({"forced_eos_token_id": 1, "max_new_tokens": 4}, {"forced_last": "w1", "max_len": 4}),
    ({"renormalize_logits": True}, {"renormalize": True}),
    ({"repetition_penalty": 1.6}, {"repetition_penalty": 1.6}),
    ({"repetition_penalty": 0.6, "renormalize_logits": True}, {"repetition_penalty": 0.6, "renormalize": True}),
    (
        {"exponential_decay_length_penalty": (1, 1.5), "no_repeat_ngram_size": 2},
        {"exponential_decay_start": 1, "exponential_decay_factor": 1.5, "no_repeat_ngram_size": 2},
    ),
    (
        {"sequence_bias": [[[4], 1.5], [[5, 6], -2.0]], "repetition_penalty": 1.4, "bad_words_ids": [[7], [9, 4]]},
        {
            "sequence_bias": ["w4=1.5", "w5 w6=-2.0"],
            "repetition_penalty": 1.4,
            "bad_words": ["w7", "w9 w4"],
        },
    ),
    (
        {"forced_bos_token_id": 5, "begin_suppress_tokens": [4], "suppress_tokens": [9], "renormalize_logits": True},
        {"forced_first": "w5", "suppress_at_begin": ["w4"], "suppress": ["w9"], "renormalize": True},
    ),
    ({"encoder_no_repeat_ngram_size": 2, "min_new_tokens": 3}, {"encoder_no_repeat_ngram_size": 2, "min_len": 3}),
    ({"remove_invalid_values": True, "repetition_penalty": 1.2}, {"remove_invalid": True, "repetition_penalty": 1.2}),
]


@pytest.mark.parametrize(("theirs", "ours"), OPTIONS, ids=[str(theirs) for theirs, _ in OPTIONS])
@pytest.mark.parametrize(("beam", "groups", "strength"), [(4, 2, 0.5), (6, 3, 1.5), (3, 3, 0.2)])
def test_group_beam_search(
    beam: int, groups: int, strength: float, theirs: dict[str, Any], ours: dict[str, Any]
) -> None:
    """In batches on either side."""
    alone = "encoder_no_repeat_ngram_size" in theirs  # the original also counts the n-grams of padding
    for variant, seed in (("t5", 3), ("umt5", 0)):
        model = sharp(variant, seed)
        values = {"num_beams": beam, "num_beam_groups": groups, "diversity_penalty": strength, **theirs}
        batches = [[source] for source in SOURCES] if alone else [SOURCES]
        wanted = [hypotheses for batch in batches for hypotheses in original(model, batch, **values)]
        keys = {
            "beam": beam,
            "search": "diverse_beam",
            "components": {"search.groups": groups, "search.strength": strength},
            **ours,
        }
        for decoded in (WrappedModel(model), seqgen_model(model)):
            for got, hypotheses in zip(decode(decoded, SOURCES, **keys), wanted, strict=True):
                assert_same(got, hypotheses)
