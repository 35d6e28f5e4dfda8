"""Lines that are split into sentences, decoded, and joined as they were."""

import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import sentencex
import torch
from hypothesis import example, given, settings, strategies as st

from seqgen import TextStreamer, Translator
from seqgen.addons.paragraphs.stage import LANGUAGES, WINDOW, ParagraphStage, SplitText, split_text
from seqgen.extend import Details, GenerationConfig, TextHypothesis, Translation, WhitespaceTokenizer
from seqgen.text.input_line import InputEncoder, InputLine
from tests.language_models import language_model
from tests.refusals import Row, refusals
from tests.text_models import task_of, text_model

SPLIT: dict[str, Any] = {"input_split": "sentences", "input_split_lang": "en"}
SAMPLES = {"de": "Das ist z. B. gut. Ja!", "en": "Mr. Smith is here. Good!", "zh": "你好。我很好。"}
"""Two sentences in each language."""

HOSTILE = st.lists(
    st.one_of(
        st.sampled_from([
            *(". ", "! ", "? ", ".", "...", "。", "！", "? \t", "\n", "\r\n", "\n\n", "\u00a0", "\u2028", "\x85"),
            *("\u200b", "\ufeff", "3. ", "U.S. ", "Word ", "   "),
            *("Mr. ", "z. B. ", "(a. B. c) ", '"Yes. No." ', "😀", "👩‍👩‍👧", "e\u0301", "你好"),
        ]),
        st.text(max_size=8),
    ),
    max_size=30,
).map("".join)  # fmt: skip


@given(HOSTILE, st.sampled_from(sorted(LANGUAGES)))
@settings(max_examples=100, deadline=None)
@example("", "en")
@example("   \t ", "en")
@example("A.\r\nB. \n\n\n C", "en")
@example("\n" * 1000, "en")
def test_sentences_joined_with_their_white_space_are_the_text(text: str, language: str) -> None:
    split = split_text(text, language)
    assert split.joined(split.sentences) == text
    assert all(sentence == sentence.strip() != "" for sentence in split.sentences)
    assert all(not space.strip() for space in split.spaces)
    assert not any("\n" in sentence for sentence in split.sentences)


@pytest.mark.parametrize(
    "unit", ["a", " ", "\n", ".", "Mr. ", "Hi. ", "😀. ", '"', "(", "\u00a0.", "A b. \r\n", "。"], ids=ascii
)
def test_a_hundred_thousand_characters(unit: str) -> None:
    text = (unit * 100_000)[:100_000]
    split = split_text(text, "en")
    assert split.joined(split.sentences) == text


class PanicException(BaseException):
    """Like that of a library in Rust."""


