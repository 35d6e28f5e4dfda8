"""Reading files of ``torch.save`` without executing code from them.

Such a file contains a pickle, and a pickle is a program: it names functions and classes and calls them. Only PyTorch's
reader for weights is used, which calls nothing but constructors of tensors. Objects of some further packages are
allowed, such as the options that a toolkit saves with its weights; they become ``Inert`` objects, which store their
arguments and do nothing.

The work of loading a pickle is bounded before it is loaded. Its objects can be shared, so that a few bytes can describe
a billion objects::

    t0 = (); t1 = (t0, t0); t2 = (t1, t1); ... t40        41 tuples, and 2 ** 40 steps to hash the last of them

Creating and sharing objects takes time in proportion to the file. Two operations can take longer: hashing an object,
as a key of a dict, and calling a function with one, which may copy it. The instructions are therefore simulated with
objects that store only their parts, and the objects in every key and every call are counted once for each reference.
"""

from __future__ import annotations

import _compat_pickle
import itertools
import pickle
import pickletools
import re
import warnings
import zipfile
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from seqgen.errors import CheckpointError, shown
from seqgen.system.reading import open_regular

MAX_OPCODES = 5_000_000
"""The largest number of instructions in all pickles of a file; a checkpoint has about 50 for each tensor."""
MAX_WORK = 4_000_000
"""The largest number of objects and bytes of text that are hashed or passed to functions."""

_MARK = -1
_CALLS = frozenset({"REDUCE", "NEWOBJ", "NEWOBJ_EX", "OBJ", "INST"})
_INTO = frozenset({"APPEND", "APPENDS", "ADDITEMS", "SETITEM", "SETITEMS"})
_KEYS = frozenset({"SETITEM", "SETITEMS", "DICT"})


