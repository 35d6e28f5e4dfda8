"""Unknown words and alignments, with attention that is written down."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from seqgen.addons.rewriting.unknown_words import UnknownWords, read_translations, source_word
from seqgen.core.structures import DecoderOut, EncoderOut, Hypothesis
from seqgen.data.tokenizers.base import WhitespaceTokenizer
from seqgen.data.tokenizers.pretrained import byte_files, make_tokenizer
from seqgen.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer, train_sentencepiece
from seqgen.task import ModelInMemory, Task
from seqgen.text.input_line import InputLine
from seqgen.text.results import attend_to_source
from seqgen.text.translator import Translator
from seqgen.text.word_streaming import TextStreamer
from tests.addons.rewriting.test_rewriters import Function
from tests.commands import sentences
from tests.refusals import refusals
from tests.scripted_model import Rule, ScriptedDecoder, ScriptedModel, dictionary
from tests.text_models import WORDS, task_of, text_model

EOS, UNK = 2, 3


class Backwards(ScriptedDecoder):
    """Token ``t`` attends to the source's word ``t`` from the end, and half as much to end-of-sentence and padding."""

    def forward(self, previous: torch.Tensor, encoder_out: EncoderOut, *args: Any, **keys: Any) -> DecoderOut:
        out = super().forward(previous, encoder_out, *args, **keys)
        if out.attention is None:
            return out
        steps = torch.arange(previous.size(1))[-out.attention.size(1) :]
        words = (~encoder_out.encoder_padding_mask).sum(1) - 1
        attention = torch.full_like(out.attention, 0.1)
        for row, count in enumerate(words.tolist()):
            attention[row, :, count:] = 2.0  # more than any word has
            for column, step in enumerate(steps.tolist()):
                attention[row, column, max(0, count - 1 - step)] = 1.0
        return DecoderOut(out.logits, attention)


def copying(unknown: set[int]) -> Rule:
    """Generates the source in reverse order, with the unknown token for some words."""

    def rule(source: tuple[int, ...], history: tuple[int, ...]) -> torch.Tensor:
        words = source[-2::-1]
        token = words[len(history)] if len(history) < len(words) else EOS
        logits = torch.full((WORDS + 4,), -9.0, dtype=torch.float64)
        logits[UNK if token in unknown else token] = 9.0
        return logits

    return rule


def translator(unknown: set[int], **settings: object) -> Translator:
    model = ScriptedModel(copying(unknown))
    model.decoder = Backwards(copying(unknown), 50)
    model.register_parameter("weight", torch.nn.Parameter(torch.zeros(1)))
    return Translator(ModelInMemory(task_of(), model), beam=2, **settings)


def test_unknown_words_are_replaced_by_those_attended_to(tmp_path: Path) -> None:
    texts = ["w1 w5 w8", "w5", "w2 w3 w5 w4 w6"]
    plain = translator({9}).translate(texts)
    assert [t.text for t in plain] == ["w8 <unk> w1", "<unk>", "w6 w4 <unk> w3 w2"]
    copied = translator({9}, replace_unknown="source").translate(texts)
    assert [t.text for t in copied] == ["w8 w5 w1", "w5", "w6 w4 w5 w3 w2"]
    assert copied[0].hypotheses[0].tokens.tolist() == [12, UNK, 5, EOS], "the tokens stay"
    adding = Function(lambda line, found: ["w1 neu"])  # a text that is kept, without a note
    (added,) = translator({9}, replace_unknown="source").translate(["w5"], rewriters=[adding])
    assert (added.text, added.notes) == ("w5", [])
    words = tmp_path / "words.tsv"
    words.write_text("w5\tfünf\nw7\tsieben\nw5\tcinq\n", encoding="utf-8")
    found = translator({9}, replace_unknown=str(words)).translate(texts)
    assert [t.text for t in found] == ["w8 fünf w1", "fünf", "w6 w4 fünf w3 w2"]
    # a source word that is unknown itself is copied as it is written
    (found_,) = translator({UNK}, replace_unknown="source").translate(["w1 Straße w2"])
    assert found_.text == "w2 Straße w1"


