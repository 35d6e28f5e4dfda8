"""Tokenizers in Hugging Face's layout give the ids, texts and tokens of those of transformers."""

import json
import random
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from seqgen.data.tokenizers import pretrained
from seqgen.data.tokenizers.files import AddedVocabulary
from seqgen.data.tokenizers.languages import M2M100, MBART50, NLLB
from seqgen.data.tokenizers.pretrained import PretrainedTokenizer, load_pretrained_tokenizer, save_pretrained_tokenizer
from seqgen.extend import SentencePieceTokenizer, load_tokenizer, save_tokenizer
from tests.pretrained_folders import PIECES, sentencepiece_model, write_folder
from tests.tokenizer_texts import HARD, LONG, SENTINELS, random_ids

pytestmark = pytest.mark.slow

transformers = pytest.importorskip("transformers")

FAIRSEQ = ["MBartTokenizer", "MBart50Tokenizer", "NllbTokenizer"]
SLOW = ["M2M100Tokenizer", "MarianTokenizer"]
FAST = [f"{name}Fast" for name in ("BartTokenizer", *FAIRSEQ, "PegasusTokenizer")]
T5 = ["T5TokenizerFast", "ByT5Tokenizer"]
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


def assert_equal(
    folder: Path, texts: Sequence[str], kind: str = "", tokenizer: PretrainedTokenizer | None = None
) -> None:
    """Encode the texts, and decode them and random ids, with and without special tokens.

    Args:
        folder: the folder that both sides read.
        texts: the texts.
        kind: the class of the oracle; by default the one that the folder names, and of two the fast one.
        tokenizer: ours, if it is not that of the folder.
    """
    config = folder / "tokenizer_config.json"
    named = json.loads(config.read_text())["tokenizer_class"] if config.exists() else "AutoTokenizer"
    slow = [*SLOW, "ByT5Tokenizer", "AutoTokenizer"]
    kind = kind or (named if named in slow else f"{named.removesuffix('Fast')}Fast")
    oracle = getattr(transformers, kind).from_pretrained(folder)
    tokenizer = tokenizer or load_pretrained_tokenizer(folder)
    dictionary, size = tokenizer.dictionary, min(len(oracle), len(tokenizer.dictionary))
    special = (dictionary.eos(), dictionary.pad(), dictionary.unk())
    assert special == (oracle.eos_token_id, oracle.pad_token_id, oracle.unk_token_id)
    known = [symbol.split("#")[0] if "#" in symbol[1:] else symbol for symbol in dictionary.symbols[:size]]
    tokens = [token.replace("\0", "<0x00>") for token in oracle.convert_ids_to_tokens(list(range(size)))]
    assert known == [token.split("#")[0] if "#" in token[1:] else token for token in tokens]
    encoded = oracle(list(texts)).input_ids
    for text, ids in zip(texts, encoded, strict=True):
        assert tokenizer.encode_source(text) == ids, text
    own = {"use_source_tokenizer": True} if "Marian" in type(oracle).__name__ else {}
    for ids in encoded + random_ids(size):
        for skip in (True, False):
            assert tokenizer.decode(ids, skip) == oracle.decode(ids, skip_special_tokens=skip, **own), ids


