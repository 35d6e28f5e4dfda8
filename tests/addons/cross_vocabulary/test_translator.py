"""Translators of models with different target vocabularies."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import examples.lstm  # registers a model that cannot roll back
import examples.papers.joint_texts  # noqa: F401  # registers rules
from seqgen.addons.cross_vocabulary.vocabulary_trie import first_text, token_texts
from seqgen.checkpoints.loading import load_model
from seqgen.data.dictionary import Dictionary
from seqgen.data.tokenizers.base import Tokenizer, WhitespaceTokenizer
from seqgen.data.tokenizers.language_tokens import LANG_TOKEN_FORMAT, LanguageTokenizer
from seqgen.data.tokenizers.languages import Languages, TargetLanguage
from seqgen.data.tokenizers.pretrained import byte_files, load_pretrained_tokenizer, make_tokenizer, t5_files
from seqgen.data.tokenizers.sentencepiece_tokenizer import T5_IDS, SentencePieceTokenizer, train_sentencepiece
from seqgen.text.results import Translation
from seqgen.text.translator import Translator
from seqgen.text.word_streaming import TextStreamer
from tests.addons.cross_vocabulary import reference
from tests.addons.cross_vocabulary.reference import known, texts_of
from tests.addons.huggingface.test_llama import llama_folder
from tests.commands import done
from tests.pretrained_folders import write_folder
from tests.refusals import Row, refusals
from tests.scripted_model import dictionary
from tests.text_models import Pieces, next_scores, task_for, task_of, text_model
from tests.toolkit_models import write_models

TEXT = ["der Hund sieht einen Mann", "ein Mann hört Vögel über dem Fluß", "Vögel und Hunde", "ein Fluß im März"]
LINES = ["ein Hund", "der Mann sieht Vögel und einen Fluß und Hunde", "", "März"]


TOKENIZERS = ("whitespace", "pieces", "other pieces", "t5", "bytes")
PRETRAINED = [
    *("BartTokenizer", "MarianTokenizer", "M2M100Tokenizer", "PegasusTokenizer"),
    *("MBartTokenizer", "MBart50Tokenizer", "NllbTokenizer"),
]


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    words = Dictionary()
    for word in sorted({word for line in TEXT for word in line.split()}):
        words.add_symbol(word)
    pieces, other = (SentencePieceTokenizer(train_sentencepiece(TEXT, vocab_size=size)) for size in (35, 30))
    t5 = make_tokenizer(t5_files(train_sentencepiece(TEXT, vocab_size=33, special_ids=T5_IDS), extra_ids=2))
    made = (WhitespaceTokenizer(words), pieces, other, t5, make_tokenizer(byte_files()))
    return dict(zip(TOKENIZERS, made, strict=True))


@pytest.mark.parametrize("name", [*TOKENIZERS, *PRETRAINED])
def test_the_tokens_of_a_text_have_its_bytes(name: str, tokenizers: dict[str, Tokenizer], tmp_path: Path) -> None:
    tokenizer, lines = tokenizers.get(name), TEXT
    if tokenizer is None:
        tokenizer = load_pretrained_tokenizer(write_folder(tmp_path / "tokenizer", name)).target_side
        lines = ["a dog runs", "two people watch it", "ab cd and a dog"]
        lines = [line.replace("dog", "chien").replace("two", "deux") for line in lines] if "Marian" in name else lines
        lines += TEXT if name == "BartTokenizer" else []  # it has all bytes
    table, words = tokenizer.token_bytes(), tokenizer.dictionary
    assert len(table) == len(words)
    before = first_text(tokenizer, token_texts(tokenizer))
    assert before == (" " if name in ("bytes", "BartTokenizer") else "")
    for line in lines:
        joined = b"".join(table[token] or b"?" for token in tokenizer.encode(line))
        assert before.encode() + joined == b" " + line.encode()
    languages = tokenizer.languages.ids.values() if tokenizer.languages else ()
    assert {table[i] for i in (words.pad(), words.eos(), words.unk(), *languages)} == {None}


def test_the_tokens_of_languages_have_no_bytes(tokenizers: dict[str, Tokenizer]) -> None:
    """Also where they are among the words, as in a checkpoint of fairseq."""
    words = Dictionary(["<s>", "<pad>", "</s>", "<unk>", "Hund", "__de__"])
    for text in (WhitespaceTokenizer(words), tokenizers["pieces"]):
        convention = Languages({}, TargetLanguage.FIRST, token_format=LANG_TOKEN_FORMAT)
        tokenizer = LanguageTokenizer(text, ["de", "en"], convention)
        assert tokenizer.languages is not None
        table = tokenizer.token_bytes()
        assert len(table) == len(tokenizer.dictionary)
        assert [table[index] for index in tokenizer.languages.ids.values()] == [None, None]
        assert tokenizer.decode([*tokenizer.languages.ids.values(), *tokenizer.encode("Hund")]) == "Hund"


@pytest.fixture(scope="module")
def toolkits(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Models in the formats of Marian, fairseq and Hugging Face, with three vocabularies."""
    return write_models(tmp_path_factory.mktemp("toolkits"), TEXT)


