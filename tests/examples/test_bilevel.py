"""Bi-level beam search (examples/papers/bilevel.py) against the algorithm on lists of hypotheses."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from examples.papers.bilevel import BilevelSearch
from seqgen.core.combinations import ProbabilityMean
from seqgen.core.errors import ConfigError
from seqgen.decoding.combinations import LogProbabilityMean
from seqgen.text.translator import Translator
from tests.commands import command
from tests.generators import make_generator
from tests.hypotheses import Pairs, as_pairs, assert_same_pairs
from tests.scripted_model import Rule, ScriptedModel, batch_of, dictionary, random_rule
from tests.text_models import TEXTS, text_model

pytestmark = pytest.mark.slow

WORDS = dictionary(5)
VOCAB, PAD, EOS = len(WORDS), 1, 2
SOURCES = [(4, 5, 2), (6, 2), (7, 8, 4, 5, 2)]
LONGEST = 5


def rules(count: int, seed: int) -> list[Rule]:
    return [random_rule(VOCAB, 10 * seed + number) for number in range(count)]


def reference(members: list[Rule], weights: list[float], source: tuple[int, ...], beam: int, lower: int) -> Pairs:
    """Algorithm 1 with dicts from hypotheses to scores; the score of a finished hypothesis is divided by its length."""
    shared, finished = {(): 0.0}, []
    for step in range(LONGEST + 1):
        votes: dict[tuple[int, ...], float] = {}
        for weight, rule in zip(weights, members, strict=True):
            own = {}
            for prefix, score in shared.items():
                lprobs = rule(source, prefix).log_softmax(-1).tolist()
                for token in [EOS] if step == LONGEST else range(VOCAB):
                    if token != PAD and (step > 0 or token != EOS):
                        own[(*prefix, token)] = score + lprobs[token]
            for hypothesis in sorted(own, key=lambda key: own[key], reverse=True)[: lower or beam]:
                votes[hypothesis] = votes.get(hypothesis, 0.0) + weight * math.exp(own[hypothesis])
        best = sorted(votes, key=lambda key: votes[key], reverse=True)[:beam]
        finished += [(one, math.log(votes[one]) / len(one)) for one in best if one[-1] == EOS]
        shared = {one: math.log(votes[one]) for one in best if one[-1] != EOS}
        if len(finished) >= beam or not shared:
            break
    return sorted(finished[:beam], key=lambda pair: pair[1], reverse=True)


@pytest.mark.parametrize(("beam", "lower"), [(1, 1), (3, 0), (3, 2), (4, 7)])
@pytest.mark.parametrize("weights", [[1 / 3, 1 / 3, 1 / 3], [0.2, 0.7, 0.1]])
def test_it_is_algorithm_1(beam: int, lower: int, weights: list[float]) -> None:
    for seed in range(6):
        members = rules(3, seed)
        generator = make_generator(
            [ScriptedModel(rule) for rule in members], WORDS, beam_size=beam, max_len_b=LONGEST,
            search_strategy=BilevelSearch(lower), combination=ProbabilityMean(weights),
        )  # fmt: skip
        for source, found in zip(SOURCES, generator.generate(batch_of(SOURCES)), strict=True):
            assert_same_pairs(as_pairs(found), reference(members, weights, source, beam, lower))


def test_keys_and_refusals(tmp_path: Path) -> None:
    members = [text_model(seed=seed) for seed in (0, 1)]
    translator = Translator(members, search="bilevel", beam=3)
    with pytest.raises(ConfigError, match=r"search=bilevel combines the members by votes, which LogProbabilityMean"):
        translator.translate(TEXTS, combination=LogProbabilityMean())
    with pytest.raises(ConfigError, match="below its minimum"):
        translator.translate(TEXTS, **{"search.lower_beam": -1})
    file = Path(__file__).parent.parent.parent / "examples" / "papers" / "bilevel.py"
    outcome = command(
        "generate", f"common.user_dir={file}", f"path={tmp_path}", "generation.search=bilevel", "search.lower=3"
    )
    assert outcome.code == 2
    assert "search.lower_beam" in outcome.err
