"""Weights that stay in their file: its pages are mapped into memory, and the system reads those that are needed.

All processes that map a file share its pages. A weight that was prepacked is not needed twice: ``release_pages`` frees
its memory, and if the weight is read after all, its values come from the file again. The switch is ``MAPPED_WEIGHTS``.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import weakref
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from seqgen.core.errors import CheckpointError
from seqgen.core.model import EncoderDecoderModel
from seqgen.system.reading import version_of

_FILES: weakref.WeakKeyDictionary[nn.Module, list[MappedFile]] = weakref.WeakKeyDictionary()
_ADDRESSES: set[int] = set()
"""Addresses of parameters that were ever mapped."""

_PAGEOUT = 21
"""``MADV_PAGEOUT`` of Linux 5.4: unchanged pages of a file are dropped, and read again when they are needed."""


class MappedFile:
    """A ``safetensors`` file that weights of a model stay in. It is made before the file is read.

    Args:
        model: the model.
        path: the file.

    Raises:
        CheckpointError: there is no such file.
    """

    def __init__(self, model: nn.Module, path: Path):
        self.path = path.absolute()
        try:
            self.version = version_of(path)
        except OSError as error:  # a training run may have just replaced the checkpoint
            raise CheckpointError(f"{path}: {error.strerror or error}") from None
        self._users: dict[int, weakref.ref[Tensor]] = {}
        _FILES.setdefault(model, []).append(self)

    def share_mapped_memory(self, parameter: Tensor, *tensors: Tensor) -> bool:
        """Make a parameter use the mapped memory of a tensor, without a copy.

        Args:
            parameter: the parameter.
            tensors: its values, mapped from this file; of several tensors, the rows of one after those of the other.

        Returns:
            True if the parameter uses the memory; false if device, dtype or shape differ, a tensor is not contiguous or
            does not follow the one before it in the file, or another parameter uses it.
        """
        tensor, place = _joined(tensors), (parameter.device, parameter.dtype, parameter.shape)
        if tensor is None or place != (tensor.device, tensor.dtype, tensor.shape):
            return False
        address = tensor.data_ptr()
        if self._users.setdefault(address, weakref.ref(parameter))() is not parameter:
            return False
        _ADDRESSES.add(address)
        parameter.data = tensor
        return True

    def is_used(self) -> bool:
        """True if a parameter still has its values in the file; false after a conversion, for example."""
        found = ((address, user()) for address, user in self._users.items())
        return any(parameter is not None and parameter.data_ptr() == address for address, parameter in found)


def _joined(tensors: Sequence[Tensor]) -> Tensor | None:
    """One tensor with the memory of tensors that follow each other in a file; ``None`` if they do not."""
    first, follow = tensors[0], (one.data_ptr() + one.nbytes == two.data_ptr() for one, two in pairwise(tensors))
    if not all(one.is_contiguous() and one.dtype == first.dtype for one in tensors) or not all(follow):
        return None
    if len(tensors) == 1:
        return first
    # A tensor of safetensors cannot be extended, but an array of NumPy can; the mapping, of the whole file, stays.
    of_first = first.flatten().view(torch.uint8).numpy()
    joined = np.lib.stride_tricks.as_strided(of_first, (sum(one.nbytes for one in tensors),))
    return torch.from_numpy(joined).view(first.dtype).view(sum(map(len, tensors)), *first.shape[1:])


def check_unchanged(model: nn.Module) -> None:
    """Check that no file in which a model has weights was written to.

    A file may be deleted or replaced by another one, as seqgen replaces checkpoints: the model keeps the old one.

    Args:
        model: the model.

    Raises:
        CheckpointError: a file was written to, so that the model may have some of its new values.
    """
    for file in _FILES.get(model, ()):
        try:
            now = version_of(file.path)
        except OSError:
            continue
        if now != file.version and now[:2] == file.version[:2] and file.is_used():
            raise CheckpointError(
                f"the content of {file.path} was changed while a model with its weights was in use; load the model "
                "again; to replace such a file, rename a new file to its name, or set common.map_weights=false"
            )


EncoderDecoderModel.checks.append(check_unchanged)


def is_mapped(tensor: Tensor) -> bool:
    """True if a tensor is a parameter that was mapped from a file."""
    return tensor.data_ptr() in _ADDRESSES


def release_pages(tensor: Tensor) -> None:
    """Free the memory of a tensor that is mapped from a file, where the system allows it; its values do not change.

    Linux reclaims the pages of files that this process may write to and no other process has mapped. Other pages stay
    in memory until another program needs it.

    Args:
        tensor: a tensor that is mapped from a file; nothing happens on systems other than Linux.
    """
    if sys.platform != "linux" or tensor.device.type != "cpu" or not tensor.is_contiguous():
        return
    start, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
    # Only whole pages: with pages of 4,096 bytes, of the bytes 5,000 to 20,000 those from 8,192 to 16,384.
    first, last = -(-start // mmap.PAGESIZE), end // mmap.PAGESIZE
    if first < last:
        size = ctypes.c_size_t((last - first) * mmap.PAGESIZE)
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first * mmap.PAGESIZE), size, _PAGEOUT)