@pytest.fixture
def words_of_fairseq(toolkits: list[Path]) -> Path:
    return toolkits[1].with_name("dict.txt")


@pytest.fixture
def three(toolkits: list[Path]) -> str:
    """The models of three toolkits, as a key's value."""
    return f"[{','.join(map(str, toolkits))}]"


@pytest.fixture(scope="module")
def members(tokenizers: dict[str, Tokenizer], toolkits: list[Path]) -> list[Any]:
    """A transformer with a cache that rolls back, a T5 over bytes, an LSTM that cannot roll back, ..."""
    return [
        text_model("transformer_tiny", 0, task_of(tokenizers["pieces"]), 2.0),
        text_model("t5_tiny", 1, task_of(tokenizers["bytes"]), 1.2),
        text_model("lstm_tiny", 2, task_of(tokenizers["other pieces"]), 2.0),
        text_model("fconv_tiny", 3, task_of(tokenizers["whitespace"]), 1.2),
        *(load_model(path, dtype="float64") for path in toolkits),
        text_model("llama_tiny", 4, task_for("llama_tiny", tokenizers["other pieces"]), 2.0),
    ]


GROUPS = [(0, 1), (2, 1, 3), (4, 5, 6), (3, 7, 0)]
CASES: list[Any] = [(group, rule) for group in GROUPS for rule in ("agreement", "union")]
CASES += [pytest.param(group, "bytes", marks=pytest.mark.slow) for group in ((0, 1), (2, 0))]


def results(found: list[Translation]) -> list[Any]:
    """Texts, all members' tokens, and scores."""

    def of(item: Any) -> tuple[Any, ...]:
        return item.text, [tokens.tolist() for tokens in item.member_tokens], pytest.approx(item.score)

    return [list(map(of, one.hypotheses)) for one in found]


SETTINGS: dict[str, Any] = {"beam": 6, "nbest": 6, "max_len_b": 12, "max_len_a": 0, "min_len": 1, "length_penalty": 1.0}


@pytest.mark.parametrize(("group", "rule"), CASES)
def test_alone_as_in_a_batch_with_and_without_a_cache(group: tuple[int, ...], rule: str, members: list[Any]) -> None:
    """Members that agree score their own tokens as each model does by teacher forcing; the others share the score."""
    chosen = [members[i] for i in group]
    translator = Translator(chosen, combination=rule, **SETTINGS)
    found = translator.translate(LINES)
    expected = results(found)
    assert [len(one.hypotheses) > 0 for one in found] == [True, True, False, True]
    assert results([translator.translate([line])[0] for line in LINES]) == expected
    assert results(translator.translate(LINES[::-1], batch_size=2)[::-1]) == expected
    for switch in ({"fast.use_cache": False}, {"fast.beam_indirection": "on"}):
        assert results(translator.translate(LINES, **switch)) == expected
    complete = []
    for line, item in ((line, item) for line, one in zip(LINES, found, strict=True) for item in one.hypotheses):
        pairs = list(zip(chosen, item.member_tokens or (), strict=True))
        if all(int(own[-1]) == member.task.target_dictionary.eos() for member, own in pairs):
            complete.append({item.text, *(member.task.decode(own) for member, own in pairs)})
        for (member, own), scores in zip(pairs, item.member_scores or (), strict=True):
            if rule != "agreement":
                assert float(scores.sum()) == pytest.approx(float(item.positional_scores.sum()))
                continue
            torch.testing.assert_close(scores, alone(member, line, own), rtol=0, atol=1e-9)
        lprobs = [scores.double().mean() for scores in item.member_scores or ()]
        assert rule != "agreement" or item.score == pytest.approx(float(sum(lprobs) / len(lprobs)))
    assert {len(texts) for texts in complete} == {1}, "all members have the same text"


