"""Translators of models with different target vocabularies."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Pipeline, decoders, models, pre_tokenizers, trainers
from torch import Tensor

import examples.lstm  # noqa: F401  # registers a model that cannot roll back
from seqgen.addons.cross_vocabulary.member import AgreementMember
from seqgen.addons.cross_vocabulary.session import AgreementSession
from seqgen.addons.cross_vocabulary.vocabulary_trie import first_text, token_texts
from seqgen.checkpoints.loading import load_model, load_models
from seqgen.core.errors import ConfigError
from seqgen.data.dictionary import Dictionary
from seqgen.data.tokenizers.base import Tokenizer, WhitespaceTokenizer
from seqgen.data.tokenizers.files import TokenizerFiles, to_json
from seqgen.data.tokenizers.language_tokens import LANG_TOKEN_FORMAT, LanguageTokenizer
from seqgen.data.tokenizers.languages import Languages, TargetLanguage
from seqgen.data.tokenizers.pretrained import byte_files, load_pretrained_tokenizer, make_tokenizer, t5_files
from seqgen.data.tokenizers.sentencepiece_tokenizer import T5_IDS, SentencePieceTokenizer, train_sentencepiece
from seqgen.decoding.combinations import Fusion
from seqgen.text.results import Translation
from seqgen.text.translator import Translator
from seqgen.text.word_streaming import TextStreamer
from tests.commands import command
from tests.docs.test_pages import shown_commands
from tests.pretrained_folders import write_folder
from tests.text_models import task_of, text_model
from tests.toolkit_models import write_fairseq, write_huggingface, write_marian, write_models

TEXT = ["der Hund sieht einen Mann", "ein Mann hört Vögel über dem Fluß", "Vögel und Hunde", "ein Fluß im März"]
LINES = ["ein Hund", "der Mann sieht Vögel und einen Fluß und Hunde", "", "März"]


def whitespace() -> Tokenizer:
    words = Dictionary()
    for word in sorted({word for line in TEXT for word in line.split()}):
        words.add_symbol(word)
    return WhitespaceTokenizer(words)


def pieces(size: int) -> Tokenizer:
    return SentencePieceTokenizer(train_sentencepiece(TEXT, vocab_size=size))


def t5() -> Tokenizer:
    return make_tokenizer(t5_files(train_sentencepiece(TEXT, vocab_size=33, special_ids=T5_IDS), extra_ids=2))


def byte_level() -> Tokenizer:
    """GPT-2's tokenizer, in which no merge joins the two bytes of a rare character."""
    pipeline = Pipeline(models.BPE())
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pipeline.decoder = decoders.ByteLevel()
    alphabet, special = sorted(pre_tokenizers.ByteLevel.alphabet()), ["<|endoftext|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=270, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    pipeline.train_from_iterator(TEXT, trainer)
    config = to_json({"tokenizer_class": "GPT2Tokenizer"})
    return make_tokenizer(
        TokenizerFiles("the test", {"tokenizer.json": pipeline.to_str().encode(), "tokenizer_config.json": config})
    )


TOKENIZERS = {
    "whitespace": whitespace,
    "pieces": lambda: pieces(35),
    "other pieces": lambda: pieces(30),
    "t5": t5,
    "bytes": lambda: make_tokenizer(byte_files()),
    "byte-level BPE": byte_level,
}


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    return {name: make() for name, make in TOKENIZERS.items()}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_tokens_of_a_text_have_its_bytes(name: str, tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers[name]
    table = tokenizer.token_bytes()
    assert len(table) == len(tokenizer.dictionary)
    before = first_text(tokenizer, token_texts(tokenizer))
    assert before == (" " if "byte" in name else "")
    for line in TEXT:
        joined = b"".join(table[token] or b"?" for token in tokenizer.encode(line))
        assert before.encode() + joined == b" " + line.encode()
    words = tokenizer.dictionary
    assert [table[i] for i in (words.pad(), words.eos(), words.unk())] == [None] * 3


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


PRETRAINED = [
    *("BartTokenizer", "MarianTokenizer", "M2M100Tokenizer", "PegasusTokenizer"),
    *("MBartTokenizer", "MBart50Tokenizer", "NllbTokenizer"),
]


@pytest.mark.parametrize("name", PRETRAINED)
def test_the_tokens_of_pretrained_tokenizers_have_the_bytes_of_a_text(name: str, tmp_path: Path) -> None:
    tokenizer = load_pretrained_tokenizer(write_folder(tmp_path / "tokenizer", name)).target_side
    table = tokenizer.token_bytes()
    assert len(table) == len(tokenizer.dictionary)
    before = first_text(tokenizer, token_texts(tokenizer)).encode()
    assert before == (b" " if "Bart" in name and "MB" not in name else b"")
    for line in ("a dog runs", "two people watch it", "ab cd and a dog"):
        text = line.replace("dog", "chien").replace("two", "deux") if name == "MarianTokenizer" else line
        joined = b"".join(table[token] or b"?" for token in tokenizer.encode(text))
        assert before + joined == b" " + text.encode()
    dictionary = tokenizer.dictionary
    languages = tokenizer.languages.ids.values() if tokenizer.languages else ()
    silent = [dictionary.pad(), dictionary.eos(), dictionary.unk(), *languages]
    assert [table[i] for i in silent] == [None] * len(silent)


@pytest.fixture(scope="module")
def toolkits(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Models in the formats of Marian, fairseq and Hugging Face, with three vocabularies."""
    return write_models(tmp_path_factory.mktemp("toolkits"), TEXT)


@pytest.fixture(scope="module")
def members(tokenizers: dict[str, Tokenizer], toolkits: list[Path]) -> list[Any]:
    """A transformer with a cache that rolls back, a T5 over bytes, an LSTM that cannot roll back, ..."""
    return [
        text_model("transformer_tiny", 0, task_of(tokenizers["pieces"]), 2.0),
        text_model("t5_tiny", 1, task_of(tokenizers["bytes"]), 1.2),
        text_model("lstm_tiny", 2, task_of(tokenizers["other pieces"]), 2.0),
        text_model("fconv_tiny", 3, task_of(tokenizers["whitespace"]), 1.2),
        *(load_model(path, dtype="float64") for path in toolkits),
    ]


GROUPS = [(0, 1), (2, 1, 3), (4, 5, 6), *(pytest.param(group, marks=pytest.mark.slow) for group in ((0, 2), (3, 1)))]


def results(found: list[Translation]) -> list[Any]:
    """Texts, all members' tokens, and scores."""
    return [
        [
            (item.text, [tokens.tolist() for tokens in item.member_tokens or ()], pytest.approx(item.score))
            for item in one.hypotheses
        ]
        for one in found
    ]


SETTINGS: dict[str, Any] = {"beam": 3, "nbest": 3, "max_len_b": 12, "max_len_a": 0, "min_len": 1, "length_penalty": 1.0}


@pytest.mark.parametrize("group", GROUPS)
def test_alone_as_in_a_batch_with_and_without_a_cache(group: tuple[int, ...], members: list[Any]) -> None:
    chosen = [members[i] for i in group]
    translator = Translator(chosen, **SETTINGS)
    found = translator.translate(LINES)
    expected = results(found)
    assert [len(one.hypotheses) > 0 for one in found] == [True, True, False, True]
    assert results([translator.translate([line])[0] for line in LINES]) == expected
    assert results(translator.translate(LINES[::-1], batch_size=2)[::-1]) == expected
    for switch in ({"fast.use_cache": False}, {"fast.beam_indirection": "on"}):
        assert results(translator.translate(LINES, **switch)) == expected
    for item in (item for one in found for item in one.hypotheses):
        ids = [member.task.target_dictionary.eos() for member in chosen]
        ended = [int(own[-1]) == eos for own, eos in zip(item.member_tokens or (), ids, strict=True)]
        texts = [member.task.decode(own) for member, own in zip(chosen, item.member_tokens or (), strict=True)]
        if all(ended):
            assert len(set(texts)) == 1
            assert item.text == texts[0]
        lprobs = [scores.double().mean() for scores in item.member_scores or ()]
        assert item.score == pytest.approx(float(sum(lprobs) / len(lprobs)))


@pytest.mark.parametrize("group", [(0, 1), (4, 5, 6)])
def test_members_score_their_own_tokens_as_each_model_alone_does(group: tuple[int, ...], members: list[Any]) -> None:
    chosen = [members[i] for i in group]
    found = Translator(chosen, **SETTINGS).translate(LINES[:2], return_scores=True)
    checked = 0
    for line, one in zip(LINES[:2], found, strict=True):
        for item in one.hypotheses:
            assert item.member_scores is not None
            for member, tokens, scores in zip(chosen, item.member_tokens or (), item.member_scores, strict=True):
                torch.testing.assert_close(scores, alone(member, line, tokens), rtol=0, atol=1e-9)
                checked += len(tokens)
    assert checked > 20


@torch.inference_mode()
def alone(member: Any, line: str, tokens: Tensor) -> Tensor:
    """The log-probabilities of tokens under one model, which reads them in parallel."""
    batch = member.task.collate([(0, member.task.encode_source(line), tokens)], member.model)
    encoder_out = member.model.encoder(batch.source.src_tokens, batch.source.src_lengths)
    logits = member.model.decoder(batch.prev_output_tokens, encoder_out)[0][0]
    return logits.log_softmax(-1).gather(1, tokens.unsqueeze(1)).squeeze(1)


def test_it_is_said_how_the_members_are_decoded(members: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    steps, calls = [0], Counter[int]()
    step, score = AgreementSession.step, AgreementMember.next_lprobs

    def counted_step(session: AgreementSession) -> None:
        steps[0] += 1
        step(session)

    def counted_score(member: AgreementMember, *arguments: Any) -> Tensor:
        calls[id(member.model)] += 1
        return score(member, *arguments)

    monkeypatch.setattr(AgreementSession, "step", counted_step)
    monkeypatch.setattr(AgreementMember, "next_lprobs", counted_score)
    decoding = Translator(members[:2], **SETTINGS).prepare()
    assert len([note for note in decoding.notes if "as a cross-vocabulary ensemble" in note]) == 1
    list(decoding.translate(LINES))
    first, second = (calls[id(model)] for model in decoding.models)
    assert 0 < first <= steps[0]
    assert second == steps[0] - 1, "the member of bytes steps after the first space"


def test_an_output_is_cut_off_where_a_member_is_full(members: list[Any]) -> None:
    found = Translator([members[3], members[1]], beam=2, max_len_b=1).translate(LINES[:2])
    for one in found:
        assert (
            "the output was cut off: no token was left on which all models agree, or a model reached its maximum "
            "length" in one.notes
        )
        assert len(one.text) >= 2, "the member of words has the whole word"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"sampling": True}, "generation.sampling=true"),
        ({"search": "diverse_siblings"}, "generation.search=diverse_siblings"),
        ({"constraints": "ordered"}, "generation.constraints=ordered"),
        ({"suppress": ["x"]}, "generation.suppress"),
        ({"semantics": "huggingface"}, "generation.semantics=huggingface"),
        ({"combination": "probability"}, "generation.combination=probability"),
        ({"combination": Fusion()}, "combination=Fusion"),
        ({"combination.weights": [1, 0]}, "weight 0"),
        ({"combination.weights": [1]}, "the weights [1] (combination.weights)"),
    ],
)
def test_what_needs_one_vocabulary_is_refused(settings: dict[str, Any], named: str, members: list[Any]) -> None:
    with pytest.raises(ConfigError) as error:
        Translator(members[:2]).prepare(**settings)
    assert named in str(error.value)
    assert any(word in str(error.value) for word in ("leave", "give", "remove", "set "))


