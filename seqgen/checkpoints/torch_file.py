"""Reading files of ``torch.save`` without executing code from them.

Such a file contains a pickle, and a pickle is a program: it names functions and classes and calls them. Only PyTorch's
reader for weights is used, which calls nothing but constructors of tensors. Objects of some further packages are
allowed, such as the options that a toolkit saves with its weights; they become ``Inert`` objects, which store their
arguments and do nothing.
"""

from __future__ import annotations

import itertools
import pickle
import re
import warnings
import zipfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqgen.core.errors import CheckpointError, shown
from seqgen.system.reading import is_stored, open_regular

# What a pickle may name besides tensors: classes of values that hold data and no more ...
_BUILTINS = (
    *("bool", "bytearray", "bytes", "complex", "dict", "float", "frozenset", "int", "list", "object", "range", "set"),
    *("slice", "str", "tuple", "type"),
)
_VALUES = frozenset(
    {
        *(f"builtins.{name}" for name in _BUILTINS),
        *("collections.OrderedDict", "collections.Counter", "collections.defaultdict"),
        *("_codecs.encode", "_operator.getitem", "operator.getitem"),
    }
)
# ... and what hints of types, choices, paths and numbers are made of. Nearly all of it gets a stand-in.
_PACKAGES = ("typing.", "enum.", "pathlib.", "numpy.")

_MAX_NAMES = 100
"""Maximum number of classes in a file that are replaced by stand-ins; for each, PyTorch reads the file again."""


class Inert:
    """Replaces an object of another package: it stores the arguments and does nothing.

    Attributes:
        args: arguments of the call.
        state: attributes of the object.
    """

    args: tuple[Any, ...] = ()
    state: Any = None

    def __init__(self, *args: Any):
        self.args = args

    def __setstate__(self, state: Any) -> None:
        self.state = state


def read_torch_file(path: Path, packages: Sequence[str] = ()) -> Any:
    """Read a file that ``torch.save`` wrote, in its present (zip) or its old form.

    Args:
        path: the file.
        packages: beginnings of the names of classes whose objects become ``Inert``, such as ``"omegaconf."``.

    Returns:
        The content, tensors on the CPU.

    Raises:
        CheckpointError: the file is damaged, or contains something that would have to be executed.
    """
    try:
        _check_archive(path)
        content = _load(path, packages)
        _check_tensors(content, path)
        return content
    except CheckpointError:
        raise
    except Exception as error:  # a damaged file can raise any exception
        if isinstance(error, OSError) and error.filename is not None:  # not of a place in the file that does not exist
            raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from None
        raise CheckpointError(f"{path} is damaged, or was not written by torch.save; copy it again") from error


def _check_tensors(content: Any, path: Path) -> None:
    """Check that no weight is larger than the file: a view can repeat one number a billion times.

    Weights are the tensors of the content, or of a dict inside it, such as ``content["model"]``.

    Raises:
        CheckpointError: they are.
    """
    groups = [content, *content.values()] if isinstance(content, Mapping) else []
    size = path.stat().st_size
    for name, tensor in itertools.chain.from_iterable(group.items() for group in groups if isinstance(group, Mapping)):
        if not isinstance(tensor, Tensor):
            continue
        unusual = tensor.is_quantized or tensor.is_nested or tensor.is_complex()
        if unusual or tensor.layout != torch.strided or tensor.is_meta:
            raise CheckpointError(f"{path}: its weight {shown(name)} is not an ordinary tensor")
        if tensor.numel() * tensor.element_size() > size:
            raise CheckpointError(f"{path} is damaged: its weight {shown(name)} is larger than the file")


def _load(path: Path, packages: Sequence[str]) -> Any:
    """Load a file, with a stand-in for each harmless name that PyTorch's reader refuses.

    Raises:
        CheckpointError: the file names something that is not harmless, or more than any checkpoint does.
    """
    stand_ins: dict[str, Any] = {}
    while len(stand_ins) <= _MAX_NAMES:
        allowed: list[Any] = [Namespace, *((stand_in, name) for name, stand_in in stand_ins.items())]
        try:
            # PyTorch warns of pickle protocols that it does not write itself
            with torch.serialization.safe_globals(allowed), warnings.catch_warnings(action="ignore"):
                return torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            if not (refused := re.search(r"GLOBAL (\S+)", str(error))):
                raise
            name = refused[1] if "." in refused[1] else f"builtins.{refused[1]}"
            if name in stand_ins or not (name in _VALUES or name.startswith((*_PACKAGES, *packages))):
                raise CheckpointError(
                    f"{path} contains code: reading it would run {name}, so it is refused; no code was run"
                ) from None
            # the reader fills in items only where it finds a real dict
            stand_ins[name] = (lambda *_: {}) if name == "collections.defaultdict" else Inert
    raise CheckpointError(f"{path} names more than {_MAX_NAMES} classes, which no checkpoint does")


def _check_archive(path: Path) -> None:
    """Check the size of an archive before anything is unpacked, then its checksums.

    Raises:
        CheckpointError: its content is larger than the file, or it is damaged.
    """
    with open_regular(path) as file:
        if file.read(2) != b"PK":
            return
        with zipfile.ZipFile(file) as archive:
            if not is_stored(archive, path):
                raise CheckpointError(f"{path} is compressed, which torch.save never does; copy the original again")
            damaged = archive.testzip()
            if damaged is not None:
                raise CheckpointError(f"{path} is damaged: the checksum of {damaged} differs; copy it again")
