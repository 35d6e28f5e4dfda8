"""The metrics of texts, compared with the tools they come from; and the text of tokenized outputs."""

from pathlib import Path

import pytest

from seqgen.cli.line_decoding import make_text_cleaner
from seqgen.cli.output import format_scores
from seqgen.metrics import CORPUS_METRICS, Texts, corpus_scores, text_scores
from tests.commands import command

HYPOTHESES = ["the cat sat on a mat", "a dog", "Hello there , world"]
REFERENCES = ["the cat sat on the mat", "a big dog", "Hello there, world"]
TEXTS = Texts(HYPOTHESES, REFERENCES)


def test_metrics_by_hand() -> None:
    """TER: one substitution in 6 words, one insertion in 3, and ``,`` is a token of its own in one text: 2 edits of 3.

    ROUGE: 5 of 6 words of each text; 2 of 2 and 3; the third has equal words. Words differ more than characters.
    """
    scores = corpus_scores(["ter", "chrf", "chrf++", "rouge1", "rouge2", "rougeL"], TEXTS)
    assert scores["ter"].value == pytest.approx(100 * (1 + 1 + 2) / (6 + 3 + 3))
    assert ("tok:tercom" in scores["ter"].signature, CORPUS_METRICS["ter"].lower_is_better) == (True, True)
    assert "nw:2" in scores["chrf++"].signature
    assert scores["chrf++"].value < scores["chrf"].value
    assert scores["rouge1"].value == scores["rougeL"].value == pytest.approx(100 * (5 / 6 + 0.8 + 1) / 3)
    assert scores["rouge2"].value == pytest.approx(100 * (3 / 5 + 0 + 1) / 3)


def test_the_command(tmp_path: Path) -> None:
    for name, lines in (("h", HYPOTHESES), ("r", REFERENCES)):
        (tmp_path / name).write_text("\n".join(lines))
    files = (f"hypothesis={tmp_path}/h", f"reference={tmp_path}/r")
    ter, chrf = command("score", *files, "metrics=[ter,chrf++]").out.splitlines()
    assert ter.startswith("ter = 33.33  (")
    assert chrf.startswith("chrf++ = ")
    assert command("score", *files).out.count("\n") == 3


def test_a_bleu_that_must_be_zero_is_not_shown() -> None:
    short, longer = ["zwei", "drei Hunde"], ["eins zwei drei vier", "a"]
    lines = format_scores(text_scores(short, short), short)
    assert lines[0].startswith("bleu is not defined, because no output has four words")
    assert lines[2] == "exact_match = 100.00"
    assert format_scores(text_scores(longer, ["x", "y"]), longer)[0].startswith("bleu = 0.00")
    assert format_scores(text_scores(longer, longer), longer)[0].startswith("bleu = ")


@pytest.mark.parametrize(
    ("remove_bpe", "detokenize", "output", "text"),
    [
        ("", "", "a b@@ c", "a b@@ c"),
        ("subword_nmt", "", "lo@@ w@@ er pri@@ ces , a@b@@", "lower prices , a@b"),
        ("sentencepiece", "", "▁lo w er ▁pri ces", "lower prices"),
        ("subword_nmt", "en", "lo@@ wer , hi@@ gher", "lower, higher"),
        ("subword_nmt", "en", "", ""),
    ],
)
def test_text_of_tokenized_outputs(remove_bpe: str, detokenize: str, output: str, text: str) -> None:
    assert make_text_cleaner(remove_bpe, detokenize)(output) == text


@pytest.mark.parametrize(
    ("language", "text"),
    [("en", 'It isn\'t "here" (yet), he said: 3.5% & more.'), ("de", 'Er sagte: "Nicht hier" (noch), 3,5 & mehr.')],
)
def test_detokenization_undoes_moses_tokenization(language: str, text: str) -> None:
    from sacremoses import MosesTokenizer

    tokens = MosesTokenizer(lang=language).tokenize(text, return_str=True)
    assert tokens != text
    assert make_text_cleaner("", language)(tokens) == text
