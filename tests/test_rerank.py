"""Rerankers: the order of n-best lists after decoding."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from examples.extending.reranker import LengthRatio
from seqgen.errors import ConfigError
from seqgen.text.rerank import Reranker
from seqgen.text.results import TextHypothesis, Translation
from seqgen.text.translator import Translator
from tests.text_models import TEXTS, text_model

SETTINGS = {"beam": 6, "max_len_b": 8}


class Constant(Reranker):
    def __call__(self, translation: Translation, hypotheses: Sequence[TextHypothesis]) -> list[float]:
        return [1.0] * len(hypotheses)


@pytest.mark.parametrize("batch_size", [1, 64])
def test_ranks_all_hypotheses_of_the_search(batch_size: int) -> None:
    translator, reranker = Translator(text_model()), LengthRatio(0.5, 2.0)
    plain = translator.translate(TEXTS, nbest=6, **SETTINGS)
    keys = {"reranker.ratio": 0.5, "reranker.weight": 2.0}
    found = translator.translate(TEXTS, nbest=2, rerank="length_ratio", batch_size=batch_size, **SETTINGS, **keys)
    changed = 0
    for before, after in zip(plain, found, strict=True):
        scores = reranker(before, before.hypotheses)
        order = sorted(range(6), key=lambda index: -scores[index])[:2]
        assert [item.text for item in after.hypotheses] == [before.hypotheses[index].text for index in order]
        assert [item.rerank_score for item in after.hypotheses] == pytest.approx([scores[index] for index in order])
        changed += order[0] > 0
    assert changed


def test_equal_scores_keep_the_order_of_the_search() -> None:
    translator = Translator(text_model())
    plain = translator.translate(TEXTS, nbest=6, **SETTINGS)
    found = translator.translate(TEXTS, nbest=6, rerank=Constant(), **SETTINGS)
    assert [[h.text for h in line.hypotheses] for line in found] == [
        [h.text for h in line.hypotheses] for line in plain
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rerank": "length_ratio", "mbr": "chrf"}, "rerank=length_ratio and generation.mbr both rank"),
        ({"rerank": Constant(), "mbr": "chrf"}, "set only one of generation.mbr and generation.rerank"),
        ({"rerank": "length_ratio", "beam": 1}, "compares hypotheses, but only one is generated"),
        ({"rerank": Constant(), "beam": 1}, "reranking compares hypotheses, but only one is generated"),
        ({"rerank": "length_rati"}, "there is no reranker 'length_rati'.*length_ratio"),
        ({"rerank": "length_ratio", "reranker.weight": -1.0}, "weight"),
        ({"reranker.weight": 1.0}, "generation.rerank does not name its reranker"),
    ],
)
def test_refuses_in_one_sentence(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Translator(text_model()).translate(["w1"], **{**SETTINGS, **settings})
