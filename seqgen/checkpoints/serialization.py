"""Saves and loads tensors and plain values without pickle.

A state is a tree of dicts, lists, tuples, plain values and tensors. It is saved as two files: the tensors in
``safetensors`` format, and the rest as JSON, in which ``{"$tensor": NAME}`` refers to a tensor and ``{"$tuple": LIST}``
is a tuple. ``SHA256SUMS`` in the same folder has their checksums, in the format of ``sha256sum -c``.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from seqgen.core.errors import CheckpointError
from seqgen.system.files import sync
from seqgen.system.reading import open_regular, parse_json, read_bytes

CHECKSUMS = "SHA256SUMS"
_TENSOR, _TUPLE = "$tensor", "$tuple"
_ALIASES = "aliases"  # the metadata key whose JSON has, by name, the other name of a tensor that is written once


def pack(tree: Any, prefix: str = "") -> tuple[Any, dict[str, Tensor]]:
    """Split a state into plain values and tensors.

    Args:
        tree: nested dicts with string keys, lists, tuples, tensors and plain values.
        prefix: what the tensors' names begin with.

    Returns:
        The tree with a reference in place of each tensor, and the tensors by name.

    Raises:
        TypeError: a key is not a string, or a value has another type.
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
    plain = packed if isinstance(tree, Mapping) else list(packed.values())
    return ({_TUPLE: plain} if isinstance(tree, tuple) else plain), tensors


def unpack(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Rebuild a state from plain values and tensors.

    Args:
        tree: the tree that ``pack`` returned.
        tensors: the tensors that ``pack`` returned.

    Returns:
        The state.

    Raises:
        KeyError: the tree refers to a tensor that does not exist.
    """
    if isinstance(tree, dict):
        if set(tree) == {_TENSOR}:
            return tensors[tree[_TENSOR]]
        if set(tree) == {_TUPLE}:
            return tuple(unpack(tree[_TUPLE], tensors))
        return {key: unpack(value, tensors) for key, value in tree.items()}
    return [unpack(value, tensors) for value in tree] if isinstance(tree, list) else tree


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors to a ``safetensors`` file and sync it to disk. A tensor with several names is written once.

    Args:
        path: the file.
        tensors: tensors by name, on any device.

    Raises:
        OSError: the file cannot be written.
    """
    aliases: dict[str, str] = {}
    unique: dict[str, Tensor] = {}
    names: dict[tuple[Any, ...], str] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        identity = (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and identity in names:
            aliases[name] = names[identity]
            continue
        names[identity] = name
        unique[name] = _storable(tensor.detach().cpu(), storages)
    # one key, since the library writes several in an order that differs between processes; transformers needs "format"
    metadata = {_ALIASES: json.dumps(aliases)} if aliases else {"format": "pt"}
    path.touch()
    mode = path.stat().st_mode
    try:
        safetensors.torch.save_file(unique, path, metadata)
    except safetensors.SafetensorError as error:
        # the library gives the operating system's error only as text: "... (os error 28)" or "Os { code: 28, ..."
        number = re.search(r"(?:os error|code:) (\d+)", str(error))
        code = int(number[1]) if number else errno.EIO
        raise OSError(code, os.strerror(code) if number else str(error), str(path)) from error
    path.chmod(mode)  # the library makes the file readable by its owner only
    sync(path)


def read_tensors(path: Path, values: bool = True) -> dict[str, Tensor]:
    """Read a ``safetensors`` file. A tensor with several names is returned under each of them.

    Args:
        path: the file.
        values: whether to read the values; if not, only the shapes are read.

    Returns:
        Tensors by name, on the CPU or the ``meta`` device.

    Raises:
        CheckpointError: the file cannot be read.
    """
    try:
        open_regular(path).close()
        with safetensors.safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            if values:
                tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            else:
                shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
                tensors = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
        aliases = parse_json(metadata.get(_ALIASES, "{}").encode())
        return tensors | {alias: tensors[name] for alias, name in aliases.items()}
    except (safetensors.SafetensorError, OSError, ValueError, AttributeError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"{path}: not a readable safetensors file ({error}); it may be truncated, copy it again"
        ) from None


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, with floats in full precision, and sync the file to disk."""
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    sync(path)


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        CheckpointError: the file cannot be read.
    """
    try:
        return parse_json(read_bytes(path))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error}); it may be truncated") from None


def write_checksums(folder: Path) -> None:
    """Write the checksums of all files of a folder into its ``SHA256SUMS``, and sync the folder."""
    files = [path for path in sorted(folder.iterdir()) if path.name != CHECKSUMS]
    lines = [f"{digest(path)}  {path.name}\n" for path in files]
    (folder / CHECKSUMS).write_text("".join(lines), encoding="utf-8")
    sync(folder / CHECKSUMS)
    sync(folder)


def verify_checksums(folder: Path, names: Sequence[str]) -> None:
    """Check that files have not changed since they were written.

    Args:
        folder: the folder with the files and their ``SHA256SUMS``.
        names: the files to check.

    Raises:
        CheckpointError: a file or the checksums are missing, or a checksum differs.
    """
    try:
        lines = read_bytes(folder / CHECKSUMS).decode().splitlines()
    except (OSError, ValueError):
        raise CheckpointError(f"{folder}: {CHECKSUMS} is missing or unreadable; was the folder copied whole?") from None
    expected = {name: recorded for recorded, _, name in (line.partition("  ") for line in lines)}
    for name in names:
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{folder}: {name} is missing; was the folder copied whole?")
        if expected.get(name) != digest(path):
            raise CheckpointError(
                f"{path}: its checksum differs from {CHECKSUMS}, so the file is damaged or truncated; "
                "use another checkpoint or copy it again"
            )


def digest(path: Path) -> str:
    """The SHA-256 checksum of a file, in hexadecimal."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(value: Any) -> str:
    """The SHA-256 checksum of a plain value, in hexadecimal; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _storable(tensor: Tensor, storages: set[int]) -> Tensor:
    """The tensor, or a copy if the format cannot store it: if it is not contiguous, or only a part of its storage.

    A tensor whose storage is in ``storages`` is copied too. The storage of the result is added.
    """
    storage = tensor.untyped_storage()
    whole = storage.nbytes() == tensor.numel() * tensor.element_size()
    if not (tensor.is_contiguous() and whole) or storage.data_ptr() in storages:
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    storages.add(tensor.untyped_storage().data_ptr())
    return tensor
