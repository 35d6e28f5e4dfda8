"""Vocabularies, tokenizers, text files, datasets and languages: what is said of wrong ones."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from seqgen import Translator
from seqgen.data.combined_datasets import JoinedDataset, pack
from seqgen.data.pair_dataset import Example, PairDataset, Side, collate
from seqgen.data.records import JsonFormat, Template, TsvFormat
from seqgen.data.text_dataset import BlockDataset
from seqgen.data.token_store import TokenEncoder, build_store
from seqgen.data.tokenizers.base import WhitespaceTokenizer, load_tokenizer, save_tokenizer
from seqgen.data.tokenizers.language_tokens import with_languages
from seqgen.data.tokenizers.languages import M2M100, MBART50, NLLB, Languages, TargetLanguage
from seqgen.data.tokenizers.pretrained import (
    byte_files,
    load_pretrained_tokenizer,
    make_tokenizer,
    save_pretrained_tokenizer as save_pretrained,
)
from seqgen.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer, train_sentencepiece
from seqgen.data.tokenizers.setup import TokenizerConfig, prepare_tokenizers
from seqgen.extend import Column, Dictionary, Task, UserError, find_parallel, inputs_of, read_lines
from tests.pretrained_folders import sentencepiece_model, write_folder, write_model
from tests.refusals import LANGUAGE_MODEL, TRANSLATION, Row, refusals
from tests.tokenizer_texts import TEXT

WORDS = WhitespaceTokenizer(Dictionary.from_counts({"a": 3, "b": 2, "c": 1}))


def file(name: str, content: bytes | str, read: Callable[[Path], Any], *words: str) -> Row:
    """A file with some content, whose name the refusal has, too."""

    def call(tmp_path: Path) -> Any:
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return read(tmp_path / name)

    return call, name, *words


def lines_of(path: Path) -> list[str]:
    return list(read_lines(path))


def dictionary(content: bytes, *words: str) -> Row:
    return file("dict.txt", content, Dictionary.load, *words)


def damaged(content: bytes) -> Row:
    return file("dictionary.json", content, Dictionary.load, "is not a vocabulary, or is damaged")


def unfit(token: str) -> Row:
    return lambda tmp_path: Dictionary.from_counts({token: 1}).save(tmp_path / "dict.txt"), "dict.txt", "save as .json"


test_dictionaries = refusals(
    dictionary(b"", "is empty"),
    dictionary(b"a 1\nb\n", "line 2: 'b' is not a token, a space and a count"),
    dictionary(b"a 1\nb 1\na 2\n", "line 3: the token 'a' occurs twice"),
    dictionary(b"a 1\n\xff 1\n", "line 2: byte 1", "is not valid UTF-8"),
    damaged(b""),
    damaged(b"[]"),
    damaged(b"{}"),
    damaged(b'{"symbols": ["a", "a"], "counts": [1, 1]}'),
    damaged(b'{"symbols": 3}'),
    damaged(b"\xff"),
    # a dict.txt has the special ids of fairseq, and a token on each line
    (lambda tmp_path: Dictionary("abc", pad=0, eos=1, unk=2, bos=None).save(tmp_path / "dict.txt"), "save as .json"),
    unfit("a\nb"),
    unfit("\ufeffa"),
)

WHOLE = gzip.compress("".join(f"line {i}\n" for i in range(100_000)).encode())


def pair(*names: str, prefix: str = "train", folder: str = "") -> Callable[[Path], Any]:
    """Looks for two files where there are others."""

    def call(tmp_path: Path) -> None:
        for number, name in enumerate(names):
            (tmp_path / name).write_text("x\n" * (number + 1))
        find_parallel(str(tmp_path / folder / prefix), "en", "de", key="task.train").check()

    return call


def template(text: str, *words: str) -> Row:
    return lambda: Template(text, "here").check(["source", "target"]), "here", *words


test_text_files = refusals(
    file("text", b"gut\n" * 100_000 + b"f\xfcr\n", lines_of, "line 100001: byte 2 (0xfc) is not valid UTF-8"),
    file("cut.gz", WHOLE[: len(WHOLE) // 2], lines_of, "is damaged"),
    file("flipped.gz", WHOLE[:5000] + bytes([WHOLE[5000] ^ 255]) + WHOLE[5001:], lines_of, "is damaged"),
    file("plain.gz", b"not compressed\n", lines_of, "is damaged"),
    (lambda tmp_path: lines_of(tmp_path / "missing"), "there is no file", "missing"),
    (lambda tmp_path: lines_of(tmp_path / "."), "cannot read"),
    file("x.en.gz", b"", lambda path: lines_of(path.with_suffix("")), "there is no file", "x.en; give"),
    # pairs of files
    (pair("trian.en"), "task.train=", "neither", "train.en nor", "train.en.gz", "did you mean 'trian.en'"),
    (pair(folder="no"), "there is no folder"),
    (pair("p2.en", "p10.en", "p10.de", prefix="p*"), "task.train=", "there is", "p2.en but neither", "p2.de nor"),
    (pair("train.en", "train.de"), "train.en has 1 lines but", "train.de has 2"),
    *((pair("a.en", "a.de", prefix=f"a.{end}"), "remove the language: task.train=", "/a") for end in ("en", "de")),
    (pair("a.en", "a.de.gz", prefix="a.de.gz"), "remove the language: task.train=", "/a"),
    # templates, which are never evaluated
    *(template(text, "a literal brace twice") for text in ("{", "}", "{}", "{0", "{a!r}", "{a:>10}", "{a} {")),
    template("{source.__class__}", "names the field 'source.__class__', but the fields are: source, target"),
    template("{source[0]}", "names the field 'source[0]'", "the fields are: source, target"),
)
test_records = refusals(
    (lambda: TsvFormat(("a", "b")).read("a\tb\tc"), "3 columns instead of 2"),
    (lambda: JsonFormat(("a",)).read("[" * 100_000), "nested too deeply"),
    error=ValueError,
)


def store(folder: Path, *lines: str, name: str = "text", **options: Any) -> Any:
    (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return build_store(folder / "cache", "t", [folder / name], TokenEncoder(WORDS), **options)


def pairs(target: tuple[str, ...] = (), **options: Any) -> Callable[[Path], PairDataset]:
    def call(tmp_path: Path) -> PairDataset:
        sides = [store(tmp_path, "a b", "", "a a a a", "b", name="en")]
        sides += [store(tmp_path, *target, name="de")] if target else []
        return PairDataset(*(Side(side, WORDS.target_tokens()) for side in sides), name="train", **options)

    return call


def blocks(folder: Path, *lines: str) -> BlockDataset:
    return BlockDataset(store(folder, *lines), 2, 2, "none", 4)


def packed(*columns: dict[str, Any]) -> Callable[[], Any]:
    rows = [Example(number, torch.tensor([2]), None, one) for number, one in enumerate(columns)]
    return lambda: pack([collate(rows, source_pad=1, target_pad=1, start_token=2)], 1, 1)


def split(line: str, *words: str) -> Row:
    """Read a line of input with a column."""
    task = Task(Mock(source_column="", source_lang="en"), WORDS, WORDS)
    task.columns = {"x": Column("x", "number")}
    return lambda: task.split_columns(line, 4), *words


SOURCE, READS_Y = Mock(source=Mock(inputs={"x": 0})), Mock(encoder=Mock(inputs=("y",)))
test_datasets = refusals(
    (lambda tmp_path: store(tmp_path, name="empty"), "empty is empty"),
    (pairs(max_source_positions=4, on_overlong="error"), "1 pairs of train are longer than 4 source tokens: en, line"),
    (lambda tmp_path: pairs()(tmp_path).limited(1, None), "no pair can be used", "longer than 1 source tokens"),
    (pairs(("a",)), "train: there are 4 source lines but 1 target lines"),
    (lambda tmp_path: blocks(tmp_path, "", ""), "text contains no token"),
    (lambda tmp_path: blocks(tmp_path, "a b c a b").limited(None, 3), "up to 4 target tokens", "only 3 positions"),
    (f"{TRANSLATION} task.tokenizer=bytes model=fconv_tiny dataset.pack=true", "not possible with model=fconv"),
    *((packed({"x": [1]}, one), "the column 'x' is missing in some examples, or its") for one in ({}, {"x": [1, 2]})),
    (packed({"x": 1}), "dataset.pack=true is not possible with examples that have columns: x"),
    (lambda: Task.dataset(Mock(datasets={}, load_dataset=list), ""), "load_dataset", "must return a Dataset but ret"),
    (lambda: inputs_of(Mock(inputs=("x",)), Mock(inputs={})), "Mock reads x, which are missing: see task.columns"),
    (lambda: JoinedDataset({"a": Mock()}), "the part 'a' of a mixture has a state_dict; give it to the mixture"),
    # columns
    *(
        ((lambda name=name, kind=kind: Column(name, kind)), f"{{{name}:{kind}}}: a name must be a word that")
        for name, kind in (("a b", "id"), ("src_x", "id"), ("x_lengths", "id"), ("x", "array"), ("x", [0]), ("x", []))
    ),
    *(
        ((lambda kind=kind, value=value: Column("x", kind).read(value, "row 3")), "row 3: x ", words)
        for kind, value, words in (
            *(("id", value, "task.columns declares id") for value in ("1.5", "-1", "1 2", "", "9" * 20, np.array(1.5))),
            *(("number", value, "declares number") for value in ("None", "[[1]]")),
            *(("number", value, "has values that are not finite") for value in ("nan", "1e99")),
            ("ids", "[1, [2]]", "declares ids"),
            ([2], "1 2 3", "has the shape [3], and task.columns declares [2]"),
            ([2, 1], "[[1, 2]]", "has the shape [1, 2], and task.columns declares [2, 1]"),
        )
    ),
    split('{"en": 1}', "line 5: there is no field 'x'; the line has: en"),
    split('{"en": 1, "x": "a"}', "line 5: x is 'a', and task.columns declares number"),
    (lambda: Task.train_step(Mock(), SOURCE, READS_Y, None), "inputs of Mock and NoneType do not name the columns x"),
)


def trained(name: str, content: bytes, *words: str) -> Row:
    """A saved tokenizer, one of whose files has another content, or is missing."""

    def call(tmp_path: Path) -> None:
        save_tokenizer(SentencePieceTokenizer(sentencepiece_model()), tmp_path / "tokenizer")
        path = tmp_path / "tokenizer" / name
        path.write_bytes(content) if content else path.unlink()
        load_tokenizer(path.parent)

    return call, *words


def prepare(folder: Path, **options: Any) -> Any:
    return prepare_tokenizers(TokenizerConfig(**options), folder, lambda sides: TEXT * len(sides))


test_tokenizers = refusals(
    (lambda: train_sentencepiece(TEXT, vocab_size=6), "set task.vocab_size to at least", "or character_coverage lower"),
    (lambda: train_sentencepiece(["", "  "], vocab_size=10), "no words"),
    (lambda: SentencePieceTokenizer(sentencepiece_model(), Dictionary.from_counts({"x": 1})), "too few pieces"),
    trained("sentencepiece.model", sentencepiece_model()[:-100], "is not a SentencePiece model, or is damaged"),
    trained("sentencepiece.model", b"", "there is no SentencePiece model"),
    trained("tokenizer.json", b'{"tokenizer": "sentencepeace"}', "did you mean 'sentencepiece'"),
    trained("tokenizer.json", b"{", "is damaged"),
    (lambda tmp_path: load_tokenizer(tmp_path / "."), "is not the folder of a tokenizer"),
    (lambda: make_tokenizer(byte_files()).sentinel(125), "no <extra_id_125>, only 125 sentinels"),
    (lambda tmp_path: prepare(tmp_path, tokenizer="pretrained"), "task.pretrained_tokenizer is missing; set it to"),
    (lambda tmp_path: prepare(tmp_path, tokenizer="t5", srcdict="dict.txt"), "srcdict needs task.tokenizer=sentencepi"),
    (lambda tmp_path: prepare(tmp_path, tokenizer="t5"), "too small for a vocabulary of 8000 pieces"),
    (lambda tmp_path: save_pretrained(WORDS, tmp_path), "WhitespaceTokenizer cannot be written in Hugging Face's"),
    (f"{LANGUAGE_MODEL} task.tokenizer=pretrained task.pretrained_tokenizer={{marian}}", "use task=translation"),
    (f"{TRANSLATION} task.tokenizer=pretrained task.pretrained_tokenizer={{nllb}}", "task=multilingual_translation"),
)


@pytest.fixture
def marian(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "marian", "MarianTokenizer")


@pytest.fixture(scope="module")
def nllb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with the languages of NLLB."""
    return write_model(tmp_path_factory.mktemp("models") / "nllb", "NllbTokenizer", {"additional_special_tokens": None})


