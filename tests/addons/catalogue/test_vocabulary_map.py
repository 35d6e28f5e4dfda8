"""Vocabulary maps: the format of their files, IBM model 1, and the command that makes them."""

from __future__ import annotations

import random
import struct
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from examples import shortlist
from examples.shortlist import ibm_model_1, write_map
from seqgen.addons.catalogue.vocabulary_map import VocabularyMap
from seqgen.core.errors import DataError
from seqgen.data.dictionary import Dictionary
from tests.commands import SMALL_FCONV, command, corpus, training_arguments
from tests.marian_binary import shortlist as binary_shortlist, with_checksum

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


def test_translations_are_told_apart() -> None:
    """Every sentence has both words of another pair; only together do they say which word means which."""
    best = ibm_model_1([[A, B], [B, C], [A, C], [A]], [[X, Y], [Y, 9], [X, 9], [X]], iterations=20).best(1)
    assert {key: ids.tolist() for key, ids in best.items()} == {(A,): [X], (B,): [Y], (C,): [9]}
    nothing = ibm_model_1([[], [A]], [[X], []], iterations=2)
    assert len(nothing.source) == len(nothing.best(3)) == 0


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


DAMAGED = {
    b"": "is empty; make the file with examples/shortlist.py",
    b"a\tx\nb x\n": r"map, line 2: 'b x' is not SOURCE<tab>TARGET TARGET",
    b"a\tx\ty\n": "line 1: .* is not SOURCE<tab>TARGET",
    b"a\tx\na\ty\n": "line 2: there is another line for 'a'; remove one of them",
    b"a\tx z\n": "line 1: 'z' is not in the target vocabulary of the model; make a file for this model",
    b"a\tx\r\n": r"line 1: 'x\\r' is not in the target vocabulary",
    b"a\tx \n": "line 1: '' is not in the target vocabulary",
    b"a\t\xff\n": r"line 1: byte 3 \(0xff\) is not valid UTF-8",
}


@pytest.mark.parametrize("content", DAMAGED, ids=str)
def test_damaged_files_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "map").write_bytes(content)
    with pytest.raises(DataError, match=DAMAGED[content]):
        VocabularyMap.read(tmp_path / "map", WORDS, WORDS)


LISTS = [[], [], [], [], [X], [C, Y], []]
"""The target tokens of each source token; a shortlist may lack those of the last tokens."""


def test_a_binary_shortlist_of_marian(tmp_path: Path) -> None:
    (tmp_path / "lex.bin").write_bytes(binary_shortlist(LISTS, frequent=2))
    table = VocabularyMap.read(tmp_path / "lex.bin", WORDS, WORDS)
    assert {key: ids.tolist() for key, ids in table.targets.items()} == {
        (): [0, 1],
        **{(token,): ids for token, ids in enumerate(LISTS)},
    }
    assert sorted(np.concatenate(table.of_source([A, B, A])).tolist()) == sorted([0, 1, *LISTS[A], *LISTS[B]])


def _field(index: int, value: int) -> bytes:
    content = bytearray(binary_shortlist(LISTS, 2))
    struct.pack_into("<Q", content, 8 * index, value)
    return with_checksum(bytes(content[16:]))


HUGE = 2**64 - 1
DAMAGED_SHORTLISTS = {
    **{
        f"its first {size} bytes": (binary_shortlist(LISTS, 2)[:size], "is damaged: its size")
        for size in (8, 47, 48, 60, 100)
    },
    "a token that is another": (
        binary_shortlist(LISTS, 2)[:-12] + struct.pack("<3I", Y, C, Y),
        "is damaged: its checksum differs",
    ),
    "another number of frequent tokens": (
        binary_shortlist(LISTS, 2)[:16] + b"\3" + binary_shortlist(LISTS, 2)[17:],
        "is damaged: its checksum differs",
    ),
    "more bytes": (binary_shortlist(LISTS, 2) + b"x", "is damaged: its size"),
    "many offsets": (_field(4, HUGE), "is damaged: its size"),
    "many ids": (_field(5, HUGE), "is damaged: its size"),
    "sizes whose sum overflows": (_field(4, 2**61 + len(LISTS) + 1), "is damaged: its size"),
    "an offset behind the end": (_field(6 + len(LISTS), HUGE), "its offsets are not in ascending order up to 3"),
    "offsets that descend": (_field(6, 3), "its offsets are not in ascending order up to 3"),
    "many frequent tokens": (_field(2, HUGE), "does not belong to the model"),
    "an unknown token": (binary_shortlist([[99]], 2), "does not belong to the model"),
    "more source tokens": (binary_shortlist([[X]] * 99, 2), "does not belong to the model"),
}


@pytest.mark.parametrize("fault", DAMAGED_SHORTLISTS)
def test_damaged_binary_shortlists_are_refused(fault: str, tmp_path: Path) -> None:
    content, reason = DAMAGED_SHORTLISTS[fault]
    (tmp_path / "lex.bin").write_bytes(content)
    with pytest.raises(DataError, match=reason):
        VocabularyMap.read(tmp_path / "lex.bin", WORDS, WORDS)


@pytest.fixture(scope="module", name="run")
def _run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shortlist")
    corpus(folder / "DATA")
    arguments = training_arguments(folder / "DATA", folder / "run")
    outcome = command("train", *arguments, *SMALL_FCONV, "optimization.max_update=1", "common.threads=1")
    assert outcome.code == 0, outcome.err
    return folder / "run"


def made(run: Path, output: Path, *further: str) -> tuple[int, str, str]:
    texts = [f"{side}={run.parent}/DATA/train.{language}" for side, language in (("source", "en"), ("target", "de"))]
    outcome = command("examples.shortlist", f"path={run}", *texts, f"output={output}", *further)
    return outcome.code, outcome.out, outcome.err


@pytest.mark.slow
def test_the_commands(run: Path, tmp_path: Path) -> None:
    code, out, err = made(run, tmp_path / "map", "best=3", "frequent=4")
    assert code == 0, err
    assert "frequent tokens" in out
    lines = (tmp_path / "map").read_text(encoding="utf-8").splitlines()
    assert len(lines[0].split()) == 4
    assert lines[0].startswith("\t")
    assert all(len(line.partition("\t")[2].split()) <= 3 for line in lines[1:])
    text = (run.parent / "DATA" / "test.en").read_bytes()
    decoding = (f"path={run}", "input=-", "generation.beam=2", "common.device=cpu", "common.threads=1")
    decoded = command("generate", *decoding, f"generation.shortlist={tmp_path}/map", stdin=text)
    assert decoded.code == 0, decoded.err
    assert len(decoded.out.splitlines()) == len(text.splitlines())
