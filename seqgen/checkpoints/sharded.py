"""Sharded checkpoints: each process of a training run has written its parts of the tensors.

::

    RUN/checkpoints/last/   shard-00001-model-00001-of-00002.safetensors   parts of the weights, of process 1
                            shard-00001-model-00002-of-00002.safetensors   parts of the optimizer state, of process 1
                            shard-00002-...
                            training_state.json   plain values, and the names of the tensors
                            SHA256SUMS            a checksum of each file

The files of tensors are those of ``torch.distributed.checkpoint`` in its ``safetensors`` format: the header of each
file says where in the whole tensor each part belongs. Nothing is pickled. Any number of processes can read them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqgen.checkpoints.serialization import pack, read_json, recorded_checksums, unpack, verify_checksums
from seqgen.errors import CheckpointError
from seqgen.system.reading import open_regular

STATE = "training_state.json"
WEIGHTS = "weights"
_PATTERN = "shard-*.safetensors"
_WEIGHT_FILES = "shard-*-model-00001-of-00002.safetensors"

Target = Callable[[str, Sequence[int], torch.dtype], Tensor]
"""Makes the tensor of a name, whole shape and dtype that is to be read; a ``DTensor`` for a part of it."""


def is_sharded(checkpoint: Path) -> bool:
    """True if a folder is a sharded checkpoint."""
    return (checkpoint / STATE).is_file() and next(checkpoint.glob(_PATTERN), None) is not None


def pack_shards(weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> tuple[Any, dict[str, Tensor]]:
    """Split weights and training state into plain values and tensors; a tensor with several names is in there once.

    Args:
        weights: the weights to decode with, by name.
        state: the rest of the training state; see ``serialization.pack``.

    Returns:
        The plain values with references in place of the tensors, and the tensors by name.
    """
    first: dict[int, str] = {}
    once = {name: first.setdefault(id(value), name) for name, value in weights.items()}
    plain, tensors = pack({**state, WEIGHTS: {name: weights[name] for name in once.values()}})
    plain[WEIGHTS] = {name: plain[WEIGHTS][original] for name, original in once.items()}
    return plain, tensors


def file_numbers(names: Sequence[str]) -> dict[str, int]:
    """In which of its two files a process writes each tensor: 1 for weights, 2 for the rest."""
    return {name: 1 if name.startswith(f"{WEIGHTS}/") else 2 for name in names}


def shard_files(checkpoint: Path, only_weights: bool) -> list[str]:
    """The names of the files that a sharded checkpoint must have: those in its checksums, and those in the folder."""
    names = {path.name for path in checkpoint.glob(_PATTERN)} | set(recorded_checksums(checkpoint))
    wanted = _WEIGHT_FILES if only_weights else _PATTERN
    return [STATE, *sorted(name for name in names if Path(name).match(wanted))]


def read_shards(checkpoint: Path, target: Target | None = None, only_weights: bool = False) -> dict[str, Any]:
    """Read a sharded checkpoint; each process reads by itself what it needs.

    Args:
        checkpoint: the checkpoint's folder.
        target: makes the tensors to read into; ``None`` for whole tensors on the CPU.
        only_weights: whether to read only the weights.

    Returns:
        The training state, and the weights as ``weights``.

    Raises:
        CheckpointError: a file is missing, damaged or truncated.
    """
    verify_checksums(checkpoint, shard_files(checkpoint, only_weights))
    plain, shapes = _plain(checkpoint), _shapes(checkpoint)
    if only_weights:
        plain = {WEIGHTS: plain[WEIGHTS]}
        shapes = {name: shape for name, shape in shapes.items() if name.startswith(f"{WEIGHTS}/")}
    tensors = {
        name: target(name, size, dtype) if target else torch.zeros(size, dtype=dtype)
        for name, (size, dtype) in shapes.items()
    }
    _fill(checkpoint, tensors)
    return _unpacked(checkpoint, plain, tensors)


def shard_shapes(checkpoint: Path) -> dict[str, Tensor]:
    """The weights of a sharded checkpoint without values, on the ``meta`` device; see ``read_shards``."""
    shapes = {
        name: torch.empty(size, dtype=dtype, device="meta") for name, (size, dtype) in _shapes(checkpoint).items()
    }
    weights: dict[str, Tensor] = _unpacked(checkpoint, {WEIGHTS: _plain(checkpoint)[WEIGHTS]}, shapes)[WEIGHTS]
    return weights


def _plain(checkpoint: Path) -> dict[str, Any]:
    plain = read_json(checkpoint / STATE)
    if not isinstance(plain, dict) or not isinstance(plain.get(WEIGHTS), dict):
        raise CheckpointError(f"{checkpoint / STATE} is damaged: it does not contain the names of the weights")
    return plain


def _unpacked(checkpoint: Path, plain: Any, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    try:
        state: dict[str, Any] = unpack(plain, tensors)
    except (KeyError, TypeError):
        raise CheckpointError(f"{checkpoint / STATE} names tensors that the other files lack") from None
    if not all(isinstance(value, Tensor) for value in state[WEIGHTS].values()):
        raise CheckpointError(f"{checkpoint / STATE} is damaged: not all weights are tensors")
    return state


def _shapes(checkpoint: Path) -> dict[str, tuple[list[int], torch.dtype]]:
    """The whole shape and dtype of each tensor; the parts of each have as many elements as the whole."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    for path in checkpoint.glob(_PATTERN):
        open_regular(path).close()
    try:
        found = HuggingFaceStorageReader(str(checkpoint)).read_metadata().state_dict_metadata
        shapes: dict[str, tuple[list[int], torch.dtype]] = {}
        for name, tensor in found.items():
            assert isinstance(tensor, TensorStorageMetadata)  # the only kind in safetensors
            parts = {tuple(part.offsets): math.prod(part.sizes) for part in tensor.chunks if math.prod(part.sizes)}
            if sum(parts.values()) != math.prod(tensor.size):
                raise CheckpointError(f"{checkpoint}: parts of {name} are missing; was the folder copied whole?")
            shapes[name] = list(tensor.size), tensor.properties.dtype
    except CheckpointError:
        raise
    except Exception as error:  # the library expects files that it has written itself
        raise _unreadable(checkpoint, error) from None
    return shapes


def _fill(checkpoint: Path, tensors: dict[str, Tensor]) -> None:
    """Read into tensors."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    try:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # that there is one process
            dcp.load(tensors, storage_reader=HuggingFaceStorageReader(str(checkpoint)), no_dist=True)
    except (dcp.CheckpointException, Exception) as error:  # the former is no Exception
        raise _unreadable(checkpoint, error) from None


def _unreadable(checkpoint: Path, error: BaseException) -> CheckpointError:
    reason = " ".join(str(error).split())[:200]
    return CheckpointError(f"{checkpoint}: its files of tensors cannot be read ({reason}); they may be damaged")
