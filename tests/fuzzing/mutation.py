"""Mutations of bytes and of trees of values."""

import copy
import json
import random
import struct
from typing import Any

import yaml

VALUES: list[Any] = [
    *(None, True, False, "", "x", "\ud800", "9" * 400, "../..", "/dev/zero", [], {}, [[]], [None], {"a": 1}, [1, "a"]),
    *(-1, 0, 1, 2, 3, 7, 1.5, -0.0, 1e308, float("nan"), float("inf"), 2**31, 2**63, -(2**70), 10**30, 10**9, 10**12),
    *("\x1b[2J", "a\nb", "é\u2028", "%s%n{0}", "$(id)", "`id`", "${oc.env:HOME}", ".", "/"),
]
"""Values that readers may not expect."""

_BYTES = [bytes([byte]) for byte in b'[{"\\\0\xff\n\r'] + [b"9" * 400, b"- &a *a", b"\xe2\x80\xa8", b"\xed\xa0\x80"]


def places(tree: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where the values of a tree are; of long lists and dicts only some."""
    items = list(tree.items()) if isinstance(tree, dict) else list(enumerate(tree)) if isinstance(tree, list) else []
    return [path for key, value in items[:60] for path in [(*prefix, key), *places(value, (*prefix, key))]]


def change(tree: Any, rng: random.Random, values: list[Any] = VALUES) -> Any:
    """Replace, remove, rename or repeat one value of a tree.

    Args:
        tree: dicts, lists and values; it is changed.
        rng: all choices come from it.
        values: the values that replace others.

    Returns:
        The tree, or what replaces it.
    """
    found = places(tree)
    if not found or rng.random() < 0.02:
        return copy.deepcopy(rng.choice(values))
    *path, last = rng.choice(found)
    inner = tree
    for key in path:
        inner = inner[key]
    deed = rng.random()
    if deed < 0.6:
        inner[last] = copy.deepcopy(rng.choice(values))
    elif deed < 0.7:
        inner[last] = near(inner[last], rng)
    elif deed < 0.8:
        del inner[last]
    elif deed < 0.9 and isinstance(inner, dict):
        inner[rng.choice(["x", "", "é\n", "_name", "_target_"])] = inner.pop(last)
    else:
        inner[last] = [inner[last]] * rng.choice([0, 2, 50])
    return tree


def near(value: Any, rng: random.Random) -> Any:
    """A value that is similar to another one, so that it may be valid."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return rng.choice([value + 1, value - 1, -value, value * 2, value * 1000, float(value), str(value)])
    if isinstance(value, str):
        at = rng.randrange(len(value) + 1)
        return rng.choice([value.upper(), value[:at], value[:at] + rng.choice("ab_ é") + value[at:], value * 2])
    return value


def change_json(content: bytes, rng: random.Random, values: list[Any] = VALUES) -> bytes:
    """Change values of a JSON file."""
    tree = json.loads(content)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        tree = change(tree, rng, values)
    return json.dumps(tree).encode()


def change_yaml(content: bytes, rng: random.Random, values: list[Any] = VALUES) -> bytes:
    """Change values of a YAML file."""
    tree = yaml.safe_load(content)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        tree = change(tree, rng, values)
    return yaml.safe_dump(tree, sort_keys=False).encode(errors="surrogatepass")


def change_safetensors(content: bytes, rng: random.Random, values: list[Any] = VALUES) -> bytes:
    """Change values of the header of a safetensors file."""
    size = struct.unpack("<Q", content[:8])[0]
    header = change_json(content[8 : 8 + size], rng, values)
    return struct.pack("<Q", len(header)) + header + content[8 + size :]


def change_bytes(content: bytes, rng: random.Random) -> bytes:
    """Change, remove, double or insert some bytes, or cut the end off."""
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 3, 30])):
        at = rng.randrange(len(changed) + 1)
        deed = rng.randrange(6)
        if deed == 0:
            changed[at : at + 1] = bytes([rng.randrange(256)])
        elif deed == 1:
            del changed[at : at + rng.choice([1, 8, 1000])]
        elif deed == 2:
            changed[at:at] = changed[at : at + rng.choice([1, 8, 1000])]
        elif deed == 3:
            changed[at:at] = rng.choice(_BYTES)
        elif deed == 4 and changed:
            changed[at % len(changed)] ^= 1 << rng.randrange(8)
        elif deed == 5 and rng.random() < 0.2:
            del changed[at:]
    return bytes(changed)