@pytest.fixture(scope="module")
def translator(nllb: Path) -> Translator:
    return Translator(str(nllb))


def folder(name: str, *words: str, size: int | None = None, file: str = "", content: str = "", **config: Any) -> Row:
    """A folder in Hugging Face's layout with values in its configuration, and with another file."""

    def call(tmp_path: Path) -> None:
        path = write_folder(tmp_path / "folder", name, config)
        if file:
            (path / file).write_bytes(content.encode("latin-1"))
        load_pretrained_tokenizer(path, size).target_side  # noqa: B018

    return call, *words


def damaged_file(name: str) -> Row:
    words = f"{name} is not JSON, or is damaged (", "); copy it again"
    return folder("T5Tokenizer", *words, file=name, content="\xff{")


def not_written(name: str) -> Row:
    def call(tmp_path: Path) -> None:
        tokenizer = load_pretrained_tokenizer(write_folder(tmp_path / "tokenizer", name))
        try:
            save_pretrained(with_languages(tokenizer, [("en", "gsw")]), tmp_path / "written")
        finally:
            assert not (tmp_path / "written").exists()

    return call, "with added languages (", "gsw) cannot be written", "only NLLB's tokenizer"


NO_PIPELINE = ("[" * 100_000, "{", '{"version": "1.0"}', '{"added_tokens": 3}')
VOCABULARIES = ('{"</s>": "0"}', '{"a": 0, "b": 0}', '{"a": 0, "b": 2}', '{"</s>": 0}', "{}")
test_folders_of_tokenizers = refusals(
    (lambda tmp_path: load_pretrained_tokenizer(tmp_path / "nowhere"), "there is no folder", "give the folder of"),
    (lambda marian: save_pretrained(make_tokenizer(byte_files()), marian), "belongs to another tokenizer; give a new"),
    folder("T5Tokeniser", "names the class 'T5Tokeniser' (did you mean 'T5Tokenizer'?)"),
    folder("T5Tokenizer", "has no pad_token; name it in its tokenizer_config.json", pad_token=None),
    folder("T5Tokenizer", "extra_ids 100 but 1 sentinels among its", additional_special_tokens=["<extra_id_0>"]),
    folder("T5Tokenizer", "'x' is not the id of an added token", added_tokens_decoder={"x": {"content": "<a>"}}),
    *map(damaged_file, ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json")),
    *(folder("T5TokenizerFast", "tokenizer.json", file="tokenizer.json", content=text) for text in NO_PIPELINE),
    *(folder("M2M100Tokenizer", "vocab.json", file="vocab.json", content=text) for text in VOCABULARIES),
    *(folder("MarianTokenizer", "vocab.json", file="vocab.json", content=text) for text in VOCABULARIES),
    folder("T5Tokenizer", "has 144 ids but the model's vocabulary only 143; give the", size=143),
    folder("BartTokenizer", "vocab_file is '/x/vocab.json', which", "copy a file", vocab_file="/x/vocab.json"),
    # the target's vocabulary is missing, which only the target needs
    folder("MarianTokenizer", "has no target_vocab.json", separate_vocabs=True),
    folder("NllbTokenizer", "src_lang: ", "no language 'de' (did you mean 'deu_Latn'?)", src_lang="de"),
    folder("NllbTokenizer", "the model has no language 'eng_Latn'", additional_special_tokens=[]),
    folder("NllbTokenizer", "the model has no language 'eng_Latn'", additional_special_tokens=["deu_Latn"]),
    *map(not_written, ("M2M100Tokenizer", "MBartTokenizer", "MBart50Tokenizer", "BartTokenizer")),
)


def language(name: str, codes: list[str], *meant: str) -> Row:
    """A name of a language, and the codes that may be meant."""
    languages = Languages({code: number for number, code in enumerate(codes)}, TargetLanguage.FIRST)
    hint = f" (did you mean {' or '.join(map(repr, meant))}?)" if meant else ""
    return lambda: languages.code(name, "generation.target_lang"), f"has no language '{name}'{hint}; seqgen-show"


def other(key: str, words: str, name: str = "T5Tokenizer") -> Row:
    """A language that is chosen between those of another model."""
    given = {key: "fra" if name == "MarianTokenizer" else "de"}
    return lambda tmp_path: Translator(str(write_model(tmp_path / "m", name))).translate(["a"], **given), words


NO_LANGUAGES = "generation.{}=de chooses a language, but the model has no languages"
test_languages = refusals(
    language("german", M2M100, "de"),
    language("deu", M2M100, "de"),
    language("de-AT", M2M100, "de"),
    language("German", MBART50, "de_DE"),
    language("ja", NLLB, "jpn_Jpan"),  # not jav_Latn
    language("es", NLLB, "spa_Latn"),  # not est_Latn
    language("chinese", NLLB, "zho_Hans", "zho_Hant"),
    language("deu_Latin", NLLB, "deu_Latn"),
    language("klingon", NLLB),
    language("xx", M2M100),
    ("generate path={nllb} input=- generation.target_lang=German", "(did you mean 'deu_Latn'?)", "its 202 languages"),
    (lambda translator: translator.translate(["a\tdeu_Latn", "a"], target_lang="field2"), "line 2, ", "only 1 field;"),
    (lambda translator: [*translator.score(["a\tdeu_Latn", "a\tb"], ["a"] * 2, target_lang="field2")], "line 2", "'b'"),
    ("generate path={nllb} input=- generation.target_lang=deu_Latn generation.forced_first=</s>", "both determine the"),
    *(other(key, NO_LANGUAGES.format(key)) for key in ("source_lang", "target_lang")),
    other("source_lang", "the model is not told the language of its source", "MarianTokenizer"),
    (lambda t5: next(Translator(str(t5)).score(["a"], ["b"], target_lang="de")), "the model has no languages"),
    ("show path={t5} languages=true", "no languages"),
    ("show languages=true", "path"),
    error=UserError,
)


@pytest.fixture
def t5(tmp_path: Path) -> Path:
    return write_model(tmp_path / "t5", "T5Tokenizer")