def test_a_member_begins_with_its_own_forced_token(members: list[Any], tmp_path: Path) -> None:
    tokenizer = load_pretrained_tokenizer(write_folder(tmp_path / "tokenizer", "NllbTokenizer"))
    french = text_model("t5_tiny", 4, task_of(tokenizer), 1.2)
    notes = Translator([members[1], french], beam=3).prepare().notes
    assert [note for note in notes if "language" in note] == [
        "model 2 chooses the language of the output itself: members with different target vocabularies cannot be told "
        "the language"
    ]
    french = replace(french, generation={"forced_first": "fra_Latn"})
    both = Translator([members[1], french], beam=3, max_len_b=12)
    first = tokenizer.dictionary.index("fra_Latn")
    assert not any(word in str(both.prepare().notes) for word in ("forced_first", "language"))
    found = both.translate(LINES)
    tokens = [[text.member_tokens or [] for text in one.hypotheses] for one in found]
    assert [[own[1][0] for own in one] for one in tokens] == [[first], [first], [], [first]]
    assert results(found) == results([one for line in LINES for one in both.translate([line])])


def test_calls_that_need_one_vocabulary_are_refused(members: list[Any]) -> None:
    translator = Translator(members[:2], beam=1, max_len_b=5)
    with pytest.raises(ConfigError, match="streaming"):
        translator.translate(LINES, streamer=TextStreamer())
    with pytest.raises(ConfigError, match="attention"):
        translator.translate(LINES, return_attention=True)
    with pytest.raises(ConfigError, match="forced beginning"):
        translator.translate(["ein Hund"], prefixes=["der"])
    with pytest.raises(ConfigError, match="score with each model alone"):
        list(translator.score(["a"], ["b"]))


