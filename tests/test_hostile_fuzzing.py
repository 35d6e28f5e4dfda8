"""Hundreds of damaged runs, folders and checkpoints: exit code 0 or 2, no traceback, each in time."""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.hostile import JSON, PICKLES, YAML, checksummed, copy_of, limited, old_file, replace_by
from tests.test_hostile_files import LINE, data, fairseq, folder, run  # noqa: F401  # fixtures

CASES = 200
SECONDS = 30.0

VALUES: list[Any] = [
    *(None, True, False, "", "x", "\ud800", "9" * 400, "../..", "/dev/zero", [], {}, [[]], [None], {"a": 1}, [1, "a"]),
    *(-1, 0, 1, 2, 3, 7, 1.5, -0.0, 1e308, float("nan"), float("inf"), 2**31, 2**63, -(2**70), 10**30, 10**9),
]


def paths(tree: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where the values of a tree are; of long lists only some."""
    items = (
        list(tree.items()) if isinstance(tree, dict) else list(enumerate(tree))[:20] if isinstance(tree, list) else []
    )
    return [path for key, value in items for path in [(*prefix, key), *paths(value, (*prefix, key))]]


def change(tree: Any, rng: random.Random) -> Any:
    """Replace, remove or rename one value of a tree."""
    places = paths(tree)
    if not places or rng.random() < 0.02:
        return rng.choice(VALUES)
    *path, last = rng.choice(places)
    inner = tree
    for key in path:
        inner = inner[key]
    deed = rng.random()
    if deed < 0.7:
        inner[last] = rng.choice(VALUES)
    elif deed < 0.8:
        del inner[last]
    elif deed < 0.9 and isinstance(inner, dict):
        inner[rng.choice(["x", "", "é\n", "_name"])] = inner.pop(last)
    else:
        inner[last] = [inner[last]] * rng.choice([0, 2, 50])
    return tree


def damage_structure(path: Path, rng: random.Random) -> None:
    """Change values of a JSON or YAML file, or of the header of a safetensors file."""
    if path.suffix == ".yaml":
        tree = change(yaml.safe_load(path.read_text()), rng)
        path.write_bytes(yaml.safe_dump(tree).encode(errors="surrogatepass"))
    elif path.suffix == ".safetensors":
        content = path.read_bytes()
        size = struct.unpack("<Q", content[:8])[0]
        header = json.dumps(change(json.loads(content[8 : 8 + size]), rng)).encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + size :])
    elif path.suffix == ".json":
        path.write_text(json.dumps(change(json.loads(path.read_text()), rng)))
    else:
        damage_bytes(path, rng)


def damage_bytes(path: Path, rng: random.Random) -> None:
    """Change, remove or double some bytes."""
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 3, 30])):
        at = rng.randrange(len(content) + 1)
        deed = rng.randrange(4)
        if deed == 0:
            content[at : at + 1] = bytes([rng.randrange(256)])
        elif deed == 1:
            del content[at : at + rng.choice([1, 8, 1000])]
        elif deed == 2:
            content[at:at] = content[at : at + rng.choice([1, 8, 1000])]
        else:
            content[at:at] = rng.choice([b"[", b"{", b'"', b"\\", b"\0", b"\xff", b"9" * 400, b"\n", b"- &a *a"])
    path.write_bytes(bytes(content))


def damage_text(path: Path, rng: random.Random) -> None:
    """Put something malicious in the place of a file, or of a value in it."""
    if path.suffix in (".yaml", ".json"):
        samples = YAML if path.suffix == ".yaml" else JSON
        sample = rng.choice(list(samples.values())).encode(errors="surrogateescape")
        content = path.read_bytes()
        path.write_bytes(sample if rng.random() < 0.5 else content[: rng.randrange(len(content))] + sample)
    elif path.suffix == ".pt":
        old_file(path, rng.choice(list(PICKLES.values())))
    else:
        replace_by(path, rng.choice(["pipe", "folder", "device"]))


DEEDS: list[Callable[[Path, random.Random], None]] = [damage_structure, damage_structure, damage_bytes, damage_text]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["run", "folder", "fairseq"])
def test_damaged_models(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    whole: Path = request.getfixturevalue(kind)
    whole = whole.parent if kind == "fairseq" else whole
    rng = random.Random(f"hostile {kind}")
    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file() and path.stat().st_size)
    # what decoding reads, and each file of it as often, whatever its size
    files = [path for path in files if not re.search(r"(^|/)(cache|last)/|\.bin$|log\.jsonl|\.lock", str(path))]
    codes = {0: 0, 2: 0}
    for number in range(CASES):
        broken = copy_of(whole, tmp_path / "broken")
        file, deed, sums = rng.choice(files), rng.choice(DEEDS), rng.random() < 0.7
        deed(broken / file, rng)
        if sums and (broken / file).is_file() and file.name != "SHA256SUMS":
            checksummed((broken / file).parent)
        given = broken / "model.pt" if kind == "fairseq" else broken
        try:
            outcome = limited(
                "generate", f"path={given}", "input=-", "generation.max_len=20", stdin=LINE, seconds=SECONDS
            )
        except BaseException as error:
            error.add_note(f"case {number} of {kind}: {deed.__name__} of {file}, checksums renewed: {sums}")
            raise
        codes[outcome.code] += 1
    assert min(codes.values()) >= CASES // 40, codes  # some of the damage does no harm, and much does
