"""T5's tokenizers give the ids, the text and the tokens of those of transformers, each kind by itself."""

import gzip
import json
import os
import random
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from seqgen.data.tokenizers.files import AddedVocabulary
from seqgen.data.tokenizers.pretrained import (
    PretrainedTokenizer,
    byte_files,
    load_pretrained_tokenizer,
    make_tokenizer,
    save_pretrained_tokenizer,
    t5_files,
)
from seqgen.data.tokenizers.sentencepiece_tokenizer import T5_IDS, SentencePieceTokenizer, train_sentencepiece
from tests.tokenizer_texts import HARD, LONG, SENTINELS, TEXT, random_ids

pytestmark = pytest.mark.slow

transformers = pytest.importorskip("transformers")

SHARED = Path(os.environ.get("SEQGEN_SHARED", Path(__file__).resolve().parents[3] / "shared"))
MULTI30K = SHARED / "data" / "multi30k"

PIECES = 44


@pytest.fixture(scope="module")
def model() -> bytes:
    return train_sentencepiece(TEXT, vocab_size=PIECES, special_ids=T5_IDS)


@pytest.fixture
def write(model: bytes, tmp_path: Path) -> Callable[..., Path]:
    """Writes a tokenizer's folder."""

    def writer(settings: dict[str, Any] | None, *, spiece: bool = True, **files: Any) -> Path:
        folder = tmp_path / f"t{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        if spiece:
            (folder / "spiece.model").write_bytes(model)
        for name, content in {"tokenizer_config": settings, **files}.items():
            if content is not None:
                (folder / f"{name}.json").write_text(json.dumps(content))
        return folder

    return writer


def assert_equal(tokenizer: PretrainedTokenizer, oracle: Any, texts: list[str] = HARD) -> None:
    """Encode the texts, and decode them and random ids, with and without special tokens."""
    size, eos = min(len(oracle), len(tokenizer.dictionary)), tokenizer.dictionary.eos()
    assert (eos, tokenizer.dictionary.pad()) == (oracle.eos_token_id, oracle.pad_token_id)
    tokens = [token.replace("\0", "<0x00>") for token in oracle.convert_ids_to_tokens(range(size))]
    assert tokenizer.dictionary.symbols[:size] == tokens
    encoded = []
    for text in texts:
        encoded.append(oracle(text).input_ids)
        assert [*tokenizer.encode(text), eos] == encoded[-1], text
    for ids in encoded + random_ids(size):
        for skip in (True, False):
            assert tokenizer.decode(ids, skip) == oracle.decode(ids, skip_special_tokens=skip), ids


FLAGS = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
SPACES = {**FLAGS, "lstrip": True, "rstrip": True}
ADDED = {
    "0": {"content": "<pad>", **SPACES},
    "1": {"content": "</s>", **FLAGS, "lstrip": True, "normalized": True},
    "120": {"content": "<new>", **FLAGS, "special": False},
    "121": {"content": "ab cd", **FLAGS, "special": False, "single_word": True},
    "122": {"content": "dog", **FLAGS, "special": False, "lstrip": True, "normalized": True},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "legacy": {"legacy": True},
    "not_legacy": {"legacy": False},
    "clean_up": {"clean_up_tokenization_spaces": True, "additional_special_tokens": SENTINELS},
    "no_prefix": {"add_prefix_space": False},
    "no_prefix_not_legacy": {"add_prefix_space": False, "legacy": False},
    "mt5": {"extra_ids": 0, "additional_special_tokens": None},
    "empty_list": {"additional_special_tokens": []},
    "more_special": {"extra_ids": 2, "additional_special_tokens": ["dog", *SENTINELS[:2]], "bos_token": "<s>"},
    "split_special": {"split_special_tokens": True, "legacy": False},
    "typed": {"eos_token": {"__type": "AddedToken", "content": "</s>", **FLAGS, "rstrip": True}},
    "added": {"added_tokens_decoder": ADDED},
    "added_not_legacy": {"added_tokens_decoder": ADDED, "eos_token": "</s>", "legacy": False},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_fast_from_the_model(write: Callable[..., Path], variant: str) -> None:
    folder = write({"tokenizer_class": "T5TokenizerFast", **VARIANTS[variant]})
    tokenizer = load_pretrained_tokenizer(folder)
    assert type(tokenizer).__name__ == "FastT5Tokenizer"
    assert_equal(tokenizer, transformers.T5TokenizerFast.from_pretrained(folder))


def old_pipeline(write: Callable[..., Path]) -> dict[str, Any]:
    """A ``tokenizer.json`` with the pre-tokenizer of T5's own."""
    oracle = transformers.T5TokenizerFast.from_pretrained(write({"tokenizer_class": "T5TokenizerFast"}))
    content: dict[str, Any] = json.loads(oracle.backend_tokenizer.to_str())
    metaspace = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]}
    content["decoder"] = metaspace
    content["truncation"] = {"max_length": 5, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    return content


@pytest.mark.parametrize("kind", ["T5TokenizerFast", "MT5TokenizerFast"])
@pytest.mark.parametrize("variant", ["plain", "not_legacy", "added", "clean_up"])
def test_folder_with_both(write: Callable[..., Path], kind: str, variant: str) -> None:
    settings = {"tokenizer_class": kind, **VARIANTS[variant]}
    special = {"eos_token": {"content": "</s>", **FLAGS}, "additional_special_tokens": SENTINELS}
    folder = write(settings, tokenizer=old_pipeline(write), special_tokens_map=special)
    assert_equal(load_pretrained_tokenizer(folder), getattr(transformers, kind).from_pretrained(folder))


def test_added_tokens_file(write: Callable[..., Path]) -> None:
    settings = {"tokenizer_class": "T5TokenizerFast", "extra_ids": 0}
    folder = write(
        settings, added_tokens={"<new>": PIECES, "dog": PIECES + 1}, special_tokens_map={"unk_token": "<unk>"}
    )
    assert_equal(load_pretrained_tokenizer(folder), transformers.T5TokenizerFast.from_pretrained(folder))


@pytest.mark.parametrize("model_type", ["t5", "mt5", "umt5"])
def test_class_if_none_is_named(write: Callable[..., Path], model_type: str) -> None:
    folder = write(None, config={"model_type": model_type})
    oracle = transformers.AutoTokenizer.from_pretrained(folder)
    assert_equal(load_pretrained_tokenizer(folder), oracle)
    pipeline = write({"tokenizer_class": "T5Tokenizer"}, spiece=False, tokenizer=old_pipeline(write))
    assert_equal(load_pretrained_tokenizer(pipeline), transformers.AutoTokenizer.from_pretrained(pipeline))


BYTE_SENTINELS = [f"<extra_id_{i}>" for i in range(125)]
BYTE_ADDED = {259 + i: {"content": content, **FLAGS} for i, content in enumerate([*BYTE_SENTINELS, "dog"])}
BYTE_VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "listed": {"additional_special_tokens": BYTE_SENTINELS},
    "typed": {"eos_token": {"__type": "AddedToken", "content": "</s>", **FLAGS}},
    "none": {"extra_ids": 0},
    "clean_up": {"clean_up_tokenization_spaces": True, "added_tokens_decoder": BYTE_ADDED},
}


