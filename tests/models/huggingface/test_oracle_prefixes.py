"""Prefix-constrained search against the original's ``prefix_allowed_tokens_fn``, by a function and by a trie."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from seqgen.addons.catalogue.constraint import TrieConstraint
from seqgen.addons.catalogue.prefix_trie import PrefixTrie
from seqgen.decoding.processors.tokens import PrefixConstraint
from tests.huggingface_decoding import EOS, WORDS, WrappedModel, assert_same, decode, original, sharp_model
from tests.huggingface_t5 import seqgen_model

pytestmark = pytest.mark.slow

pytest.importorskip("transformers")

SOURCES = [(4, 5, 9, 7, EOS), (6, EOS), (3, 10, 9, 4, 6, 7, 8, EOS), (EOS,)]
sharp = functools.cache(sharp_model)


def outputs(seed: int, count: int) -> list[list[int]]:
    """Some outputs of unequal lengths, many of which have the same beginning."""
    draw = random.Random(seed)
    return [[*(draw.choice([4, 5, 6, 9]) for _ in range(draw.randint(1, 6))), EOS] for _ in range(count)]


@pytest.mark.parametrize("count", [3, 40])
@pytest.mark.parametrize("beam", [2, 4])
@pytest.mark.parametrize("early_stopping", [False, True])
def test_a_trie_is_the_originals_function(early_stopping: bool, beam: int, count: int) -> None:
    """If fewer than ``beam`` outputs are allowed, the original continues finished hypotheses with a score of -1e9.

    They end a second time and occupy slots, so that the original may stop too early; seqgen returns all hypotheses.
    """
    for seed in range(3):
        model = sharp("t5", seed)
        allowed = outputs(seed, count)
        trie = PrefixTrie.of(allowed)

        def follows(sentence: int, written: Tensor, trie: PrefixTrie = trie) -> list[int]:
            return trie.following(written[1:].tolist()) or [0]  # the original wants some token where all are dead

        theirs: dict[str, Any] = {"num_beams": beam, "early_stopping": early_stopping}
        found = [original(model, [source], prefix_allowed_tokens_fn=follows, **theirs)[0] for source in SOURCES]
        for decoded in (WrappedModel(model), seqgen_model(model)):
            keys = {"beam": beam, "early_stopping": str(early_stopping).lower()}
            results = decode(decoded, SOURCES, processors=[TrieConstraint(trie)], **keys)
            for got, wanted in zip(results, found, strict=True):
                fewer = early_stopping and count < beam
                assert_same([pair for pair in got if not fewer or pair[0] in dict(wanted)], wanted)
                assert len(got) == min(beam, count)
                assert all(list(tokens) in allowed for tokens, _ in got)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_function_of_the_sentence(groups: int) -> None:
    """Every sentence has words of its own, after each of which some others may follow."""

    def follows(sentence: int, written: Tensor) -> list[int]:
        step, last = len(written), int(written[-1])
        return [token for token in range(WORDS) if (token * 3 + last + sentence) % 4 != step % 2] or [EOS]

    model = sharp("t5", 1)
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
