"""examples/papers/dynamic_beams.py against the paper's four rules on lists of candidates."""

from __future__ import annotations

import math
from typing import Any

import pytest

from examples.papers.dynamic_beams import ThresholdPruning
from seqgen.core.beam_search import BeamSearch
from seqgen.core.errors import ConfigError
from seqgen.text.translator import Translator
from tests.generators import scripted_generator
from tests.hypotheses import Pairs, as_pairs, assert_same_pairs
from tests.reference_search import Beam, Settings, beam_search, next_scores
from tests.scripted_model import batch_of, random_rule
from tests.text_models import TEXTS, text_model

pytestmark = pytest.mark.slow

SOURCES = [(4, 5, 2), (6, 2), (4, 4, 4, 4, 6, 2), (2,)]
RULE = random_rule(vocab=9, seed=4)
KEYS = [
    {"absolute": 1.0},
    {"absolute": 0.0, "relative": 0.3},
    {"absolute": 0.0, "local": 0.4},
    {"absolute": 0.0, "per_beam": 2},
    {"absolute": 2.5, "relative": 0.1, "local": 0.05, "per_beam": 3},
]


def plain(
    source: tuple[int, ...], beam: int, absolute: float, relative: float = 0, local: float = 0, per_beam: int = 0
) -> Pairs:
    """Beam search with the paper's pruning, as loops over one sentence; of probabilities, not logarithms."""
    cfg = Settings(beam, max_len=5, min_len=0)

    def choose(found: list[Beam]) -> list[Beam | None]:
        parents = [tokens[:-1] for _, tokens in found]
        ranks = [parents[:place].count(parent) for place, parent in enumerate(parents)]
        found = [one for one, rank in zip(found, ranks, strict=True) if not per_beam or rank < per_beam][: 2 * beam]
        words = [math.exp(next_scores(RULE, source, tokens[:-1], cfg)[tokens[-1]]) for _, tokens in found]
        best = math.exp(found[0][0])
        return [
            one
            if math.exp(one[0]) >= relative * best
            and word >= local * max(words)
            and (not absolute or one[0] >= math.log(best) - absolute)
            else None
            for one, word in zip(found, words, strict=True)
        ]

    return beam_search(RULE, source, cfg, choose)


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("skip_log_softmax", [True, False])
def test_search(keys: dict[str, Any], skip_log_softmax: bool) -> None:
    own = scripted_generator([RULE], ThresholdPruning(**keys), skip_log_softmax=skip_log_softmax)
    found = own.generate(batch_of(SOURCES))
    for source, hypotheses in zip(SOURCES, found, strict=True):
        wanted: Pairs = plain(source, 4, **keys)
        assert_same_pairs(as_pairs(hypotheses), wanted)
    unpruned = scripted_generator([RULE], BeamSearch()).generate(batch_of(SOURCES))
    assert [as_pairs(line) for line in found] != [as_pairs(line) for line in unpruned]


def test_by_its_keys() -> None:
    translator = Translator(text_model(), beam=4, nbest=4, max_len_b=8)
    keys = {"search.absolute": 0.8, "search.local": 0.2, "search.per_beam": 2}
    texts = []
    for arguments in (
        {"search": "threshold_pruning", "batch_size": 2, **keys},
        {"search": ThresholdPruning(0.8, local=0.2, per_beam=2), "batch_size": 1},
        {},
    ):
        found = translator.translate(TEXTS, **arguments)
        texts.append([[(item.text, pytest.approx(item.score)) for item in line.hypotheses] for line in found])
    assert texts[0] == texts[1] != texts[2]
    with pytest.raises(ConfigError, match="above its maximum"):
        translator.translate(TEXTS, search="threshold_pruning", **{"search.relative": 2.0})