def test_a_tokenizer_without_bytes_is_refused(members: list[Any]) -> None:
    class Unspelled(WhitespaceTokenizer):
        token_bytes = Tokenizer.token_bytes

    words = Dictionary()
    words.add_symbol("x")
    other = text_model(task=task_of(Unspelled(words)))
    with pytest.raises(ConfigError, match="Unspelled does not return the bytes of its tokens"):
        Translator([members[0], other]).prepare()


def test_one_model_in_three_formats_gives_the_outputs_of_the_model(tmp_path: Path) -> None:
    """The tokens have other ids in each format. The beam is so wide that the best output is found."""
    pieces = train_sentencepiece(TEXT, vocab_size=33, special_ids=T5_IDS)
    paths = [
        write_marian(tmp_path / "marian", pieces, 5),
        write_fairseq(tmp_path / "fairseq", pieces, 5),
        write_huggingface(tmp_path / "bart", make_tokenizer(t5_files(pieces, extra_ids=0)), 5),
    ]
    lines = [line for line in (*TEXT, *UNREADABLE) if line]
    settings = {**SETTINGS, "beam": 10, "min_len": 4, "max_len": 0, "search": "beam", "semantics": "fairseq"}
    loaded = load_models([str(path) for path in paths])
    together, *single = (
        [one.hypotheses[0] for one in Translator(models).translate(lines, **settings)]
        for models in (loaded, *([model] for model in loaded))
    )
    assert len({item.text for item in together}) > 1
    for joint, *each in zip(together, *single, strict=True):
        assert [own.tolist() for own in joint.member_tokens or ()] == [own.tokens.tolist() for own in each]
        assert [own.score for own in each] == pytest.approx([joint.score] * 3, abs=1e-4)


