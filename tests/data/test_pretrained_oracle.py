"""The tokenizers of BART, Marian, mBART, M2M-100, NLLB and Pegasus give the ids and texts of those of transformers."""

import json
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seqgen.data.tokenizers.base import load_tokenizer, save_tokenizer
from seqgen.data.tokenizers.languages import M2M100, MBART50, NLLB
from seqgen.data.tokenizers.pretrained import (
    PretrainedTokenizer,
    load_pretrained_tokenizer,
    save_pretrained_tokenizer,
)
from tests.pretrained_folders import write_folder
from tests.tokenizer_texts import HARD, LONG, random_ids

pytestmark = pytest.mark.slow

transformers = pytest.importorskip("transformers")

FAIRSEQ = ["MBartTokenizer", "MBart50Tokenizer", "NllbTokenizer"]
SLOW = ["M2M100Tokenizer", "MarianTokenizer"]
FAST = [f"{name}Fast" for name in ("BartTokenizer", *FAIRSEQ, "PegasusTokenizer")]
NAMED = [
    *("<mask>", "a <mask> b", "a<mask>b", "a  <mask>\u3000<mask> b", "a \x1c<mask>", "<mask", "a\u00a0<mask>"),
    *("en_XX a", "a de_DEb", "deu_Latn a deu_Latn", "__de__ a", "a __de__", "__xx__ a", "<s> a <pad></s>"),
    *(">>fra<< a dog", ">>fra<<a", ">>xxx<< a", " >>fra<< a", "a >>fra<<", ">>fra<< >>fra<<", ">>", ">>a <<b<< c"),
    *("</s>>>fra<< a", "<mask_1> a <mask_2>", "a <unk_2><unk_102>", "<unk_103>", "<mask_2>.", "<n>", "a\nb\n\nc"),
]
TEXTS = [*HARD, *NAMED]


def planes(step: int) -> Iterator[str]:
    """Texts with the code points of all planes, 64 in a line, of which every ``step``-th line is returned."""
    valid = [chr(i) for i in range(sys.maxunicode + 1) if not 0xD800 <= i < 0xE000]
    for start in range(0, len(valid), 64 * step):
        yield "a" + "".join(valid[start : start + 64])


def single_characters() -> list[str]:
    """One text for each control, format or separator character, between letters."""
    kinds = ("Cc", "Cf", "Zs", "Zl", "Zp")
    found = [chr(i) for i in range(0x30000) if unicodedata.category(chr(i)) in kinds]
    return [f"a{character}b {character} {character}" for character in found]


def assert_equal(tokenizer: PretrainedTokenizer, oracle: Any, texts: list[str]) -> None:
    """Encode the texts, and decode them and random ids, with and without special tokens."""
    size = min(len(oracle), len(tokenizer.dictionary))
    dictionary = tokenizer.dictionary
    assert (dictionary.eos(), dictionary.pad()) == (oracle.eos_token_id, oracle.pad_token_id)
    assert dictionary.unk() == oracle.unk_token_id
    known = [symbol.split("#")[0] if "#" in symbol[1:] else symbol for symbol in dictionary.symbols[:size]]
    theirs = oracle.convert_ids_to_tokens(list(range(size)))
    assert known == [token.split("#")[0] if "#" in token[1:] else token for token in theirs]
    encoded = oracle(texts).input_ids
    for text, ids in zip(texts, encoded, strict=True):
        assert tokenizer.encode_source(text) == ids, text
    own = {"use_source_tokenizer": True} if "Marian" in type(oracle).__name__ else {}
    for ids in encoded + random_ids(size):
        for skip in (True, False):
            assert tokenizer.decode(ids, skip) == oracle.decode(ids, skip_special_tokens=skip, **own), ids


FLAGS = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
LISTED = {"additional_special_tokens": [f"__{code}__" for code in M2M100]}
COMMON: dict[str, dict[str, Any]] = {
    "plain": {},
    "clean_up": {"clean_up_tokenization_spaces": True, "mask_token": {"__type": "AddedToken", "content": "<mask>"}},
    "split_special": {"split_special_tokens": True},
    "other_eos": {"eos_token": {"__type": "AddedToken", "content": "</s>", **FLAGS, "rstrip": True}},
    "further": {"additional_special_tokens": ["dog", "<new>"], "bos_token": "<s>"},
}
OWN: dict[str, dict[str, dict[str, Any]]] = {
    "BartTokenizer": {"prefix": {"add_prefix_space": True}},
    "MBartTokenizer": {"language": {"src_lang": "ro_RO", "tgt_lang": "en_XX"}},
    "MBart50Tokenizer": {"language": {"src_lang": "sl_SI"}, "listed": {"additional_special_tokens": MBART50[::-1]}},
    "NllbTokenizer": {
        "listed": {"additional_special_tokens": [*NLLB[::-1], "dog", "tyv_Cyrl"], "src_lang": "tyv_Cyrl"},
        "legacy": {"legacy_behaviour": True, "src_lang": "fra_Latn"},
        "language": {"src_lang": "zul_Latn", "legacy_behaviour": False},
    },
    "M2M100Tokenizer": {"listed": {**LISTED, "src_lang": "de"}, "wmt21": {"language_codes": "wmt21", "src_lang": "ha"}},
    "MarianTokenizer": {"languages": {"source_lang": "en", "target_lang": "fr"}},
    "PegasusTokenizer": {
        "offset": {"offset": 20},
        "listed": {"additional_special_tokens": ["<mask_1>", *(f"<unk_{i}>" for i in range(2, 103))]},
        "no_sentence_mask": {"mask_token_sent": None, "offset": 0, "additional_special_tokens": []},
    },
}
QUICK = ("plain", *(variant for variants in OWN.values() for variant in variants))
CASES = [
    pytest.param(name, config, id=f"{name}-{variant}", marks=[] if variant in QUICK else pytest.mark.slow)
    for name in [*SLOW, *FAST]
    for variant, config in {**COMMON, **OWN[name.removesuffix("Fast")]}.items()
    if not (name.startswith("Nllb") and variant == "further")
]
CASES += [pytest.param("RobertaTokenizerFast", {}, id="RobertaTokenizerFast")]


