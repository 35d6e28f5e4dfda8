"""``record=FILE`` of ``seqgen-generate``: what is needed to repeat a decode, and ``config=FILE`` with such a record.

::

    {"format": "seqgen-record", "version": 1,
     "command": [...], "folder": ...,         as typed, and where
     "keys": {"path": "runs/a", ...},         all keys given, those of configuration files included; not of outputs
     "settings": {"beam": 5, ...},            all decoding settings, those of the models included
     "seqgen": ..., "torch": ..., "python": ..., "device": ..., "threads": ...,
     "files": {"runs/a/config.yaml": SHA256, ...},       models and other files that were read
     "input": {"lines": ..., "sha256": ...}, "output": {"lines": ..., "sha256": ...}}

The hashes of input and output are those of the lines as text, each ended by a newline.
Models and other files are hashed as bytes.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from seqgen.checkpoints.loaders import LoadedModel, checkpoint_loader_of
from seqgen.checkpoints.run_checkpoints import resolve
from seqgen.checkpoints.run_config import CONFIG_FILE, run_folder, tokenizer_digests
from seqgen.checkpoints.serialization import digest
from seqgen.checkpoints.sources import local_path, split_path
from seqgen.cli.keys import keys_of
from seqgen.cli.output import HashedText
from seqgen.cli.provenance import versions
from seqgen.config import GenerateConfig
from seqgen.config.values import split_argument, text_values, to_dict
from seqgen.core.errors import ConfigError, shown
from seqgen.registry import DECODING_COMPONENTS, GROUPS
from seqgen.system.files import write_atomically
from seqgen.text.text_decoding import TextDecoding

_COMPONENTS = tuple(f"{group}." for group in (*GROUPS, *DECODING_COMPONENTS))
"""Beginnings of the keys of components, which can be a user's own."""


def model_digests(checkpoint: Path) -> dict[Path, str]:
    """Hash the files of a model.

    Args:
        checkpoint: the checkpoint from which it is loaded.

    Returns:
        The hash of each file. The state of training, such as that of the optimizer, is left out, because it does not
        change outputs.
    """
    found: dict[Path, str] = {}
    if (folder := run_folder(checkpoint)) is not None:
        found |= {folder / name: value for name, value in tokenizer_digests(folder).items()}
        found[folder / CONFIG_FILE] = digest(folder / CONFIG_FILE)
    files = sorted(checkpoint.iterdir() if checkpoint.is_dir() else checkpoint.parent.iterdir())
    if not checkpoint.is_dir():  # with the dictionaries and tokenizers in its folder
        files = [checkpoint, *(file for file in files if file.suffix in (".txt", ".model", ".json"))]
    for file in files:
        if file.is_file() and not file.name.startswith(("training_state", ".")):
            found[file] = digest(file)
    return found


def named_files(keys: Mapping[str, str]) -> list[str]:
    """The files that the values of keys name, and the Python files of the folders of ``common.user_dir``.

    Only keys whose values can be files are looked at: a file named ``1`` is not part of ``generation.beam=1``.

    Args:
        keys: values by key, as the user gave them.
    """
    found: dict[str, None] = {}
    inputs = {key.name for key in keys_of(GenerateConfig) if key.role in ("input_path", "code")}
    for key, value in keys.items():
        if key not in inputs and not key.startswith(_COMPONENTS):
            continue
        annotation = list[str] if value.startswith("[") else str
        named = [Path(name) for name in text_values([f"{key}={value}"], key, annotation)]
        code = [file for path in named for file in path.rglob("*.py")] if key == "common.user_dir" else []
        found |= dict.fromkeys(name for name in map(str, [*named, *code]) if Path(name).is_file())
    return list(found)


def models_fingerprint(paths: Sequence[str]) -> dict[str, str]:
    """Hash the files of models by names that do not change if the models are moved.

    Args:
        paths: what ``load_models`` takes.

    Returns:
        Hashes by names such as ``model 1 (config.yaml)``.

    Raises:
        CheckpointError: there is no such model.
    """
    found: dict[str, str] = {}
    for number, path in enumerate((part for one in paths for part in split_path(one)), start=1):
        local = local_path(path)
        checkpoint = resolve(local) if checkpoint_loader_of(local) is None else local
        found |= {f"model {number} ({file.name})": value for file, value in model_digests(checkpoint).items()}
    return found


