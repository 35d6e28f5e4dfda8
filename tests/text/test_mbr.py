"""Minimum Bayes risk against the plain double loop and numbers worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings, strategies as st
from sacrebleu.metrics import BLEU, CHRF

from seqgen.text.reranking import Bleu, Chrf, Utility, by_expected_utility, expected_utilities
from seqgen.text.results import Translation
from seqgen.text.translator import Translator
from tests.text_models import TEXTS, text_model

SAMPLES = ["the dog runs", "the dog ran", "a cat", "the dog runs", "", "der Hund läuft", "the dogs run"]


UTILITIES: dict[str, Utility] = {"chrf": Chrf(), "bleu": Bleu()}
METRICS = {"chrf": CHRF(), "bleu": BLEU(effective_order=True)}
WORDS = st.text(alphabet="ab ü.,-\u00a0'", max_size=12)


@pytest.mark.parametrize("utility", UTILITIES)
@settings(max_examples=80, deadline=None)
@example(candidates=SAMPLES)
@given(candidates=st.lists(WORDS, min_size=1, max_size=6))
def test_is_the_plain_double_loop(utility: str, candidates: list[str]) -> None:
    wanted = [
        sum(METRICS[utility].sentence_score(candidate, [other]).score for other in candidates) / len(candidates)
        for candidate in candidates
    ]
    assert expected_utilities(candidates, UTILITIES[utility]) == pytest.approx(wanted, abs=1e-9)


def test_ties_keep_the_order_of_the_search() -> None:
    assert by_expected_utility([3.0, 5.0, 3.0, 5.0]) == [1, 3, 0, 2]
    assert expected_utilities(["only"], Chrf()) == pytest.approx([100])


@pytest.mark.parametrize("utility", UTILITIES)
def test_translations_come_by_expected_utility(utility: str) -> None:
    translator = Translator(text_model(sharpness=1.2), sampling=True, beam=6, max_len_b=8)
    plain = translator.translate(TEXTS, nbest=6)
    changed = 0
    for before, translation in zip(plain, translator.translate(TEXTS, nbest=3, mbr=utility), strict=True):
        texts = [h.text for h in before.hypotheses]
        means = dict(zip(texts, expected_utilities(texts, UTILITIES[utility]), strict=True))
        order = sorted(texts, key=lambda text: -means[text])
        assert [h.text for h in translation.hypotheses] == order[:3]
        assert [h.utility for h in translation.hypotheses] == pytest.approx([means[text] for text in order[:3]])
        changed += texts[0] != order[0]
    assert changed, "the choice must differ somewhere from that of the search"


def test_utilities_have_keys() -> None:
    """Character order 1 counts letters alone: ``ab`` and ``ba`` are then the same."""
    assert expected_utilities(["ab", "ba"], Chrf(char_order=1)) == pytest.approx([100, 100])
    assert Bleu(max_ngram_order=1)(["a b c", "c b a"]) == pytest.approx(100)
    translator = Translator(text_model(sharpness=1.2), sampling=True, beam=6, max_len_b=8, mbr="chrf")
    for key, value, utility in (("utility.char_order", 2, Chrf(char_order=2)), ("utility.beta", 0.5, Chrf(beta=0.5))):
        by_key = translator.translate(TEXTS, nbest=6, **{key: value})
        by_object = translator.translate(TEXTS, nbest=6, mbr=utility)
        default = translator.translate(TEXTS, nbest=6)
        assert _utilities(by_key) == _utilities(by_object) != _utilities(default)
    assert _utilities(translator.translate(TEXTS, mbr="chrf3")) == _utilities(
        translator.translate(TEXTS, mbr=Chrf(beta=3.0))
    )


def _utilities(translations: list[Translation]) -> list[list[float | None]]:
    return [[hypothesis.utility for hypothesis in translation.hypotheses] for translation in translations]
