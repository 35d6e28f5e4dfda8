"""The folder of a job: the manifest, the parts, and the journal of the parts that are done.

::

    FOLDER/manifest.json       settings, models and input; does not change
    FOLDER/done.jsonl          a line for each part that is done
    FOLDER/parts/part-00000017.txt
    FOLDER/errors.jsonl        the lines that could not be decoded
    FOLDER/.lock               held by the process that works on the job

A part is done when its line is in the journal. The line is written after the part's file, so that a process that is
killed between the two decodes the part again. A line without an end, which a killed process leaves, is cut off.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from seqgen.addons.jobs.source import Part, Plan
from seqgen.addons.jobs.workers import Answers
from seqgen.extend import (
    ConfigError,
    DataError,
    disk_errors,
    new_file,
    open_own,
    parse_json,
    read_bytes,
    remove_leftovers,
    shown,
    sync,
    write_atomically,
)

MANIFEST = "manifest.json"
FORMAT, VERSION = "seqgen-job", 1
ADVICE = "give the same as before, or another job.folder"


def manifest_of(
    settings: Mapping[str, Any], models: Mapping[str, str], part_lines: int, plan: Plan, versions: Mapping[str, str]
) -> dict[str, Any]:
    """The content of a manifest: everything that the outputs of a job depend on.

    Args:
        settings: each key that changes outputs, with its value.
        models: the hash of each file of the models, and of files that keys name.
        part_lines: lines of each part.
        plan: the input.
        versions: versions of the programs, which may change.
    """
    # bytes of a name that are not UTF-8 are shown as numbers
    files = [(name.encode("utf-8", "backslashreplace").decode(), lines) for name, lines in plan.files]
    content = {
        "format": FORMAT,
        "version": VERSION,
        **versions,
        "settings": settings,
        "models": models,
        "part_lines": part_lines,
        "lines": plan.lines,
        "input": [{"file": name, "lines": lines} for name, lines in files],
        "parts": [[part.lines, part.digest] for part in plan.parts],
    }
    as_read: dict[str, Any] = json.loads(json.dumps(content))
    return as_read


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first difference between the contents of two manifests.

    Args:
        before: the older one.
        now: the newer one.

    Returns:
        Words such as ``generation.beam=5, and it is now 3``; empty if the outputs are the same.
    """
    settings = [{"job.part_lines": content["part_lines"], **content["settings"]} for content in (before, now)]
    for name in dict.fromkeys([*settings[0], *settings[1]]):
        was, is_ = (shown(values[name]) if name in values else "(not given)" for values in settings)
        if was != is_:
            return f"{name}={was}, and it is now {is_}"
    for name in dict.fromkeys([*before["models"], *now["models"]]):
        was, is_ = (content["models"].get(name) for content in (before, now))
        if was != is_:
            return f"another {name}" if was and is_ else f"{name}, which is now {'new' if is_ else 'missing'}"[:200]
    if before["lines"] != now["lines"]:
        return f"an input of {before['lines']} lines, and it now has {now['lines']}"
    first = 1
    for was, is_ in zip(before["parts"], now["parts"], strict=False):
        if was != is_:
            return f"an input whose lines {first} to {first + is_[0] - 1} were different"
        first += is_[0]
    return ""


JOURNAL = "done.jsonl"
ERRORS = "errors.jsonl"
PARTS = "parts"
COPY_BYTES = 1 << 20
"""Number of bytes that are copied at a time."""
MAX_NOTES = 20
"""Largest number of different notes in the record of a part; further ones are counted together."""


@dataclass(frozen=True)
class Done:
    """The facts of a part that is done, which are kept in memory.

    Attributes:
        bytes: size of its file.
        failed: number of its lines without an answer.
        tokens: number of generated tokens.
    """

    bytes: int
    failed: int
    tokens: int


