"""Hashes of the files that outputs depend on: those of the models, and those that keys name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from seqgen.checkpoints.hub import local_path
from seqgen.checkpoints.loading import CONFIG_FILE, checkpoint_loader_of, run_folder, split_path
from seqgen.checkpoints.run_checkpoints import resolve
from seqgen.checkpoints.run_checksums import tokenizer_digests
from seqgen.checkpoints.serialization import digest
from seqgen.cli.keys import INPUTS
from seqgen.config.values import text_values
from seqgen.registry import DECODING_COMPONENTS, GROUPS

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
    for file in _beside(checkpoint):
        if file.is_file() and not file.name.startswith(("training_state", ".")):
            found[file] = digest(file)
    return found


def _beside(checkpoint: Path) -> list[Path]:
    """The files of a checkpoint; of one file also the dictionaries and tokenizers in its folder."""
    if checkpoint.is_dir():
        return sorted(checkpoint.iterdir())
    return [checkpoint, *(p for p in sorted(checkpoint.parent.iterdir()) if p.suffix in (".txt", ".model", ".json"))]


def named_files(keys: Mapping[str, str]) -> list[str]:
    """The files that the values of keys name, and the Python files of the folders of ``common.user_dir``.

    Only keys whose values can be files are looked at: a file named ``1`` is not part of ``generation.lenpen=1``.

    Args:
        keys: values by key, as the user gave them.
    """
    found: dict[str, None] = {}
    for key, value in keys.items():
        if key not in INPUTS and not key.startswith(_COMPONENTS):
            continue
        annotation = list[str] if value.startswith("[") else str
        named = [Path(name) for name in text_values([f"{key}={value}"], key, annotation)]
        own = [file for path in named for file in path.rglob("*.py")] if key == "common.user_dir" else []
        found |= dict.fromkeys(name for name in map(str, [*named, *own]) if Path(name).is_file())
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


def fingerprint(digests: Mapping[str, str]) -> str:
    """One hash of many."""
    return hashlib.sha256(json.dumps(dict(digests), sort_keys=True).encode()).hexdigest()
