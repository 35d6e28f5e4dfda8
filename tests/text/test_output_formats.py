"""The output formats: line n stays line n whatever a model writes and a reference has."""

from __future__ import annotations

import json
import math

import pytest

from seqgen.data.tokenizers.pretrained import load_pretrained_tokenizer
from seqgen.text.output_formats import FORMATS, json_text
from seqgen.text.results import Translation
from seqgen.text.text_decoding import TextDecoding
from seqgen.text.translator import Translator
from tests.text_models import TEXTS, task_of, text_model

BREAKS = "a\nb\tc\rd\x0be\x0cf\x1cg\x85h\u2028i\u2029j k"
"""A text with all that a program may break lines or fields at."""


@pytest.fixture(scope="module")
def decoded(tmp_path_factory: pytest.TempPathFactory) -> tuple[TextDecoding, list[Translation]]:
    """A model of bytes, whose outputs begin with such a text."""
    folder = tmp_path_factory.mktemp("bytes")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "ByT5Tokenizer"}))
    model = text_model(task=task_of(load_pretrained_tokenizer(folder, 384)))
    decoding = Translator(model, beam=2, nbest=2, max_len_b=45).prepare()
    return decoding, list(decoding.translate(["x y", "z"], [BREAKS, BREAKS]))


def written(decoded: tuple[TextDecoding, list[Translation]], name: str) -> list[str]:
    """What a format writes, split where lines end."""
    decoding, translations = decoded
    write = FORMATS[name](decoding, [BREAKS.replace("\n", ""), "z"])
    return "".join(map(write, translations)).split("\n")


def test_text_has_a_line_for_each_input(decoded: tuple[TextDecoding, list[Translation]]) -> None:
    translations = decoded[1]
    assert translations[0].hypotheses[0].text.startswith(BREAKS), "as it was written"
    assert translations[0].text.startswith(BREAKS.replace("\n", " ")), "on one line, and nothing else changed"
    assert written(decoded, "text") == [translation.text for translation in translations] + [""]


def test_json_has_a_line_for_each_input_whatever_a_reader_breaks_lines_at(
    decoded: tuple[TextDecoding, list[Translation]],
) -> None:
    *lines, last = written(decoded, "json")
    assert last == ""
    assert lines == "\n".join(lines).splitlines()
    for line, translation in zip(lines, decoded[1], strict=True):
        texts = [hypothesis["text"] for hypothesis in json.loads(line)["hypotheses"]]
        assert texts == [hypothesis.text for hypothesis in translation.hypotheses]
        assert texts[0].startswith(BREAKS)


def test_fairseq_breaks_no_line_and_no_field(decoded: tuple[TextDecoding, list[Translation]]) -> None:
    *lines, last = written(decoded, "fairseq")
    assert last == ""
    assert [line[:3] for line in lines] == [
        f"{kind}-{number}" for number in (0, 1) for kind in ["S", "T", *["H", "D", "P"] * 2]
    ]
    fields = [line.split("\t") for line in lines]
    assert [len(values) for values in fields] == [2, 2, 3, 3, 2, 3, 3, 2] * 2
    first = decoded[1][0]
    assert fields[0][1] == "x <0x20> y"
    assert fields[1][1] == BREAKS.replace("\n", "").replace("\t", " ")
    pieces = fields[2][2].split(" ")
    assert pieces[:4] == ["a", "<0x0A>", "b", "<0x09>"]
    assert pieces == fields[2][2].split(), "white space is between pieces alone"
    assert len(pieces) == len([token for token in first.hypotheses[0].tokens.tolist() if token != 1])
    assert fields[3][2] == first.hypotheses[0].text.replace("\n", " ").replace("\t", " ")


def test_fairseq_has_bits_and_every_token_but_the_end() -> None:
    keys = {"semantics": "huggingface", "sampling": True, "seed": 3, "max_len": 8}
    decoding = Translator(text_model(seed=3, sharpness=1.0), beam=3, nbest=3, **keys).prepare()
    decoded = decoding, list(decoding.translate(TEXTS))
    fields = [line.split("\t") for line in written(decoded, "fairseq")]
    hypotheses = [item for translation in decoded[1] for item in translation.hypotheses]
    words = decoding.task.target_dictionary
    assert {bool(item.tokens[-1] == words.eos()) for item in hypotheses} == {True, False}, "some are cut off"
    for kind, values in (("H", [item.score for item in hypotheses]), ("D", [item.score for item in hypotheses])):
        bits = [float(field[1]) for field in fields if field[0].startswith(kind)]
        assert bits == pytest.approx([value / math.log(2) for value in values])
    for field, item in zip((field for field in fields if field[0].startswith("P")), hypotheses, strict=True):
        bits = [float(number) for number in field[1].split()]
        assert bits == pytest.approx([value / math.log(2) for value in item.positional_scores.tolist()], abs=1e-4)
    for field, item in zip((field for field in fields if field[0].startswith("H")), hypotheses, strict=True):
        assert len(field[2].split(" ")) == int((item.tokens != words.eos()).sum())


def test_json_has_the_most_probable_tokens() -> None:
    """With probabilities, and without tokens that are impossible."""
    decoding = Translator(text_model(seed=3, sharpness=1.0), beam=2, top_tokens=30, suppress=["w3"]).prepare()
    words = decoding.task.target_dictionary
    for translation in decoding.translate([*TEXTS, ""]):
        record = json.loads(FORMATS["json"](decoding, None)(translation))
        for item, found in zip(record["hypotheses"], translation.hypotheses, strict=True):
            assert found.top_tokens is not None
            rows = zip(item["top_tokens"], found.top_tokens.tolist(), found.top_scores.tolist(), strict=True)
            for row, tokens, scores in rows:
                possible = [pair for pair in zip(tokens, scores, strict=True) if pair[1] > -math.inf]
                assert [(number, text) for number, text, _ in row] == [(id_, words.symbol(id_)) for id_, _ in possible]
                assert [p for _, _, p in row] == pytest.approx([math.exp(score) for _, score in possible], abs=1e-6)
                assert 15 < len(possible) < 23
                assert "w3" not in [text for _, text, _ in row]
    plain = Translator(text_model()).prepare()
    assert "top_tokens" not in FORMATS["json"](plain, None)(next(iter(plain.translate(TEXTS))))


def test_json_has_no_infinity() -> None:
    infinite = -float("inf")
    text = json_text({"score": infinite, "hypotheses": [{"positional_scores": [infinite, -1.5], "text": "\u00e9"}]})
    assert text == '{"score": null, "hypotheses": [{"positional_scores": [null, -1.5], "text": "\u00e9"}]}'