@torch.inference_mode()
def alone(member: Any, line: str, tokens: Tensor) -> Tensor:
    """The log-probabilities of tokens under one model, which reads them in parallel."""
    batch = member.task.collate([(0, member.task.encode_source(line), tokens)], member.model)
    encoder_out = member.model.encoder(batch.source.src_tokens, batch.source.src_lengths)
    logits = member.model.decoder(batch.prev_output_tokens, encoder_out)[0][0]
    return logits.log_softmax(-1).gather(1, tokens.unsqueeze(1)).squeeze(1)


PROMPTED = ["a aa\ta a", "a\ta ", "aa a aa a\t", "aa\taa|"]
"""Sources and prompts. The second prompt ends with a space, and the last one with an end."""


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (1, 2, 0)])
@torch.inference_mode()
def test_with_language_models_all_joint_outputs_are_found(order: tuple[int, ...]) -> None:
    """All tokenizations are enumerated, and scored by parallel passes; two tokens end the outputs of the Llama.

    While a row waits for the first word of the T5, the language model has read nothing of its output.
    """
    words = WhitespaceTokenizer(Dictionary([*Dictionary().symbols, "a", "aa"]))
    pieces = Pieces(["a", " ", " a", "|"])
    lm = text_model("llama_tiny", 5, task_for("llama_tiny", pieces))
    lm = replace(lm, generation={"end_symbols": ["|"]})
    other = text_model("transformer_lm_tiny", 6, task_for("transformer_lm_tiny", pieces))
    ended = [reference.END if text == b"|" else text for text in texts_of(pieces)]
    each = [
        (text_model("t5_tiny", 4, task_of(words)), "field1", texts_of(words)),
        *((lm, "field2", ended), (other, "empty", texts_of(pieces))),
    ]
    models, sources, tables = zip(*(each[index] for index in order), strict=True)
    weights = [0.5, 0.3, 0.2] if len(order) == 3 else [0.7, 0.3]
    keys = {"member_sources": list(sources), "combination.weights": weights}
    found = Translator(models, beam=40, nbest=40, max_len_a=0, max_len_b=3, **keys).translate(PROMPTED)
    for line, one in zip(PROMPTED, found, strict=True):
        read = [{"field1": line.split("\t")[0], "field2": line.split("\t")[1]}.get(name, "") for name in sources]
        before = [
            b" " * (name != "field1" and not text.endswith("a")) for name, text in zip(sources, read, strict=True)
        ]
        scores = [known(next_scores(*pair)) for pair in zip(models, read, strict=True)]
        expected = reference.all_joint_outputs(scores, tables, weights, 3, before)
        assert 10 < len(expected) < 40
        got = [(tuple(tuple(own.tolist()) for own in item.member_tokens or ()), item.score) for item in one.hypotheses]
        assert got == [(tokens, pytest.approx(score, abs=1e-9)) for tokens, score in expected]


def test_an_output_is_cut_off_where_a_member_is_full(members: list[Any]) -> None:
    found = Translator([members[3], members[1]], beam=2, max_len_b=1).translate(LINES[:2])
    for one in found:
        assert any(note.startswith("the output was cut off: no token was left on which all") for note in one.notes)
        assert len(one.text) >= 2, "the member of words has the whole word"


def impossible(words: str, **settings: Any) -> Row:
    return lambda members: Translator(members[:2]).prepare(**settings), words, "different target vocabularies"


class Unspelled(WhitespaceTokenizer):
    token_bytes = Tokenizer.token_bytes


def translate(members: list[Any], **call: Any) -> None:
    Translator(members[:2], beam=1, max_len_b=5).translate(LINES[:1], **call)


test_what_needs_one_vocabulary = refusals(
    impossible("generation.sampling=true is not possible", sampling=True),
    impossible("generation.search=diverse_siblings", search="diverse_siblings"),
    impossible("generation.constraints=ordered", constraints="ordered"),
    impossible("generation.suppress", suppress=["x"]),
    impossible("generation.semantics=huggingface", semantics="huggingface"),
    impossible("generation.combination=probability", combination="probability"),
    (lambda members: Translator(members[:2]).prepare(**{"combination.weights": [1, 0]}), "weight 0", "remove"),
    (lambda members: Translator(members[:2]).prepare(**{"combination.weights": [1]}), "[1] (combination.weights)"),
    (lambda members: translate(members, streamer=TextStreamer()), "streaming"),
    (lambda members: translate(members, return_attention=True), "attention"),
    (lambda members: translate(members, prefixes=["der Hund"]), "model 2 cannot generate 'der H", "change this prefix"),
    (lambda members: list(Translator(members[:2]).score(["a"], ["b"])), "score with each model alone"),
    (
        lambda members: Translator([members[0], text_model(task=task_of(Unspelled(dictionary(1))))]).prepare(),
        "Unspelled does not return the bytes of its tokens",
    ),
    ("diff path={three} input=-", "different target vocabularies cannot be recorded"),
    # it is no vocabulary of Marian
    ("generate path={three} input=- reading.dictionary={words_of_fairseq}", "line 1 has no token with its id"),
)


