"""Vocabulary maps: the format of their files, and IBM model 1."""

import random
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from examples import shortlist
from examples.shortlist import ibm_model_1, write_map
from seqgen.addons.catalogue.vocabulary_map import VocabularyMap
from seqgen.data.dictionary import Dictionary
from tests.marian_binary import shortlist as binary_shortlist

WORDS = Dictionary()
for _word in ("a", "b", "c", "x", "y"):
    WORDS.add_symbol(_word)
A, B, C, X, Y = range(4, 9)


def plain_model_1(pairs: list[tuple[list[int], list[int]]], iterations: int) -> dict[tuple[int, int], float]:
    """IBM model 1 as its definition says, pair by pair; the empty word is -1."""
    t = {(s, w): 1.0 for source, target in pairs for s in (-1, *source) for w in target}
    for _ in range(iterations):
        counts: defaultdict[tuple[int, int], float] = defaultdict(float)
        totals: defaultdict[int, float] = defaultdict(float)
        for source, target in pairs:
            for word in target:
                normalizer = sum(t[origin, word] for origin in (-1, *source))
                for origin in (-1, *source):
                    counts[origin, word] += t[origin, word] / normalizer
                    totals[origin] += t[origin, word] / normalizer
        t = {(origin, word): counts[origin, word] / totals[origin] for origin, word in t}
    return t


@pytest.mark.parametrize("at_once", [1, 40, 10_000])
def test_probabilities_equal_those_of_the_definition(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortlist, "_PAIRS_AT_ONCE", at_once)
    draw = random.Random(3)
    lines = [[[draw.randrange(9) for _ in range(draw.randrange(5))] for _ in range(12)] for _ in range(2)]
    pairs = [(source, target) for source, target in zip(*lines, strict=True) if source and target]
    assert len(pairs) < 12  # some lines are empty
    found = ibm_model_1(lines[0], lines[1], iterations=3)
    wanted = plain_model_1(pairs, iterations=3)
    names = [-1 if token == found.null else token for token in found.source.tolist()]
    got = dict(zip(zip(names, found.target.tolist(), strict=True), found.probability.tolist(), strict=True))
    assert got == pytest.approx(wanted, rel=1e-12)


def test_files_are_written_and_read(tmp_path: Path) -> None:
    table = VocabularyMap({(): np.array([Y, X]), (A,): np.array([X]), (B,): np.array([], dtype=np.int64)})
    assert write_map(table.targets, tmp_path / "map", WORDS, WORDS) == 0
    assert (tmp_path / "map").read_bytes() == b"\ty x\na\tx\nb\t\n"
    read = VocabularyMap.read(tmp_path / "map", WORDS, WORDS)
    assert {key: ids.tolist() for key, ids in read.targets.items()} == {(): [Y, X], (A,): [X], (B,): []}


def test_sequences_of_source_tokens(tmp_path: Path) -> None:
    (tmp_path / "map").write_bytes(b"\ty\na b\tc\nb\tx\n")
    table = VocabularyMap.read(tmp_path / "map", WORDS, WORDS)
    for source, ids in (([A, B], {Y, C, X}), ([B, A], {Y, X}), ([A, C, B, B], {Y, X}), ([], {Y})):
        assert {token for own in table.of_source(source) for token in own.tolist()} == ids


def test_tokens_with_spaces_cannot_be_written(tmp_path: Path) -> None:
    words = Dictionary()
    for word in ("a b", "c"):
        words.add_symbol(word)
    table = VocabularyMap({(4,): np.array([5]), (5,): np.array([4, 5])})
    assert write_map(table.targets, tmp_path / "map", words, words) == 2
    assert (tmp_path / "map").read_bytes() == b"c\tc\n"


LISTS = [[], [], [], [], [X], [C, Y], []]
"""The target tokens of each source token; a shortlist may lack those of the last tokens."""


def test_a_binary_shortlist_of_marian(tmp_path: Path) -> None:
    (tmp_path / "lex.bin").write_bytes(binary_shortlist(LISTS, frequent=2))
    table = VocabularyMap.read(tmp_path / "lex.bin", WORDS, WORDS)
    wanted = {(): [0, 1], **{(token,): ids for token, ids in enumerate(LISTS)}}
    assert {key: ids.tolist() for key, ids in table.targets.items()} == wanted
    assert sorted(np.concatenate(table.of_source([A, B, A])).tolist()) == sorted([0, 1, *LISTS[A], *LISTS[B]])
