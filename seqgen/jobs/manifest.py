"""The manifest of a job: its settings and models, and the parts of its input, by which it is continued or refused.

A part has consecutive lines of the input, and is found again by the hash of their text.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqgen.errors import ConfigError, DataError, shown
from seqgen.jobs.source import Source
from seqgen.system.files import write_atomically
from seqgen.system.reading import parse_json, read_bytes


@dataclass(frozen=True)
class Part:
    """A part of the input.

    Attributes:
        index: number of the part, from 0.
        first: number of its first line in the whole input, from 0.
        lines: number of its lines.
        digest: hash of the lines' text.
    """

    index: int
    first: int
    lines: int
    digest: str


@dataclass(frozen=True)
class Plan:
    """How an input is cut into parts.

    Attributes:
        parts: the parts, in order; one entry for each ``part_lines`` lines, which is all that grows with the input.
        files: each file with the number of its lines.
    """

    parts: list[Part]
    files: list[tuple[str, int]]

    @property
    def lines(self) -> int:
        """Number of lines of the whole input."""
        return self.parts[-1].first + self.parts[-1].lines if self.parts else 0


def text_digest(lines: Iterable[str]) -> str:
    """Hash lines; a line may contain any character."""
    total = hashlib.sha256()
    for line in lines:
        content = line.encode("utf-8", "surrogatepass")
        total.update(b"%d:" % len(content))
        total.update(content)
    return total.hexdigest()


def cut(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    """Cut lines into lists of ``size`` lines; the last one can be shorter."""
    lines = iter(lines)
    while some := list(itertools.islice(lines, size)):
        yield some


def plan_parts(source: Source, size: int, check: Callable[[], None] = lambda: None) -> Plan:
    """Read the whole input once, and cut it into parts; errors in it are found before anything is decoded.

    Args:
        source: the input.
        size: lines of each part.
        check: called after each part; may raise an exception to stop.

    Raises:
        DataError: a file cannot be read, or a line has no text.
    """
    counts = [0] * len(source.files)

    def counted(place: int, file: Path) -> Iterator[str]:
        for line in source.lines_of(file):
            counts[place] += 1
            yield line

    parts: list[Part] = []
    first = 0
    every = itertools.chain.from_iterable(counted(place, file) for place, file in enumerate(source.files))
    for lines in cut(every, size):
        parts.append(Part(len(parts), first, len(lines), text_digest(lines)))
        first += len(lines)
        check()
    return Plan(parts, [(str(file), count) for file, count in zip(source.files, counts, strict=True)])


MANIFEST = "manifest.json"
FORMAT, VERSION = "seqgen-job", 1
ADVICE = "give the same as before, or another job.folder"


@dataclass(frozen=True)
class Manifest:
    """What the outputs of a job depend on.

    Attributes:
        settings: each key that changes outputs, with its value.
        models: the hash of each file of the models, and of files that keys name.
        part_lines: lines of each part.
        plan: the input.
        versions: versions of the programs, which may change.
    """

    settings: Mapping[str, Any]
    models: Mapping[str, str]
    part_lines: int
    plan: Plan
    versions: Mapping[str, str]

    def plain(self) -> dict[str, Any]:
        """The content of the file."""
        return {
            "format": FORMAT,
            "version": VERSION,
            **self.versions,
            "settings": dict(self.settings),
            "models": dict(self.models),
            "part_lines": self.part_lines,
            "lines": self.plan.lines,
            "input": [{"file": _readable(name), "lines": lines} for name, lines in self.plan.files],
            "parts": [[part.lines, part.digest] for part in self.plan.parts],
        }

    def write_or_compare(self, folder: Path) -> None:
        """Write the file; if it exists, check that it is of the same job.

        Args:
            folder: the folder of the job.

        Raises:
            ConfigError: settings or models are others.
            DataError: the input is another one, or the file is damaged.
            UserError: the file cannot be written.
        """
        file = folder / MANIFEST
        mine = json.loads(json.dumps(self.plain()))
        try:
            theirs = parse_json(read_bytes(file, 1 << 32))
        except FileNotFoundError:
            write_atomically(file, json.dumps(mine, indent=1) + "\n")
            return
        except (OSError, ValueError) as error:
            raise DataError(f"{file} cannot be read: {error}; choose another job.folder") from None
        shape = {"settings": dict, "models": dict, "part_lines": int, "lines": int, "input": list, "parts": list}
        if not isinstance(theirs, dict) or (theirs.get("format"), theirs.get("version")) != (FORMAT, VERSION):
            raise DataError(f"{file} is not the manifest of a job of this version; choose another job.folder")
        if any(not isinstance(theirs.get(name), kind) for name, kind in shape.items()):
            raise DataError(f"{file} is damaged; choose another job.folder")
        if found := difference(theirs, mine):
            raise ConfigError(f"job.folder={folder} was begun with {found}; {ADVICE}")


def _readable(name: str) -> str:
    """The name of a file, in which bytes that are not UTF-8 are shown as numbers."""
    return name.encode("utf-8", "backslashreplace").decode()


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first difference between the contents of two manifests.

    Args:
        before: the older one.
        now: the newer one.

    Returns:
        Words such as ``generation.beam=5, and it is now 3``; empty if the outputs are the same.
    """
    if before["part_lines"] != now["part_lines"]:
        return f"generation.part_lines={before['part_lines']}, and it is now {now['part_lines']}"
    for name in dict.fromkeys([*before["settings"], *now["settings"]]):
        was, is_ = (_value(content["settings"], name) for content in (before, now))
        if was != is_:
            return f"{name}={was}, and it is now {is_}"
    for name in dict.fromkeys([*before["models"], *now["models"]]):
        was, is_ = (content["models"].get(name) for content in (before, now))
        if was != is_:
            return f"another {name}" if was and is_ else f"{name}, which is now {'new' if is_ else 'missing'}"[:200]
    return _difference_of_inputs(before, now)


def _value(settings: Mapping[str, Any], name: str) -> str:
    return shown(settings[name]) if name in settings else "(not given)"


def _difference_of_inputs(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    if before["lines"] != now["lines"]:
        return f"an input of {before['lines']} lines, and it now has {now['lines']}"
    first = 1
    for was, is_ in zip(before["parts"], now["parts"], strict=False):
        if was != is_:
            return f"an input whose lines {first} to {first + is_[0] - 1} were different"
        first += is_[0]
    return ""
