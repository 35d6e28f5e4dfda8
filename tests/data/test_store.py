"""Encoded text on disk: built once, in any number of processes, keyed by content, and never trusted blindly."""

import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqgen.data import token_store
from seqgen.data.token_store import META, OFFSETS, VALUES, DamagedStoreError, TokenEncoder, TokenStore, build_store
from seqgen.extend import DataError, Dictionary, WhitespaceTokenizer
from seqgen.system.files import LEFTOVER_SECONDS
from tests.hostile import damage_file

TOKENIZER = WhitespaceTokenizer(Dictionary.from_counts({"a": 3, "b": 2, "c": 1}))
LINES = ["a b", "", "c x a y", "b", "x"]


def write(path: Path, lines: list[str]) -> Path:
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


def build(folder: Path, files: list[Path], encoder: TokenEncoder | None = None, **options: Any) -> TokenStore:
    return build_store(folder / "cache", "t", files, encoder or TokenEncoder(TOKENIZER), **options)


def ids(store: TokenStore) -> list[list[int]]:
    return [store[i].tolist() for i in range(len(store))]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write(tmp_path / "text", LINES)


def test_content(tmp_path: Path, text: Path) -> None:
    more = write(tmp_path / "more", ["x a"])
    store = build(tmp_path, [text, more])
    assert ids(store) == [[4, 5], [], [6, 3, 4, 3], [5], [3], [3, 4]]
    assert store.lengths().tolist() == [2, 0, 4, 1, 1, 2]
    assert store.values.dtype == np.uint16
    assert (store.meta.unknown_values, store.meta.unknown_lines, store.meta.unknown_examples) == (4, 3, [2, 4, 5])
    assert [store.where(i) for i in (0, 4, 5)] == ["text, line 1", "text, line 5", "more, line 1"]
    with pytest.raises(IndexError):
        store[6]


@pytest.mark.parametrize("chunk_bytes", [1, 7, 1 << 20])
def test_workers_and_chunks_change_nothing(tmp_path: Path, chunk_bytes: int) -> None:
    rng = np.random.default_rng(0)
    lines = [[" ".join(rng.choice(list("abcx"), n)) for n in rng.integers(0, 9, 60)] for _ in range(2)]
    files = [write(tmp_path / name, lines) for name, lines in zip("pq", lines, strict=True)]
    stores = [build(tmp_path / str(workers), files, workers=workers, chunk_bytes=chunk_bytes) for workers in (1, 3)]
    for name in (VALUES, OFFSETS, META):
        assert (stores[0].folder / name).read_bytes() == (stores[1].folder / name).read_bytes()