def file_digests(names: Iterable[str]) -> dict[str, str]:
    """The hash of each file, by its name."""
    return {name: digest(Path(name)) for name in names}


RECORD = "seqgen-record"
VERSION = 1
OUTPUTS = ("output", "record", "trace", "trace_options")
"""Keys and groups that are not recorded, so that repeating a decode does not overwrite its output."""


class Record:
    """Collects and writes the record of a decode.

    Args:
        path: the record's file.
        argv: the program and its arguments, as typed.
        overrides: all ``key=value`` arguments, with those of configuration files.
        loaded: the models, whose files are hashed now, and those that keys name.
    """

    def __init__(self, path: str, argv: Sequence[str], overrides: Sequence[str], loaded: Sequence[LoadedModel]):
        self._path, self._argv = path, list(argv)
        pairs = map(split_argument, overrides)
        self._keys = {key: value for key, value in pairs if key.partition(".")[0] not in OUTPUTS}
        self._files: dict[str, str] = {}
        for item in loaded:
            self._files |= {str(file): value for file, value in model_digests(item.checkpoint).items()}
        self._files |= file_digests({*named_files(self._keys)} - {*self._files})
        self._device = str(next(loaded[-1].model.parameters()).device)
        self._input = HashedText()

    def lines(self, lines: Iterable[str]) -> Iterator[str]:
        """The lines, which are hashed while they are read."""
        for line in lines:
            self._input.add(line + "\n")
            yield line

    def write(self, decoding: TextDecoding, output: HashedText) -> None:
        """Write the record.

        Args:
            decoding: what decoded.
            output: what was written.

        Raises:
            UserError: the file cannot be written.
        """
        record = {
            "format": RECORD,
            "version": VERSION,
            "command": self._argv,
            "folder": os.getcwd(),
            "keys": self._keys,
            "settings": to_dict(decoding.cfg),
            **versions(),
            "device": self._device,
            "threads": torch.get_num_threads(),
            "files": self._files,
            "input": self._input.as_dict(),
            "output": output.as_dict(),
        }
        write_atomically(Path(self._path), json.dumps(record, ensure_ascii=False, indent=1) + "\n")
        typed = [f"config={self._path}", "output=FILE"]
        if code := self._keys.get("common.user_dir"):  # which is not taken from a file
            typed.append(f"common.user_dir={code}")
        print(f"wrote {self._path}; to repeat: seqgen-generate {shlex.join(typed)}", file=sys.stderr)


def recorded_keys(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys of a record.

    Args:
        content: the content of a file of seqgen.

    Raises:
        ConfigError: it is not a record of this version.
    """
    if content.get("format") != RECORD:
        raise ConfigError(f"this is a {content.get('format')} file, not keys or a record")
    if content.get("version") != VERSION:
        raise ConfigError(
            f"this is a record of version {shown(content.get('version'))}; this seqgen reads version {VERSION}; decode "
            "again with record=FILE, or use a newer seqgen"
        )
    keys = content.get("keys")
    if not isinstance(keys, Mapping):
        raise ConfigError("the record has no keys; decode again with record=FILE")
    return keys


def changes(record: Mapping[str, Any]) -> list[str]:
    """Find the files and versions that have changed since a record was written.

    Args:
        record: the record.

    Returns:
        A sentence for each change.
    """
    found = []
    files = record.get("files")
    for name, expected in files.items() if isinstance(files, Mapping) else ():
        if not Path(name).is_file():
            found.append(f"{name} does not exist any more")
        elif digest(Path(name)) != expected:
            found.append(f"{name} has changed since then")
    for name, version in versions().items():
        if record.get(name, version) != version:
            found.append(f"the version of {name} was {record[name]} and is now {version}")
    return found
