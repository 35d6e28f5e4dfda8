"""Prefix-constrained search against the original's ``prefix_allowed_tokens_fn``, by a trie."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest
from torch import Tensor

from seqgen.addons.catalogue.constraint import TrieConstraint
from seqgen.addons.catalogue.prefix_trie import PrefixTrie
from tests.huggingface_decoding import EOS, WrappedModel, assert_same, decode, original, sharp_model
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
