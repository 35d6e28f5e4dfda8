"""Reads small files from untrusted sources within limits: bytes, JSON and YAML.

Such a file can be a pipe that never ends, have a million nested brackets, or have a few lines whose aliases expand to a
billion values. Only regular files are opened here, and content beyond a limit is refused with one sentence. The limits
are far above the size of any real file of a model or run.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import stat
from importlib import resources
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, ZipFile

import yaml

from seqgen.core.errors import nearest

MAX_BYTES = 1 << 28
"""Maximum bytes of a file that is read as a whole, such as JSON or a SentencePiece model."""
MAX_YAML_BYTES = 1 << 20
"""Maximum bytes of a YAML file; smaller, because the YAML parser is slow."""
MAX_DEPTH = 100
"""Maximum levels of nested brackets."""
MAX_VALUES = 100_000
"""Maximum number of values in a YAML file, with its aliases expanded."""
MAX_DIGITS = 100
"""Maximum characters of a number; Python converts long numbers in quadratic time, and refuses to print them."""

_YAML = "tag:yaml.org,2002:"
_NUMBERS = tuple(_YAML + name for name in ("int", "float", "timestamp"))
_TEXTS = tuple(_YAML + name for name in ("str", "merge"))
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def version_of(path: Path) -> tuple[int, ...]:
    """The identity, size and time of the last change of a file; the inode numbers of deleted files are reused."""
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file for reading; opening or reading any other kind of file might block forever.

    Args:
        path: the file.

    Returns:
        The open file.

    Raises:
        OSError: it cannot be opened, or is a folder, pipe, socket or device.
    """
    if "\0" in str(path):  # a name that a file contains, for which Python raises a ValueError
        raise OSError(errno.ENOENT, "its name has the character NUL", str(path))
    if not stat.S_ISREG(mode := os.stat(path).st_mode):
        raise OSError(errno.EINVAL, f"it is {'a folder' if stat.S_ISDIR(mode) else 'not a regular file'}", str(path))
    # another process may have replaced it by a pipe: with O_NONBLOCK opening does not block, and it is refused below
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return open(descriptor, "rb")


def is_stored(archive: ZipFile, path: Path) -> bool:
    """True if an archive is not compressed, and its entries have no more bytes than its file.

    Args:
        archive: the archive.
        path: its file.
    """
    entries = archive.infolist()
    is_plain = all(entry.compress_type == ZIP_STORED for entry in entries)
    return is_plain and sum(entry.file_size for entry in entries) <= path.stat().st_size


def read_bytes(path: Path, limit: int = MAX_BYTES) -> bytes:
    """Read a regular file as a whole.

    Args:
        path: the file.
        limit: maximum size of the file in bytes.

    Returns:
        The content.

    Raises:
        OSError: it cannot be read, is not a regular file, or is larger than the limit.
    """
    with open_regular(path) as file:
        content = file.read(min(limit + 1, os.fstat(file.fileno()).st_size + 1))
        if len(content) > limit:
            raise OSError(errno.EFBIG, f"it has more than {limit} bytes, the maximum for such a file", str(path))
        return content


def read_lists(package: str, name: str) -> dict[str, list[str]]:
    """Read a data file of a package in which each line has the name of a list and some of its words.

    Args:
        package: the package.
        name: the file.

    Returns:
        The words of each list.
    """
    found: dict[str, list[str]] = {}
    for line in resources.files(package).joinpath(name).read_text("utf-8").splitlines():
        key, *words = line.split()
        found.setdefault(key, []).extend(words)
    return found


def similar_path(path: Path) -> str:
    """Suggest a path for one that does not exist, as the end of a message.

    Args:
        path: the path.

    Returns:
        A phrase with the most similar name in its folder, or one that says that there is no such folder.
    """
    if not path.parent.is_dir():
        return f" (there is no folder {path.parent})"
    try:
        # names of one type of file are alike, whatever they name
        alike = [name for name in os.listdir(path.parent) if nearest(path.stem, [Path(name).stem])]
        return nearest(path.name, alike)
    except OSError:
        return ""


def parse_json(content: bytes | str, **hooks: Any) -> Any:
    """Parse JSON within the limits of this module.

    Args:
        content: the text, or its bytes in UTF-8.
        hooks: further arguments of ``json.loads``.

    Returns:
        The value.

    Raises:
        ValueError: the content is not JSON, is nested too deeply, or contains a number that is too long or text that is
            not valid Unicode.
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


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The ``object_pairs_hook`` of ``parse_json`` for files in which a key that occurs twice is a mistake.

    Raises:
        ValueError: a key occurs twice.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice")
    return found


def parse_yaml(content: bytes) -> Any:
    """Parse YAML within the limits of this module. It must have plain values only; keys are text, and occur once.

    Args:
        content: the bytes.

    Returns:
        The value; ``None`` for an empty file.

    Raises:
        ValueError: the content is not such YAML, or is beyond a limit.
    """
    if len(content) > MAX_YAML_BYTES:
        raise ValueError(f"it has {len(content)} bytes, but the maximum for a YAML file is {MAX_YAML_BYTES}")
    try:
        loader = yaml.SafeLoader(content.decode())
        root = loader.get_single_node()
        if root is None:
            return None
        _check_node(root, 0, {})
        return loader.construct_document(root)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        what = "a tab, in whose place YAML needs spaces," if r"\t" in str(error.problem) else "an error"
        raise ValueError(f"there is {what}{where}") from None
    except yaml.reader.ReaderError as error:
        raise ValueError(f"it has the character U+{error.character:04X}, which YAML does not allow") from None
    except Exception as error:  # a value that does not fit its tag, such as !!int "", can raise any error
        raise ValueError(" ".join(str(error).split())[:300] or "it has a value that does not fit its tag") from None


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"it contains a number of {len(text)} digits; the maximum is {MAX_DIGITS}")
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
        raise ValueError("it contains half of a surrogate pair, which is not a character") from None


def _check_node(node: yaml.Node, depth: int, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Count a node's values before they are constructed; an alias and its anchor are the same node here.

    Args:
        node: the node.
        depth: number of nodes around it.
        known: results by node identity, so that each node is visited once.

    Returns:
        Number of values in the node, itself included and aliases expanded, and their depth of nesting.

    Raises:
        ValueError: a limit is exceeded.
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
            raise ValueError(f"line {line} has more than {MAX_VALUES} values, with its aliases expanded")
    known[id(node)] = values, height
    return values, height


def _children(node: yaml.Node, line: int) -> list[yaml.Node]:
    if isinstance(node, yaml.SequenceNode):
        return list(node.value)
    if not isinstance(node, yaml.MappingNode):
        if node.tag in _NUMBERS and len(node.value) > MAX_DIGITS:
            raise ValueError(f"line {line} contains a number of {len(node.value)} digits; the maximum is {MAX_DIGITS}")
        _check_unicode(node.value)
        return []
    lines: dict[str, int] = {}
    for key, _ in node.value:
        what, place = f" {str(key.value)[:40]}" if isinstance(key, yaml.ScalarNode) else "", key.start_mark.line + 1
        if key.tag not in _TEXTS:
            raise ValueError(f"the key{what} in line {place} is not text; put it in quotes")
        if key.value in lines:
            raise ValueError(f"the key{what} in line {place} is already in line {lines[key.value]}; remove one of them")
        lines[key.value] = place
    return [child for pair in node.value for child in pair]
