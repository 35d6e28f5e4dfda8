"""Tokenizers: text to ids and back, training, saving, and the oracle's ids."""

import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings, strategies as st

from seqgen.core.errors import ConfigError, DataError
from seqgen.data.dictionary import Dictionary
from seqgen.data.tokenizers.base import Tokenizer, WhitespaceTokenizer, load_tokenizer, save_tokenizer
from seqgen.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer, read_model, train_sentencepiece

TEXT = [f"{a} {b} {c}" for a in ("one", "two", "three") for b in ("red", "green", "blue") for c in ("cats", "dogs")]
SHARED = Path(os.environ.get("SEQGEN_SHARED", Path(__file__).resolve().parents[3] / "shared"))
ORACLE = SHARED / "oracles" / "fairseq"


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def tokenizer(request: pytest.FixtureRequest) -> SentencePieceTokenizer:
    return SentencePieceTokenizer(train_sentencepiece(TEXT, vocab_size=24, model_type=request.param))


def test_trained_ids(tokenizer: SentencePieceTokenizer) -> None:
    dictionary = tokenizer.dictionary
    assert dictionary.symbols[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert dictionary.special_ids == {"pad": 1, "eos": 2, "unk": 3, "bos": 0}
    assert len(dictionary) == 24
    ids = tokenizer.encode("two green dogs")
    assert "".join(dictionary[i] for i in ids) == "▁two▁green▁dogs"
    assert tokenizer.decode([*ids, dictionary.eos(), dictionary.pad()]) == "two green dogs"


@settings(max_examples=50)
@given(words=st.lists(st.sampled_from(["one", "two", "three", "red", "green", "blue", "cats", "dogs"]), max_size=8))
def test_round_trip(tokenizer: SentencePieceTokenizer, words: list[str]) -> None:
    text = " ".join(words)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode_lines([text, "", text]) == [tokenizer.encode(text), [], tokenizer.encode(text)]


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_any_text_is_encoded(tokenizer: SentencePieceTokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert all(0 <= i < len(tokenizer.dictionary) for i in ids)
    assert (tokenizer.dictionary.unk() in ids) == bool(tokenizer.unknown(text))


def test_fingerprints_tell_models_and_vocabularies_apart(tokenizer: SentencePieceTokenizer) -> None:
    """Encoded text is used again if the fingerprint is the same."""
    symbols = tokenizer.dictionary.symbols
    other = train_sentencepiece([*TEXT, "four"], vocab_size=24)
    dictionaries = [Dictionary(symbols), Dictionary([*symbols[:4], *symbols[:3:-1]]), Dictionary([*symbols, "more"])]
    different = [
        *(tokenizer, SentencePieceTokenizer(other), SentencePieceTokenizer(other, Dictionary(symbols))),
        *(SentencePieceTokenizer(tokenizer.model, dictionary) for dictionary in dictionaries),
    ]
    assert len({one.fingerprint() for one in different}) == len(different)
    assert SentencePieceTokenizer(tokenizer.model).fingerprint() == tokenizer.fingerprint()


def test_unknown_characters(tokenizer: SentencePieceTokenizer) -> None:
    assert tokenizer.unknown("two 😀 dogs é") == ["😀", "é"]
    assert tokenizer.unknown("two dogs") == []


def test_training_is_reproducible_and_names_the_possible_size() -> None:
    for kind in ("unigram", "bpe"):
        models = [train_sentencepiece(iter(TEXT), vocab_size=24, model_type=kind) for _ in range(2)]
        assert models[0] == models[1]
        with pytest.raises(
            DataError, match=r"too small for a vocabulary of 8000 pieces; set task\.vocab_size to at most \d+"
        ) as e:
            train_sentencepiece(TEXT, vocab_size=8000, model_type=kind)
        largest = int(str(e.value).split()[-1])
        assert len(SentencePieceTokenizer(train_sentencepiece(TEXT, vocab_size=largest, model_type=kind)).dictionary)
        soft = train_sentencepiece(TEXT, vocab_size=8000, model_type=kind, hard_vocab_limit=False)
        assert len(SentencePieceTokenizer(soft).dictionary) == largest
    with pytest.raises(DataError, match=r"set task\.vocab_size to at least \d+, or character_coverage lower"):
        train_sentencepiece(TEXT, vocab_size=6)
    with pytest.raises(DataError, match="no words"):
        train_sentencepiece(["", "  "], vocab_size=10)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DataError("line 2 is not UTF-8")])
def test_what_ends_reading_ends_training(error: BaseException) -> None:
    """SentencePiece itself replaces it by a RuntimeError."""

    def lines() -> Iterator[str]:
        yield from TEXT
        raise error

    with pytest.raises(type(error)) as raised:
        train_sentencepiece(lines(), vocab_size=24)
    assert raised.value is error


def test_hard_lines_train() -> None:
    hard = ["a\rb\u2028c\x85", "\0 x", "▁ ▁", "<s> </s> <unk>", "😀 é", "word " * 50_000, "x" * 100_000]
    model = train_sentencepiece(hard * 3, vocab_size=60, hard_vocab_limit=False)
    assert SentencePieceTokenizer(model).unknown("word x 😀") == []


