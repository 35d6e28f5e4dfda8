"""Glossaries: which terms a source has, which of them a translation has, and what a damaged file says."""

import json
import re
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from seqgen.addons.glossary.terms import Glossary, Term, match_terms, words_of
from seqgen.text.translator import Translator
from tests.commands import done
from tests.text_models import text_model

FILE = """\ufeffSource\tTarget\tnote
# animals
dog|dogs\tHund|Hunde\tnot a cat

hot dog\tHotdog
hot dog stand\tWürstchenbude\r
US\tUSA
dog\tKöter
C++\tC++
犬\tHund
"""


@pytest.fixture
def terms(tmp_path: Path) -> Path:
    """A glossary with the terms w1, w2 and w5."""
    (tmp_path / "terms.tsv").write_text("w1\tw9\nw2\tw10\nw5\tw10\n")
    return tmp_path / "terms.tsv"


@pytest.fixture
def glossary(terms: Path) -> Glossary:
    terms.write_text(FILE, encoding="utf-8", newline="")
    return Glossary(terms)


def test_terms_are_whole_words_and_the_longest_counts(glossary: Glossary) -> None:
    """Alternatives come from bars and from several lines."""
    for text, sources in {
        "a dog, a Dog and dogs": ["dog", "dog", "dogs"],
        "a hot dog stand has hot dogs": ["hot dog stand", "dogs"],
        "a hot dog and a dog": ["hot dog", "dog"],
        **{"hotdog, doghouse, dog_": ["dog"], "between us and the US": ["US"], "C++ or C": ["C++"]},
        **{"小犬小": ["犬"], "": []},
    }.items():
        assert [term.source for term in glossary.find(text)] == sources
    found = {term.source: term.targets for term in glossary.find("dog dogs US")}
    assert found == {"dog": ("Hund", "Hunde", "Köter"), "dogs": ("Hund", "Hunde"), "US": ("USA",)}


def test_terms_that_are_met() -> None:
    dog, hot = Term("dog", ("Hund", "Hunde")), Term("hot dog", ("heißer Hund",))
    dogs = Term("dogs", ("Hunde",))
    for terms, text, met, more in (
        ([dog, dog, dog], "Hund, Hunde und Hundehütte.", [True, True, False], []),
        ([hot, dog], "ein heißer Hund", [True, False], []),
        ([dog, dogs], "Hunde und Hund", [True, True], []),
        ([dog, dogs], "Hunde", [True, False], []),
        ([dogs, dog], "Hund und Hund und Hunde", [True, True], ["Hund"]),
        ([dog], "hund", [False], []),  # a target term has the case of the glossary
        ([dog], "DER HUND", [True], []),  # all is in capitals, see generation.protect
        ([Term("dog", ("der hund",))], "Der Hund, der hund", [True], ["der hund"]),
        ([Term("us", ("uns",)), Term("US", ("USA",))], "uns, usa", [True, False], []),
    ):
        assert match_terms(terms, text) == (met, more), text


