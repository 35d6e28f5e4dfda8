"""``provenance.json`` of a run: where each value of its configuration comes from, and with what it was trained.

::

    {"format": "seqgen-provenance", "version": 1,
     "values": {"optimization.lr": {"value": [0.003], "from": "command line"}, ...},
     "sessions": [{"time": ..., "command": [...], "seqgen": ..., "torch": ..., "python": ..., "data": {"train": HASH}}]}

A session is a call of ``seqgen-train``. A value that is later changed in ``config.yaml``
differs from the one recorded here. Runs of older versions have no such file.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from seqgen import __version__
from seqgen.checkpoints.run_config import flatten
from seqgen.config import TrainConfig
from seqgen.config.values import to_dict
from seqgen.registry import GROUPS
from seqgen.system.files import write_atomically
from seqgen.system.reading import parse_json, parse_yaml, read_bytes

PROVENANCE = "provenance.json"
FORMAT, VERSION = "seqgen-provenance", 1
DEFAULT = "default"
RECORDED = "recorded by training"
EDITED = "edited in config.yaml"
_COMPONENTS = "generation.components."
_LINE = re.compile(r"(?P<indent> *)(?P<key>[^\s:'\"#-][^:]*):(?P<value> .*)?")


def origins_of(values: Mapping[str, Any], given: Mapping[str, str], components: Mapping[str, str]) -> dict[str, str]:
    """Where each value of a configuration comes from.

    Args:
        values: all values by key; ``model._name`` is the name of the model.
        given: by each key that the user gave, where it comes from.
        components: the name that is chosen in each group of components, which can be a preset.

    Returns:
        For each key ``default``, ``preset NAME``, ``command line``, ``config=FILE``, ``checkpoint PATH``, or
        ``recorded by training`` for values that follow from the surroundings.
    """
    defaults = dict(flatten(to_dict(TrainConfig())))
    presets = {}
    for group, name in components.items():
        own = dict(flatten(to_dict(GROUPS[group].entry(name).config()), f"{group}."))
        defaults |= own
        if name != values.get(f"{group}._name"):
            presets[group] = f"preset {name}"
    found = {}
    for key, value in values.items():
        group, _, last = key.partition(".")
        if last == "_name":
            found[key] = given.get(group, DEFAULT)
        elif key.removeprefix(_COMPONENTS) in given:
            found[key] = given[key.removeprefix(_COMPONENTS)]
        elif key in defaults and defaults[key] == value:
            found[key] = DEFAULT
        else:
            found[key] = presets.get(group, RECORDED)
    return found


def write_provenance(
    run: Path, values: Mapping[str, Any], origins: Mapping[str, str], command: Sequence[str], data: Mapping[str, str]
) -> dict[str, str]:
    """Write the record of a run, or add a session to it.

    Args:
        run: the run folder.
        values: all values of the configuration, by key.
        origins: where each comes from in this session.
        command: the program and its arguments.
        data: the hash of the files of each split.

    Returns:
        Where each value comes from: in a run that is resumed, an unchanged value keeps its first origin.

    Raises:
        UserError: the file cannot be written.
    """
    before = read_provenance(run)
    known = before.get("values", {})
    same = [key for key, value in values.items() if known.get(key, {}).get("value", ...) == value]
    kept = {key: known[key]["from"] for key in same}
    found = {**origins, **kept}
    session = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": list(command),
        **versions(),
        "data": dict(data),
    }
    record = {
        "format": FORMAT,
        "version": VERSION,
        "values": {key: {"value": value, "from": found[key]} for key, value in values.items()},
        "sessions": [*before.get("sessions", []), session],
    }
    content = json.dumps(record, ensure_ascii=False, indent=1) + "\n"
    write_atomically(run / PROVENANCE, content)
    return found


def versions() -> dict[str, str]:
    """The versions of seqgen, PyTorch and Python."""
    return {"seqgen": __version__, "torch": torch.__version__, "python": platform.python_version()}


def read_provenance(run: Path) -> dict[str, Any]:
    """The record of a run.

    Args:
        run: the run folder.

    Returns:
        The record; an empty dict if it is missing or damaged, or of another version.
    """
    try:
        record = parse_json(read_bytes(run / PROVENANCE))
    except (OSError, ValueError):
        return {}
    shape = {"format": str, "version": int, "values": dict, "sessions": list}
    if not isinstance(record, dict) or any(not isinstance(record.get(key), kind) for key, kind in shape.items()):
        return {}
    record["sessions"] = [session for session in record["sessions"] if isinstance(session, dict)]
    entries = {key: entry for key, entry in record["values"].items() if isinstance(entry, dict)}
    record["values"] = {key: entry for key, entry in entries.items() if isinstance(entry.get("from"), str)}
    return record if (record["format"], record["version"]) == (FORMAT, VERSION) else {}


def recorded_data(record: Mapping[str, Any], split: str) -> str:
    """The hash of a split's files when training was started last; empty if not known.

    Args:
        record: what ``read_provenance`` returned.
        split: its name.
    """
    data = (record.get("sessions") or [{}])[-1].get("data")
    return str(data.get(split) or "") if isinstance(data, dict) else ""


def recorded_origin(record: Mapping[str, Any], key: str, value: Any) -> str:
    """Where a value comes from by a record; ``edited in config.yaml`` if it is another one, empty if not known.

    Args:
        record: what ``read_provenance`` returned.
        key: the key.
        value: its value in ``config.yaml``.
    """
    entry = record.get("values", {}).get(key)
    if entry is None:
        return ""
    return entry["from"] if entry.get("value") == value else EDITED


def with_origins(content: str, origins: Mapping[str, str]) -> str:
    """Add comments to a YAML file that say where its values come from.

    Args:
        content: what ``yaml.safe_dump`` wrote.
        origins: where each value comes from, by key; defaults get no comment.

    Returns:
        The text with comments, which has the same values.
    """
    lines = ["# A comment says where a value comes from; values without one are defaults. Details: provenance.json"]
    path: list[str] = []
    for line in content.splitlines():
        if found := _LINE.fullmatch(line):
            path[len(found["indent"]) // 2 :] = [found["key"]]
            origin = " ".join(origins.get(".".join(path), "").split())
            line += f"  # {origin}" if origin not in ("", DEFAULT) else ""
        lines.append(line)
    commented = "\n".join(lines) + "\n"
    try:
        same = parse_yaml(commented.encode()) == parse_yaml(content.encode())
    except ValueError:
        same = False
    return commented if same else content  # a text of several lines has lines that look like keys
