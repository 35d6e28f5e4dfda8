"""Exhaustive search: all outputs of a small vocabulary, ranked by a formula."""

import itertools
from functools import cache

from tests.hypotheses import Pairs
from tests.scripted_model import Rule

EOS, PAD = 2, 1


def ranked_outputs(scores: Rule, source: tuple[int, ...], vocab: int, longest: int, count: int) -> Pairs:
    """The best outputs of 1 to ``longest`` tokens and end-of-sentence, by their mean score.

    Args:
        scores: from source and generated tokens to the score of each next token ``(V,)``, which need not be normalized.
        source: ids of the source.
        vocab: size of the vocabulary.
        longest: most tokens before end-of-sentence.
        count: how many outputs to return.
    """
    tokens = [token for token in range(vocab) if token not in (EOS, PAD)]
    found: Pairs = []
    known = cache(lambda history: scores(source, history).tolist())
    for length in range(1, longest + 1):
        for words in itertools.product(tokens, repeat=length):
            output = (*words, EOS)
            total = sum(known(output[:step])[token] for step, token in enumerate(output))
            found.append((output, total / len(output)))
    return sorted(found, key=lambda pair: -pair[1])[:count]
