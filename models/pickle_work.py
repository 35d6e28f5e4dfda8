"""How much work a pickle asks for, found without doing any of it.

Objects are shared in a pickle, so that a few bytes can stand for a billion objects::

    t0 = (); t1 = (t0, t0); t2 = (t1, t1); ... t40        41 tuples, and 2 ** 40 steps to hash the last of them

Making and sharing objects takes time in proportion to the file. What does not is to hash one, as a key of a dict, and
to call a function with one, which may copy it. So the instructions are followed with objects that know only what they
are made of, and the objects of every key and of every call are counted as often as they are referred to.
"""

from __future__ import annotations

import pickletools
from pathlib import Path
from typing import Any

from seqgen.errors import CheckpointError

MAX_OPCODES = 5_000_000
"""Most instructions of a file's pickles together; a checkpoint has some 50 for each tensor."""
MAX_WORK = 4_000_000
"""Most objects, and bytes of text, that are hashed or given to functions."""

_MARK = -1
_CALLS = frozenset({"REDUCE", "NEWOBJ", "NEWOBJ_EX", "OBJ", "INST"})
_INTO = frozenset({"APPEND", "APPENDS", "ADDITEMS", "SETITEM", "SETITEMS"})
_KEYS = frozenset({"SETITEM", "SETITEMS", "DICT"})


class Objects:
    """Follows the instructions of the pickles of one file.

    On its stack, an object is the number of bytes of a text, 1 for another value, a tuple for a tuple, and for all that
    can be filled further, a list of what it holds.

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
        """Do with shapes what an instruction does with objects.

        Args:
            opcode: the instruction.
            argument: its argument.

        Raises:
            CheckpointError: the file asks for too much.
            IndexError: it takes something from an empty stack.
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
        """Take what an instruction takes from the stack, and put there what it makes of it."""
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
        """What an instruction takes: all down to the last mark, or a fixed number; not the object that it fills."""
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
        """What the arguments of a call hold, which it may copy; the arguments are a tuple, or a dict of names."""
        arguments = [below for item in items for below in (item if isinstance(item, tuple) else [item])]
        return [below for item in arguments for below in (item if isinstance(item, list) else [item])]

    def _count(self, items: Any) -> None:
        """Count objects as hashing them does, which goes into tuples and reads texts."""
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
