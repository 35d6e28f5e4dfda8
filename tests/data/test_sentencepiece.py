"""SentencePiece models: training them, their ids, T5's sentinels and bytes, and the tokenizers that a task makes."""

import io
import itertools
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from seqgen.data.tokenizers import pretrained
from seqgen.data.tokenizers.pretrained import byte_files, load_pretrained_tokenizer, make_tokenizer, t5_files
from seqgen.data.tokenizers.sentencepiece_tokenizer import T5_IDS, SentencePieceTokenizer, train_sentencepiece
from seqgen.data.tokenizers.setup import TokenizerConfig, prepare_tokenizers
from seqgen.extend import DataError, Dictionary, Tokenizer, WhitespaceTokenizer
from tests.pretrained_folders import sentencepiece_model, write_folder

TEXT = [f"{a} {b} {c}" for a in ("one", "two", "three") for b in ("red", "green", "blue") for c in ("cats", "dogs")]
SHARED = Path(os.environ.get("SEQGEN_SHARED", Path(__file__).resolve().parents[3] / "shared"))
ORACLE = SHARED / "oracles" / "fairseq"
ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_training_is_reproducible_and_names_the_possible_size(kind: str) -> None:
    models = [train_sentencepiece(iter(TEXT), vocab_size=24, model_type=kind) for _ in range(2)]
    assert models[0] == models[1]
    dictionary = SentencePieceTokenizer(models[0]).dictionary
    assert dictionary.symbols[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert (dictionary.special_ids, len(dictionary)) == ({"pad": 1, "eos": 2, "unk": 3, "bos": 0}, 24)
    with pytest.raises(DataError, match=r"set task\.vocab_size to at most \d+") as error:
        train_sentencepiece(TEXT, vocab_size=8000, model_type=kind)
    largest = int(str(error.value).split()[-1])
    assert train_sentencepiece(TEXT, vocab_size=largest, model_type=kind)
    soft = train_sentencepiece(TEXT, vocab_size=8000, model_type=kind, hard_vocab_limit=False)
    assert len(SentencePieceTokenizer(soft).dictionary) == largest


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DataError("train.en, line 19: no")])
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


def test_a_given_dictionary_is_indexed_by_pieces() -> None:
    own = SentencePieceTokenizer(train_sentencepiece(TEXT, vocab_size=24))
    given = Dictionary.from_counts(dict.fromkeys([*own.dictionary.symbols[4:], "é"], 1))
    through = SentencePieceTokenizer(own.model, given)
    ids = through.encode("two dogs")
    assert [given[i] for i in ids] == [own.dictionary[i] for i in own.encode("two dogs")]
    assert given.index("é") in through.encode("two é"), "a character that only the dict.txt knows"
    assert given.unk() in through.encode("two ß")
    without = SentencePieceTokenizer(sentencepiece_model()).dictionary
    assert without.special_ids == {"pad": len(without) - 1, "eos": 2, "unk": 0, "bos": 1}, "padding is appended"


def test_words_of_a_text() -> None:
    tokenizer = WhitespaceTokenizer(Dictionary.from_counts({"Haus": 2, "das": 5}))
    assert tokenizer.encode("  das\tHaus Hund \u2028 das") == [4, 5, 3, 4]
    assert tokenizer.decode([4, 5, 3, 2, 1]) == "das Haus <unk>"
    assert tokenizer.encode("</s> <pad> <s> <unk> das") == [3, 3, 3, 3, 4], "special tokens in text are unknown words"
    assert tokenizer.unknown("</s> das Hund") == ["</s>", "Hund"]


@pytest.mark.skipif(not ORACLE.is_dir(), reason="the oracle is not here")
def test_fairseq_oracle() -> None:
    dictionary = Dictionary.load(ORACLE / "dict.txt")
    tokenizer = SentencePieceTokenizer((ORACLE / "spm.model").read_bytes(), dictionary)
    lines = (ORACLE / "expected" / "fconv.b2_unkpen-8.jsonl").read_bytes().split(b"\n")
    records = [json.loads(line) for line in lines if line]
    assert (len(dictionary), len(records)) == (4008, 100)
    for record in records:
        assert tokenizer.encode_source(record["source"]) == record["src_tokens"]
        for hypothesis in record["hypotheses"]:
            assert tokenizer.decode(hypothesis["tokens"]) == hypothesis["text"]


# T5's


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