@pytest.mark.parametrize("result", [PanicException("index 2"), lambda language, text: text.split()])
def test_a_text_for_which_the_package_fails_or_drops_text_is_not_split(
    result: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentencex.segment", mock.Mock(side_effect=result))
    why = "the rules for the language 'en' failed, so a part of the text is not split"
    assert split_text(" A b.  C d.\nE ", "en") == SplitText(["A b.  C d.", "E"], [" ", "\n", " "], (why,))
    for text in ("A b. C d.", "A b. C d.\nE f."):
        (found,) = echoed([text])
        assert (found.text, found.notes[0]) == (text.replace("\n", " "), why)


@pytest.mark.parametrize("space", ["\u00a0", "\u3000", "\u2028", "\u2003\u202f"], ids=ascii)
def test_white_space_before_a_full_stop(space: str, capfd: pytest.CaptureFixture[str]) -> None:
    """At which sentencex panics, after a capital letter or white space."""
    for text, number in ((f"D{space}. Bx.", 1), (f"w1 {space}. Bx.", 2), (f"W2 w3. D{space}. Bx", 2)):
        split = split_text(text, "en")
        assert split.joined(split.sentences) == text
        assert (len(split.sentences), split.notes) == (number, ())
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("language", SAMPLES)
def test_long_lines_have_the_sentences_of_short_ones(language: str) -> None:
    text = (SAMPLES[language] + " ") * (3 * WINDOW // len(SAMPLES[language]))
    split, once = split_text(text, language), split_text(SAMPLES[language] + " ", language)
    assert len(once.sentences) == 2
    assert split.sentences == once.sentences * (len(split.sentences) // 2)
    assert split.joined(split.sentences) == text
    assert not split.notes


PARTS = {"word ": WINDOW - WINDOW % 5 - 1, "w": WINDOW, " " + "w" * (WINDOW - 1): WINDOW - 1}
"""The length of the parts of a long text of each unit."""


@pytest.mark.parametrize("unit", PARTS, ids=["words", "a word", "long words"])
def test_a_sentence_of_more_than_a_window_is_decoded_in_parts(unit: str) -> None:
    text = (unit * 3 * WINDOW)[: 5 * WINDOW // 2]
    split = split_text(text, "en")
    assert split.joined(split.sentences) == text
    assert [len(sentence) for sentence in split.sentences[:-1]] == [PARTS[unit]] * 2
    assert split.notes == (f"a sentence of more than {WINDOW} characters is decoded in parts",)


def test_time_is_in_proportion_to_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Since the package takes quadratic time, it gets a part of the line at a time."""
    segment = mock.Mock(side_effect=sentencex.segment)
    monkeypatch.setattr("sentencex.segment", segment)
    split_text("«A. " * (3 * WINDOW), "en")
    assert max(len(call.args[1]) for call in segment.mock_calls) <= WINDOW
    assert segment.call_count <= 14


def test_sentences_without_white_space_get_a_space_in_another_script() -> None:
    split = split_text("你好。我很好。", "zh")
    assert split.joined(["Hello.", "I am fine."]) == "Hello. I am fine."
    assert split.joined(["こんにちは。", "元気です。"]) == "こんにちは。元気です。"
    assert split.joined(["", "I am fine."]) == "I am fine."


def echoed(texts: list[str], start: int = 0) -> Iterator[Translation]:
    """The translations of a decode that gives each sentence back."""
    stage = reader()
    encoder = InputEncoder([text_model()], stage.cfg, lambda lengths: lengths + 9)
    for number, text in enumerate(texts, start):
        parts, join = stage.split(encoder.read(number, text))
        yield join([echo(encoder.encode(part)) for part in parts])


def echo(line: InputLine) -> Translation:
    item = TextHypothesis(torch.tensor([4, 2]), -0.5, torch.tensor([-0.4, -0.6]), text=line.text)
    return line.translation([item] if line.sources else [])


def reader(**values: Any) -> ParagraphStage:
    return ParagraphStage(GenerationConfig(**{**SPLIT, **values}), [text_model()])


@given(st.lists(HOSTILE, max_size=4))
@settings(max_examples=100, deadline=None)
def test_there_is_one_output_for_each_line(texts: list[str]) -> None:
    found = list(echoed(texts, start=7))
    assert [translation.id for translation in found] == list(range(7, 7 + len(texts)))
    for text, translation in zip(texts, found, strict=True):
        assert translation.source == text
        assert [item.text for item in translation.hypotheses] == ([text] if text.strip() else [])
        assert bool(translation.notes) >= (not text.strip())


TEXT = "w1 w5 w8.  w2 w3!\tw4 w4 w6."


@pytest.fixture(scope="module")
def translator() -> Translator:
    return Translator(text_model(), beam=3, max_len_b=6)


def test_sentences_are_decoded_like_separate_lines(translator: Translator) -> None:
    texts = ["W1 w5 w8.  W2 w3! \tW4 w4 w6.", "", "  W3 w3. W7 w9? ", "W2"]
    sentences = [["W1 w5 w8.", "W2 w3!", "W4 w4 w6."], [], ["W3 w3.", "W7 w9?"], ["W2"]]
    found = translator.translate(texts, **SPLIT)
    alone = [[line.text for line in translator.translate(each)] for each in sentences]
    (one, two, three), _, (four, five), (six,) = alone
    wanted = [f"{one}  {two} \t{three}", "", f"  {four} {five} ", six]
    assert [(line.id, line.source, line.text) for line in found] == list(zip(range(4), texts, wanted, strict=True))
    assert [len(line.sentences) for line in found] == [3, 0, 2, 0], "one sentence is like a line that is not split"
    first, parts = found[0], found[0].sentences
    assert [part.source for part in parts] == sentences[0]
    assert torch.equal(first.hypotheses[0].tokens, torch.cat([part.hypotheses[0].tokens for part in parts]))
    top = translator.translate(texts, **SPLIT, top_tokens=2)[0]
    for name in ("top_tokens", "top_scores"):
        parts_of_top = [getattr(part.hypotheses[0], name) for part in top.sentences]
        assert torch.equal(getattr(top.hypotheses[0], name), torch.cat(parts_of_top))
    sums = sum(float(part.hypotheses[0].positional_scores.sum()) for part in parts)
    assert first.score == pytest.approx(sums / len(first.hypotheses[0].tokens))
    assert found[1].notes == ["the line is empty, and so is its output"]
    assert first.notes[0].startswith("sentence 1: the model reads an unknown token in place of text")
    whole = translator.translate(texts[:1], **SPLIT, normalize_scores=False)[0]
    assert whole.score == pytest.approx(float(whole.hypotheses[0].positional_scores.sum()))


def test_the_prefix_is_that_of_the_first_sentence(translator: Translator) -> None:
    (found,) = translator.translate(["W1 w5. W2 w3."], prefixes=["w4 w7"], **SPLIT)
    assert (found.text[:5], found.prefix, found.sentences[1].prefix or "") == ("w4 w7", "w4 w7", "")


def test_samples_do_not_depend_on_the_other_lines(translator: Translator) -> None:
    texts = ["W1 w5. W2 w3.", "W3 w4 w5. W6. W7 w8.", "W1 w5. W2 w3."]
    sampling = {**SPLIT, "sampling": True, "beam": 1, "max_len_b": 12}
    together = [line.text for line in translator.translate(texts, **sampling)]
    on_line = mock.Mock()
    later = translator.prepare(**sampling).translate(texts[1:], on_line=on_line, numbers=[1, 2])
    assert [line.text for line in later] == together[1:]
    assert on_line.call_count == 2, "progress counts lines"
    assert together[0] != together[2], "another line has other random numbers"
    first, second = translator.translate(["W6. W1 w5 w8 w2.", "W1 w5 w8 w2. W6."], **sampling)
    assert first.sentences[1].text != second.sentences[0].text, "so has another sentence"


def test_finished_lines_are_yielded_if_memory_runs_out(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(lines: list[InputLine], on_line: object) -> Iterator[Translation]:
        yield from [echo(decoding.input_encoder.encode(line)) for line in lines][:4]
        raise MemoryError

    decoding = translator.prepare(**SPLIT)
    monkeypatch.setattr(decoding, "_translate_buffer", decode)
    lines = decoding.translate(["One is. Two is. Three is."] * 3)
    assert next(lines).text == "One is. Two is. Three is."
    with pytest.raises(MemoryError):
        next(lines)


def test_the_key_goes_before_the_line_and_the_line_before_the_task() -> None:
    task = task_of(WhitespaceTokenizer(text_model().task.source_dictionary))
    task.cfg = type("Config", (), {"source_lang": "de"})()
    (found,) = Translator(text_model(task=task)).translate(["W1 z. B. w2. W3 w4."], input_split="sentences")
    assert [part.source for part in found.sentences] == ["W1 z. B. w2.", "W3 w4."]
    stage = ParagraphStage(GenerationConfig(input_split="sentences"), [text_model(task=task)])
    codes = ("", "fra_Latn", "en_XX", "PT-br", "zho_Hans")
    assert list(map(stage.language, codes)) == ["de", "fr", "en", "pt", "zh"]
    assert reader(input_split_lang="deu_Latn").language("fr") == "de"


# --- what a user is told of lines that cannot be split into sentences.


def split(values: dict[str, Any], *words: str) -> Row:
    return lambda: Translator(text_model()).translate([TEXT], **{**SPLIT, **values}), *words


def without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencex", None)
    Translator(text_model()).translate([TEXT], **SPLIT)


GENERATE = "generate path={runs}/fconv input=- generation.input_split=sentences "

test_keys = refusals(
    split({"input_split": ""}, "has no effect without generation.input_split; set both or neither"),
    split({"input_split_lang": ""}, "needs the language of the source; set generation.input_split_lang, one of am, "),
    split({"input_split_lang": "tlh"}, "has no rules for the language 'tlh'; set generation.input_split_lang, one of"),
    split({"nbest": 2}, "gives one output of the whole line"),
    split({"constraints": "ordered"}, "generation.constraints"),
    split({"certificate": True}, "generation.certificate"),
    (without_the_package, "generation.input_split=sentences needs a package: pip install sentencex"),
    (lambda: Translator(text_model()).prepare(Details(), TextStreamer(), **SPLIT), "cannot be streamed"),
    (lambda: Translator(language_model()).translate([TEXT], **SPLIT), "continues the line"),
    (GENERATE + "format=fairseq", "format=fairseq cannot be used with generation.input_split=sentences"),
    (GENERATE + "stream=true", "stream cannot be used with generation.input_split=sentences"),
    (GENERATE + "generation.beam=5 generation.nbest=2", "generation.input_split=sentences gives one output"),
)
