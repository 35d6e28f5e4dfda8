"""Marian's binary format, in which its student models are published, such as those of Firefox.

All numbers are little endian::

    u64 version (1), u64 number of tensors
    of each tensor: u64 bytes of its name, type, number of dimensions, bytes of its data
    the names, each with a NUL at its end
    the shapes, i32
    u64 bytes of padding, the padding
    the data of each tensor, which may have padding at its end

A matrix of 8-bit integers (``intgemm8``) has a float32 after its integers, by which they are divided. It is stored
transposed, except embeddings.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from seqgen.extend import CheckpointError, open_regular, reading_errors, shown

INT8, FLOAT32, INTGEMM8 = 0x101, 0x404, 0x4101
_BYTES = {INT8: 1, FLOAT32: 4, INTGEMM8: 1}
"""The bytes of an element by the type of the tensor."""

Encoded: TypeAlias = tuple[str, int, Sequence[int], bytes]
"""A tensor as a file has it: its name, type, shape and data."""

_STRETCHES = 1 + np.linspace(0, 0.3, 7, dtype=np.float32)
"""By what the factor of a matrix is larger than where its largest weight is 127; above 1, some weights are cut."""


class _Entry(NamedTuple):
    """A tensor of the file.

    Attributes:
        kind: its type.
        shape: its shape.
        start: its first byte.
        size: its elements.
    """

    kind: int
    shape: tuple[int, ...]
    start: int
    size: int


class BinaryModel(Mapping[str, Tensor]):
    """The tensors of a file by name; each is made when it is asked for, so that few of them are in memory.

    Args:
        path: the file.

    Raises:
        CheckpointError: it cannot be read, is damaged, of another format, or has tensors of a type that is not
            supported.
    """

    def __init__(self, path: Path):
        self.path = path
        with reading_errors(path, CheckpointError), open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            self.content = np.memmap(file, np.uint8, "r", shape=(size,)) if size else np.zeros(0, np.uint8)
        self.place = 0
        if self._numbers(1) != [1]:
            raise CheckpointError(
                f"{path} is not a model in Marian's binary format, the only .bin file that can be read by itself; give "
                "the folder of a Hugging Face model"
            )
        (count,) = self._numbers(1)
        values = self._numbers(4 * count)
        headers = list(zip(*(values[field::4] for field in range(4)), strict=True))
        names = [self._name(length) for length, _, _, _ in headers]
        shapes = [self._shape(name, rank) for name, (_, _, rank, _) in zip(names, headers, strict=True)]
        self._take(*self._numbers(1))
        self.entries: dict[str, _Entry] = {}
        for name, shape, (_, kind, _, length) in zip(names, shapes, headers, strict=True):
            self._add(name, kind, shape, self._take(length))

    def _damaged(self, why: str) -> CheckpointError:
        return CheckpointError(f"{self.path} is damaged: {why}; copy it again")

    def _take(self, length: int) -> int:
        """Move behind the next bytes, and return the place of the first."""
        if length > len(self.content) - self.place:
            raise self._damaged("it ends too early, or its sizes are wrong")
        self.place += length
        return self.place - length

    def _numbers(self, count: int, kind: str = "<u8") -> list[int]:
        length = count * np.dtype(kind).itemsize
        start = self._take(length)
        numbers: list[int] = self.content[start : start + length].view(kind).tolist()
        return numbers

    def _name(self, length: int) -> str:
        start = self._take(length)
        return bytes(self.content[start : start + length]).decode(errors="replace").removesuffix("\0")

    def _shape(self, name: str, rank: int) -> tuple[int, ...]:
        shape = tuple(self._numbers(rank, "<i4"))
        if not 0 < rank <= 8 or min(shape) < 1:
            raise self._damaged(f"the shape of {shown(name)} is impossible")
        return shape

    def _add(self, name: str, kind: int, shape: tuple[int, ...], start: int) -> None:
        """Note where a tensor is, whose bytes end at the current place."""
        if kind not in _BYTES:
            raise CheckpointError(
                f"{self.path}: {shown(name)} has the type {kind:#x}, which is not supported; convert the model to "
                "float32 or intgemm8"
            )
        if kind == INTGEMM8 and len(shape) != 2:
            raise self._damaged(f"the 8-bit integers of {shown(name)} have {len(shape)} dimensions instead of 2")
        size = math.prod(shape)
        needed = size * _BYTES[kind] + 4 * (kind == INTGEMM8)
        if needed > self.place - start:
            raise self._damaged(f"{shown(name)} has {self.place - start} bytes, fewer than its shape needs")
        if name in self.entries:
            raise self._damaged(f"{shown(name)} occurs twice")
        entry = self.entries[name] = _Entry(kind, shape, start, size)
        factor = self._factor(entry) if kind == INTGEMM8 else 1.0
        if not 0 < factor < math.inf:
            raise self._damaged(f"the factor of {shown(name)} is {factor}, not a positive number")

    def _factor(self, entry: _Entry) -> float:
        place = entry.start + entry.size
        return float(self.content[place : place + 4].view("<f4")[0])

    def __getitem__(self, name: str) -> Tensor:
        """A tensor in float32, or in int8 if it has no factor."""
        entry = self.entries[name]
        content = self.content[entry.start : entry.start + entry.size * _BYTES[entry.kind]]
        if entry.kind == FLOAT32:
            return torch.from_numpy(content.view("<f4").astype(np.float32)).view(entry.shape)
        integers = torch.from_numpy(content.view(np.int8).copy())
        if entry.kind == INT8:
            return integers.view(entry.shape)
        weight = integers / torch.tensor(self._factor(entry))
        return weight.view(entry.shape) if "Wemb" in name else weight.view(entry.shape[::-1]).t()

    def encoded(self, name: str) -> Encoded:
        """A tensor as it is in the file."""
        kind, shape, start, size = self.entries[name]
        length = size * _BYTES[kind] + 4 * (kind == INTGEMM8)
        return name, kind, shape, self.content[start : start + length].tobytes()

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def quantized(weight: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.float32]:
    """The integers from -127 to 127 of a matrix, and the factor by which they are divided, with the least error.

    A matrix that is made of such integers, as a model that was quantized before has it, gets the same ones.
    """
    found = []
    for factor in np.float32(127) / np.abs(weight).max() * _STRETCHES:
        integers = np.rint(weight * factor).clip(-127, 127)
        found.append((float(np.square(integers / factor - weight).sum()), integers.astype(np.int8), factor))
    _, integers, factor = min(found, key=lambda one: one[0])
    return integers, factor


def encode(name: str, array: np.ndarray[Any, Any], to_int8: bool) -> Encoded:
    """A tensor as a file has it.

    Args:
        name: its name.
        array: its values, in float32 or int8.
        to_int8: whether a matrix of weights is quantized.
    """
    if to_int8 and array.dtype == np.float32 and array.ndim == 2 and min(array.shape) > 1 and array.any():
        integers, factor = quantized(array)
        return name, INTGEMM8, array.shape, (integers if "Wemb" in name else integers.T).tobytes() + factor.tobytes()
    return name, INT8 if array.dtype.itemsize == 1 else FLOAT32, array.shape, array.tobytes()


def binary_model(tensors: Sequence[Encoded]) -> bytes:
    """The content of a file; data is aligned to 256 bytes."""
    names = [name.encode(errors="surrogateescape") + b"\0" for name, *_ in tensors]
    data = [content + bytes(-len(content) % 256) for *_, content in tensors]
    parts = [struct.pack("<QQ", 1, len(tensors))]
    for (_, kind, shape, _), name, content in zip(tensors, names, data, strict=True):
        parts.append(struct.pack("<4Q", len(name), kind, len(shape), len(content)))
    parts += [*names, *(struct.pack(f"<{len(shape)}i", *shape) for _, _, shape, _ in tensors)]
    padding = -(sum(map(len, parts)) + 8) % 256
    return b"".join([*parts, struct.pack("<Q", padding), bytes(padding), *data])
