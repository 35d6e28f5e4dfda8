"""The output files of the commands."""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any

from seqgen.core.errors import ConfigError
from seqgen.data.text import is_pipe
from seqgen.metrics import TextScore
from seqgen.system.error_messages import printable
from seqgen.system.files import disk_errors, write_atomically
from seqgen.text.output_formats import json_text

BLEU_WORDS = 4
"""Number of words in the longest sequences that BLEU counts."""
_FILES = ("page", "record")
"""The outputs that are always files."""


def check_output(key: str, path: str, *inputs: str, other_outputs: Sequence[str] = (), in_place: bool = False) -> None:
    """Check before the work starts that the output can be written.

    Args:
        key: the key that names the output.
        path: the file or folder to write; ``-`` for standard output.
        inputs: input files, which must not be overwritten; empty names and ``-`` are ignored.
        other_outputs: files that the command also writes, likewise.
        in_place: whether an older file is written over, and not replaced as ``write_atomically`` does.

    Raises:
        ConfigError: the output is a folder, an input file or another output, or its folder does not exist.
        UserError: the system does not allow writing it.
    """
    if path == "-" and key in _FILES:
        raise ConfigError(f"{key}=- is not possible, because it is not written to standard output; set {key}=FILE")
    if path == "-":
        return
    place = Path(path)
    if not place.parent.is_dir():
        raise ConfigError(f"{key}={path}: the folder {place.parent} does not exist; create it or correct the path")
    if place.is_dir():
        raise ConfigError(f"{key}={path} is a folder; give a file name")
    for kind, names in (("input", inputs), ("output", other_outputs)):
        for name in names:
            if name not in ("", "-") and Path(name).resolve() == place.resolve():
                raise ConfigError(f"{key}={path} would overwrite the {kind} {name}; give another file name")
    with disk_errors(f"{key}={path}"):
        if in_place and place.is_file():
            place.open("ab").close()
        elif not is_pipe(place):
            tempfile.TemporaryFile(dir=place.parent).close()


def format_scores(scores: Mapping[str, TextScore], hypotheses: Sequence[str]) -> list[str]:
    """The lines that report scores of text.

    BLEU counts sequences of four words. Where no output has so many, it is 0 also for perfect outputs, and a line says
    so in its place.

    Args:
        scores: the scores by name.
        hypotheses: the outputs.
    """
    lines = [f"{name} = {score.value:.2f}{f'  ({score.signature})' if score.signature else ''}"
             for name, score in scores.items()]  # fmt: skip
    if "bleu" in scores and not scores["bleu"].value and all(len(line.split()) < BLEU_WORDS for line in hypotheses):
        reason = (
            "bleu is not defined, because no output has four words; tokenize=char of seqgen-score counts characters"
        )
        lines = [reason if line.startswith("bleu = ") else line for line in lines]
    return lines


class HashedText:
    """A text that is hashed piece by piece.

    Attributes:
        lines: number of its lines.
    """

    def __init__(self) -> None:
        self._hash, self.lines = hashlib.sha256(), 0

    def add(self, text: str) -> None:
        """Add the next piece."""
        self._hash.update(text.encode("utf-8", "surrogatepass"))
        self.lines += text.count("\n")

    def as_dict(self) -> dict[str, Any]:
        """The number of lines and the hash, as a record has them."""
        return {"lines": self.lines, "sha256": self._hash.hexdigest()}


class Output:
    """A file to write text, or standard output, which is opened at the first write: until then an older file stays.

    The encoding is UTF-8 and the line separator ``\\n`` on every system, so that output files can be inputs again.

    Args:
        path: the file, see ``check_output``; ``-`` for standard output.

    Attributes:
        written: what was written.
    """

    def __init__(self, path: str):
        self.path, self.name = path, "standard output" if path == "-" else path
        self.written = HashedText()
        self.file: IO[str] | None = None

    def write(self, text: str) -> int:
        """Write text, and return its length."""
        with disk_errors(self.name):
            if self.file is None:
                place = sys.stdout.fileno() if self.path == "-" else self.path
                errors = "backslashreplace" if self.path == "-" else None  # the names of files need not be UTF-8
                self.file = open(  # noqa: SIM115
                    place, "w", encoding="utf-8", errors=errors, newline="\n", closefd=self.path != "-"
                )
            self.written.add(text)
            return self.file.write(text)

    def flush(self) -> None:
        """Write what is buffered."""
        with disk_errors(self.name):
            if self.file is not None:
                self.file.flush()

    def close(self) -> None:
        """Write what is buffered, and close the file if it is open."""
        with disk_errors(self.name):
            if self.file is not None:
                self.file.close()


@contextmanager
def open_output(path: str) -> Iterator[Output]:
    """Open a file for outputs; see ``Output``. Without an error it exists at the end, also if nothing was written.

    Args:
        path: the file; ``-`` for standard output.

    Yields:
        The file.

    Raises:
        UserError: it cannot be written.
    """
    with closing(Output(path)) as file:
        yield file
        file.write("")


def write_report(text: str, values: Mapping[str, Any], json_file: str) -> None:
    """Print a report as text, and write its JSON form.

    Args:
        text: the text, without a newline at the end.
        values: the JSON form.
        json_file: file for the JSON form; ``-`` for standard output, in place of the text; empty for none.

    Raises:
        UserError: the file cannot be written.
    """
    form = json_text(values, indent=1) + "\n"
    with open_output("-") as file:
        file.write(form if json_file == "-" else printable(text) + "\n")
    if json_file not in ("", "-"):
        write_atomically(Path(json_file), form)
