"""``provenance.json`` of a run: the commands, versions and data with which it was trained.

::

    {"format": "seqgen-provenance", "version": 1,
     "sessions": [{"time": ..., "command": [...], "seqgen": ..., "torch": ..., "python": ..., "data": {"train": HASH}}]}

A session is a call of ``seqgen-train``; one that has prepared the run also has ``"prepared": true``. Runs of older
versions have no such file.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from seqgen import __version__
from seqgen.system.files import write_atomically
from seqgen.system.reading import parse_json, read_bytes

PROVENANCE = "provenance.json"
FORMAT, VERSION = "seqgen-provenance", 1


def add_session(run: Path, command: Sequence[str], data: Mapping[str, str]) -> None:
    """Add a session to the record of a run.

    Args:
        run: the run folder.
        command: the program and its arguments.
        data: the hash of the files of each split.

    Raises:
        UserError: the file cannot be written.
    """
    time = datetime.now(UTC).isoformat(timespec="seconds")
    session = {"time": time, "command": list(command), **versions(), "data": dict(data)}
    _write(run, [*read_sessions(run), session])


def note_prepared(run: Path) -> None:
    """Record that the last session has prepared the run: its tokenizers are made, and its text is encoded.

    Args:
        run: the run folder.

    Raises:
        UserError: the file cannot be written.
    """
    sessions = read_sessions(run)
    sessions[-1]["prepared"] = True
    _write(run, sessions)


def _write(run: Path, sessions: Sequence[Mapping[str, Any]]) -> None:
    record = {"format": FORMAT, "version": VERSION, "sessions": sessions}
    write_atomically(run / PROVENANCE, json.dumps(record, ensure_ascii=False, indent=1) + "\n")


def versions() -> dict[str, str]:
    """The versions of seqgen, PyTorch and Python."""
    return {"seqgen": __version__, "torch": torch.__version__, "python": platform.python_version()}


def read_sessions(run: Path) -> list[dict[str, Any]]:
    """The sessions of a run.

    Args:
        run: the run folder.

    Returns:
        The sessions, the oldest first; none if the file is missing or damaged, or of another version.
    """
    try:
        record = parse_json(read_bytes(run / PROVENANCE))
    except (OSError, ValueError):
        return []
    if not isinstance(record, dict) or (record.get("format"), record.get("version")) != (FORMAT, VERSION):
        return []
    sessions = record.get("sessions")
    return [item for item in sessions if isinstance(item, dict)] if isinstance(sessions, list) else []


def recorded_data(sessions: Sequence[Mapping[str, Any]], split: str) -> str:
    """The hash of a split's files when training was started last; empty if not known.

    Args:
        sessions: what ``read_sessions`` returned.
        split: its name.
    """
    data = sessions[-1].get("data") if sessions else None
    return str(data.get(split) or "") if isinstance(data, dict) else ""