FLAGS = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
TYPED = {"__type": "AddedToken", "content": "</s>", **FLAGS, "rstrip": True}
LISTED = {"additional_special_tokens": [f"__{code}__" for code in M2M100]}
COMMON: dict[str, dict[str, Any]] = {
    "plain": {},
    "clean_up": {"clean_up_tokenization_spaces": True, "mask_token": {"__type": "AddedToken", "content": "<mask>"}},
    "split_special": {"split_special_tokens": True},
    "other_eos": {"eos_token": TYPED},
    "further": {"additional_special_tokens": ["dog", "<new>"], "bos_token": "<s>"},
}
ADDED = {
    "0": {"content": "<pad>", **FLAGS, "lstrip": True, "rstrip": True},
    "1": {"content": "</s>", **FLAGS, "lstrip": True, "normalized": True},
    "120": {"content": "<new>", **FLAGS, "special": False},
    "121": {"content": "ab cd", **FLAGS, "special": False, "single_word": True},
    "122": {"content": "dog", **FLAGS, "special": False, "lstrip": True, "normalized": True},
}
BYTE_SENTINELS = [f"<extra_id_{i}>" for i in range(125)]
BYTE_ADDED = {259 + i: {"content": content, **FLAGS} for i, content in enumerate([*BYTE_SENTINELS, "dog"])}
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
    "T5Tokenizer": {
        "legacy": {"legacy": True},
        "not_legacy": {"legacy": False},
        "clean_up_listed": {"clean_up_tokenization_spaces": True, "additional_special_tokens": SENTINELS},
        "no_prefix": {"add_prefix_space": False},
        "no_prefix_not_legacy": {"add_prefix_space": False, "legacy": False},
        "mt5": {"extra_ids": 0, "additional_special_tokens": None},
        "empty_list": {"additional_special_tokens": []},
        "more_special": {"extra_ids": 2, "additional_special_tokens": ["dog", *SENTINELS[:2]], "bos_token": "<s>"},
        "split_not_legacy": {"split_special_tokens": True, "legacy": False},
        "added": {"added_tokens_decoder": ADDED},
        "added_not_legacy": {"added_tokens_decoder": ADDED, "eos_token": "</s>", "legacy": False},
    },
    "ByT5Tokenizer": {
        "listed": {"additional_special_tokens": BYTE_SENTINELS},
        "none": {"extra_ids": 0},
        "clean_up_added": {"clean_up_tokenization_spaces": True, "added_tokens_decoder": BYTE_ADDED},
    },
}
WITHOUT = {"Nllb": ["further"], "T5To": ["further", "clean_up"], "ByT5": ["further"]}
CASES: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    (name, config, {})
    for name in [*SLOW, *FAST, *T5]
    for variant, config in {**COMMON, **OWN[name.removesuffix("Fast")]}.items()
    if variant not in WITHOUT.get(name[:4], [])
]
CASES += [(name, {}, {"normalization": "identity"}) for name in [*SLOW, *FAST[1:]]]
CASES += [(name, {}, {"kind": "bpe"}) for name in ["M2M100Tokenizer", *FAIRSEQ]]
CASES += [(name, {}, {}) for name in ["BartTokenizer", *FAIRSEQ, "PegasusTokenizer", "T5Tokenizer", "RobertaTokenizer"]]


@pytest.mark.parametrize(("name", "config", "options"), CASES)
def test_hostile_texts(tmp_path: Path, name: str, config: dict[str, Any], options: dict[str, str]) -> None:
    texts = TEXTS[::3] if name == "ByT5Tokenizer" else TEXTS
    assert_equal(write_folder(tmp_path / "folder", name, config, **options), texts)


@pytest.mark.parametrize("name", [*SLOW, *FAST, *T5])
def test_unusual_characters(tmp_path: Path, name: str) -> None:
    texts = [*planes(600), *single_characters()[::5]][:: 20 if name == "ByT5Tokenizer" else 1]
    assert_equal(write_folder(tmp_path / "folder", name), [*texts, *LONG])


@pytest.mark.nightly
@pytest.mark.parametrize("name", [*SLOW, *FAST])
def test_all_characters(tmp_path: Path, name: str) -> None:
    assert_equal(write_folder(tmp_path / "folder", name), [*planes(1), *single_characters()])


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


