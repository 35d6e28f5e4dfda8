"""Tokenizers: laws over a zoo of them, and copies of their files that are incomplete or damaged."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from seqgen.data.tokenizers.base import IdTokenizer, Tokenizer, WhitespaceTokenizer, load_tokenizer, save_tokenizer
from seqgen.data.tokenizers.pretrained import PretrainedTokenizer, load_pretrained_tokenizer, save_pretrained_tokenizer
from seqgen.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer, train_sentencepiece
from seqgen.data.tokenizers.slow import ByteTokenizer
from seqgen.extend import Dictionary, UserError
from tests.pretrained_folders import files_of, sentencepiece_model, write_folder
from tests.tokenizer_texts import TEXT

WORDS = ["a", "dog", "runs", "and", "two", "people", "watch", "Hund", "läuft"]
PIECES = train_sentencepiece(TEXT, vocab_size=44)
NAMES = ["BartTokenizer", "MBartTokenizer", "MBart50Tokenizer", "NllbTokenizer", "M2M100Tokenizer"]
NAMES += ["MarianTokenizer", "PegasusTokenizer", "T5Tokenizer"]
Maker = Callable[[Path], Tokenizer]


def pretrained(name: str, size: int | None = None, separate: bool = False, **config: Any) -> Maker:
    files = {"separate": True} if separate else {}
    return lambda folder: load_pretrained_tokenizer(write_folder(folder, name, config, **files), size)


def reordered(model: bytes, *more: str) -> SentencePieceTokenizer:
    """A model whose pieces have other ids, as in a vocabulary of fairseq."""
    pieces = SentencePieceTokenizer(model).dictionary.symbols[:3:-1]
    return SentencePieceTokenizer(model, Dictionary.from_counts(dict.fromkeys([*pieces, *more], 1)))


ZOO: dict[str, Maker] = {
    "whitespace": lambda _: WhitespaceTokenizer(Dictionary.from_counts(dict.fromkeys(WORDS, 1))),
    "sentencepiece": lambda _: SentencePieceTokenizer(PIECES),
    "bpe": lambda _: SentencePieceTokenizer(train_sentencepiece(TEXT, vocab_size=44, model_type="bpe")),
    "with a dictionary": lambda _: reordered(PIECES),
    "without padding": lambda _: SentencePieceTokenizer(sentencepiece_model()),
    "t5 not legacy": pretrained("T5Tokenizer", legacy=False),
    "t5 filled up": pretrained("T5Tokenizer", 500),
    "bytes": pretrained("ByT5Tokenizer"),
    "marian separate": pretrained("MarianTokenizer", separate_vocabs=True, separate=True),
    **{name: pretrained(name) for name in NAMES},
}


@pytest.fixture(scope="module", params=ZOO)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return ZOO[request.param](tmp_path_factory.mktemp("zoo") / "folder")


@settings(max_examples=20, deadline=None)
@given(words=st.lists(st.sampled_from(WORDS), max_size=8))
def test_words_come_back(tokenizer: Tokenizer, words: list[str]) -> None:
    """From the ids of the text, and from those with all tokens that a model reads or generates."""
    text, pad, target = " ".join(words), tokenizer.dictionary.pad(), tokenizer.target_side
    ids = tokenizer.encode(text)
    assert tokenizer.encode_source(text) == tokenizer.source_tokens().around(ids)
    assert tokenizer.decode(ids) == text
    added = tokenizer.decode(tokenizer.source_tokens().around([]))  # the code of a language, of M2M-100 alone
    assert tokenizer.decode([*tokenizer.encode_source(text), pad, pad]).removeprefix(added).strip() == text
    assert target.decode(target.encode_target(text)) == text or target.unknown(text)


@settings(max_examples=40, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=30))
def test_any_text_is_encoded(tokenizer: Tokenizer, text: str) -> None:
    """Without control characters, which make the library ``tokenizers`` forget where an unknown character was."""
    ids = tokenizer.encode(text)
    assert all(0 <= i < len(tokenizer.dictionary) for i in ids)
    assert (tokenizer.dictionary.unk() in ids) == bool(tokenizer.unknown(text))
    assert tokenizer.encode_lines([text, "", text]) == [ids, [], ids]
    if isinstance(tokenizer, ByteTokenizer) and "<" not in text:
        assert tokenizer.decode(ids) == text


def test_unknown_parts_are_named(tokenizer: Tokenizer) -> None:
    has_bytes = tokenizer.unknown("😀") == []
    assert has_bytes == (len(tokenizer.encode("😀")) >= 4)
    assert tokenizer.unknown("two 😀 dog Ж") == ([] if has_bytes else ["😀", "Ж"])
    assert tokenizer.unknown("two dog") == []


def test_copies_give_the_same_ids(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Pickled, in the folder of a run that is moved, and in Hugging Face's layout."""
    text = "two  dog <extra_id_0>Hund 😀 </s>"
    for number, side in enumerate(dict.fromkeys([tokenizer, tokenizer.target_side])):
        run = tmp_path / f"run{number}"
        save_tokenizer(side, tmp_path / "made" / "tokenizer")
        (tmp_path / "made").rename(run)
        assert [path.name for path in run.iterdir()] == ["tokenizer"], "no temporary folder is left"
        copies = [pickle.loads(pickle.dumps(side)), load_tokenizer(run / "tokenizer")]
        if isinstance(side, PretrainedTokenizer) and side is tokenizer:
            save_pretrained_tokenizer(side, tmp_path / "layout")
            size = len(side.dictionary) if side.target_side is side else None
            copies.append(load_pretrained_tokenizer(tmp_path / "layout", size))
        for copy in copies:
            for one, other in ((side, copy), (side.target_side, copy.target_side)):
                assert type(other) is type(one)
                assert other.dictionary == one.dictionary
                assert other.fingerprint() == one.fingerprint()
                assert other.encode_source(text) == one.encode_source(text)
                assert other.encode_target(text) == one.encode_target(text)