@given(st.lists(st.sampled_from(["w1", "w2", "w3", "x"]), max_size=12))
def test_spans_never_overlap(tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> None:
    path = tmp_path_factory.getbasetemp() / "spans.tsv"
    path.write_text("w1\ta\nw1 w2\tb\nw2 w3 w1\tc\n")
    found = [term.source for term in Glossary(path).find(" ".join(words))]
    text = f" {'  '.join(words)} "  # two spaces, so that terms can follow each other
    for term in (" w2  w3  w1 ", " w1  w2 ", " w1 "):  # the same by replacing the longest terms first
        assert found.count(" ".join(term.split())) == text.count(term)
        text = text.replace(term, " | ")


@pytest.mark.parametrize(
    "line",
    ["x" * 400_000, "a" + "\u0345" * 30_000 + "\u0301" * 30_000 + "\u0316" * 30_000, "a " * 2000, "a b " * 50_000],
)
def test_a_line_costs_in_proportion_to_its_length(line: str, terms: Path) -> None:
    terms.write_text("".join(f"{'a ' * length}\tb\n" for length in range(1, 401)))
    glossary = Glossary(terms)
    start = time.process_time()
    found = glossary.find(line)
    assert time.process_time() - start < 2
    assert [len(term.source.split()) for term in found[:1]] in ([], [1], [400])


@given(st.text(st.sampled_from("ae\u0301\u0316がか\u3099=\u0338각ᄀ -\n"), max_size=60))
def test_words_are_those_of_the_normalized_text(text: str) -> None:
    assert words_of(text * 4) == words_of(unicodedata.normalize("NFC", text * 4))


@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
def test_outputs_have_the_terms(semantics: str, terms: Path) -> None:
    terms.write_text("w1\tw9|w10\nw2 w3\tw11 w12\nw4\tnothere\n")
    translator = Translator(text_model(), beam=5, nbest=2, max_len_b=14, semantics=semantics)
    first, second, third = translator.translate(["w1 w2 w3 w1", "w5 w6", "w4"], glossary=str(terms))
    assert [term.source for term in first.terms] == ["w1", "w2 w3", "w1"]
    assert first.terms_met == [True, True, True]
    assert first.constraints == ["w9|w10", "w11 w12", "w9|w10"]
    for hypothesis in first.hypotheses:
        words = hypothesis.text.split()
        assert sum(word in ("w9", "w10") for word in words) >= 2
        assert "w11 w12" in hypothesis.text
    assert second.terms == []
    assert third.terms_met == [False]
    assert "the phrase 'nothere' is left out: not in the vocabulary: nothere" in third.notes
    terms.write_text("w5\tw13\n")  # a changed file is read again
    assert translator.translate(["w5"], glossary=str(terms))[0].terms_met == [True]


def test_notes_on_terms_that_do_not_fit(terms: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    translator = Translator(text_model(), beam=5, max_len_b=14, glossary=str(terms), constraints="unordered")
    (found,) = translator.translate(["w1 w1\tw9"])
    words, scores = found.text.split(), found.hypotheses[0].positional_scores.tolist()
    second = sorted(score for word, score in zip(words, scores, strict=False) if word == "w9")[-2]
    for shift in (-1e-4, 1e-4):
        monkeypatch.setattr("seqgen.addons.glossary.stage.UNLIKELY", second + shift)
        notes = translator.translate(["w1 w1\tw9"])[0].notes
        assert ("the term 'w9' is improbable where it stands" in notes) == (shift > 0)
        assert ("the term 'w9' occurs more often than its source term" in notes) == (words.count("w9") > 2)


def test_a_term_that_occurs_more_often_than_an_output_has_room_for(terms: Path) -> None:
    """The memory for phrases grows with the square of their number."""
    translator = Translator(text_model(), beam=2, max_len_b=4, max_len=4, glossary=str(terms))
    (found,) = translator.translate(["w1 " * 900])
    assert (len(found.terms), len(found.constraints), found.hypotheses) == (900, 5, [])
    assert "no output within the maximum length has all phrases, so the output is empty" in found.notes


def test_phrases_of_the_line_and_paragraphs(terms: Path) -> None:
    translator = Translator(text_model(), beam=5, max_len_b=14, glossary=str(terms))
    (found,) = translator.translate(["w2 w1\tw11"], constraints="ordered")
    assert found.constraints == ["w11", "w10", "w9"]
    assert re.search(r"\bw11\b.*\bw10\b.*\bw9\b", found.text), "the phrase, then the terms in the order of the source"
    split = {"input_split": "sentences", "input_split_lang": "en"}
    (found,) = translator.translate(["Mw w1 . Xw w5 ! Mw w1 ."], **split)
    assert len(found.sentences) == 3
    assert [term.source for term in found.terms] == ["w1", "w5", "w1"]
    assert found.terms_met == [True, True, True]


def test_json_and_summary_of_the_command(runs: Path, tmp_path: Path) -> None:
    terms, source, output = (tmp_path / name for name in ("terms.tsv", "source.en", "out.jsonl"))
    terms.write_text("source\ttarget\ndog\tBall|Boot\nthe tree\tHund\nMan\tFrau\n", encoding="utf-8")
    source.write_text("the dog sees a man\nthe tree has a ball and the man finds a boat\n\nthe man has a dog\n")
    keys = (f"path={runs}/fconv", f"input={source}", f"generation.glossary={terms}", "generation.max_len_b=12")
    outcome = done("generate", *keys, f"output={output}", "format=json")
    found = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    used = [(term, record["hypotheses"][0]["text"]) for record in found for term in record.get("terms", [])]
    assert [term["source"] for term, _ in used] == ["dog", "the tree", "dog"]
    met = [any(target in text.split() for target in term["targets"]) for term, text in used]
    assert [term["met"] for term, _ in used] == met
    assert any(met)
    assert f"terms: 3 found in the sources (first column), {sum(met)} met in the outputs" in outcome.err