@pytest.mark.parametrize("variant", BYTE_VARIANTS)
def test_bytes(write: Callable[..., Path], variant: str) -> None:
    folder = write({"tokenizer_class": "ByT5Tokenizer", **BYTE_VARIANTS[variant]}, spiece=False)
    assert_equal(load_pretrained_tokenizer(folder), transformers.ByT5Tokenizer.from_pretrained(folder), HARD[::3])


@pytest.mark.parametrize("kind", ["T5TokenizerFast", "ByT5Tokenizer"])
def test_what_transformers_saves(write: Callable[..., Path], tmp_path: Path, kind: str) -> None:
    oracle = getattr(transformers, kind).from_pretrained(write({"tokenizer_class": kind, "legacy": False}))
    oracle.add_tokens(["<new>", transformers.AddedToken("dog", lstrip=True, rstrip=True)])
    oracle.add_special_tokens({"additional_special_tokens": ["<other>"]}, replace_additional_special_tokens=False)
    oracle.save_pretrained(tmp_path / "saved")
    again = getattr(transformers, kind).from_pretrained(tmp_path / "saved")
    assert_equal(load_pretrained_tokenizer(tmp_path / "saved"), again)


@pytest.mark.parametrize("kind", ["t5", "bytes", "sentencepiece"])
def test_what_seqgen_saves(model: bytes, tmp_path: Path, kind: str) -> None:
    if kind == "sentencepiece":
        save_pretrained_tokenizer(SentencePieceTokenizer(model), tmp_path)
    else:
        save_pretrained_tokenizer(make_tokenizer(t5_files(model) if kind == "t5" else byte_files()), tmp_path)
    oracle_class = transformers.ByT5Tokenizer if kind == "bytes" else transformers.T5TokenizerFast
    assert_equal(load_pretrained_tokenizer(tmp_path), oracle_class.from_pretrained(tmp_path))


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


@pytest.mark.parametrize("kind", ["T5TokenizerFast", "ByT5Tokenizer"])
@pytest.mark.parametrize("legacy", [True, False])
def test_long_text(write: Callable[..., Path], kind: str, legacy: bool) -> None:
    folder = write({"tokenizer_class": kind, "legacy": legacy})
    tokenizer, oracle = load_pretrained_tokenizer(folder), getattr(transformers, kind).from_pretrained(folder)
    for text in LONG:
        assert [*tokenizer.encode(text), 1] == oracle(text).input_ids


@pytest.mark.skipif(not MULTI30K.is_dir(), reason="needs the text of Multi30k")
@pytest.mark.parametrize("kind", ["legacy", "not_legacy", "bytes"])
def test_multi30k(write: Callable[..., Path], kind: str) -> None:
    texts = []
    for language in ("en", "de"):
        with gzip.open(MULTI30K / f"train.{language}.gz", "rt", encoding="utf-8") as file:
            texts += [line.rstrip("\n") for line in islice(file, 300)]
    sentinels = [text.replace(" a ", f" {SENTINELS[i % 100]} ") for i, text in enumerate(texts[:100])]
    name = "ByT5Tokenizer" if kind == "bytes" else "T5TokenizerFast"
    folder = write({"tokenizer_class": name, "legacy": kind == "legacy"})
    (folder / "spiece.model").write_bytes(train_sentencepiece(texts, vocab_size=800, special_ids=T5_IDS))
    oracle = getattr(transformers, name).from_pretrained(folder)
    assert_equal(load_pretrained_tokenizer(folder), oracle, [*texts, *sentinels][:: 15 if kind == "bytes" else 3])
