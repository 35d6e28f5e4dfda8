"""Malicious files: small files that make a reader without limits run for hours or allocate gigabytes."""

import contextlib
import os
import pickle
import shutil
import signal
import struct
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from seqgen.checkpoints.serialization import CHECKSUMS, write_checksums
from tests.commands import Outcome, command

DEEP = 100_000


def work(call: Callable[[], Any]) -> int:
    """The number of lines of Python that a call executes: its cost, whatever the machine."""
    lines, before = 0, sys.gettrace()

    def count(frame: Any, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines


YAML = {
    "a key that is a number": "1: 2",
    "a key that is nothing": "null: 2",
    "a key that is a date": "2024-01-01: 2",
    "a key that is no text, further in": "task: {yes: 2}",
    "a key that is a list": "? [a]\n: 2",
    "a date that there is not": "run_dir: 2024-13-45",
    "a date that is none": "run_dir: !!timestamp x",
    "an empty number": 'run_dir: !!int ""',
    "a number of 5,000 digits": "run_dir: " + "9" * 5000,
    "a number of 5,000 digits in base 16": "run_dir: 0x" + "f" * 5000,
    "a number of 5,000 digits in base 60": "run_dir: 1" + ":59" * 5000,
    "deep brackets": "run_dir: " + "[" * DEEP,
    "deep brackets that close": "run_dir: " + "[" * 5000 + "]" * 5000,
    "aliases of aliases": "common:\n- &a0 [lol, lol]\n"
    + "\n".join(f"- &a{i} [" + ", ".join([f"*a{i - 1}"] * 9) + "]" for i in range(1, 40)),
    "merges of merges": "\n".join(
        ["a0: &a0 {b: 1}", *(f"a{i}: &a{i} {{<<: [" + ", ".join([f"*a{i - 1}"] * 9) + "]}" for i in range(1, 40))]
    ),
    "a list that contains itself": "run_dir: &a [*a, *a]",
    "a chain of aliases": "\n".join(["common:\n- &a0 [x]", *(f"- &a{i} [*a{i - 1}]" for i in range(1, 3000))]),
    "half a surrogate pair": 'run_dir: "\\ud800"',
    "an object of Python": "run_dir: !!python/object/apply:os.system [ls]",
    "megabytes": "run_dir: " + "x" * (2 << 20),
    "no UTF-8": "run_dir: \udcff",
    "a control character": "run_dir: \x01",
    "only a scalar": "text",
}

JSON = {
    "deep brackets": "[" * DEEP,
    "deep brackets that close": "[" * DEEP + "]" * DEEP,
    "deep objects": '{"a":' * DEEP + "1" + "}" * DEEP,
    "200 levels": '{"a":' * 200 + "1" + "}" * 200,
    "a number of 5,000 digits": '{"vocab_size": ' + "9" * 5000 + "}",
    "half a surrogate pair": '{"model_type": "\\ud800", "tokenizer": "\\uDfff"}',
    "a list": "[]",
    "nothing": "",
}


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Fail if a block takes longer, also if it waits for a pipe."""

    def fail(*_: Any) -> None:
        raise TimeoutError(f"it took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    start = time.monotonic()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - start < seconds  # code outside Python is not interrupted


def limited(name: str, *arguments: str, stdin: bytes = b"", seconds: float = 20) -> Outcome:
    """Run a command, which must end in time; an error must be one short sentence."""
    with time_limit(seconds):
        outcome = command(name, *arguments, stdin=stdin)
    assert outcome.code in (0, 2), outcome
    assert "Traceback" not in outcome.err
    assert len(outcome.err) < 5000, outcome.err[:500]
    return outcome


def replace_by(path: Path, kind: str) -> None:
    """Replace a file by something that is not a regular file."""
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")


def checksummed(folder: Path) -> None:
    """Update the checksums of a folder's files."""
    if (folder / CHECKSUMS).is_file():
        write_checksums(folder)


# -- pickles, instruction by instruction ------------------------------------------------------------------------------


def old_file(path: Path, content: bytes) -> Path:
    """A file in the old format of ``torch.save``, which is no archive, with a given pickle in it."""
    head = [pickle.dumps(value, protocol=2) for value in (0x1950A86A20F9469CFC6C, 1001, {})]
    path.write_bytes(b"".join([*head, content, pickle.dumps([], protocol=2)]))
    return path


class Trap:
    """Pickled, it is a call of a function that unpickling would run."""

    def __init__(self, function: Callable[..., Any], *arguments: Any):
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


PICKLES = {
    "nothing on the stack": b"\x80\x02R.",
    "no mark": b"\x80\x02e.",
    "options in options": b"\x80\x02}(" + text("args") + b"](" * 50_000 + b"e" * 50_000 + text("model") + b"}u.",
}  # fmt: skip


def compressed(path: Path) -> Path:
    """Rewrite an archive of ``torch.save``, compressed, with megabytes of instructions that do nothing."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + b"N0" * (4 << 20) + b"}.")
        archive.writestr("archive/version", b"3\n")
    return path


def copy_of(folder: Path, where: Path) -> Path:
    """A copy for a test to damage."""
    shutil.rmtree(where, ignore_errors=True)
    shutil.copytree(folder, where)
    return where


def damage_file(path: Path, damage: str) -> None:
    """Truncate a file by a byte, flip a bit of it, or delete it."""
    content = path.read_bytes()
    if damage == "truncate":
        path.write_bytes(content[:-1])
    elif damage == "flip":
        path.write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
    else:
        path.unlink()