def test_fingerprints_tell_tokenizers_apart(tmp_path: Path) -> None:
    """Encoded text is used again if the fingerprint is the same."""
    makers: dict[str, Maker] = {
        **{name: make for name, make in ZOO.items() if name != "t5 filled up"},  # which gives the ids of T5's
        "other ids": lambda _: SentencePieceTokenizer(PIECES, SentencePieceTokenizer(PIECES).dictionary),
        "more tokens": lambda _: reordered(PIECES, "more"),
        "other model": lambda _: reordered(
            sentencepiece_model(), *SentencePieceTokenizer(PIECES).dictionary.symbols[4:]
        ),
        "ids": lambda _: IdTokenizer(Dictionary.from_counts(dict.fromkeys(WORDS, 1))),
        "other words": lambda _: WhitespaceTokenizer(Dictionary.from_counts(dict.fromkeys(WORDS[1:], 1))),
    }
    found = [[make(tmp_path / f"{turn}{name}").fingerprint() for name, make in makers.items()] for turn in (1, 2)]
    assert found[0] == found[1]
    assert sorted(name for name, one in zip(makers, found[0], strict=True) if found[0].count(one) > 1) == []


def refusal(folder: Path) -> str:
    """The error message of a tokenizer; empty if it is read."""
    try:
        load_pretrained_tokenizer(folder).target_side  # noqa: B018
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", NAMES)
def test_missing_and_damaged_files(name: str, tmp_path: Path) -> None:
    """A file is refused if it is not of its kind; if only a part is wrong, it is refused in one sentence or read."""
    folder = write_folder(tmp_path / "folder", name)
    for file in files_of(name):
        content = (folder / file).read_bytes()
        (folder / file).unlink()
        assert f"has no {file}; copy the files that it was saved with" in refusal(folder)
        wrong = [b"", b"\xff\xfe", b"{", b"[]", b"null"]
        partly = [content[: len(content) // 3], content[:-1] + b"\xff", b"x" * 99]
        for damaged in [*wrong, *partly]:
            (folder / file).write_bytes(damaged)
            message = refusal(folder)
            assert message or damaged in partly
            assert "\n" not in message
            assert len(message) < 700
        (folder / file).write_bytes(content)
        assert refusal(folder) == ""
