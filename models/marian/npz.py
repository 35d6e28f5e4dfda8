"""Reads Marian's ``.npz`` files: archives of NumPy arrays, which are stored without compression.

Nothing in a file is evaluated or unpickled: the header of an array must have exactly the form that NumPy writes.
"""

from __future__ import annotations

import re
import struct
import zipfile
from math import prod
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from seqgen.errors import CheckpointError, shown
from seqgen.system.reading import is_stored, open_regular

MAX_ARRAYS = 100_000
"""Maximum number of arrays in a file."""

MAX_HEADER = 10_000
"""Maximum bytes of the header of an array."""

_MAGIC = b"\x93NUMPY"
_HEADER = re.compile(
    r"\{'descr': '[<|=]([a-z]\d)', 'fortran_order': (True|False), 'shape': \(((?:\d{1,18}, ?)*(?:\d{1,18})?)\),? *\}\s*"
)
_DTYPES = {"f4": torch.float32, "f2": torch.float16, "f8": torch.float64, "i1": torch.int8, "u1": torch.uint8}


def read_npz(path: Path) -> dict[str, Tensor]:
    """Read all arrays of a file by name.

    Args:
        path: the file.

    Raises:
        CheckpointError: it cannot be read, is damaged or compressed, or has other arrays than those of numbers.
    """
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            if len(entries) > MAX_ARRAYS or not is_stored(archive, path):
                raise CheckpointError(f"{path} is compressed, or claims to contain more than its bytes; copy it again")
            tensors = {}
            for entry in entries:
                name = entry.filename.removesuffix(".npy")
                if name in tensors:
                    raise CheckpointError(f"{path} is damaged: it contains {shown(name)} twice")
                with archive.open(entry) as array:
                    tensors[name] = _read_array(array, entry.file_size, f"{path}: {shown(name)}")
            return tensors
    except FileNotFoundError:
        raise CheckpointError(f"there is no file {path}") from None
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, struct.error, RuntimeError) as error:
        raise CheckpointError(
            f"{path} is damaged or no archive of arrays ({' '.join(str(error).split())[:100]}); copy it again"
        ) from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from None


def _read_array(file: IO[bytes], size: int, where: str) -> Tensor:
    """One array of an archive, whose entry has ``size`` bytes; ``where`` is for messages."""
    begin = file.read(10)
    wide = begin[6:7] != b"\x01"  # versions 2 and 3 have a length of four bytes
    begin += file.read(2) if wide else b""
    if not begin.startswith(_MAGIC) or len(begin) < 10 + 2 * wide:
        raise CheckpointError(f"{where} is not an array of NumPy; copy the file again")
    length = int.from_bytes(begin[8:], "little")
    found = _HEADER.fullmatch(file.read(min(length, MAX_HEADER)).decode("latin-1"))
    if found is None or found[1] not in _DTYPES:
        kind = f" ({found[1]})" if found else ""
        raise CheckpointError(f"{where} is damaged, or is not an array of numbers that can be read{kind}")
    dtype, shape = _DTYPES[found[1]], [int(number) for number in found[3].split(",") if number.strip()]
    wanted = prod(shape) * dtype.itemsize
    if wanted != size - len(begin) - length:
        raise CheckpointError(f"{where} is damaged: its shape {tuple(shape)} does not fit its bytes")
    content = bytearray(file.read(wanted))
    if len(content) != wanted:
        raise CheckpointError(f"{where} is damaged: it ends too early")
    if not wanted:
        return torch.empty(shape, dtype=dtype)
    tensor = torch.frombuffer(content, dtype=dtype)
    return (
        tensor.reshape(shape[::-1]).permute(*reversed(range(len(shape))))
        if found[2] == "True"
        else tensor.reshape(shape)
    )
