"""Reading small files that somebody else may have made: bytes, JSON and YAML, within limits.

A file from elsewhere can be a pipe that never ends, brackets in brackets, or a few lines that stand for a billion
values. Here only regular files are opened, and what they hold is refused, in one sentence, when it is beyond a limit.
The limits are far above what any file of a model or run has.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 1 << 28
"""Most bytes of a file that is read as a whole, such as JSON or a SentencePiece model."""
MAX_YAML_BYTES = 1 << 20
"""Most bytes of a YAML file, whose parser is slow."""
MAX_DEPTH = 100
"""Most levels of brackets in brackets."""
MAX_VALUES = 100_000
"""Most values of a YAML file, each alias counted as what it stands for."""
MAX_DIGITS = 100
"""Most characters of a number; Python needs quadratic time for long ones, and does not print them."""

_YAML = "tag:yaml.org,2002:"
_NUMBERS = tuple(_YAML + name for name in ("int", "float", "timestamp"))
_TEXTS = tuple(_YAML + name for name in ("str", "merge"))
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file for reading; opening or reading anything else might wait forever.

    Args:
        path: the file.

    Raises:
        OSError: it cannot be opened, or is a folder, pipe, socket or device.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    # Another process may put a pipe there meanwhile: opening one does not wait then, and it is refused below.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return open(descriptor, "rb")


def read_bytes(path: Path, limit: int = MAX_BYTES) -> bytes:
    """Read a regular file as a whole.

    Args:
        path: the file.
        limit: most bytes that it may have.

    Raises:
        OSError: it cannot be read, is no regular file, or is larger.
    """
    with open_regular(path) as file:
        content = file.read(min(limit + 1, os.fstat(file.fileno()).st_size + 1))
        if len(content) > limit:
            raise OSError(errno.EFBIG, f"it has more than {limit} bytes, the most that such a file may have", str(path))
        return content


def parse_json(content: bytes | str, **hooks: Any) -> Any:
    """Parse JSON.

    Args:
        content: the text, or its bytes in UTF-8.
        hooks: further arguments of ``json.loads``.

    Raises:
        ValueError: it is no JSON, nested too deeply, or holds a number that is too long or text that is no Unicode.
    """
    text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
    try:
        value = json.loads(text, **{"parse_int": _integer, **hooks})
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _check_depth(value)
    if _SURROGATE.search(text):
        _check_unicode(json.dumps(value, ensure_ascii=False))
    return value


def parse_yaml(content: bytes) -> Any:
    """Parse YAML of plain values; all keys must be text.

    Args:
        content: the bytes.

    Raises:
        ValueError: it is no such YAML, or is beyond a limit of this module.
    """
    if len(content) > MAX_YAML_BYTES:
        raise ValueError(f"it has {len(content)} bytes, more than the {MAX_YAML_BYTES} of the largest YAML file")
    try:
        loader = yaml.SafeLoader(content.decode())
        root = loader.get_single_node()
        if root is None:
            return None
        _check_node(root, 0, {})
        return loader.construct_document(root)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except Exception as error:  # a value with a tag that it does not fit, such as !!int "", raises almost anything
        raise ValueError(" ".join(str(error).split())[:300] or "it holds a value that does not fit its tag") from None


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"it holds a number of {len(text)} digits")
    return int(text)


def _check_depth(value: Any) -> None:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH + 1):
        if not level:
            return
        inner = (node.values() if isinstance(node, dict) else node for node in level)
        level = [child for children in inner for child in children if isinstance(child, dict | list)]
    raise ValueError("it is nested too deeply")


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("it holds half of a surrogate pair, which is no character") from None


def _check_node(node: yaml.Node, depth: int, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Check a node before anything is made of it, since an alias is the same node as what it stands for.

    Args:
        node: the node.
        depth: number of nodes that it lies in.
        known: results by the nodes' identities, so that each is looked at once.

    Returns:
        Number of values in the node, itself included, and how deeply they are nested.
    """
    values, height = known.get(id(node), (1, 0))
    if depth + height > MAX_DEPTH:  # also where a node contains itself
        raise ValueError("it is nested too deeply")
    if id(node) in known:
        return values, height
    line = node.start_mark.line + 1
    for child in _children(node, line):
        below, levels = _check_node(child, depth + 1, known)
        values, height = values + below, max(height, levels + 1)
        if values > MAX_VALUES:
            raise ValueError(f"line {line} holds more than {MAX_VALUES} values, its aliases expanded")
    known[id(node)] = values, height
    return values, height


def _children(node: yaml.Node, line: int) -> list[yaml.Node]:
    if isinstance(node, yaml.SequenceNode):
        return list(node.value)
    if not isinstance(node, yaml.MappingNode):
        if node.tag in _NUMBERS and len(node.value) > MAX_DIGITS:
            raise ValueError(f"line {line} holds a number of {len(node.value)} digits")
        _check_unicode(node.value)
        return []
    for key, _ in node.value:
        if key.tag not in _TEXTS:
            what = f" {str(key.value)[:40]}" if isinstance(key, yaml.ScalarNode) else ""
            raise ValueError(f"the key{what} in line {key.start_mark.line + 1} is not text; put it in quotes")
    return [child for pair in node.value for child in pair]