def test_alignment_leaves_out_the_end_and_padding() -> None:
    first, second = translator(set()).translate(["w1 w5 w8", "w5"], return_attention=True)
    for found, alignment in ((first, [2, 1, 0, 0]), (second, [0, 0])):
        best = found.hypotheses[0]
        assert best.alignment.tolist() == alignment
        assert best.attention[:, -1].tolist() == [2.0] * len(alignment), "the weight itself is still there"
        assert best.attention.shape == (len(alignment), len(alignment))


def test_attention_beside_padding() -> None:
    attention = torch.tensor([[9.0, 9.0, 0.2, 0.1, 0.4]])
    plain = Hypothesis(torch.tensor([4]), 0.0, torch.zeros(1), attention)
    left = attend_to_source(replace(plain), width=5, length=3, left_pad=True)
    assert left.attention.tolist() == attention[:, 2:].tolist()
    assert left.alignment.tolist() == [0]
    other = attend_to_source(replace(plain, alignment=torch.tensor([1])), width=4, length=3, left_pad=False)
    assert (other.attention, other.alignment) == (None, None), "it is over another member's source"


def test_words_of_sentencepiece_are_replaced_whole() -> None:
    tokenizer = SentencePieceTokenizer(
        train_sentencepiece([text for pair in sentences(0, 60) for text in pair], vocab_size=40)
    )
    unk = tokenizer.dictionary.unk()
    source = "the dog sees Čapek, and a man"
    pieces = [tokenizer.dictionary.symbol(i) for i in tokenizer.encode(source)]
    assert "<unk>" in pieces

    unknown_at = pieces.index("<unk>")
    for position, word in ((0, "the"), (unknown_at, "Čapek,"), (len(pieces) - 1, "man")):
        assert source_word(source, position, lambda text: len(tokenizer.encode(text))) == word
    # the target's word for it has an unknown piece in the middle, and known words stand around it
    tokens = tokenizer.encode("der Hund sieht") + tokenizer.encode("a") + [unk] + tokenizer.encode("der Mann")
    alignment = torch.zeros(len(tokens) + 1, dtype=torch.int64)
    alignment[tokens.index(unk)] = unknown_at
    ids = torch.tensor([*tokens, tokenizer.dictionary.eos()])
    hypothesis = Hypothesis(ids, 0.0, torch.zeros(1), alignment=alignment)
    words = UnknownWords(Task(None, tokenizer, tokenizer), "source")
    assert words.text(hypothesis, InputLine(0, source)) == "der Hund sieht Čapek, der Mann"


def test_translations_keep_the_punctuation(tmp_path: Path) -> None:
    (tmp_path / "words.tsv").write_text("egg\tEi\nU.S.\tUSA\n")
    tokenizer = WhitespaceTokenizer(dictionary(3))
    words = UnknownWords(Task(None, tokenizer, tokenizer), str(tmp_path / "words.tsv"))
    given = ["egg", "(egg),", "U.S.", "eggs", "..."]
    assert list(map(words.translate, given)) == ["Ei", "(Ei),", "USA", "eggs", "..."]


def test_a_model_without_attention_says_so() -> None:
    class Silent(Backwards):
        def forward(self, *args: object, **kwargs: object) -> DecoderOut:
            return DecoderOut(super().forward(*args, **kwargs).logits)  # type: ignore[arg-type]

    made = translator({9}, replace_unknown="source")
    made.models[0].decoder = Silent(copying({9}), 50)
    (found,) = made.translate(["w1 w5"])
    assert found.text == "<unk> w1"
    assert "the model returns no attention weights" in found.notes[0]


def words(content: str, name: str = "bad.tsv") -> Callable[[Path], Any]:
    def call(tmp_path: Path) -> None:
        (tmp_path / "bad.tsv").write_text(content)
        read_translations(tmp_path / name)

    return call


BYTES = make_tokenizer(byte_files(4))
FIXED = Translator(replace(text_model(), generation={"replace_unknown": "source"}))
test_refusals = refusals(
    (lambda: UnknownWords(Task(None, BYTES, BYTES), "source"), "are not words"),
    (words("egg\tEi\nham Schinken\n"), "bad.tsv, line 2 is not SOURCE<tab>TARGET"),
    (words("", "nothere.tsv"), "there is no file", "nothere.tsv"),
    (lambda: FIXED.translate(["w1"], streamer=TextStreamer()), "generation.replace_unknown cannot be streamed"),
)