def test_a_member_begins_with_its_own_forced_token(members: list[Any], tmp_path: Path) -> None:
    tokenizer = load_pretrained_tokenizer(write_folder(tmp_path / "tokenizer", "NllbTokenizer"))
    french = text_model("t5_tiny", 4, task_of(tokenizer), 1.2)
    notes = Translator([members[1], french], beam=3).prepare().notes
    assert sum(note.startswith("model 2 chooses the language of the output itself") for note in notes) == 1
    french = replace(french, generation={"forced_first": "fra_Latn"})
    both = Translator([members[1], french], beam=3, max_len_b=12)
    first = tokenizer.dictionary.index("fra_Latn")
    assert not any(word in str(both.prepare().notes) for word in ("forced_first", "language"))
    found = both.translate(LINES, return_scores=True)
    best = found[0].hypotheses[0]
    scores, written = (best.member_scores or ())[1], (best.member_tokens or ())[1]
    torch.testing.assert_close(scores, alone(french, LINES[0], written), rtol=0, atol=1e-9)
    tokens = [[text.member_tokens or [] for text in one.hypotheses] for one in found]
    assert [[own[1][0] for own in one] for one in tokens] == [[first], [first], [], [first]]
    assert results(found) == results([one for line in LINES for one in both.translate([line])])


UNREADABLE = [*LINES, "日本 🙂 und der Hund", "x"]
"""An empty line, and lines with characters that a vocabulary lacks."""


def test_the_command_writes_tokens_and_scores_of_each_member(three: str) -> None:
    keys = [f"generation.{key}" for key in ("length_penalty=1", "nbest=2", "min_len=4", "max_len_b=15")]
    keys.append("combination.weights=[2,1,1]")
    text = "".join(f"{line}\n" for line in UNREADABLE).encode()
    outcome = done("generate", f"path={three}", "input=-", "format=json", *keys, stdin=text)
    assert outcome.err.count("as a cross-vocabulary ensemble") == 1
    rows = [json.loads(line) for line in outcome.out.splitlines()]
    assert [row["source"] for row in rows] == UNREADABLE
    assert [len(row["hypotheses"]) for row in rows] == [0 if not line else 2 for line in UNREADABLE]
    for item in (item for row in rows for item in row["hypotheses"]):
        means = [sum(scores) / len(scores) for scores in item["member_scores"]]
        assert item["score"] == pytest.approx(means[0] / 2 + means[1] / 4 + means[2] / 4, abs=1e-5)
        assert item["tokens"] == item["member_tokens"][0]


@pytest.mark.parametrize(("kind", "order"), [("llama 2", [0, 1]), ("llama 3", [1, 0]), ("qwen 2", [0, 1])])
def test_a_folder_beside_a_translation_model_of_another_vocabulary(kind: str, order: list[int], tmp_path: Path) -> None:
    """Both have one text, after a prompt or none."""
    lm = load_model(llama_folder(tmp_path / kind, kind, "qwen2" if kind == "qwen 2" else "llama"))
    both = (text_model("t5_tiny", 1, task_of(make_tokenizer(byte_files())), 1.2), "field1"), (lm, "field2")
    members, sources = zip(*(both[index] for index in order), strict=True)
    keys = {"beam": 6, "nbest": 6, "max_len": 0, "max_len_a": 0.0, "max_len_b": 12, "member_sources": [*sources]}
    lines = ["the dog\ta: b", "a\tthe dog ", "a b\t", "b\ta b<|im_end|>"]
    translations = Translator(members, **keys).translate(lines)
    found = [item for one in translations for item in one.hypotheses]
    cut = [any(item.forced_end for item in one.hypotheses) for one in translations]
    assert [any("was cut off" in note for note in one.notes) for one in translations] == cut
    tables = [member.task.target_tokenizer.token_bytes() for member in members]
    for item in (item for item in found if not item.forced_end):
        pairs = zip(tables, item.member_tokens, strict=True)
        assert len({b"".join(table[token] or b"" for token in own[:-1]).lstrip() for table, own in pairs}) == 1
    assert sum(not item.forced_end for item in found) > 10