class Objects:
    """Simulates the instructions of the pickles of one file.

    On its stack, a text is represented by its number of bytes, another value by 1, a tuple by a tuple, and an object
    that can be changed by a list of its parts.

    Args:
        path: the file, for messages.
    """

    def __init__(self, path: Path):
        self.path = path
        self.opcodes = 0
        self.work = 0
        self.begin()

    def begin(self) -> None:
        """Begin a pickle: its stack and memo are empty."""
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def follow(self, opcode: pickletools.OpcodeInfo, argument: Any) -> None:
        """Simulate one instruction.

        Args:
            opcode: the instruction.
            argument: its argument.

        Raises:
            CheckpointError: the file exceeds a limit.
            IndexError: the instruction pops from an empty stack.
        """
        self.opcodes += 1
        if self.opcodes > MAX_OPCODES:
            raise CheckpointError(
                f"{self.path} has more than {MAX_OPCODES} pickle instructions, more than any checkpoint needs"
            )
        name, stack = opcode.name, self.stack
        if name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if argument is None else argument] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self.memo.get(argument, 1))
        elif name == "DUP":
            stack.append(stack[-1])
        elif name == "MARK":
            stack.append(_MARK)
        elif name in _INTO:
            items = self._pop(opcode)
            if name in _KEYS:
                self._count(items[0::2])
            elif name == "ADDITEMS":
                self._count(items)
            if isinstance(stack[-1], list):
                stack[-1].extend(items)
        else:
            self._make(opcode, argument)

    def _make(self, opcode: pickletools.OpcodeInfo, argument: Any) -> None:
        """Pop the operands of an instruction and push its result."""
        name, items = opcode.name, self._pop(opcode)
        if name in _CALLS:
            items = self._held(items[1:])
            self._count(items)
        elif name == "BUILD":
            self._count(self._held(items[1:]))
        elif name in ("DICT", "FROZENSET"):
            self._count(items[0::2] if name == "DICT" else items)
        if not opcode.stack_after:
            return
        if name in _CALLS:
            self.stack.append(items)
        elif "TUPLE" in name:
            self.stack.append(tuple(items))
        elif name.endswith(("LIST", "DICT", "SET")):
            self.stack.append(list(items))
        elif name == "BUILD":
            self.stack.append(items[0])
        else:
            self.stack.append(len(argument) if isinstance(argument, str | bytes) and "GLOBAL" not in name else 1)

    def _pop(self, opcode: pickletools.OpcodeInfo) -> list[Any]:
        """Pop the operands of an instruction: all down to the last mark, or a fixed number; not the object it fills."""
        before = [item.name for item in opcode.stack_before]
        if opcode.name in _INTO:
            before = before[1:]
        if "mark" not in before:
            count = len(before)
            if count > len(self.stack):
                raise IndexError("the stack is empty")
            items = self.stack[len(self.stack) - count :]
            del self.stack[len(self.stack) - count :]
            return items
        items = []
        while (item := self.stack.pop()) is not _MARK:
            items.append(item)
        items.reverse()
        return items

    @staticmethod
    def _held(items: list[Any]) -> list[Any]:
        """The parts of the arguments of a call, which it may copy; the arguments are a tuple, or a dict by name."""
        arguments = [below for item in items for below in (item if isinstance(item, tuple) else [item])]
        return [below for item in arguments for below in (item if isinstance(item, list) else [item])]

    def _count(self, items: Any) -> None:
        """Count objects as hashing visits them: the parts of tuples and the bytes of texts."""
        todo = [iter(items)]
        while todo:
            item = next(todo[-1], None)
            if item is None:
                todo.pop()
                continue
            self.work += item if isinstance(item, int) and item > 0 else 1
            if self.work > MAX_WORK:
                raise CheckpointError(f"{self.path}: its shared objects expand to more than {MAX_WORK} values")
            if isinstance(item, tuple):
                todo.append(iter(item))


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
        # Each name is checked when it is found, so that code is detected even in a truncated file.
        stand_ins = {name: _stand_in(name) for name in _names(path) if _is_harmless(path, name, packages)}
        allowed = [(stand_in, name) for name, stand_in in stand_ins.items()]
        with torch.serialization.safe_globals([Namespace, *allowed]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on pickle protocols that PyTorch itself does not write
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

    Raises:
        CheckpointError: they are.
    """
    weights = content.get("model", content) if isinstance(content, dict) else None
    size = path.stat().st_size
    for name, tensor in weights.items() if isinstance(weights, Mapping) else ():
        if not isinstance(tensor, Tensor):
            continue
        if tensor.layout != torch.strided or tensor.is_meta:
            raise CheckpointError(f"{path}: its weight {shown(name)} is not an ordinary tensor")
        if tensor.numel() * tensor.element_size() > size:
            raise CheckpointError(f"{path} is damaged: its weight {shown(name)} is larger than the file")


def _names(path: Path) -> Iterator[str]:
    """The full names of everything that the pickles of a file would import, found without running them."""
    with open_regular(path) as file:
        objects = Objects(path)
        if file.read(2) == b"PK":
            with zipfile.ZipFile(file) as archive:
                _check_archive(archive, path)
                entries = [name for name in archive.namelist() if name.split("/")[-1].lower() == "data.pkl"]
                if len(entries) != 1:
                    raise CheckpointError(f"{path} is a zip archive that torch.save did not write")
                with archive.open(entries[0]) as content:
                    yield from _names_in_pickle(content, path, objects)
        else:
            file.seek(0)
            for _ in range(_LEGACY_PICKLES):
                yield from _names_in_pickle(file, path, objects)


def _check_archive(archive: zipfile.ZipFile, path: Path) -> None:
    """Check an archive's size before anything is unpacked, then its checksums.

    Raises:
        CheckpointError: it holds more than the file, or is damaged.
    """
    if sum(entry.file_size for entry in archive.infolist()) > path.stat().st_size:
        raise CheckpointError(f"{path} is compressed, which torch.save never does; copy the original again")
    damaged = archive.testzip()
    if damaged is not None:
        raise CheckpointError(f"{path} is damaged: the checksum of {damaged} differs; copy it again")


class _Bounded:
    """A file that refuses to read more than its size: a text in a pickle can claim to have four gigabytes."""

    def __init__(self, file: IO[bytes], size: int):
        self.file, self.size = file, size
        self.readline = file.readline

    def read(self, count: int) -> bytes:
        """The next bytes."""
        if count > self.size:
            raise EOFError(f"{count} bytes are to be read of {self.size}")
        return self.file.read(count)


def _names_in_pickle(file: IO[bytes], path: Path, objects: Objects) -> Iterator[str]:
    """Read the instructions of one pickle and yield the names that it imports.

    Args:
        file: the pickle.
        path: the whole file, for its size.
        objects: follows the instructions.
    """
    recent = ["?", "?"]  # strings on the stack: STACK_GLOBAL takes the last two
    memo: list[str] = []
    objects.begin()
    bounded: Any = _Bounded(file, path.stat().st_size)
    for opcode, argument, _ in pickletools.genops(bounded):
        if opcode.name in ("GLOBAL", "INST"):
            yield _present_name(*str(argument).split(" ", 1))
        elif opcode.name == "STACK_GLOBAL":
            yield _present_name(*recent[-2:])
        elif "UNICODE" in opcode.name or "STRING" in opcode.name:
            recent = [recent[-1], str(argument)]
        elif opcode.name == "MEMOIZE":
            memo.append(recent[-1])
        elif opcode.name in ("BINGET", "LONG_BINGET") and isinstance(argument, int) and argument < len(memo):
            recent = [recent[-1], memo[argument]]
        objects.follow(opcode, argument)


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
