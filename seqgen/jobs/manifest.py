"""The manifest of a job: its settings, models and input, by which a job is continued or refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqgen.errors import ConfigError, DataError, shown
from seqgen.jobs.part import Plan
from seqgen.system.files import write_atomically
from seqgen.system.reading import parse_json, read_bytes

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

    @property
    def digest(self) -> str:
        """The hash of settings and models."""
        content = json.dumps([dict(self.settings), dict(self.models)], sort_keys=True)
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()

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

    def write_or_compare(self, folder: Path) -> bool:
        """Write the file; if it exists, check that it is of the same job.

        Args:
            folder: the folder of the job.

        Returns:
            Whether the job was begun before.

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
            return False
        except (OSError, ValueError) as error:
            raise DataError(f"{file} cannot be read: {error}; choose another job.folder") from None
        shape = {"settings": dict, "models": dict, "part_lines": int, "lines": int, "input": list, "parts": list}
        if not isinstance(theirs, dict) or (theirs.get("format"), theirs.get("version")) != (FORMAT, VERSION):
            raise DataError(f"{file} is not the manifest of a job of this version; choose another job.folder")
        if any(not isinstance(theirs.get(name), kind) for name, kind in shape.items()):
            raise DataError(f"{file} is damaged; choose another job.folder")
        if found := difference(theirs, mine):
            raise ConfigError(f"job.folder={folder} was begun with {found}; {ADVICE}")
        return True


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
