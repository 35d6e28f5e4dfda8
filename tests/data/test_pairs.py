"""Pairs: what is left out or truncated, what is reported, and subword sampling."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from seqgen.data.token_store import TokenEncoder, build_store
from seqgen.extend import AddedTokens, Dictionary, PairDataset, Side, Tokenizer, WhitespaceTokenizer

TOKENIZER = WhitespaceTokenizer(Dictionary.from_counts({"a": 3, "b": 2, "c": 1}))  # ids 4, 5, 6
SOURCE = ["a b", "", "a a a a", "b", "c c", "a"]
TARGET = ["b", "a", "b b", "", "c c c c c", "x"]


def side(folder: Path, name: str, lines: list[str], tokenizer: Tokenizer = TOKENIZER) -> Side:
    path = folder / name
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    store = build_store(folder / "cache", name, [path], TokenEncoder(tokenizer))
    return Side(store, tokenizer.target_tokens())


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Side, Side]:
    return side(tmp_path, "en", SOURCE), side(tmp_path, "de", TARGET)


def as_lists(dataset: PairDataset) -> list[tuple[int, list[int], list[int]]]:
    return [(e.id, e.source.tolist(), [] if e.target is None else e.target.tolist()) for e in dataset]


def test_empty_sides_are_left_out(sides: tuple[Side, Side]) -> None:
    dataset = PairDataset(*sides, name="train")
    shorter = [(0, [4, 5, 2], [5, 2]), (5, [4, 2], [3, 2])]
    longer = [(2, [4, 4, 4, 4, 2], [5, 5, 2]), (4, [6, 6, 2], [6, 6, 6, 6, 6, 2])]
    assert as_lists(dataset) == sorted(shorter + longer)
    assert dataset.example(0).source.dtype == torch.int64
    assert dataset.lengths().tolist() == [[3, 2], [5, 3], [3, 6], [2, 2]]
    assert dataset.report() == [
        "2 pairs of train have an empty side and are skipped: en, line 2; en, line 4.",
        "1 lines of train have 1 characters or words that are not in the vocabulary: de, line 6.",
    ]


def test_sources_without_end_of_sentence(sides: tuple[Side, Side]) -> None:
    source = replace(sides[0], added=AddedTokens([7], []))
    assert [source.tokens(index).tolist() for index in (0, 1)] == [[7, 4, 5], [7]]
    assert source.tokens(2, limit=3).tolist() == [7, 4, 4]
    assert source.lengths().tolist() == [3, 1, 5, 2, 3, 2]


def test_overlong_dropped(sides: tuple[Side, Side]) -> None:
    dataset = PairDataset(*sides, name="train", max_source_positions=4, max_target_positions=5)
    assert dataset.indices.tolist() == [0, 5]
    assert "longer than 4 source tokens or 5 target tokens and are left out" in dataset.report()[1]
    assert dataset.report()[1].endswith(": en, line 3; en, line 5.")


def test_overlong_truncated(sides: tuple[Side, Side]) -> None:
    dataset = PairDataset(*sides, max_source_positions=4, max_target_positions=5, on_overlong="truncate")
    assert as_lists(dataset)[1:3] == [(2, [4, 4, 4, 2], [5, 5, 2]), (4, [6, 6, 2], [6, 6, 6, 6, 2])]
    assert dataset.lengths().tolist() == [[3, 2], [4, 3], [3, 5], [2, 2]]
    assert "are truncated: en, line 3; en, line 5" in dataset.report()[1]


@pytest.mark.parametrize(("before", "after"), [((7,), ()), ((), (8,)), ((7, 8), (9, 10))])
def test_a_truncated_text_keeps_the_tokens_around_it(
    sides: tuple[Side, Side], before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    source = replace(sides[0], added=AddedTokens(before, [2, *after]))
    added = len(before) + 1 + len(after)
    dataset = PairDataset(source, max_source_positions=added + 1, on_overlong="truncate")
    assert [tokens for _, tokens, _ in as_lists(dataset)] == [[*before, i, 2, *after] for i in (4, 4, 5, 6, 4)]
    assert dataset.lengths().tolist() == [[added + 1]] * 5


def test_limits_of_a_model(sides: tuple[Side, Side]) -> None:
    dataset = PairDataset(*sides, max_source_positions=4)
    assert dataset.limited(9, 5).indices.tolist() == [0, 5]
    assert dataset.limited(None, None).indices.tolist() == [0, 4, 5]
    source_only = PairDataset(sides[0])
    assert [e.target for e in source_only] == [None] * 5
    assert source_only.lengths().shape == (5, 1)
