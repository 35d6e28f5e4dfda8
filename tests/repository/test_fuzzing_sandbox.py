"""The fuzzer notices what no reader may do: planted faults, each of its kind."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from seqgen.errors import CheckpointError, DataError
from tests.fuzzing import command
from tests.fuzzing.pickle_readers import FairseqCheckpoint, Payload
from tests.fuzzing.reader import Bench, Reader
from tests.fuzzing.run_readers import Run
from tests.fuzzing.sandbox import Failure, Hang, Sandbox, Wrong


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path / "sandbox")


def raises(error: BaseException) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


def kind_of(sandbox: Sandbox, work: Callable[[], Any], **limits: Any) -> str:
    with pytest.raises(Failure) as failure:
        sandbox.run(work, **limits)
    return failure.value.kind


def test_what_is_allowed(sandbox: Sandbox) -> None:
    assert sandbox.run(lambda: (sandbox.folder / "file").write_text("x")) is None
    assert sandbox.run(raises(DataError("line 3 is damaged"))) == "line 3 is damaged"
    assert sandbox.run(raises(FileNotFoundError(2, "no such file", "x"))) == "cannot read or write x: no such file"


@pytest.mark.parametrize(
    "error", [KeyError("x"), AssertionError(), SystemExit(1), OSError("x"), BaseException("panic")]
)
def test_other_exceptions(error: BaseException, sandbox: Sandbox) -> None:
    assert kind_of(sandbox, raises(error)) == "traceback"


def test_messages_that_are_no_sentence(sandbox: Sandbox) -> None:
    for message in ("", "x" * 10_000, "Traceback (most recent call last)"):
        assert kind_of(sandbox, raises(DataError(message))) == "message"
    assert kind_of(sandbox, lambda: print("Traceback (most recent call last)", file=sys.__stderr__)) == "message"
    assert kind_of(sandbox, raises(Wrong("3 instead of 4"))) == "wrong"


def test_hangs(sandbox: Sandbox) -> None:
    def swallowed() -> None:
        try:
            time.sleep(10)
        except Hang:
            raise DataError("it is damaged") from None

    pipe = sandbox.folder / "pipe"
    os.mkfifo(pipe)
    for work in (lambda: time.sleep(10), swallowed, pipe.read_bytes):
        assert kind_of(sandbox, work, seconds=0.05) == "hang"


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of memory needs Linux")
def test_memory(sandbox: Sandbox) -> None:
    def swallowed() -> None:
        try:
            torch.empty(10**11)
        except RuntimeError:
            raise CheckpointError("it is damaged") from None

    for work in (lambda: bytearray(1 << 36), lambda: torch.empty(10**11), swallowed):
        assert kind_of(sandbox, work, memory=1 << 30) == "memory"


def test_files_outside(sandbox: Sandbox) -> None:
    outside = sandbox.root / "outside"
    outside.mkdir()
    (outside / "file").write_text("x")
    (sandbox.folder / "link").symlink_to(outside / "file")
    (sandbox.folder / "folder").symlink_to(outside)
    sandbox = Sandbox(sandbox.root / "inner")
    (sandbox.folder / "link").symlink_to(outside / "file")
    (sandbox.folder / "folder").symlink_to(outside)
    for work in (
        lambda: (outside / "new").write_text("x"),
        lambda: (sandbox.folder / "link").write_text("x"),
        lambda: (sandbox.folder / "folder" / "new").write_text("x"),
        (outside / "file").unlink,
        lambda: os.rename(sandbox.folder / "link", outside / "moved"),
    ):
        assert kind_of(sandbox, work) == "file"


def test_code(sandbox: Sandbox) -> None:
    (sandbox.folder / "evil.py").write_text("value = 1\n")
    code = compile("value = 1", str(sandbox.folder / "evil.py"), "exec")
    for work in (
        lambda: exec(code, {}),
        lambda: os.system("true"),
        lambda: subprocess.run(["true"], check=True),
        lambda: pickle.loads(pickle.dumps(Payload(os.getcwd))),
        sandbox.canary.touch,
    ):
        assert kind_of(sandbox, work) in ("code", "file")
        assert not sandbox.canary.exists()


def test_a_reader_that_runs_code_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``torch.load`` with code in place of the reader without, and a run whose recorded files are imported."""
    monkeypatch.setattr(
        "tests.fuzzing.pickle_readers.read_torch_file", lambda path, _: torch.load(path, weights_only=False)
    )
    assert "code" in kinds(FairseqCheckpoint, tmp_path / "pickles", 25)

    def imports(folder: Path) -> None:
        for file in sorted(folder.glob("*.py")):
            exec(compile(file.read_bytes(), file, "exec"), {})

    monkeypatch.setattr("tests.fuzzing.run_readers.recorded_user_dirs", imports)
    assert "code" in kinds(Run, tmp_path / "run", 1)


def kinds(reader: type[Reader], folder: Path, cases: int) -> set[str]:
    """The kinds of failures of some cases, each of which says how it is repeated."""
    bench, found = Bench(reader, folder), {}
    for number in range(cases):
        try:
            bench.case(number)
        except Failure as failure:
            found[number] = failure
    for number, failure in found.items():
        assert f"reader={reader.name} seed=0 first={number} cases=1" in failure.__notes__[0]
    return {failure.kind for failure in found.values()}


class Crashing(Reader):
    """The planted reader of the command."""

    name = "crashing"

    def write(self, folder: Path, canary: Path, rng: Any) -> None:
        (folder / "number").write_text(str(rng.randrange(4)))

    def read(self, folder: Path) -> None:
        number = int((folder / "number").read_text())
        if number == 3:
            os._exit(7)
        if number:
            raise DataError("refused") if number == 1 else ValueError("planted")


@pytest.mark.nightly
def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash ends neither the command nor the other cases; the command counts and repeats."""
    monkeypatch.setitem(command.READERS, "crashing", Crashing)
    assert command.main(["reader=crashing", "cases=12"]) == 1
    out = capsys.readouterr().out
    assert "ValueError: planted" in out
    assert "the process ended with 7" in out
    assert "crashing: 12 cases, " in out
    assert command.main(["reader=text", "cases=3"]) == 0
    assert capsys.readouterr().out.startswith("text: 3 cases, ")
    assert command.main(["unknown=1"]) == 2