def test_ids_and_sentinels_of_t5() -> None:
    """The sentinels are the last ids, in reverse order."""
    tokenizer = make_tokenizer(t5_files(train_sentencepiece(TEXT, vocab_size=23, special_ids=T5_IDS)))
    dictionary = tokenizer.dictionary
    assert dictionary.special_ids == {"pad": 0, "eos": 1, "unk": 2, "bos": None}
    assert dictionary.symbols[:3] == ["<pad>", "</s>", "<unk>"]
    assert tokenizer.sentinels == list(range(122, 22, -1))
    assert dictionary[122] == "<extra_id_0>"
    names = ["<pad>", "</s>", "<unk>", "▁<extra_id_1>", "▁<extra_id_0>", "<extra_id_3>"]
    mt5 = WhitespaceTokenizer(Dictionary(names, pad=0, eos=1, unk=2, bos=None))
    assert mt5.sentinels == [4, 3], "as mT5's model has them"


def test_ids_of_byt5() -> None:
    tokenizer = make_tokenizer(byte_files(), vocab_size=384)
    assert tokenizer.encode("aé😀") == [100, 198, 172, 243, 162, 155, 131]
    assert tokenizer.sentinels == list(range(259, 384))
    assert tokenizer.encode("a <extra_id_1>") == [100, 35, 260]
    assert tokenizer.decode([100, 198, 172, 260, 198, 1, 0]) == "aé", "an incomplete character is left out"
    assert tokenizer.decode([100, 260, 101], skip_special_tokens=False) == "a <extra_id_1> b"
    assert tokenizer.dictionary.special_ids == {"pad": 0, "eos": 1, "unk": 2, "bos": None}


def test_table_of_the_documentation(tmp_path: Path) -> None:
    words = ["A", "dog", "on", "upon", "two"]
    text = [" ".join(order) + "." for order in itertools.permutations(words, 4)] + ["onon on d o g dg od"]
    model = train_sentencepiece(text, vocab_size=22, special_ids=T5_IDS)
    tokenizers = []
    for legacy in (True, False):
        folder = write_folder(tmp_path / str(legacy), "T5Tokenizer", {"legacy": legacy})
        (folder / "spiece.model").write_bytes(model)
        tokenizers.append(load_pretrained_tokenizer(folder))
    tokenizers.append(make_tokenizer(t5_files(model)))
    page = (ROOT / "docs" / "tokenizers.md").read_text(encoding="utf-8")
    table = page.split("| text |")[1].split("\n\n")[0]
    rows = [re.findall(r"`([^`]+)`", line) for line in table.splitlines()[2:]]
    assert len(rows) == 6
    for line, *cells in rows:
        real = line.replace("X", "<extra_id_0>").replace("N", "\x85")
        for tokenizer, cell in zip(tokenizers, cells, strict=True):
            tokens = [tokenizer.dictionary[i] for i in tokenizer.encode(real)]
            assert " ".join(tokens).replace("<extra_id_0>", "X") == cell, line
    decoded = {tokenizer.decode(tokenizer.encode("A dog <extra_id_0> on"), False) for tokenizer in tokenizers}
    assert decoded == {"A dog<extra_id_0> on"}


def test_a_model_with_its_own_ids_is_written_too(tmp_path: Path) -> None:
    tokenizer = SentencePieceTokenizer(train_sentencepiece(TEXT, vocab_size=24))
    pretrained.save_pretrained_tokenizer(tokenizer, tmp_path)
    other = load_pretrained_tokenizer(tmp_path)
    assert other.encode("two green dogs") == tokenizer.encode("two green dogs")
    assert (other.dictionary.symbols, other.dictionary.eos()) == (tokenizer.dictionary.symbols, 2)


# the tokenizers of a task


def prepare(folder: Path, **options: Any) -> Tokenizer:
    folder.mkdir(parents=True, exist_ok=True)
    source, target = prepare_tokenizers(TokenizerConfig(**options), folder, lambda sides: TEXT * len(sides))
    assert source is target
    return source


def test_a_task_trains_t5s_tokenizer_or_takes_a_model(tmp_path: Path) -> None:
    source = prepare(tmp_path / "t5", tokenizer="t5", vocab_size=23, extra_ids=7)
    assert source.sentinels == list(range(29, 22, -1))
    assert source.decode(source.encode("two red cats")) == "two red cats"
    assert len(prepare(tmp_path / "soft", tokenizer="t5", hard_vocab_limit=False).sentinels) == 100
    (tmp_path / "own.model").write_bytes(train_sentencepiece(TEXT, vocab_size=23, special_ids=T5_IDS))
    assert len(prepare(tmp_path / "given", tokenizer="t5", spm_model=f"{tmp_path}/own.model").dictionary) == 123
    assert len(prepare(tmp_path / "bytes", tokenizer="bytes").dictionary) == 384


def test_a_run_folder_has_all_that_it_needs_of_a_pretrained_tokenizer(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "t5", "T5Tokenizer")
    options = {"tokenizer": "pretrained", "pretrained_tokenizer": str(folder)}
    source = prepare(tmp_path / "run", **options)
    folder.rename(tmp_path / "gone")
    assert prepare(tmp_path / "run", **options).fingerprint() == source.fingerprint()
