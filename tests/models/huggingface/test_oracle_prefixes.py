"""Prefix-constrained search against the original's ``prefix_allowed_tokens_fn``."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from seqgen.decoding.processors.tokens import PrefixConstraint
from tests.huggingface_decoding import EOS, WORDS, assert_same, decode, original, sharp_model
from tests.huggingface_t5 import seqgen_model

pytestmark = pytest.mark.slow

pytest.importorskip("transformers")

SOURCES = [(4, 5, 9, 7, EOS), (6, EOS), (3, 10, 9, 4, 6, 7, 8, EOS), (EOS,)]


@pytest.mark.parametrize("groups", [1, 2])
def test_a_function_of_the_sentence(groups: int) -> None:
    """Every sentence has words of its own, after each of which some others may follow."""

    def follows(sentence: int, written: Tensor) -> list[int]:
        step, last = len(written), int(written[-1])
        return [token for token in range(WORDS) if (token * 3 + last + sentence) % 4 != step % 2] or [EOS]

    model = sharp_model("t5", 1)
    theirs = {"num_beam_groups": 2, "diversity_penalty": 0.4} if groups > 1 else {"early_stopping": True}
    ours = (
        {"search": "diverse_beam", "components": {"search.groups": 2, "search.strength": 0.4}}
        if groups > 1
        else {"early_stopping": "true"}
    )
    wanted = original(model, SOURCES, num_beams=4, prefix_allowed_tokens_fn=follows, **theirs)
    got = decode(seqgen_model(model), SOURCES, processors=[PrefixConstraint(follows)], beam=4, **ours)
    for sentence, (mine, hypotheses) in enumerate(zip(got, wanted, strict=True)):
        assert_same(mine, hypotheses)
        for tokens, _ in mine:
            for step, token in enumerate(tokens):
                assert token in follows(sentence, torch.tensor([0, *tokens[:step]]))
