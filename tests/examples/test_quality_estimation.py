"""Reranking by quality estimation: the order by the function, computed plainly."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from examples.papers.quality_estimation import FUNCTIONS, QualityEstimation, batch_quality
from seqgen.text.translator import Translator
from tests.text_models import TEXTS, text_model

pytestmark = pytest.mark.slow

SETTINGS = {"beam": 6, "max_len_b": 8}


@pytest.mark.parametrize("batch_size", [1, 2, 64])
@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_ranks_by_the_function_and_the_score(weight: float, batch_size: int) -> None:
    translator = Translator(text_model(seed=3))
    plain = translator.translate(TEXTS, nbest=6, **SETTINGS)
    keys = {"rerank": "quality", "reranker.weight": weight, "batch_size": batch_size}
    changed = 0
    for before, after in zip(plain, translator.translate(TEXTS, nbest=6, **SETTINGS, **keys), strict=True):
        wanted = []
        for item in before.hypotheses:
            ratio = (1 + len(item.text.split())) / (1 + len(before.source.split()))
            wanted.append(-abs(math.log(ratio)) + weight * item.score)
        order = sorted(range(6), key=lambda index: -round(wanted[index], 9))
        assert [item.text for item in after.hypotheses] == [before.hypotheses[index].text for index in order]
        assert [item.rerank_score for item in after.hypotheses] == pytest.approx([wanted[index] for index in order])
        changed += order[0] > 0
    assert changed


def test_own_function_in_python_and_by_name() -> None:
    def shared(source: str, texts: Sequence[str]) -> list[float]:
        return [len({*source.split()} & {*text.split()}) for text in texts]

    translator = Translator(text_model())
    batch_quality("shared_words")(shared)
    try:
        named = translator.translate(TEXTS, rerank="quality", **SETTINGS, **{"reranker.function": "shared_words"})
    finally:
        del FUNCTIONS["shared_words"]
    given = translator.translate(TEXTS, rerank=QualityEstimation(shared), **SETTINGS)
    plain = translator.translate(TEXTS, nbest=6, **SETTINGS)
    for one, two, before in zip(named, given, plain, strict=True):
        best = max(shared(before.source, [item.text for item in before.hypotheses]))
        assert one.hypotheses[0].text == two.hypotheses[0].text
        assert one.hypotheses[0].rerank_score == two.hypotheses[0].rerank_score == best
