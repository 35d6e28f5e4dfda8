"""The vocabulary: ids, files, and what bad files get."""

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from seqgen.core.errors import DataError
from seqgen.data.dictionary import FAIRSEQ_SPECIALS, Dictionary

token_texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


def test_fairseq_ids(tmp_path: Path) -> None:
    (tmp_path / "dict.txt").write_bytes("▁the 12\n▁a b 7\n\u2028 3\r\n".encode())
    dictionary = Dictionary.load(tmp_path / "dict.txt")
    assert [dictionary.bos(), dictionary.pad(), dictionary.eos(), dictionary.unk()] == [0, 1, 2, 3]
    assert dictionary.symbols == ["<s>", "<pad>", "</s>", "<unk>", "▁the", "▁a b", "\u2028"]
    assert dictionary.counts[4:] == [12, 7, 3]
    assert dictionary.index("▁a b") == 5
    assert dictionary.index("nothing") == 3
    assert dictionary[4] == dictionary.symbol(4) == "▁the"
    assert "▁the" in dictionary


def test_vocabularies_that_differ_have_other_fingerprints() -> None:
    symbols = [*FAIRSEQ_SPECIALS, "a", "b"]
    different = [
        *(Dictionary(symbols), Dictionary([*FAIRSEQ_SPECIALS, "b", "a"]), Dictionary(symbols, bos=None)),
        *(Dictionary(symbols, **{name: 4}) for name in ("pad", "eos", "unk", "bos")),  # type: ignore[arg-type]
    ]
    assert len({dictionary.fingerprint() for dictionary in different}) == len(different)
    assert Dictionary(symbols, [1] * 6).fingerprint() == different[0].fingerprint(), "counts are no part of it"


def test_overwriting_token_gets_a_new_id(tmp_path: Path) -> None:
    (tmp_path / "dict.txt").write_text("a 1\n<pad> 2 #fairseq:overwrite\nb 3\n")
    dictionary = Dictionary.load(tmp_path / "dict.txt")
    assert dictionary.index("<pad>") == 5
    assert dictionary.pad() == 1
    dictionary.save(tmp_path / "dictionary.json")
    assert Dictionary.load(tmp_path / "dictionary.json") == dictionary


@given(
    tokens=st.lists(token_texts, unique=True, min_size=4, max_size=12),
    specials=st.permutations(range(4)),
    without_bos=st.booleans(),
)
def test_json_keeps_everything(
    tmp_path_factory: pytest.TempPathFactory, tokens: list[str], specials: list[int], without_bos: bool
) -> None:
    pad, eos, unk, bos = specials
    dictionary = Dictionary(tokens, range(len(tokens)), pad=pad, eos=eos, unk=unk, bos=None if without_bos else bos)
    path = tmp_path_factory.mktemp("dictionary") / "dictionary.json"
    dictionary.save(path)
    loaded = Dictionary.load(path)
    assert (loaded, loaded.counts, loaded.fingerprint()) == (dictionary, dictionary.counts, dictionary.fingerprint())
    assert [loaded.index(token) for token in tokens] == list(range(len(tokens)))


@given(
    tokens=st.dictionaries(token_texts.filter(lambda s: s not in FAIRSEQ_SPECIALS), st.integers(0, 10**9), min_size=1)
)
def test_dict_txt_round_trip(tmp_path_factory: pytest.TempPathFactory, tokens: dict[str, int]) -> None:
    dictionary = Dictionary.from_counts(tokens)
    path = tmp_path_factory.mktemp("dictionary") / "dict.txt"
    try:
        dictionary.save(path)
    except DataError:
        assert any("\n" in s or s.startswith("\ufeff") for s in tokens), "only these do not fit into a dict.txt"
        return
    loaded = Dictionary.load(path)
    assert (loaded, loaded.counts) == (dictionary, dictionary.counts)


def test_from_counts_orders_by_frequency_then_token() -> None:
    counts = {"b": 2, "c": 5, "a": 2, "</s>": 9}
    assert Dictionary.from_counts(counts).symbols[4:] == ["c", "a", "b"]
    assert Dictionary.from_counts(counts, size=6).symbols[4:] == ["c", "a"]
