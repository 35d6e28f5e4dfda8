"""Reading files of ``torch.save`` without executing code from them.

Such a file contains a pickle, and a pickle is a program: it names functions and classes and calls them. Only PyTorch's
reader for weights is used, which calls nothing but constructors of tensors. Objects of some further packages are
allowed, such as the options that a toolkit saves with its weights; they become ``Inert`` objects, which store their
arguments and do nothing.

The work of loading a pickle is bounded before it is loaded. Its objects can be shared, so that a few bytes can describe
a billion objects::

    t0 = (); t1 = (t0, t0); t2 = (t1, t1); ... t40        41 tuples, and 2 ** 40 steps to hash the last of them

Creating and sharing objects takes time in proportion to the file. Two operations can take longer: hashing an object,
as a key of a dict, and calling a function with one, which may copy it. The instructions are therefore followed once
without hashing and calling, and the objects in every key and every call are counted once for each reference.
"""

from __future__ import annotations

import _compat_pickle
import itertools
import mmap
import pickle
import re
import warnings
import zipfile
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from seqgen.errors import CheckpointError, shown
from seqgen.system.reading import is_stored, open_regular

MAX_OPCODES = 5_000_000
"""The largest number of instructions in all pickles of a file; a checkpoint has about 50 for each tensor."""
MAX_WORK = 4_000_000
"""The largest number of objects and bytes of text that are hashed or passed to functions."""

_Unpickler: Any = pickle._Unpickler  # the one in Python, whose instructions can be replaced

_NOT_FOLLOWED = b"\x82\x83\x84\x92\x96\x97\x98"
"""Codes of instructions that PyTorch's reader does not have: extensions, calls with names, and buffers."""


class _Parts(list[Any]):
    """Replaces a dict, a set, or the result of a call: it stores the parts, and counts what would be hashed or copied.

    Args:
        run: counts.
        parts: its parts.
    """

    def __init__(self, run: _DryRun, parts: Iterable[Any] = ()):
        super().__init__(parts)
        self.run = run

    def __setitem__(self, key: Any, value: Any) -> None:
        self.add(key)
        self.append(value)

    def add(self, item: Any) -> None:
        """Add an item of a set."""
        self.run.count([item])
        self.append(item)

    def __setstate__(self, state: Any) -> None:
        self.run.call(*(state if isinstance(state, tuple) else [state]))


class _Instructions(dict[int, Any]):
    """The functions that follow instructions, by code; it counts how often one is looked up.

    Args:
        known: the functions.
        path: the file, for messages.
    """

    def __init__(self, known: Mapping[int, Any], path: Path):
        super().__init__(known)
        self.path, self.used = path, 0

    def __getitem__(self, code: int) -> Any:
        self.used += 1
        if self.used > MAX_OPCODES:
            raise CheckpointError(
                f"{self.path} has more than {MAX_OPCODES} pickle instructions, more than any checkpoint needs"
            )
        return super().__getitem__(code)


class _DryRun(_Unpickler):  # type: ignore[misc]
    """Follows the instructions of the pickles of one file; nothing that they name is imported or called.

    Args:
        path: the file.
        content: the pickles, mapped into memory or in an archive: a buffered file allocates as many bytes as a text in
            it claims to have.
        packages: see ``read_torch_file``.

    Attributes:
        names: full names of what the pickles would import and PyTorch's own reader does not check.
    """

    def __init__(self, path: Path, content: Any, packages: Sequence[str]):
        super().__init__(content)
        self.path, self.packages = path, packages
        self.dispatch = _Instructions(self.dispatch, path)  # type: ignore[misc]
        self.names: set[str] = set()
        self.work = 0

    def follow(self) -> None:
        """Follow the next pickle.

        Raises:
            CheckpointError: it names something that would have to be executed, or exceeds a limit.
        """
        self.memo: dict[int, Any] = {}
        try:
            self.load()
        except pickle.UnpicklingError as error:
            raise ValueError(str(error)) from None

    def find_class(self, module: str, name: str) -> Any:
        """Check the name of a class or function; ``call`` replaces it."""
        found = _present_name(module, name)
        if _is_harmless(self.path, found, self.packages):
            self.names.add(found)
        return self.call

    def persistent_load(self, pid: Any) -> Any:
        """Replace the storage of a tensor, or a class, which old files have in this form, too."""
        return self.call

    def call(self, *args: Any) -> _Parts:
        """Replace the result of a call; the parts of the arguments are counted, because the call may copy them."""
        parts = [part for arg in args for part in (arg if isinstance(arg, list) else [arg])]
        self.count(parts)
        return _Parts(self, parts)

    def count(self, items: Iterable[Any]) -> None:
        """Count objects as hashing visits them: the parts of tuples and the bytes of texts."""
        for item in items:
            self.work += max(len(item), 1) if isinstance(item, str | bytes) else 1
            if self.work > MAX_WORK:
                raise CheckpointError(f"{self.path}: its shared objects expand to more than {MAX_WORK} values")
            if isinstance(item, tuple):
                self.count(item)

    dispatch: ClassVar[Any] = {c: step for c, step in _Unpickler.dispatch.items() if c not in _NOT_FOLLOWED}

    def load_empty(self) -> None:
        """Make an empty dict or set."""
        self.append(_Parts(self))

    def load_dict(self) -> None:
        """Make a dict of keys and values."""
        items = self.pop_mark()
        self.count(items[::2])
        self.append(_Parts(self, items))

    def load_frozenset(self) -> None:
        """Make a set of items."""
        self.append(self.call(*self.pop_mark()))

    dispatch[pickle.EMPTY_DICT[0]] = dispatch[pickle.EMPTY_SET[0]] = load_empty
    dispatch[pickle.DICT[0]] = load_dict
    dispatch[pickle.FROZENSET[0]] = load_frozenset
    dispatch[pickle.NEWOBJ[0]] = _Unpickler.load_reduce


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
# An old file begins with five pickles: a magic number, a version, facts of the machine, the content, storage keys.
_LEGACY_PICKLES = 5


