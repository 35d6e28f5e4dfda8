"""Streaming: what is shown, joined, is the final text, whatever the tokenizer, the batch and the order."""

import functools
import io
from collections import defaultdict
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from seqgen import TextStreamer, Translator
from seqgen.data.tokenizers.base import Tokenizer, WhitespaceTokenizer
from seqgen.data.tokenizers.pretrained import byte_files, make_tokenizer, t5_files
from seqgen.data.tokenizers.sentencepiece_tokenizer import T5_IDS, SentencePieceTokenizer, train_sentencepiece
from tests.commands import sentences
from tests.scripted_model import dictionary
from tests.text_models import TEXTS, text_model


@functools.cache
def tokenizer_of(kind: str) -> Tokenizer:
    if kind == "words":
        return WhitespaceTokenizer(dictionary(5))
    if kind == "bytes":
        return make_tokenizer(byte_files(4))
    text = [text for pair in sentences(0, 60) for text in pair] + ["isn't , it ?"] * 9
    model = train_sentencepiece(text, vocab_size=45, special_ids=T5_IDS)
    return SentencePieceTokenizer(model) if kind == "sentencepiece" else make_tokenizer(t5_files(model, extra_ids=4))


class Recorder(TextStreamer):
    """Notes every piece besides writing it."""

    def __init__(self) -> None:
        self.text = io.StringIO()
        super().__init__(self.text)
        self.pieces: list[tuple[int, str, bool]] = []

    def on_text(self, sentence: int, text: str, last: bool) -> None:
        self.pieces.append((sentence, text, last))
        super().on_text(sentence, text, last)

    @property
    def written(self) -> str:
        return self.text.getvalue()


@settings(max_examples=60, deadline=None)
@given(st.data())
@pytest.mark.parametrize("kind", ["words", "sentencepiece", "t5", "bytes"])
def test_pieces_joined_are_the_text(kind: str, data: st.DataObject) -> None:
    tokenizer = tokenizer_of(kind)
    ids = st.lists(st.integers(0, len(tokenizer.dictionary) - 1), max_size=20)
    lines: list[list[int]] = data.draw(st.lists(ids, min_size=1, max_size=4))
    streamer = Recorder()
    streamer.bind(tokenizer.decode)
    left = {number: list(tokens) for number, tokens in enumerate(lines)}
    while left:
        number = data.draw(st.sampled_from(sorted(left)))
        if left[number]:
            count = data.draw(st.integers(1, 3))
            streamer.put(number, left[number][:count])
            left[number] = left[number][count:]
        else:
            streamer.end(number)
            del left[number]
    texts = [tokenizer.decode(tokens) for tokens in lines]
    assert streamer.written == "".join(text.replace("\n", " ") + "\n" for text in texts)
    for number, text in enumerate(texts):
        own = [piece for piece in streamer.pieces if piece[0] == number]
        assert "".join(piece[1] for piece in own) == text
        assert [piece[2] for piece in own] == [False] * (len(own) - 1) + [True]


def test_a_line_is_written_word_by_word_and_later_ones_wait() -> None:
    streamer = Recorder()
    words = WhitespaceTokenizer(dictionary(5))
    streamer.bind(words.decode)
    seen = []
    for number, tokens in ((0, [4]), (1, [5, 6]), (0, [7]), (0, [8]), (1, [4])):
        streamer.put(number, tokens)
        seen.append(streamer.written)
    assert seen == ["", "", "w0", "w0 w3", "w0 w3"]
    streamer.end(1)
    assert streamer.written == "w0 w3"
    streamer.end(0)
    assert streamer.written == "w0 w3 w4\nw1 w2 w0\n"
    streamer.put(7, [4])
    streamer.end(7)
    assert streamer.written.endswith("w1 w2 w0\n"), "lines 2 to 6 may come"
    streamer.close()
    assert streamer.written.endswith("w1 w2 w0\nw0\n")


CASES = [
    {"batch_size": 2},
    {"batch_size": 64, "semantics": "huggingface"},
    {"batch_size": 1, "sampling": True},
    {"batch_size": 2, "sampling": True, "semantics": "huggingface"},
    {"batch_size": 64, "search": "contrastive"},
    {"batch_size": 64, "prompt_lookup": 2},
    {"batch_size": 2, "prefixes": ["w9 w8", "", "", "w3", "", "w1 w1"]},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_stream_is_what_is_translated(case: dict[str, Any]) -> None:
    texts, prefixes = [TEXTS[0], "", *TEXTS[1:]], case.get("prefixes")
    settings_ = {key: value for key, value in case.items() if key != "prefixes"}
    translator = Translator(text_model("fconv_tiny", 3), max_len_b=9, **settings_)
    streamer = Recorder()
    found = translator.translate(texts, prefixes=prefixes, streamer=streamer)
    assert streamer.written == "".join(translation.text + "\n" for translation in found)
    for translation in found:
        assert "".join(text for line, text, _ in streamer.pieces if line == translation.id) == translation.text
    assert sum(last for _, _, last in streamer.pieces) == len(texts)
    plain = translator.translate(texts, prefixes=prefixes, beam=1)
    assert [translation.text for translation in found] == [translation.text for translation in plain]
    if case["batch_size"] == 2:
        assert len([last for _, _, last in streamer.pieces if not last]) > len(texts), "words must come one by one"


def test_a_users_own_streamer_gets_tokens() -> None:
    tokens: dict[int, list[int]] = defaultdict(list)
    ended: list[int] = []
    streamer: Any = SimpleNamespace(put=lambda sentence, new: tokens[sentence].extend(new), end=ended.append)
    # in a batch of so many, a sentence that is done stays until some others are
    texts = [f"w{number} w{3 * number % 19} w{number // 2}" for number in range(19)]
    found = Translator(text_model(), max_len_b=6).translate(texts, streamer=streamer)
    assert tokens == {t.id: t.hypotheses[0].tokens.tolist() for t in found}
    assert sorted(ended) == list(range(len(texts)))


def test_words_that_wait_for_an_earlier_line_are_written_before_an_error() -> None:
    class Failing(Recorder):
        def put(self, sentence: int, tokens: Sequence[int]) -> None:
            if any(text for number, text, _ in self.pieces if number == 1):
                raise KeyboardInterrupt
            super().put(sentence, tokens)

    streamer = Failing()
    with pytest.raises(KeyboardInterrupt):
        Translator(text_model("fconv_tiny", 3), max_len_b=9, min_len=9).translate(TEXTS, streamer=streamer)
    assert sorted(streamer.written.split()) == sorted(" ".join(text for _, text, _ in streamer.pieces).split())
