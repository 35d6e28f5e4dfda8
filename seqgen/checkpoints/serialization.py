"""Tensors and plain values to files and back, without pickle.

A state is a tree of dicts, lists, plain values and tensors. It becomes two files: the tensors in ``safetensors``
format, the rest as JSON in which ``{"$tensor": NAME}`` stands for each tensor. A folder of files carries their
checksums in ``SHA256SUMS``, in the format of ``sha256sum -c``.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from seqgen.errors import CheckpointError
from seqgen.files import sync

CHECKSUMS = "SHA256SUMS"
_TENSOR = "$tensor"
_ALIAS = "alias:"  # begins metadata keys: a name of the state dict that shares its memory with another


def pack(tree: Any, prefix: str = "") -> tuple[Any, dict[str, Tensor]]:
    """Split a state into what JSON holds and its tensors.

    Args:
        tree: nested dicts with string keys, lists, tuples (which come back as lists), tensors and plain values.
        prefix: what the tensors' names begin with.

    Returns:
        The tree with a reference in place of each tensor, and the tensors by name.

    Raises:
        TypeError: a key is no string, or a value is none of these.
    """
    if isinstance(tree, Tensor):
        return {_TENSOR: prefix}, {prefix: tree}
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree, {}
    if isinstance(tree, Mapping):
        items = list(tree.items())
    elif isinstance(tree, list | tuple):
        items = [(str(index), value) for index, value in enumerate(tree)]
    else:
        raise TypeError(f"{prefix or 'state'}: a {type(tree).__name__} cannot be saved; use plain values and tensors")
    packed: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for key, value in items:
        if not isinstance(key, str):
            raise TypeError(f"{prefix or 'state'}: key {key!r} is not a string")
        packed[key], below = pack(value, f"{prefix}/{key}" if prefix else key)
        tensors.update(below)
    return (packed if isinstance(tree, Mapping) else list(packed.values())), tensors


def unpack(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Put a state together again; see ``pack``."""
    if isinstance(tree, dict):
        if set(tree) == {_TENSOR}:
            return tensors[tree[_TENSOR]]
        return {key: unpack(value, tensors) for key, value in tree.items()}
    return [unpack(value, tensors) for value in tree] if isinstance(tree, list) else tree


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors to a ``safetensors`` file and see it on disk. One that has several names is written once.

    Args:
        path: the file.
        tensors: tensors by name, on any device.
    """
    metadata = {"format": "pt"}
    unique: dict[str, Tensor] = {}
    names: dict[tuple[Any, ...], str] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        identity = (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and identity in names:
            metadata[_ALIAS + name] = names[identity]
            continue
        names[identity] = name
        unique[name] = _own_memory(tensor.detach().cpu(), storages)
    path.touch()
    mode = path.stat().st_mode
    try:
        safetensors.torch.save_file(unique, path, metadata)
    except safetensors.SafetensorError as error:
        # The library wraps the operating system's error in a text of its own.
        full = "No space left" in str(error) or "StorageFull" in str(error)
        raise OSError(errno.ENOSPC if full else errno.EIO, str(error), str(path)) from error
    path.chmod(mode)  # the library's own choice shuts everybody else out
    sync(path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a ``safetensors`` file, every name of every tensor.

    Raises:
        CheckpointError: the file cannot be read.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: not a readable safetensors file ({error}); it may be truncated") from None
    for key, name in metadata.items():
        if key.startswith(_ALIAS):
            tensors[key.removeprefix(_ALIAS)] = tensors[name]
    return tensors


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON and see it on disk; floats come back exactly as they were."""
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    sync(path)


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        CheckpointError: the file cannot be read.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error}); it may be truncated") from None


def write_checksums(folder: Path) -> None:
    """Write the checksums of all files of a folder beside them, and see the folder on disk."""
    lines = [f"{_digest(path)}  {path.name}\n" for path in sorted(folder.iterdir()) if path.name != CHECKSUMS]
    (folder / CHECKSUMS).write_text("".join(lines), encoding="utf-8")
    sync(folder / CHECKSUMS)
    sync(folder)


def verify_checksums(folder: Path, names: Sequence[str]) -> None:
    """Check that files are what was written.

    Args:
        folder: the folder with the files and their checksums.
        names: the files to check.

    Raises:
        CheckpointError: a file or the checksums are missing, or a checksum differs.
    """
    try:
        lines = (folder / CHECKSUMS).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        raise CheckpointError(f"{folder}: {CHECKSUMS} is missing or unreadable; was the folder copied whole?") from None
    expected = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    for name in names:
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{folder}: {name} is missing; was the folder copied whole?")
        if expected.get(name) != _digest(path):
            raise CheckpointError(
                f"{path}: its checksum differs from {CHECKSUMS}, so the file is damaged or truncated; "
                "use another checkpoint or copy it again"
            )


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _own_memory(tensor: Tensor, storages: set[int]) -> Tensor:
    """A contiguous tensor that is the whole of a storage not yet among ``storages``, as the format demands."""
    storage = tensor.untyped_storage()
    whole = storage.nbytes() == tensor.numel() * tensor.element_size()
    if not (tensor.is_contiguous() and whole) or storage.data_ptr() in storages:
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    storages.add(tensor.untyped_storage().data_ptr())
    return tensor