_MAX_VALUES = 100_000
"""The largest number of values in a checkpoint's options, each counted once for each reference."""


class Inert:
    """Replaces an object of another package: it stores the arguments and does nothing.

    Attributes:
        origin: full name of the class or function in the file.
        args: arguments of the call.
        state: attributes of the object.
    """

    origin = ""
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
        allowed = [(_stand_in(name), name) for name in _names(path, packages)]
        # PyTorch warns of pickle protocols that it does not write itself
        with torch.serialization.safe_globals([Namespace, *allowed]), warnings.catch_warnings(action="ignore"):
            content = torch.load(path, map_location="cpu", weights_only=True)
        _check_tensors(content, path)
        return content
    except CheckpointError:
        raise
    except pickle.UnpicklingError as error:
        wanted = re.search(r"GLOBAL (\S+)", str(error))
        if wanted:
            raise _code(path, wanted[1]) from None
        raise CheckpointError(f"{path} is damaged, or was not written by torch.save") from None
    except OSError as error:
        if error.filename is None:  # of a place in the file that does not exist
            raise CheckpointError(f"{path} is damaged or truncated; copy it again") from error
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from None
    except Exception as error:  # a damaged file can raise any exception
        raise CheckpointError(f"{path} is damaged or truncated; copy it again") from error


def plain(value: Any) -> Any:
    """Turn options into dicts, lists and values.

    Args:
        value: an ``argparse.Namespace``, the stand-in of an OmegaConf node or of a choice (an enumeration), or dicts
            and lists of these.

    Raises:
        ValueError: they contain themselves, or expand to more values than any options have.
    """
    try:
        return _plain(value, itertools.count(1))
    except RecursionError:
        raise ValueError("contain themselves") from None


def _plain(value: Any, counter: Iterator[int]) -> Any:
    if next(counter) > _MAX_VALUES:
        raise ValueError(f"expand to more than {_MAX_VALUES} values")
    if isinstance(value, Inert):
        state = value.state if isinstance(value.state, Mapping) else {}
        inside = [state[key] for key in ("_content", "_val") if key in state] or list(value.args)
        return _plain(inside[0], counter) if len(inside) == 1 else None
    if isinstance(value, Namespace):
        return _plain(vars(value), counter)
    if isinstance(value, Mapping):
        return {_text(key): _plain(item, counter) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, counter) for item in value]
    return value


def _text(key: Any) -> str:
    return key if isinstance(key, str) else shown(key)


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


def _names(path: Path, packages: Sequence[str]) -> set[str]:
    """The full names of what the pickles of a file would import; see ``_DryRun``."""
    with open_regular(path) as file:
        if file.read(2) != b"PK":
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                run = _DryRun(path, mapped, packages)
                for _ in range(_LEGACY_PICKLES):
                    run.follow()
                return run.names
        with zipfile.ZipFile(file) as archive:
            _check_archive(archive, path)
            entries = [name for name in archive.namelist() if name.split("/")[-1].lower() == "data.pkl"]
            if len(entries) != 1:
                raise CheckpointError(f"{path} is a zip archive that torch.save did not write")
            with archive.open(entries[0]) as content:
                run = _DryRun(path, content, packages)
                run.follow()
                return run.names


def _check_archive(archive: zipfile.ZipFile, path: Path) -> None:
    """Check an archive's size before anything is unpacked, then its checksums.

    Raises:
        CheckpointError: it holds more than the file, or is damaged.
    """
    if not is_stored(archive, path):
        raise CheckpointError(f"{path} is compressed, which torch.save never does; copy the original again")
    damaged = archive.testzip()
    if damaged is not None:
        raise CheckpointError(f"{path} is damaged: the checksum of {damaged} differs; copy it again")


def _present_name(module: str, name: str) -> str:
    """The name in Python 3 of what a pickle calls by its name in Python 2, such as ``__builtin__ eval``."""
    module, name = _compat_pickle.NAME_MAPPING.get((module, name), (module, name))
    return f"{_compat_pickle.IMPORT_MAPPING.get(module, module)}.{name}"


def _is_harmless(path: Path, name: str, packages: Sequence[str]) -> bool:
    """Whether a name gets a stand-in; those of PyTorch are checked by its own reader.

    Raises:
        CheckpointError: it is neither.
    """
    if name.startswith("torch.") or name == "argparse.Namespace":
        return False
    if name in _VALUES or name.startswith((*_PACKAGES, *packages)):
        return True
    raise _code(path, name)


def _stand_in(name: str) -> Any:
    if name == "collections.defaultdict":
        return _plain_dict  # the reader fills in items only where it finds a real dict
    return type("Inert", (Inert,), {"origin": name})


def _plain_dict(*args: Any) -> dict[Any, Any]:
    return {}


def _code(path: Path, name: str) -> CheckpointError:
    return CheckpointError(f"{path} contains code: reading it would run {name}, so it is refused; no code was run")
