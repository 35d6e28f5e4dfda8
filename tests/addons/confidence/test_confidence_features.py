"""The features of translations, each against its formula."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from sacrebleu.metrics.chrf import CHRF

from seqgen.addons.confidence.features import LEAST, Feature, feature_values
from seqgen.extend import DecodingError, GenerationConfig, Resources, TextHypothesis, Translation, build_component
from seqgen.registry import FEATURES
from tests.scripted_model import dictionary


def made(name: str) -> Feature:
    return build_component(FEATURES, name, Feature, GenerationConfig(), Resources(dictionary(5)))


def hypothesis(text: str, tokens: list[int], probabilities: list[float], **further: Any) -> TextHypothesis:
    lprobs = torch.tensor(probabilities, dtype=torch.float64).log()
    return TextHypothesis(torch.tensor(tokens), float(lprobs.mean()), lprobs, text=text, **further)


BEST = hypothesis("w1 x w2", [5, 3, 6, 2], [0.5, 0.25, 0.9, 0.8])
OTHER = hypothesis("w1 w1", [5, 5, 2], [0.5, 0.1, 0.6])
LINE = Translation(0, "w1 w2 w3 w9 w9 w9 w9", torch.tensor([5, 6, 7, 3, 3, 3, 3, 2]), [BEST, OTHER])
P, Q = 0.5 * 0.25 * 0.9 * 0.8, 0.5 * 0.1 * 0.6
ALONE = Translation(0, "a", torch.tensor([4, 2]), [hypothesis("", [2], [0.3])])
IMPOSSIBLE = Translation(0, "a", torch.tensor([4, 2]), [hypothesis("b", [4, 2], [0.0, 1.0])])
FORMULAS = [
    ("mean_lprob", LINE, math.log(P) / 4),
    ("mean_lprob", IMPOSSIBLE, LEAST / 2),
    ("min_lprob", LINE, math.log(0.25)),
    ("sum_lprob", LINE, math.log(P)),
    ("sum_lprob", IMPOSSIBLE, LEAST),
    ("nbest_entropy", LINE, -sum(x / (P + Q) * math.log(x / (P + Q)) for x in (P, Q))),
    ("nbest_entropy", ALONE, 0),
    ("nbest_similarity", LINE, CHRF().sentence_score("w1 x w2", ["w1 w1"]).score),
    ("nbest_similarity", ALONE, 100),
    ("source_length", LINE, math.log(8)),
    ("length_ratio", LINE, math.log(4 / 8)),
    ("unknown_tokens", LINE, 1 / 4),
    ("copied_words", LINE, 2 / 3),
    ("copied_words", ALONE, 0),
]


@pytest.mark.parametrize(("name", "line", "wanted"), FORMULAS)
def test_formulas(name: str, line: Translation, wanted: float) -> None:
    assert feature_values({name: made(name)}, line) == {name: pytest.approx(wanted, abs=1e-9)}


def test_every_feature_has_a_test() -> None:
    assert {entry.name for entry in FEATURES.entries()} == {*(name for name, *_ in FORMULAS), "boosted_lprob"}


BOOSTED = [
    ([0.4, 0.35, 0.1, 0.09], 1, 0.75),
    ([0.4, 0.35, 0.1, 0.09], 2, 0.1),
    ([0.3, 0.28, 0.25, 0.2], 0, 0.3),  # no drop
    ([0.6, 0.3, 0.28, 0.01], 2, 1.18),  # the last drop counts
    ([0.9, 0.004, 0.0001, 0.0], 1, 0.004),  # a drop below 0.005
    ([1.0, 0.0, 0.0, 0.0], 0, 1.0),
    ([0.5, 0.2, 0.1, 0.09], 7, 0.02),  # not among the listed tokens
]


@pytest.mark.parametrize("rows", [*([row] for row in BOOSTED), BOOSTED])
def test_the_boosted_probability_of_the_tokens(rows: list[tuple[list[float], int, float]]) -> None:
    """Of each token alone, and of all of them in one output."""
    scores = torch.tensor([top for top, _, _ in rows], dtype=torch.float64).log()
    item = hypothesis(
        "a", [chosen for _, chosen, _ in rows], [top[chosen] if chosen < 4 else 0.02 for top, chosen, _ in rows],
        top_tokens=torch.arange(4).repeat(len(rows), 1), top_scores=scores,
    )  # fmt: skip
    line = Translation(0, "a", torch.tensor([4, 2]), [item])
    assert made("boosted_lprob")(line) == pytest.approx(np.mean([math.log(wanted) for *_, wanted in rows]))


def test_a_feature_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(DecodingError, match=r"lambda.* must return a number of at most 1e.30 but returns nan"):
        feature_values({"broken": lambda translation: math.nan}, LINE)
