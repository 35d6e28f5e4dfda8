"""Hundreds of damaged runs, folders and checkpoints: exit code 0 or 2, no traceback, each in time."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzzing.mutation import change_bytes, change_json, change_safetensors, change_yaml
from tests.hostile import JSON, PICKLES, YAML, checksummed, copy_of, limited, old_file, replace_by
from tests.repository.test_hostile_files import LINE, data, fairseq, folder, run  # noqa: F401  # fixtures

CASES = 200
SECONDS = 30.0


def damage_structure(path: Path, rng: random.Random) -> None:
    """Change values of a JSON or YAML file, or of the header of a safetensors file."""
    kinds = {".yaml": change_yaml, ".json": change_json, ".safetensors": change_safetensors}
    path.write_bytes(kinds.get(path.suffix, change_bytes)(path.read_bytes(), rng))


def damage_bytes(path: Path, rng: random.Random) -> None:
    """Change, remove or double some bytes."""
    path.write_bytes(change_bytes(path.read_bytes(), rng))


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


@pytest.mark.nightly
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
