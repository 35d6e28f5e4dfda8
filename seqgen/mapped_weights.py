"""Weights that stay in their file: its pages are mapped into memory, and the system can take unused ones back.

The processes of a machine share the pages. A weight that was prepacked is not needed twice: ``give_back`` frees its
pages, and if they are read after all, the system reads them from the file again.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import sys
from pathlib import Path
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from seqgen.errors import CheckpointError

_MADV_PAGEOUT = 21
"""Of Linux 5.4 and later: pages that are unchanged are dropped, changed ones are swapped out or kept."""

_FILES: WeakKeyDictionary[nn.Module, dict[Path, tuple[int, ...]]] = WeakKeyDictionary()


def use_mapped(parameter: Tensor, tensor: Tensor) -> bool:
    """Let a parameter have its values in the memory of a tensor, without a copy.

    Args:
        parameter: the parameter.
        tensor: its values, mapped from a file.

    Returns:
        Whether it was possible: only if device, dtype and shape are the same, and the tensor is contiguous.
    """
    if (parameter.device, parameter.dtype, parameter.shape) != (tensor.device, tensor.dtype, tensor.shape):
        return False
    if not tensor.is_contiguous():
        return False
    parameter.data = tensor
    return True


def record_file(model: nn.Module, path: Path) -> None:
    """Record that a model has weights in a file, for ``check_unchanged``.

    Args:
        model: the model.
        path: the file.
    """
    _FILES.setdefault(model, {})[path.absolute()] = _version(path)


def check_unchanged(model: nn.Module) -> None:
    """Check that nobody has written into the files that a model has weights in.

    A file may be deleted or replaced by another one, as seqgen replaces checkpoints: the model keeps the old one.

    Args:
        model: the model.

    Raises:
        CheckpointError: a file was changed in place, so that the model has some of its new values.
    """
    for path, before in _FILES.get(model, {}).items():
        try:
            now = _version(path)
        except OSError:
            continue
        if now[:2] == before[:2] and now != before:
            raise CheckpointError(
                f"{path} was changed in place while a model with its weights was in use; load the model again, and "
                "replace files by renaming new ones, or set common.map_weights=false, which reads files as a whole"
            )


def _version(path: Path) -> tuple[int, ...]:
    """Which file has this path, and when it was changed."""
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def give_back(tensor: Tensor) -> None:
    """Free the memory of a tensor whose values are in a mapped file; no other tensor changes, nor does its value.

    Args:
        tensor: any tensor; nothing happens if it is not mapped from a file, or on systems other than Linux.
    """
    if sys.platform != "linux" or tensor.device.type != "cpu" or not tensor.is_contiguous():
        return
    start, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
    # Only whole pages: with pages of 4,096 bytes, of the bytes 5,000 to 20,000 the pages from 8,192 to 16,384.
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last and _is_mapped(start, end):
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_PAGEOUT)


def _is_mapped(start: int, end: int) -> bool:
    """Whether a range of addresses lies in a mapped file."""
    line = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ ([0-9]+) *(.*)")
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for found in filter(None, map(line.match, maps)):
            if int(found[1], 16) <= start and end <= int(found[2], 16):
                return found[3] != "0"
    return False