@pytest.mark.parametrize(("name", "config"), CASES)
def test_hostile_texts(tmp_path: Path, name: str, config: dict[str, Any]) -> None:
    folder = write_folder(tmp_path / "folder", name, config)
    oracle = getattr(transformers, name).from_pretrained(folder)
    assert_equal(load_pretrained_tokenizer(folder), oracle, TEXTS)


@pytest.mark.parametrize("name", [*SLOW, *FAST])
def test_unusual_characters(tmp_path: Path, name: str) -> None:
    folder = write_folder(tmp_path / "folder", name)
    oracle = getattr(transformers, name).from_pretrained(folder)
    assert_equal(load_pretrained_tokenizer(folder), oracle, [*planes(600), *single_characters()[::5], *LONG])


@pytest.mark.nightly
@pytest.mark.parametrize("name", [*SLOW, *FAST])
def test_all_characters(tmp_path: Path, name: str) -> None:
    folder = write_folder(tmp_path / "folder", name)
    oracle = getattr(transformers, name).from_pretrained(folder)
    assert_equal(load_pretrained_tokenizer(folder), oracle, [*planes(1), *single_characters()])


@pytest.mark.parametrize("name", [name for name in [*SLOW, *FAST] if not name.startswith("Bart")])
def test_without_normalization(tmp_path: Path, name: str) -> None:
    folder = write_folder(tmp_path / "folder", name, normalization="identity")
    oracle = getattr(transformers, name).from_pretrained(folder)
    assert_equal(load_pretrained_tokenizer(folder), oracle, TEXTS[::2])


@pytest.mark.parametrize("name", ["BartTokenizer", *FAIRSEQ, "PegasusTokenizer"])
def test_the_name_of_the_slow_class_means_the_fast_one(tmp_path: Path, name: str) -> None:
    folder = write_folder(tmp_path / "folder", name)
    oracle = getattr(transformers, f"{name}Fast").from_pretrained(folder)
    assert_equal(load_pretrained_tokenizer(folder), oracle, TEXTS[::4])


@pytest.mark.parametrize("separate", [False, True])
def test_sides_of_marian(tmp_path: Path, separate: bool) -> None:
    folder = write_folder(tmp_path / "folder", "MarianTokenizer", {"separate_vocabs": separate}, separate=separate)
    oracle = transformers.MarianTokenizer.from_pretrained(folder)
    source = load_pretrained_tokenizer(folder)
    target = source.target_side
    assert isinstance(target, PretrainedTokenizer)
    assert (source.dictionary == target.dictionary) is not separate
    for text, ids in zip(TEXTS, oracle(TEXTS).input_ids, strict=True):
        assert source.encode_source(text) == ids, text
    encoded = oracle(text_target=TEXTS).input_ids
    for text, ids in zip(TEXTS, encoded, strict=True):
        assert target.encode_target(text) == ids, text
    for ids in [*encoded, *random_ids(len(target.dictionary))]:
        for skip in (True, False):
            assert target.decode(ids, skip) == oracle.decode(ids, skip_special_tokens=skip), ids
    save_tokenizer(target, tmp_path / "target")
    loaded = load_tokenizer(tmp_path / "target")
    assert loaded.encode("deux chien") == target.encode("deux chien") != source.encode("deux chien")
    assert loaded.fingerprint() == target.fingerprint() != source.fingerprint()


@pytest.mark.parametrize("name", [*(f"{name}Fast" for name in FAIRSEQ), "M2M100Tokenizer"])
def test_byte_pair_encoding(tmp_path: Path, name: str) -> None:
    folder = write_folder(tmp_path / "folder", name, kind="bpe")
    oracle = getattr(transformers, name).from_pretrained(folder)
    assert_equal(load_pretrained_tokenizer(folder), oracle, TEXTS)


@pytest.mark.parametrize("name", [*SLOW, *FAST])
def test_what_transformers_saves(tmp_path: Path, name: str) -> None:
    original = getattr(transformers, name).from_pretrained(write_folder(tmp_path / "folder", name))
    original.add_tokens(["<new>", transformers.AddedToken("dog", lstrip=True, rstrip=True)])
    original.save_pretrained(tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == name.removesuffix("Fast")  # the name of the slow one
    (tmp_path / "saved" / "tokenizer_config.json").write_text(json.dumps({**config, "tokenizer_class": name}))
    tokenizer = load_pretrained_tokenizer(tmp_path / "saved")
    oracle = getattr(transformers, name).from_pretrained(tmp_path / "saved")
    assert_equal(tokenizer, oracle, TEXTS[::2])
    save_pretrained_tokenizer(tokenizer, tmp_path / "again")  # what seqgen-convert writes
    assert_equal(tokenizer, getattr(transformers, name).from_pretrained(tmp_path / "again"), TEXTS[::9])
    save_tokenizer(tokenizer, tmp_path / "run")
    assert load_tokenizer(tmp_path / "run").fingerprint() == tokenizer.fingerprint()