def test_second_time_nothing_is_encoded(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build(tmp_path, [text])
    (tmp_path / "moved").mkdir()
    text = text.rename(tmp_path / "moved" / "other")
    os.utime(text, (1, 1))
    monkeypatch.setattr(token_store, "_encode", lambda *_: pytest.fail("encoded again"))
    second = build(tmp_path, [text])
    assert second.folder == first.folder
    assert ids(second) == ids(first)


def test_other_text_or_vocabulary_gives_another_store(tmp_path: Path, text: Path) -> None:
    folders = {build(tmp_path, [text]).folder}
    other = WhitespaceTokenizer(Dictionary.from_counts({"a": 3, "c": 2, "b": 1}))
    folders.add(build(tmp_path, [text], TokenEncoder(other)).folder)
    times = text.stat()
    write(text, [line.replace("b", "c") for line in LINES])
    os.utime(text, ns=(times.st_atime_ns, times.st_mtime_ns))  # same size, same time
    changed = build(tmp_path, [text])
    assert ids(changed)[0] == [4, 6]
    assert len(folders | {changed.folder}) == 3


def test_lines_without_a_header_keep_their_numbers(tmp_path: Path, text: Path) -> None:
    more = write(tmp_path / "more", ["header", "a"])
    whole, rest = (build(tmp_path, [text, more], skip_lines=skip) for skip in (0, 1))
    assert (len(whole), len(rest)) == (7, 5), "what was encoded with its header is not used without it"
    assert ids(rest) == [*ids(whole)[1:5], ids(whole)[6]]
    assert [rest.where(i) for i in (0, 3, 4)] == ["text, line 2", "text, line 5", "more, line 2"]


@pytest.mark.parametrize("name", [VALUES, OFFSETS, META])
@pytest.mark.parametrize("damage", ["truncate", "flip", "delete"])
def test_damaged_store_is_built_again(tmp_path: Path, text: Path, name: str, damage: str) -> None:
    store = build(tmp_path, [text])
    expected = ids(store)
    damage_file(store.folder / name, damage)
    with pytest.raises(DamagedStoreError):
        TokenStore(store.folder)
    assert ids(build(tmp_path, [text])) == expected


def test_failure_leaves_nothing_behind(tmp_path: Path, text: Path) -> None:
    bad = tmp_path / "bad"
    bad.write_bytes(b"a\n" * 9 + b"\xff\n" + b"a\n" * 9)
    for workers in (1, 2):
        with pytest.raises(DataError, match=r"bad, line 10: byte 1 \(0xff\) is not valid UTF-8"):
            build(tmp_path, [text, bad], workers=workers, chunk_bytes=4)
    assert list((tmp_path / "cache").iterdir()) == []


def test_built_by_two_processes_at_the_same_time(tmp_path: Path, text: Path) -> None:
    """The one who comes last finds the other's store and takes it."""

    class Slow(TokenEncoder):
        def encode(self, chunk):  # type: ignore[no-untyped-def]
            if not other:
                other.append(build(tmp_path, [text]))
            return super().encode(chunk)

    other: list[TokenStore] = []
    store = build(tmp_path, [text], Slow(TOKENIZER))
    assert store.folder == other[0].folder
    assert ids(store) == ids(other[0])
    assert list((tmp_path / "cache").iterdir()) == [store.folder]


def test_files_of_killed_processes_are_removed(tmp_path: Path, text: Path) -> None:
    name = build(tmp_path / "other", [text]).folder.name
    old, young = (tmp_path / "cache" / f".{name}.{word}.tmp" for word in ("aaaaaaaa", "bbbbbbb_"))
    for folder in (old, young):
        folder.mkdir(parents=True)
        (folder / VALUES).write_bytes(b"half")
    for path in (old / VALUES, old, young):
        os.utime(path, (time.time() - 10 - LEFTOVER_SECONDS,) * 2)
    build(tmp_path, [text])
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {name, young.name}


SCRIPT = """
import os, sys, time
from pathlib import Path
from tests.data.test_store import TOKENIZER, TokenEncoder, build_store
class Sleepy(TokenEncoder):
    def encode(self, chunk):
        print(os.getpid(), flush=True)
        time.sleep(60)
build_store(Path({folder!r}) / "cache", "t", [Path({folder!r}) / "text"], Sleepy(TOKENIZER), workers=2, chunk_bytes=1)
"""


@pytest.mark.slow
def test_workers_end_with_a_killed_parent(tmp_path: Path, text: Path) -> None:
    program, root = [sys.executable, "-c", SCRIPT.format(folder=str(tmp_path))], Path(__file__).parents[2]
    parent = subprocess.Popen(program, cwd=root, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    parent.stdout.readline()  # the workers are at work
    parent.kill()
    parent.communicate(timeout=10)  # the pipe has an end only when no worker holds it any more


class Killed(TokenEncoder):
    """Ends its process as the system does that runs out of memory."""

    def encode(self, chunk):  # type: ignore[no-untyped-def]
        os.kill(os.getpid(), 9)


def test_killed_worker(tmp_path: Path, text: Path) -> None:
    with pytest.raises(DataError, match="a process that encodes text was killed"):
        build(tmp_path, [text], Killed(TOKENIZER), workers=2, chunk_bytes=1)


@pytest.mark.slow
def test_large_text_is_not_kept_in_memory(tmp_path: Path) -> None:
    """20 MB of text are encoded with a small peak of allocations."""
    path = tmp_path / "large"
    path.write_bytes(b"a b c a b c a b c\n" * 600_000)
    tracemalloc.start()
    store = build(tmp_path, [path])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(store) == 600_000
    assert peak < 40e6
