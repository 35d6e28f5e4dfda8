"""The features of translations, each against its formula."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sacrebleu.metrics.chrf import CHRF

from seqgen.addons.confidence.features import LEAST, Feature, feature_values
from seqgen.config import GenerationConfig
from seqgen.core.errors import ConfigError, DecodingError
from seqgen.decoding.building import Resources, build_component
from seqgen.registry import FEATURES
from seqgen.text.results import TextHypothesis, Translation
from seqgen.text.translator import Translator
from tests.scripted_model import dictionary
from tests.text_models import TEXTS, text_model


def made(name: str) -> Feature:
    return build_component(FEATURES, name, Feature, GenerationConfig(), Resources(dictionary(5)))


def hypothesis(text: str, tokens: list[int], probabilities: list[float], **further: Any) -> TextHypothesis:
    lprobs = torch.tensor(probabilities, dtype=torch.float64).log()
    return TextHypothesis(torch.tensor(tokens), float(lprobs.mean()), lprobs, text=text, **further)


BEST = hypothesis("w1 x w2", [5, 3, 6, 2], [0.5, 0.25, 0.9, 0.8])
OTHER = hypothesis("w1 w1", [5, 5, 2], [0.5, 0.1, 0.6])
LINE = Translation(0, "w1 w2 w3 w9 w9 w9 w9", torch.tensor([5, 6, 7, 3, 3, 3, 3, 2]), [BEST, OTHER])
P, Q = 0.5 * 0.25 * 0.9 * 0.8, 0.5 * 0.1 * 0.6
WANTED = {
    "mean_lprob": math.log(P) / 4,
    "min_lprob": math.log(0.25),
    "sum_lprob": math.log(P),
    "nbest_entropy": -sum(x / (P + Q) * math.log(x / (P + Q)) for x in (P, Q)),
    "nbest_similarity": CHRF().sentence_score("w1 x w2", ["w1 w1"]).score,
    "source_length": math.log(8),
    "length_ratio": math.log(4 / 8),
    "unknown_tokens": 1 / 4,
    "copied_words": 2 / 3,
}


@pytest.mark.parametrize("name", WANTED)
def test_formulas(name: str) -> None:
    assert made(name)(LINE) == pytest.approx(WANTED[name], abs=1e-9)


def test_every_feature_has_a_test() -> None:
    assert {entry.name for entry in FEATURES.entries()} == {*WANTED, "boosted_lprob"}


def test_a_list_of_one_hypothesis() -> None:
    line = Translation(0, "a", torch.tensor([4, 2]), [hypothesis("", [2], [0.3])])
    assert made("nbest_entropy")(line) == 0
    assert made("nbest_similarity")(line) == 100
    assert made("copied_words")(line) == 0


def test_an_impossible_token_has_a_finite_log_probability() -> None:
    line = Translation(0, "a", torch.tensor([4, 2]), [hypothesis("b", [4, 2], [0.0, 1.0])])
    names = ["sum_lprob", "mean_lprob"]
    found = feature_values({name: made(name) for name in names}, line)
    assert found == {"sum_lprob": LEAST, "mean_lprob": LEAST / 2}


def boosted(top: list[float], chosen: int) -> float:
    """The boosted probability of token ``chosen`` of the sorted probabilities ``top``, with a loop over the drops."""
    ends = [i + 1 for i in range(len(top) - 1) if top[i] - top[i + 1] >= max(0.005, 0.3 * top[i])]
    end = max(ends, default=0)
    return sum(top[:end]) if chosen < end else top[chosen]


@pytest.mark.parametrize(
    ("top", "chosen", "wanted"),
    [
        ([0.4, 0.35, 0.1, 0.09], 1, 0.75),
        ([0.4, 0.35, 0.1, 0.09], 2, 0.1),
        ([0.3, 0.28, 0.25, 0.2], 0, 0.3),  # no drop
        ([0.6, 0.3, 0.28, 0.01], 2, 1.18),  # the last drop counts
        ([0.9, 0.004, 0.0001, 0.0], 1, 0.004),  # a drop below 0.005
        ([1.0, 0.0, 0.0, 0.0], 0, 1.0),
    ],
)
def test_boosted_probability_of_a_token(top: list[float], chosen: int, wanted: float) -> None:
    assert boosted(top, chosen) == pytest.approx(wanted)
    scores = torch.tensor([top], dtype=torch.float64).log()
    item = hypothesis("a", [chosen], [top[chosen]], top_tokens=torch.arange(4).unsqueeze(0), top_scores=scores)
    line = Translation(0, "a", torch.tensor([4, 2]), [item])
    assert made("boosted_lprob")(line) == pytest.approx(math.log(wanted))


def test_all_features_of_a_decode() -> None:
    translations = Translator(text_model(), beam=4, nbest=4, top_tokens=6).translate(TEXTS)
    features = {entry.name: made(entry.name) for entry in FEATURES.entries()}
    values = np.array([list(feature_values(features, line).values()) for line in translations])
    assert values.shape == (len(TEXTS), len(features))
    assert (values.std(0) > 0).sum() >= 7, "most of them differ from line to line"
    lines = values[:, [entry.name for entry in FEATURES.entries()].index("boosted_lprob")]
    for line, value in zip(translations, lines, strict=True):
        item = line.hypotheses[0]
        assert item.top_tokens is not None
        assert item.top_scores is not None
        logs = []
        for token, lprob, ids, scores in zip(
            item.tokens.tolist(),
            item.positional_scores.tolist(),
            item.top_tokens.tolist(),
            item.top_scores.exp().tolist(),
            strict=True,
        ):
            logs.append(math.log(boosted(scores, ids.index(token))) if token in ids else lprob)
        assert value == pytest.approx(np.mean(logs), abs=1e-6)


def test_what_a_feature_needs_and_returns_is_checked() -> None:
    with pytest.raises(ConfigError, match=r"boosted_lprob needs generation\.top_tokens=2 or more"):
        made("boosted_lprob")(LINE)

    class Broken(Feature):
        def __call__(self, translation: Translation) -> float:
            return math.nan

    with pytest.raises(DecodingError, match=r"Broken .* must return a number of at most 1e.30 but returns nan"):
        feature_values({"broken": Broken()}, LINE)
