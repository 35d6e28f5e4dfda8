"""The output formats: line n stays line n whatever a model writes and a reference has."""

import json
import math
from pathlib import Path

import pytest

from seqgen.extend import TextDecoding, Translation, load_pretrained_tokenizer
from seqgen.text.output_formats import FORMATS, json_text
from seqgen.text.translator import Translator
from tests.text_models import TEXTS, task_of, text_model

BREAKS = "a\nb\tc\rd\x0be\x0cf\x1cg\x85h\u2028i\u2029j k"
"""A text with all that a program may break lines or fields at."""


def written(name: str, decoding: TextDecoding, translations: list[Translation], references: list[str]) -> list[str]:
    """What a format writes, split where lines end; the last one ends, too."""
    *lines, last = "".join(map(FORMATS[name](decoding, references), translations)).split("\n")
    assert last == ""
    return lines


def test_line_n_stays_line_n(tmp_path: Path) -> None:
    """Of a model of bytes, whose outputs begin with such a text."""
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "ByT5Tokenizer"}))
    model = text_model(task=task_of(load_pretrained_tokenizer(tmp_path, 384)))
    decoding = Translator(model, beam=2, nbest=2, max_len_b=45).prepare()
    found = list(decoding.translate(["x y", "z"], [BREAKS, BREAKS]))
    best = found[0].hypotheses[0]
    assert best.text.startswith(BREAKS), "as it was written"
    assert found[0].text.startswith(BREAKS.replace("\n", " ")), "on one line, and nothing else changed"
    references = [BREAKS.replace("\n", ""), "z"]
    assert written("text", decoding, found, references) == [translation.text for translation in found]

    lines = written("json", decoding, found, references)
    assert lines == "\n".join(lines).splitlines(), "whatever a reader breaks lines at"
    (line,) = written("json", decoding, [found[0].with_extra("review", ["why"])], references)
    assert json.loads(line)["review"] == ["why"], "what a stage adds, also if it describes nothing in JSON"
    texts = [[hypothesis["text"] for hypothesis in json.loads(line)["hypotheses"]] for line in lines]
    assert texts == [[hypothesis.text for hypothesis in translation.hypotheses] for translation in found]

    fields = [line.split("\t") for line in written("fairseq", decoding, found, references)]
    assert [values[0] for values in fields] == [f"{kind}-{number}" for number in (0, 1) for kind in "STHDPHDP"]
    assert [len(values) for values in fields] == [2, 2, 3, 3, 2, 3, 3, 2] * 2
    assert (fields[0][1], fields[1][1]) == ("x <0x20> y", references[0].replace("\t", " "))
    pieces = fields[2][2].split(" ")
    assert pieces[:4] == ["a", "<0x0A>", "b", "<0x09>"]
    assert pieces == fields[2][2].split(), "white space is between pieces alone"
    assert len(pieces) == len([token for token in best.tokens.tolist() if token != 1])
    assert fields[3][2] == best.text.replace("\n", " ").replace("\t", " ")


def test_fairseq_has_bits_and_every_token_but_the_end() -> None:
    keys = {"semantics": "huggingface", "sampling": True, "seed": 3, "max_len": 8}
    decoding = Translator(text_model(seed=3, sharpness=1.0), beam=3, nbest=3, **keys).prepare()
    found = list(decoding.translate(TEXTS))
    fields = [line.split("\t") for line in written("fairseq", decoding, found, TEXTS)]
    hypotheses = [item for translation in found for item in translation.hypotheses]
    eos = decoding.task.target_dictionary.eos()
    assert {bool(item.tokens[-1] == eos) for item in hypotheses} == {True, False}, "some are cut off"
    rows = ([field for field in fields if field[0].startswith(kind)] for kind in "HDP")
    for whole, text, positions, item in zip(*rows, hypotheses, strict=True):
        assert [float(whole[1]), float(text[1])] == pytest.approx([item.score / math.log(2)] * 2)
        bits = [float(number) for number in positions[1].split()]
        assert bits == pytest.approx([value / math.log(2) for value in item.positional_scores.tolist()], abs=1e-4)
        assert len(whole[2].split(" ")) == int((item.tokens != eos).sum())


def test_json_has_the_most_probable_tokens() -> None:
    """With probabilities, and without tokens that are impossible."""
    decoding = Translator(text_model(seed=3, sharpness=1.0), beam=2, top_tokens=30, suppress=["w3"]).prepare()
    words = decoding.task.target_dictionary
    for translation in decoding.translate([*TEXTS, ""]):
        record = json.loads(FORMATS["json"](decoding, None)(translation))
        for item, found in zip(record["hypotheses"], translation.hypotheses, strict=True):
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