UNREADABLE = [*LINES, "日本 🙂 und der Hund", "x"]
"""An empty line, and lines with characters that a vocabulary lacks."""


PATHS = ("opus-en-de", "fairseq/model.pt", "bart-en-de")


@pytest.fixture
def shown(toolkits: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command of the documentation that decodes models of three toolkits, in a folder with these files."""
    monkeypatch.chdir(tmp_path)
    for path in toolkits[0].parent.iterdir():
        Path(path.name).symlink_to(path)
    for name in ("test.en", "test.de"):
        Path(name).write_text("".join(f"{line}\n" for line in UNREADABLE), encoding="utf-8")
    (line,) = [line for line in shown_commands("docs/ensembles.md") if "path=[opus-en-de," in line]
    return shlex.split(line)[1:]


def test_the_shown_command_writes_tokens_and_scores_of_each_member(shown: list[str]) -> None:
    assert command("generate", *shown).code == 0
    assert len(Path("toolkits.hyp").read_text(encoding="utf-8").splitlines()) == len(UNREADABLE)
    more = ("generation.nbest=2", "generation.min_len=4", "generation.max_len_b=15", "combination.weights=[2,1,1]")
    outcome = command("generate", *shown, "format=json", "output=out.json", *more)
    assert outcome.code == 0, outcome.err
    assert outcome.err.count("as a cross-vocabulary ensemble") == 1
    rows = [json.loads(line) for line in Path("out.json").read_text(encoding="utf-8").splitlines()]
    assert [row["source"] for row in rows] == UNREADABLE
    assert [len(row["hypotheses"]) for row in rows] == [0 if not line else 2 for line in UNREADABLE]
    for item in (item for row in rows for item in row["hypotheses"]):
        means = [sum(scores) / len(scores) for scores in item["member_scores"]]
        assert item["score"] == pytest.approx(means[0] / 2 + means[1] / 4 + means[2] / 4, abs=1e-5)
        assert item["tokens"] == item["member_tokens"][0]


@pytest.mark.usefixtures("shown")
def test_commands_that_need_one_vocabulary_are_refused() -> None:
    path = f"path=[{','.join(PATHS)}]"
    outcome = command("diff", path, "input=test.en")
    assert outcome.code == 2
    assert "different target vocabularies cannot be recorded" in outcome.err
    refused = command("generate", path, "input=test.en", "reading.dictionary=fairseq/dict.txt")
    assert refused.code == 2, "which is no vocabulary of Marian"
    assert "fairseq/dict.txt: line 1 has no token with its id" in refused.err
