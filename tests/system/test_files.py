"""Writing files: temporary files of killed processes are removed, and nothing else."""

import os
import resource
import time
from pathlib import Path

import pytest

from seqgen.core.errors import CheckpointError, UserError
from seqgen.system import files
from seqgen.system.files import CACHE, LEFTOVER_SECONDS, disk_errors, frozen, remove_leftovers, write_atomically
from seqgen.system.reading import version_of
from tests.commands import SMALL_FCONV, command, corpus, training_arguments


def test_others_may_read_a_file_as_they_may_read_any_other(tmp_path: Path) -> None:
    for mask in (0o022, 0o007):
        before = os.umask(mask)
        try:
            write_atomically(tmp_path / "one", b"x")
            (tmp_path / "other").unlink(missing_ok=True)
            (tmp_path / "other").touch()
        finally:
            os.umask(before)
        assert (tmp_path / "one").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_disk_that_is_full_when_the_file_is_closed(tmp_path: Path) -> None:
    """Closing writes what is buffered, and fails once more."""
    write_atomically(tmp_path / "x", b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(UserError, match=f"cannot write {tmp_path}/x: File too large; free some space"):
            write_atomically(tmp_path / "x", b"x" * 200)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(tmp_path) == {"x"}
    assert (tmp_path / "x").read_bytes() == b"old"
    with pytest.raises(BrokenPipeError), disk_errors("a pipe"):  # which nobody reads any more
        raise BrokenPipeError


def age(folder: Path, seconds: float) -> None:
    """Set the times of all files in a folder back."""
    for path in sorted(folder.rglob("*"), reverse=True):
        os.utime(path, (time.time() - seconds,) * 2, follow_symlinks=False)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_leftovers_are_removed_after_a_day(tmp_path: Path) -> None:
    (tmp_path / ".config.yaml.abcdefgh.tmp").write_bytes(b"half")
    (tmp_path / ".cache.abcdefgh.tmp").mkdir()
    (tmp_path / ".cache.abcdefgh.tmp" / "half").write_bytes(b"half")
    age(tmp_path, LEFTOVER_SECONDS - 100)
    before = names(tmp_path)
    remove_leftovers(tmp_path)
    assert names(tmp_path) == before, "the process may still be running"
    age(tmp_path, LEFTOVER_SECONDS + 100)
    remove_leftovers(tmp_path, "config")
    assert names(tmp_path) == before, "no temporary file has this name"
    remove_leftovers(tmp_path, "config.yaml")
    assert names(tmp_path) == {".cache.abcdefgh.tmp"}
    with files.new_folder(tmp_path / "cache"):
        pass
    assert names(tmp_path) == {"cache"}


def test_only_the_cache_of_a_trained_run_may_be_made_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with frozen(run):
        for place in ("tokenizer", "checkpoints/last", "cached"):
            with pytest.raises(CheckpointError, match=f"{place} is missing; .* copy the whole run folder"):
                write_atomically(run / place, "x")
        for path in (run / CACHE / "train", tmp_path / "run2", tmp_path / "other"):
            write_atomically(path, "x")
    write_atomically(run / "tokenizer", "x")


def test_other_files_stay(tmp_path: Path) -> None:
    others = (".hidden", "a.tmp", ".a.tmp", ".a.ABCDEFGH.tmp", ".a.abcdefg.tmp", "x.abcdefgh.tmp", ".a.abcdefgh.tmp~")
    (tmp_path / "below").mkdir()
    for name in (*others, "below/.a.abcdefgh.tmp"):
        (tmp_path / name).write_bytes(b"mine")
    (tmp_path / ".link.abcdefgh.tmp").symlink_to(tmp_path / ".hidden")
    os.mkfifo(tmp_path / ".fifo.abcdefgh.tmp")
    before = {*tmp_path.rglob("*")}
    remove_leftovers(tmp_path, seconds=0)
    assert {*tmp_path.rglob("*")} == before
    remove_leftovers(tmp_path / "nothere")


def test_a_run_is_cleaned_when_it_is_prepared_again(tmp_path: Path) -> None:
    data, run = corpus(tmp_path / "data"), tmp_path / "run"
    arguments = (*training_arguments(data, run), *SMALL_FCONV)
    assert command("train", "prepare_only=true", *arguments).code == 0
    before = sorted(path for path in run.rglob("*") if path.name != "checksums.json")
    for place in (run, run / "cache"):
        (place / ".a.abcdefgh.tmp").mkdir()
        (place / ".a.abcdefgh.tmp" / "half").write_bytes(b"half")
        (place / ".b.abcdefgh.tmp").write_bytes(b"half")
    age(run / "cache", LEFTOVER_SECONDS + 100)
    assert command("train", "prepare_only=true", *arguments).code == 0
    assert sorted(path for path in run.rglob("*") if path.name != "checksums.json") == before


def test_a_file_that_is_written_again_has_another_version(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("w1")
    os.utime(tmp_path / "a", ns=(1, 10**15))
    before = version_of(tmp_path / "a")
    with (tmp_path / "a").open("r+") as file:  # the same file, with as many bytes
        file.write("w2")
    assert version_of(tmp_path / "a") != before