def test_error_of_the_text_is_raised_unchanged() -> None:
    def lines():  # type: ignore[no-untyped-def]
        yield from TEXT
        raise DataError("train.en, line 19: no")

    with pytest.raises(DataError, match=r"^train\.en, line 19: no$"):
        train_sentencepiece(lines(), vocab_size=24)


def test_whitespace() -> None:
    dictionary = Dictionary.from_counts({"Haus": 2, "das": 5})
    tokenizer = WhitespaceTokenizer(dictionary)
    assert tokenizer.encode("  das\tHaus Hund \u2028 das") == [4, 5, 3, 4]
    assert tokenizer.decode([4, 5, 3, 2, 1]) == "das Haus <unk>"
    assert tokenizer.unknown("das Hund") == ["Hund"]
    assert tokenizer.encode("</s> <pad> <s> <unk> das") == [3, 3, 3, 3, 4], "special tokens in text are unknown words"
    assert tokenizer.unknown("</s> das") == ["</s>"]


def test_given_dictionary_is_indexed_by_pieces(tokenizer: SentencePieceTokenizer) -> None:
    given = Dictionary.from_counts(dict.fromkeys([*tokenizer.dictionary.symbols[4:], "é"], 1))
    through = SentencePieceTokenizer(tokenizer.model, given)
    ids = through.encode("two dogs")
    assert [given[i] for i in ids] == [tokenizer.dictionary[i] for i in tokenizer.encode("two dogs")]
    assert through.decode([*ids, given.eos()]) == "two dogs"
    assert given.index("é") in through.encode("two é"), "a character that only the dict.txt knows"
    assert given.unk() in through.encode("two ß")
    with pytest.raises(DataError, match="contains too few pieces"):
        SentencePieceTokenizer(tokenizer.model, Dictionary.from_counts({"other": 1}))


@pytest.mark.parametrize("kind", ["native", "dictionary", "whitespace"])
def test_saved_folder_can_be_moved(tmp_path: Path, kind: str) -> None:
    model = train_sentencepiece(TEXT, vocab_size=24)
    own = SentencePieceTokenizer(model)
    given = Dictionary.from_counts(dict.fromkeys(own.dictionary.symbols[4:], 1))
    tokenizer: Tokenizer = {
        "native": own,
        "dictionary": SentencePieceTokenizer(model, given),
        "whitespace": WhitespaceTokenizer(Dictionary.from_counts({"two": 1, "dogs": 1})),
    }[kind]
    save_tokenizer(tokenizer, tmp_path / "a" / "tokenizer")
    (tmp_path / "a").rename(tmp_path / "b")
    loaded = load_tokenizer(tmp_path / "b" / "tokenizer")
    for other in (loaded, pickle.loads(pickle.dumps(tokenizer))):
        assert type(other) is type(tokenizer)
        assert other.dictionary == tokenizer.dictionary
        assert other.fingerprint() == tokenizer.fingerprint()
        assert other.encode("two green dogs") == tokenizer.encode("two green dogs")
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["tokenizer"], "no temporary folder is left"


def test_damaged_folder(tmp_path: Path) -> None:
    folder = tmp_path / "tokenizer"
    save_tokenizer(SentencePieceTokenizer(train_sentencepiece(TEXT, vocab_size=24)), folder)
    model = folder / "sentencepiece.model"
    model.write_bytes(model.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"sentencepiece\.model is not a SentencePiece model, or is damaged"):
        load_tokenizer(folder)
    model.unlink()
    with pytest.raises(DataError, match=r"there is no SentencePiece model .*sentencepiece\.model"):
        load_tokenizer(folder)
    (folder / "tokenizer.json").write_text('{"tokenizer": "sentencepeace"}')
    with pytest.raises(ConfigError, match="did you mean 'sentencepiece'"):
        load_tokenizer(folder)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(DataError, match=r"tokenizer\.json is damaged"):
        load_tokenizer(folder)
    with pytest.raises(DataError, match="is not the folder of a tokenizer"):
        load_tokenizer(tmp_path)
    with pytest.raises(DataError, match="is not a SentencePiece model"):
        SentencePieceTokenizer(b"")


def test_padding_is_added_to_a_model_without_it(tmp_path: Path) -> None:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT), model_prefix=str(tmp_path / "m"), vocab_size=23, minloglevel=4
    )
    tokenizer = SentencePieceTokenizer(read_model(tmp_path / "m.model"))
    dictionary = tokenizer.dictionary
    assert dictionary.special_ids == {"pad": 23, "eos": 2, "unk": 0, "bos": 1}
    assert tokenizer.decode([*tokenizer.encode("two dogs"), 2, 23, 23]) == "two dogs"


@pytest.mark.skipif(not ORACLE.is_dir(), reason="the oracle is not here")
def test_fairseq_oracle() -> None:
    dictionary = Dictionary.load(ORACLE / "dict.txt")
    tokenizer = SentencePieceTokenizer(read_model(ORACLE / "spm.model"), dictionary)
    assert len(dictionary) == 4008
    lines = (ORACLE / "expected" / "fconv.b2_unkpen-8.jsonl").read_bytes().split(b"\n")
    records = [json.loads(line) for line in lines if line]
    assert len(records) == 100
    for record in records:
        assert [*tokenizer.encode(record["source"]), dictionary.eos()] == record["src_tokens"]
        for hypothesis in record["hypotheses"]:
            assert tokenizer.decode(hypothesis["tokens"]) == hypothesis["text"]
