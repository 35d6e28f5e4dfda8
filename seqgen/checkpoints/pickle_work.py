"""An upper bound on the work of loading a pickle, computed without loading it.

Objects in a pickle can be shared, so that a few bytes can describe a billion objects::

    t0 = (); t1 = (t0, t0); t2 = (t1, t1); ... t40        41 tuples, and 2 ** 40 steps to hash the last of them

Creating and sharing objects takes time in proportion to the file. Two operations can take longer: hashing an object,
as a key of a dict, and calling a function with one, which may copy it. The instructions are therefore simulated with
objects that store only their parts, and the objects in every key and every call are counted once for each reference.
"""

from __future__ import annotations

import pickletools
from pathlib import Path
from typing import Any

from seqgen.errors import CheckpointError

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
