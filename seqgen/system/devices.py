"""Devices to compute on: which are available, their memory, and their random seeds."""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy
import torch

from seqgen.core.errors import ConfigError, ResourceError


def present_devices() -> list[str]:
    """The types of the available devices, the fastest first; ``"cpu"`` is always among them."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    return [name for name, is_available in available.items() if is_available]


def find_device(device: torch.device | str, key: str = "device") -> torch.device:
    """Find a device, and check that a tensor can be created on it; on a GPU, turn cuDNN's attention off.

    Args:
        device: the device or its name, such as ``"cuda:1"``.
        key: the key or parameter by which the user chose it, for the message.

    Returns:
        The device.

    Raises:
        ConfigError: the device is not available.
    """
    try:
        found = torch.device(device)
        torch.empty(1, device=found)
    except Exception:  # its class depends on the device and on the build of PyTorch
        raise ConfigError(
            f"{key}={device} is not available; available devices: {', '.join(present_devices())}"
        ) from None
    if found.type == "cuda":
        turn_off_cudnn_attention()
    return found


def turn_off_cudnn_attention() -> None:
    """Let other kernels of a GPU compute attention.

    cuDNN compiles attention in bfloat16 for each number of keys, which decoding changes at every step: on an H200 the
    first sentences took 95 ms a step instead of 8, and later ones were no faster.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


_PHRASES = (
    "can't allocate memory",
    "out of memory",
    "Storage size calculation overflowed",
    "Invalid buffer size",
    "ALLOC_FAILED",
)
"""Parts of the messages of PyTorch's allocators on CPU, CUDA and MPS, which often raise a plain ``RuntimeError``."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's ``mallopt``."""


def keep_freed_memory() -> bool:
    """Let the C library keep freed memory for reuse; has an effect with glibc only.

    By default, glibc returns a freed tensor of more than 32 MiB to the system, so that the next tensor of this size
    needs new pages from the system. This can take longer than the computation that fills the tensor.

    Returns:
        Whether the C library accepted it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    largest = 2**31 - 1  # of a C int: tensors of up to 2 GiB are reused
    return bool(mallopt(_M_MMAP_THRESHOLD, largest) and mallopt(_M_TRIM_THRESHOLD, largest))


def out_of_memory(error: BaseException) -> bool:
    """True if an error means that memory ran out.

    Args:
        error: the exception that was raised.
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in _PHRASES)


@contextmanager
def memory_errors(rest: Callable[[], str]) -> Iterator[None]:
    """Turn an out-of-memory error into an error message for the user.

    Args:
        rest: returns the rest of the message "memory ran out ...": when, and which settings need less memory, such as
            ``"in update 7; choose a smaller dataset.max_tokens"``.

    Raises:
        ResourceError: instead of the allocator's error.
    """
    try:
        yield
    except Exception as error:
        if not out_of_memory(error):
            raise
        raise ResourceError(f"memory ran out {rest()}") from error


def seed_of(*parts: int) -> int:
    """Hash integers, such as a seed and an update, to one seed of 63 bits.

    Args:
        parts: the integers.
    """
    mixed = numpy.random.SeedSequence([part & 0xFFFFFFFFFFFFFFFF for part in parts]).generate_state(1, numpy.uint64)[0]
    return int(mixed) >> 1


def seed_everything(parts: Sequence[int]) -> None:
    """Seed the generators of Python, NumPy and PyTorch (on every device) with ``seed_of(*parts)``.

    Training seeds them before every batch, from the run's seed, the number of updates made and the index of the batch
    in its update. Therefore resuming needs no saved generator states, and a batch gets the same random numbers whether
    two ranks have one batch each or one process accumulates the gradients of both.

    Args:
        parts: the integers that determine the seed.
    """
    seed = seed_of(*parts)
    random.seed(seed)
    numpy.random.seed(seed & 0xFFFFFFFF)
    torch.manual_seed(seed)
