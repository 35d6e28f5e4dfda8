"""examples/papers/dynamic_beams.py against the paper's four rules on lists of candidates."""

from __future__ import annotations

import math
from typing import Any

import pytest

from examples.papers.dynamic_beams import ThresholdPruning
from seqgen.errors import ConfigError
from seqgen.generation.search.base import Search
from seqgen.generation.search.beam import BeamSearch
from seqgen.generation.sequence_generator import SequenceGenerator
from seqgen.text.translator import Translator
from tests.generators import make_generator
from tests.hypotheses import Pairs, as_pairs, assert_same_pairs
from tests.reference_search import EOS, Settings, next_scores
from tests.scripted_model import Rule, ScriptedModel, batch_of, dictionary, random_rule
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


def generator(rules: list[Rule], search: Search, beam: int = 4, **options: Any) -> SequenceGenerator:
    values = {"max_len_b": 5, "min_len": 0, **options}
    return make_generator(
        [ScriptedModel(rule) for rule in rules], dictionary(5), search_strategy=search, beam_size=beam, **values
    )


def plain(
    source: tuple[int, ...], beam: int, absolute: float, relative: float = 0, local: float = 0, per_beam: int = 0
):
    """Beam search by fairseq's rules with the paper's pruning, as loops over one sentence; probabilities, not logs."""
    cfg, beams, finished = Settings(max_len=5, min_len=0), [(1.0, ())], []
    for _ in range(cfg.max_len + 1):
        found = []
        for p, past in beams:
            words = [(math.exp(score), token) for token, score in enumerate(next_scores(RULE, source, past, cfg))]
            words = sorted((word for word in words if word[0] > 0), reverse=True)[: per_beam or None]
            found += [(p * w, w, (*past, token)) for w, token in words]
        found = sorted(found, reverse=True)[: 2 * beam]
        best, best_word = found[0][0], max(w for _, w, _ in found)
        kept = [
            (p, tokens) for p, w, tokens in found
            if p >= relative * best and w >= local * best_word
            and (not absolute or math.log(p) >= math.log(best) - absolute)
        ]  # fmt: skip
        top = [tokens for _, _, tokens in found[:beam]]
        for p, tokens in kept:
            if tokens in top and tokens[-1] == EOS and len(finished) < beam:
                finished.append((tokens, math.log(p) / len(tokens)))
        beams = [pair for pair in kept if pair[1][-1] != EOS][:beam]
        if len(finished) == beam or not beams:
            break
    return sorted(finished, key=lambda pair: -pair[1])


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("skip_log_softmax", [True, False])
def test_search(keys: dict[str, Any], skip_log_softmax: bool) -> None:
    own = generator([RULE], ThresholdPruning(**keys), skip_log_softmax=skip_log_softmax)
    found = own.generate(batch_of(SOURCES))
    for source, hypotheses in zip(SOURCES, found, strict=True):
        wanted: Pairs = plain(source, 4, **keys)
        assert_same_pairs(as_pairs(hypotheses), wanted)
    unpruned = generator([RULE], BeamSearch()).generate(batch_of(SOURCES))
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