class JobFolder:
    """The files of a job; the process that uses it holds the folder's lock.

    Args:
        path: the folder.
        ending: end of the names of the parts' files, such as ``.txt``.

    Attributes:
        parts: all parts of the job, when the folder is open.
        done: those that are done, by their number.
    """

    def __init__(self, path: Path, ending: str):
        self.path, self.ending = path, ending
        self.parts: Sequence[Part] = ()
        self.done: dict[int, Done] = {}

    @property
    def lines(self) -> int:
        """Number of lines of the parts that are done."""
        return sum(part.lines for part in self.parts if part.index in self.done)

    @property
    def failed(self) -> int:
        """Number of these lines that have no answer."""
        return sum(known.failed for known in self.done.values())

    def file_of(self, index: int) -> Path:
        """The file with the outputs of a part."""
        return self.path / PARTS / f"part-{index:08d}{self.ending}"

    def open(self, manifest: Mapping[str, Any], parts: Sequence[Part]) -> None:
        """Make the folder of a job or continue it: compare the manifest, remove what killed processes have left, and
        read the journal. A part whose file is missing or of another size is not done.

        Args:
            manifest: that of this command, see ``manifest_of``.
            parts: all parts of the job.

        Raises:
            ConfigError: the folder is of a job with other settings or models, or has other files of these names.
            DataError: the input is another one, or the manifest is damaged.
            UserError: a file cannot be written.
        """
        self._write_or_compare(manifest)
        self.parts = parts
        with disk_errors(self.path):
            (self.path / PARTS).mkdir(parents=True, exist_ok=True)
        for folder in (self.path, self.path / PARTS):
            remove_leftovers(folder, seconds=0)
        self._read_journal()
        self.done = {index: known for index, known in self.done.items() if self._has_file(index, known)}

    def _write_or_compare(self, manifest: Mapping[str, Any]) -> None:
        """Write the manifest; if it exists, check that it is of the same job."""
        file = self.path / MANIFEST
        if not file.exists():
            for name in (JOURNAL, ERRORS, PARTS):
                if (self.path / name).exists():
                    raise ConfigError(
                        f"job.folder={self.path} has {name}, but no {MANIFEST} of a job; give a new folder, or delete "
                        "it"
                    )
            write_atomically(file, json.dumps(manifest, indent=1) + "\n")
            return
        try:
            found = parse_json(read_bytes(file, 1 << 32))
        except (OSError, ValueError) as error:
            raise DataError(f"{file} cannot be read: {error}; choose another job.folder") from None
        if not isinstance(found, dict) or (found.get("format"), found.get("version")) != (FORMAT, VERSION):
            raise DataError(f"{file} is not the manifest of a job of this version; choose another job.folder")
        compared = ("settings", "models", "part_lines", "lines", "input", "parts")
        if any(type(found.get(name)) is not type(manifest[name]) for name in compared):
            raise DataError(f"{file} is damaged; choose another job.folder")
        if differs := difference(found, manifest):
            raise ConfigError(f"job.folder={self.path} was started with {differs}; {ADVICE}")

    def _read_journal(self) -> None:
        journal = self.path / JOURNAL
        if not journal.exists():
            return
        whole = 0
        with open(journal, "rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    self.done.update(_parsed(line))
                    whole += len(line)
            torn = file.tell() > whole
        if torn:
            with disk_errors(journal):
                os.truncate(journal, whole)

    def _has_file(self, index: int, known: Done) -> bool:
        try:
            return index < len(self.parts) and self.file_of(index).stat().st_size == known.bytes
        except OSError:
            return False

    def write(self, part: Part, answers: Answers) -> None:
        """Write the outputs of a part, then its line of the journal.

        Args:
            part: the part.
            answers: the outputs of all its lines.

        Raises:
            UserError: a file cannot be written; the part counts as not done.
        """
        content = "".join(answers.outputs).encode("utf-8", "surrogatepass")
        write_atomically(self.file_of(part.index), content)
        record = {
            "part": part.index,
            "first_line": part.first + 1,
            "lines": part.lines,
            "bytes": len(content),
            "tokens": answers.tokens,
            "seconds": round(answers.seconds, 3),
            "counts": answers.counts,
            "failed": [asdict(failure) for failure in answers.failures],
            "notes": counted({"note": text, "lines": 1, "first_line": line} for line, text in answers.notes),
        }
        self._append(json.dumps(record) + "\n")
        self.done[part.index] = Done(len(content), len(answers.failures), answers.tokens)

    def _append(self, line: str) -> None:
        """Write a line of the journal; the next process cuts off a line that was not written whole."""
        journal = self.path / JOURNAL
        with disk_errors(journal):
            with open_own(journal) as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            sync(self.path)

    def records(self, of_failures: bool = False) -> Iterator[dict[str, Any]]:
        """The journal's lines of parts that are done, in the order of the parts.

        Args:
            of_failures: leave out the parts of which all lines have answers.

        Raises:
            DataError: the journal has changed since it was read.
        """
        wanted = sorted(index for index, known in self.done.items() if known.failed or not of_failures)
        if not wanted:
            return
        journal = self.path / JOURNAL
        try:
            with open(journal, "rb") as file:
                lines = {index: line for line in file for index in _parsed(line)}
            for index in wanted:
                yield json.loads(lines[index])
        except (OSError, KeyError):
            raise DataError(f"{journal} was changed while the job was running; run the same command again") from None

    def write_errors(self) -> int:
        """Write the error ledger: a line of JSON for each line that could not be decoded, in the order of the input.

        Returns:
            The number of these lines. Without any there is no file.

        Raises:
            DataError: the journal was changed.
        """
        ledger = self.path / ERRORS
        if not self.failed:
            with disk_errors(ledger):
                ledger.unlink(missing_ok=True)
            return 0
        with new_file(ledger) as file:
            for record in self.records(of_failures=True):
                for failure in record["failed"]:
                    file.write(json.dumps(failure, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
        return self.failed

    def merge(self, file: IO[bytes], check: Callable[[], None]) -> None:
        """Copy the outputs of all parts into a file, in the order of the input.

        Args:
            file: the file.
            check: called after each part; may raise an exception to stop.

        Raises:
            DataError: a part's file has changed since it was written.
            OSError: the file cannot be written.
        """
        for part in self.parts:
            name = self.file_of(part.index)
            if not self._has_file(part.index, self.done[part.index]):
                raise DataError(f"{name} has changed since it was written; delete it and run the same command again")
            with open(name, "rb") as outputs:
                shutil.copyfileobj(outputs, file, COPY_BYTES)
            check()


def _parsed(line: bytes) -> dict[int, Done]:
    """The part of a line of the journal; empty for a damaged line, so that its part is decoded again."""
    try:
        record = parse_json(line)
        return {int(record["part"]): Done(int(record["bytes"]), len(record["failed"]), int(record["tokens"]))}
    except (ValueError, KeyError, TypeError):
        return {}


def merged_notes(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Count the notes of all parts by their text.

    Args:
        records: the records of the parts, in order.

    Returns:
        For each of the first ``MAX_NOTES`` texts a line, and one for all others.
    """
    lines = []
    for note in counted(note for record in records for note in record["notes"]):
        others = f" and {note['lines'] - 1} others" if note["lines"] > 1 else ""
        line = f"line {note['first_line']}{others}: {note['note']}"
        lines.append(line if note["note"] else f"... and {note['lines']} further notes; format=json writes all of them")
    return lines


def counted(notes: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Count notes by their text.

    Args:
        notes: a text (``note``), its number of lines and the first of them, from 1.

    Returns:
        The same for each of the first ``MAX_NOTES`` texts, and an empty one for all others.
    """
    found: dict[str, dict[str, Any]] = {}
    for note in notes:
        text = note["note"] if note["note"] in found or len(found) < MAX_NOTES else ""
        known = found.setdefault(text, {**note, "note": text, "lines": 0})
        known["lines"] += note["lines"]
    return list(found.values())