@pytest.mark.parametrize("name", [*SLOW, *FAST, *T5])
def test_what_transformers_saves(tmp_path: Path, name: str) -> None:
    original = getattr(transformers, name).from_pretrained(write_folder(tmp_path / "folder", name))
    original.add_tokens(["<new>", transformers.AddedToken("dog", lstrip=True, rstrip=True)])
    if name in T5:
        original.add_special_tokens({"additional_special_tokens": ["<other>"]}, replace_additional_special_tokens=False)
    original.save_pretrained(tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == name.removesuffix("Fast")  # the name of the slow one
    (tmp_path / "saved" / "tokenizer_config.json").write_text(json.dumps({**config, "tokenizer_class": name}))
    assert_equal(tmp_path / "saved", TEXTS[::2])
    tokenizer = load_pretrained_tokenizer(tmp_path / "saved")
    save_pretrained_tokenizer(tokenizer, tmp_path / "again")  # what seqgen-convert writes
    assert_equal(tmp_path / "again", TEXTS[::9], name, tokenizer)
    save_tokenizer(tokenizer, tmp_path / "run")
    assert load_tokenizer(tmp_path / "run").fingerprint() == tokenizer.fingerprint()


@pytest.mark.parametrize("kind", ["t5", "bytes", "sentencepiece"])
def test_what_seqgen_makes_and_saves(tmp_path: Path, kind: str) -> None:
    model = sentencepiece_model(pegasus=True)
    files = {"t5": pretrained.t5_files(model), "bytes": pretrained.byte_files()}.get(kind)
    made = pretrained.make_tokenizer(files) if files else SentencePieceTokenizer(model)
    save_pretrained_tokenizer(made, tmp_path)
    assert_equal(tmp_path, HARD, "ByT5Tokenizer" if kind == "bytes" else "T5TokenizerFast")


# T5's files


def with_files(folder: Path, **files: Any) -> Path:
    """The folder with files ``NAME.json`` of their contents."""
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def old_pipeline(folder: Path) -> dict[str, Any]:
    """A ``tokenizer.json`` with the pre-tokenizer of T5's own."""
    oracle = transformers.T5TokenizerFast.from_pretrained(write_folder(folder, "T5TokenizerFast"))
    content: dict[str, Any] = json.loads(oracle.backend_tokenizer.to_str())
    metaspace = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]}
    content["decoder"] = metaspace
    content["truncation"] = {"max_length": 5, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    return content


@pytest.mark.parametrize("kind", ["T5TokenizerFast", "MT5TokenizerFast"])
@pytest.mark.parametrize("variant", ["not_legacy", "added", "clean_up_listed"])
def test_folder_with_both(tmp_path: Path, kind: str, variant: str) -> None:
    special = {"eos_token": {"content": "</s>", **FLAGS}, "additional_special_tokens": SENTINELS}
    folder = write_folder(tmp_path / "both", kind, OWN["T5Tokenizer"][variant])
    assert_equal(with_files(folder, tokenizer=old_pipeline(tmp_path / "t5"), special_tokens_map=special), HARD)


def test_added_tokens_file_and_a_pipeline_without_a_model(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "added", "T5TokenizerFast", {"extra_ids": 0})
    added = {"<new>": PIECES, "dog": PIECES + 1}
    assert_equal(with_files(folder, added_tokens=added, special_tokens_map={"unk_token": "<unk>"}), HARD)
    folder = write_folder(tmp_path / "pipeline", "T5Tokenizer")
    (folder / "spiece.model").unlink()
    assert_equal(with_files(folder, tokenizer=old_pipeline(tmp_path / "t5")), HARD, "AutoTokenizer")


def test_splitting_equals_the_trie() -> None:
    trie = transformers.tokenization_utils.Trie()
    contents = ["<extra_id_1>", "<extra_id_10>", "<a", "<ab>", "</s>", "b", "\n", " c"]
    for content in contents:
        trie.add(content)
    vocabulary = AddedVocabulary({i: transformers.AddedToken(content) for i, content in enumerate(contents)})
    generator = random.Random(2)
    atoms = [*contents, "<", ">", "a", "_", "c", " ", "<extra_id_1", "0"]
    for _ in range(2000):
        text = "".join(generator.choices(atoms, k=6))
        assert vocabulary.split(text) == trie.split(text), text
