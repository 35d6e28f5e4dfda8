"""T5's tokenizers: sentinels, training, run folders, Hugging Face's layout, and what is said of damaged folders."""

import io
import itertools
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings, strategies as st

from seqgen.core.errors import ConfigError, DataError
from seqgen.data.dictionary import Dictionary
from seqgen.data.tokenizers.base import Tokenizer, WhitespaceTokenizer, load_tokenizer, save_tokenizer
from seqgen.data.tokenizers.pretrained import (
    byte_files,
    load_pretrained_tokenizer,
    make_tokenizer,
    save_pretrained_tokenizer,
    t5_files,
)
from seqgen.data.tokenizers.sentencepiece_tokenizer import T5_IDS, SentencePieceTokenizer, train_sentencepiece
from seqgen.data.tokenizers.setup import TokenizerConfig, prepare_tokenizers

TEXT = [f"{a} {b} {c}." for a in ("one", "two", "three") for b in ("red", "green", "blue") for c in ("cats", "dogs")]
PIECES = 23
SETTINGS = {"t5": {"tokenizer_class": "T5Tokenizer"}, "bytes": {"tokenizer_class": "ByT5Tokenizer"}}
SETTINGS["new"] = {"tokenizer_class": "T5Tokenizer", "legacy": False}  # type: ignore[dict-item]


@pytest.fixture(scope="module")
def model() -> bytes:
    return train_sentencepiece(TEXT, vocab_size=PIECES, special_ids=T5_IDS)


