"""Phrases that a line demands of its output, as text: alternatives, bars, and what cannot be had."""

import pytest

from seqgen.text.input_line import split_alternatives
from seqgen.text.translator import Translator
from tests.hypotheses import assert_same
from tests.text_models import text_model


@pytest.mark.parametrize(
    ("phrase", "texts"),
    [
        ("w1 w2", ["w1 w2"]),
        (" w1 | w2 w3|w4", ["w1", "w2 w3", "w4"]),
        (r"w1\|w2", ["w1|w2"]),
        (r"a\b|\|", [r"a\b", "|"]),
        ("|w1||", ["w1"]),
        (" ", []),
        ("|", []),
    ],
)
def test_a_bar_separates_alternatives(phrase: str, texts: list[str]) -> None:
    assert split_alternatives(phrase) == texts


@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
def test_outputs_have_one_of_several_phrases(semantics: str) -> None:
    lines = ["w1 w2\tw3 w4|w5 w6|w7 w8\tw9", "w3", "w2 w2\tw1|nothere", "w5\tnothere|neither\tw4"]
    translator = Translator(text_model("transformer_tiny"), beam=6, nbest=2, max_len_b=12, semantics=semantics)
    first, second, third, fourth = translator.translate(lines, constraints="unordered")
    for hypothesis in first.hypotheses:
        text = f" {hypothesis.text} "
        assert any(f" {phrase} " in text for phrase in ("w3 w4", "w5 w6", "w7 w8"))
        assert " w9 " in text
    assert first.constraints == ["w3 w4|w5 w6|w7 w8", "w9"]
    assert len(second.hypotheses) == 2
    assert "w1" in third.text.split()
    assert third.notes[:1] == ["the phrase 'nothere' is left out: not in the vocabulary: nothere"]
    assert "w4" in fourth.text.split()
    assert fourth.constraints == ["w4"]
    assert sum("is left out" in note for note in fourth.notes) == 2


@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
def test_phrases_that_do_not_fit_are_reported_with_their_line(semantics: str) -> None:
    lines = ["w1 w2\tw3", "w1 w2\tw3 w4 w5 w6", "w1"]
    translator = Translator(text_model("transformer_tiny"), beam=3, max_len_b=3, max_len=3, semantics=semantics)
    found = translator.translate(lines, constraints="ordered")
    assert [translation.id for translation in found if not translation.hypotheses] == [1]
    assert found[1].notes == ["no output within the maximum length has all phrases, so the output is empty"]
    assert "w3" in found[0].text.split()


@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
@pytest.mark.parametrize("search", ["sampling", "beam_sampling"])
def test_a_line_without_phrases_has_the_samples_that_it_has_without_constraints(search: str, semantics: str) -> None:
    """Also where samples begin with the same token, which low temperatures make likely."""
    options = {"search": search, "temperature": 0.1, "beam": 4, "nbest": 4, "max_len_b": 8, "repetition_penalty": 1.2}
    translator = Translator(text_model("transformer_tiny"), seed=1, semantics=semantics, **options)
    plain = translator.translate(["w1 w2", "w3"])
    found = translator.translate(["w1 w2", "w3", "w5\tw4"], constraints="unordered")
    for wanted, got in zip(plain, found, strict=False):
        assert_same([got.hypotheses], [wanted.hypotheses])
        assert got.notes == wanted.notes
        assert len(got.hypotheses) == 4
    assert all("w4" in one.text.split() for one in found[2].hypotheses)
    count = len(found[2].hypotheses)
    assert (f"only {count} of 4 hypotheses have all phrases" in found[2].notes) == (count < 4)