@pytest.fixture
def write(model: bytes, tmp_path: Path) -> Callable[..., Path]:
    """Writes a tokenizer's folder."""

    def writer(settings: dict[str, Any] | None, name: str = "tokenizer", **files: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "spiece.model").write_bytes(model)
        if settings is not None:
            (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        for file, content in files.items():
            (folder / f"{file}.json").write_text(content)
        return folder

    return writer


def tokens(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.dictionary[i] for i in tokenizer.encode(text)]


# ids


def test_ids_of_t5(model: bytes) -> None:
    tokenizer = make_tokenizer(t5_files(model))
    assert tokenizer.dictionary.special_ids == {"pad": 0, "eos": 1, "unk": 2, "bos": None}
    assert tokenizer.dictionary.symbols[:3] == ["<pad>", "</s>", "<unk>"]
    assert len(tokenizer.dictionary) == PIECES + 100
    assert len(tokenizer.sentinels) == 100
    assert [tokenizer.sentinel(i) for i in (0, 1, 99)] == [PIECES + 99, PIECES + 98, PIECES]
    assert tokenizer.dictionary[PIECES + 99] == "<extra_id_0>"
    with pytest.raises(DataError, match=r"no <extra_id_100>, only 100 sentinels"):
        tokenizer.sentinel(100)


def test_ids_of_byt5() -> None:
    tokenizer = make_tokenizer(byte_files(), vocab_size=384)
    assert tokenizer.encode("aé😀") == [100, 198, 172, 243, 162, 155, 131]
    assert [tokenizer.sentinel(i) for i in (0, 124)] == [259, 383]
    assert len(tokenizer.sentinels) == 125
    assert tokenizer.encode("a <extra_id_1>") == [100, 35, 260]
    assert tokenizer.decode([100, 198, 172, 260, 198, 1, 0]) == "aé", "an incomplete character is left out"
    assert tokenizer.decode([100, 260, 101], skip_special_tokens=False) == "a <extra_id_1> b"
    assert tokenizer.dictionary.special_ids == {"pad": 0, "eos": 1, "unk": 2, "bos": None}
    assert tokenizer.unknown("anything 😀") == []


def test_sentinels_among_the_pieces() -> None:
    names = ["<pad>", "</s>", "<unk>", "▁<extra_id_1>", "▁<extra_id_0>", "<extra_id_3>"]
    tokenizer = WhitespaceTokenizer(Dictionary(names, pad=0, eos=1, unk=2, bos=None))
    assert tokenizer.sentinels == [4, 3], "as mT5's model has them"


def test_table_of_the_documentation(write: Callable[..., Path]) -> None:
    words = ["A", "dog", "on", "upon", "two"]
    text = [" ".join(order) + "." for order in itertools.permutations(words, 4)] + ["onon on d o g dg od"]
    model = train_sentencepiece(text, vocab_size=22, special_ids=T5_IDS)
    tokenizers = []
    for name in ("t5", "new"):
        folder = write(SETTINGS[name], name)
        (folder / "spiece.model").write_bytes(model)
        tokenizers.append(load_pretrained_tokenizer(folder))
    tokenizers.append(make_tokenizer(t5_files(model)))
    page = (Path(__file__).parent.parent.parent / "docs" / "tokenizers.md").read_text(encoding="utf-8")
    table = page.split("| text |")[1].split("\n\n")[0]
    rows = [re.findall(r"`([^`]+)`", line) for line in table.splitlines()[2:]]
    assert len(rows) == 6
    for line, *cells in rows:
        real = line.replace("X", "<extra_id_0>").replace("N", "\x85")
        for tokenizer, cell in zip(tokenizers, cells, strict=True):
            assert " ".join(tokens(tokenizer, real)).replace("<extra_id_0>", "X") == cell, line
    decoded = {tokenizer.decode(tokenizer.encode("A dog <extra_id_0> on"), False) for tokenizer in tokenizers}
    assert decoded == {"A dog<extra_id_0> on"}


def test_vocabulary_is_filled_up(write: Callable[..., Path]) -> None:
    for name, config in SETTINGS.items():
        folder = write(config, name)
        size = len(load_pretrained_tokenizer(folder).dictionary)
        tokenizer = load_pretrained_tokenizer(folder, size + 28)
        assert len(tokenizer.dictionary) == size + 28
        ids = tokenizer.encode("two cats")
        assert tokenizer.decode([*ids, size, size + 27]) == "two cats"
        with pytest.raises(DataError, match=rf"has {size} ids but the model's vocabulary only {size - 1}; give the"):
            load_pretrained_tokenizer(folder, size - 1)
    (folder / "config.json").write_text(json.dumps({"vocab_size": size + 5}))
    assert len(load_pretrained_tokenizer(folder).dictionary) == size + 5, (
        "the vocabulary size of the model in the same folder"
    )


def test_unknown_characters(write: Callable[..., Path]) -> None:
    for name in ("t5", "new"):
        tokenizer = load_pretrained_tokenizer(write(SETTINGS[name], name))
        assert tokenizer.unknown("two 😀 dogs é") == ["😀", "é"], name
        assert tokenizer.unknown("two dogs <unk>") == [], name


@settings(max_examples=60, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_bytes_lose_nothing(text: str) -> None:
    tokenizer = BYTES
    if "<" not in text:
        assert tokenizer.decode(tokenizer.encode(text)) == text


BYTES = make_tokenizer(byte_files())


# run folders and Hugging Face's layout


@pytest.mark.parametrize("name", ["t5", "new", "bytes"])
def test_run_folder_and_layout(write: Callable[..., Path], tmp_path: Path, name: str) -> None:
    tokenizer = load_pretrained_tokenizer(write(SETTINGS[name]), 500)
    save_tokenizer(tokenizer, tmp_path / "run" / "tokenizer")
    save_pretrained_tokenizer(tokenizer, tmp_path / "saved" / "here")
    (tmp_path / "run").rename(tmp_path / "moved")
    text = "two  <extra_id_0>cats 😀 </s>"
    for other in (
        load_tokenizer(tmp_path / "moved" / "tokenizer"),
        load_pretrained_tokenizer(tmp_path / "saved" / "here", 500),
        pickle.loads(pickle.dumps(tokenizer)),
    ):
        assert type(other) is type(tokenizer)
        assert other.dictionary == tokenizer.dictionary
        assert other.fingerprint() == tokenizer.fingerprint()
        assert other.encode(text) == tokenizer.encode(text)
        assert other.encode_lines([text, ""]) == [tokenizer.encode(text), []]


def test_a_model_with_its_own_ids_is_written_too(tmp_path: Path) -> None:
    tokenizer = SentencePieceTokenizer(train_sentencepiece(TEXT, vocab_size=24))
    save_pretrained_tokenizer(tokenizer, tmp_path / "t")
    other = load_pretrained_tokenizer(tmp_path / "t")
    assert other.encode("two green dogs") == tokenizer.encode("two green dogs")
    assert other.dictionary.symbols == tokenizer.dictionary.symbols
    assert other.dictionary.eos() == tokenizer.dictionary.eos() == 2
    (tmp_path / "t" / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"t/tokenizer\.json belongs to another tokenizer; give a new folder"):
        save_pretrained_tokenizer(tokenizer, tmp_path / "t")
    with pytest.raises(DataError, match="WhitespaceTokenizer cannot be written in Hugging Face's layout"):
        save_pretrained_tokenizer(WhitespaceTokenizer(tokenizer.dictionary), tmp_path / "w")


# configuration


def prepare(folder: Path, **options: Any) -> tuple[Tokenizer, Tokenizer]:
    folder.mkdir(parents=True, exist_ok=True)
    return prepare_tokenizers(TokenizerConfig(**options), folder, lambda sides: TEXT * len(sides))


def test_trained_by_a_task(tmp_path: Path, model: bytes) -> None:
    source, target = prepare(tmp_path / "t5", tokenizer="t5", vocab_size=23, extra_ids=7)
    assert source is target
    assert len(source.dictionary) == 30
    assert len(source.sentinels) == 7
    assert source.sentinel(0) == 29
    assert source.decode(source.encode("two red cats.")) == "two red cats."
    with pytest.raises(DataError, match=r"too small for a vocabulary of 8000 pieces; set task\.vocab_size to at most"):
        prepare(tmp_path / "large", tokenizer="t5")
    soft, _ = prepare(tmp_path / "soft", tokenizer="t5", hard_vocab_limit=False)
    assert len(soft.sentinels) == 100
    (tmp_path / "own.model").write_bytes(model)
    given, _ = prepare(tmp_path / "given", tokenizer="t5", spm_model=str(tmp_path / "own.model"))
    assert len(given.dictionary) == PIECES + 100


def test_bytes_and_pretrained_by_a_task(write: Callable[..., Path], tmp_path: Path) -> None:
    source, _ = prepare(tmp_path / "bytes", tokenizer="bytes")
    assert len(source.dictionary) == 384
    folder = write(SETTINGS["t5"])
    options = {"tokenizer": "pretrained", "pretrained_tokenizer": str(folder)}
    source, _ = prepare(tmp_path / "run", **options)
    folder.rename(tmp_path / "gone")
    again, _ = prepare(tmp_path / "run", **options)
    assert again.fingerprint() == source.fingerprint(), "the run folder has all that it needs"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": "pretrained"}, r"task\.pretrained_tokenizer is missing; set it to the folder"),
        (
            {"tokenizer": "t5", "srcdict": "dict.txt"},
            r"task\.srcdict needs task\.tokenizer=sentencepiece or whitespace",
        ),
    ],
)
def test_settings_that_contradict(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(tmp_path, **options)


# damaged folders


def test_missing_files(write: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no folder .*nowhere; give the folder of a tokenizer"):
        load_pretrained_tokenizer(tmp_path / "nowhere")
    folder = write(SETTINGS["t5"])
    (folder / "spiece.model").unlink()
    with pytest.raises(DataError, match=r"has no spiece\.model; copy the files that it was saved with, or set reading"):
        load_pretrained_tokenizer(folder)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "T5TokenizerFast", "add_prefix_space": true}')
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"has no spiece\.model; copy"):
        load_pretrained_tokenizer(folder)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"tokenizer_class": "T5Tokeniser"}, r"names the class 'T5Tokeniser' \(did you mean 'T5Tokenizer'\?\)"),
        ({"pad_token": None}, r"has no pad_token; name it in its tokenizer_config\.json"),
        ({"additional_special_tokens": ["<extra_id_0>"]}, "extra_ids 100 but 1 sentinels among its additional"),
        ({"added_tokens_decoder": {"x": {"content": "<a>"}}}, "'x' is not the id of an added token"),
    ],
)
def test_damaged_configuration(write: Callable[..., Path], config: dict[str, Any], message: str) -> None:
    folder = write({"tokenizer_class": "T5Tokenizer", **config})
    with pytest.raises(DataError, match=message) as error:
        load_pretrained_tokenizer(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", ["{", "[" * 100_000, '{"version": "1.0"}', '{"added_tokens": 3}'])
def test_damaged_fast_file(write: Callable[..., Path], content: str) -> None:
    folder = write({"tokenizer_class": "T5TokenizerFast"}, tokenizer=content)
    with pytest.raises(DataError, match=r"tokenizer\.json"):
        load_pretrained_tokenizer(folder)


@pytest.mark.parametrize("name", ["tokenizer_config", "special_tokens_map", "added_tokens", "config"])
def test_files_that_are_not_json(write: Callable[..., Path], name: str) -> None:
    folder = write(SETTINGS["t5"])
    (folder / f"{name}.json").write_bytes(b"\xff{")
    with pytest.raises(DataError, match=rf"{name}\.json is not JSON, or is damaged \(.*\); copy it again"):
        load_pretrained_tokenizer(folder)


@pytest.mark.parametrize("name", ["t5", "new"])
@pytest.mark.parametrize("damage", ["cut", "empty", "other"])
def test_damaged_model(write: Callable[..., Path], name: str, damage: str) -> None:
    folder = write(SETTINGS[name])
    model = folder / "spiece.model"
    model.write_bytes({"cut": model.read_bytes()[:-7], "empty": b"", "other": b"{}" * 50}[damage])
    with pytest.raises(DataError, match=r"spiece\.model is not a SentencePiece model, or is damaged"):
        load_pretrained_tokenizer(folder)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("byte_fallback", [False, True])
def test_pieces_are_those_of_sentencepiece(kind: str, byte_fallback: bool) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        **{f"{name}_id": index for name, index in T5_IDS.items()},
        **{"sentence_iterator": iter(TEXT), "model_writer": model, "model_type": kind, "minloglevel": 4},
        **{"vocab_size": 300 if byte_fallback else 44, "hard_vocab_limit": False, "byte_fallback": byte_fallback},
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    tokenizer = make_tokenizer(t5_files(model.getvalue()))
    for text in ("two red cats", "two 😀 é dogs", " ö  cats "):
        assert tokenizer.encode(text) == processor.encode(text)
        if byte_fallback:
            assert tokenizer.decode(tokenizer.encode(text)) == processor.decode(processor.encode(text))
