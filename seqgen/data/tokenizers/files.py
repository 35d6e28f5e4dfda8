"""The files of a tokenizer in Hugging Face's layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from seqgen.errors import DataError
from seqgen.system.files import write_atomically
from seqgen.system.reading import parse_json, read_bytes

CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
ADDED_TOKENS_FILE = "added_tokens.json"
FAST_FILE = "tokenizer.json"
MODEL_FILE = "spiece.model"
VOCAB_FILE = "vocab.json"
MERGES_FILE = "merges.txt"
FAIRSEQ_MODEL_FILE = "sentencepiece.bpe.model"
SOURCE_MODEL_FILE = "source.spm"
TARGET_MODEL_FILE = "target.spm"
TARGET_VOCAB_FILE = "target_vocab.json"
FILES = (
    *(CONFIG_FILE, SPECIAL_TOKENS_FILE, ADDED_TOKENS_FILE, FAST_FILE, MODEL_FILE, VOCAB_FILE, MERGES_FILE),
    *(FAIRSEQ_MODEL_FILE, SOURCE_MODEL_FILE, TARGET_MODEL_FILE, TARGET_VOCAB_FILE),
)


@dataclass(frozen=True)
class TokenizerFiles:
    """The content of a tokenizer's files, by name.

    Attributes:
        origin: the folder, for messages.
        contents: the bytes of each file of ``FILES`` that exists.
    """

    origin: str
    contents: Mapping[str, bytes] = field(repr=False)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the files that a folder contains.

        Args:
            folder: the folder; other files in it are not read.

        Raises:
            DataError: there is no such folder, or a file cannot be read.
        """
        if not folder.is_dir():
            raise DataError(f"there is no folder {folder}; give the folder of a tokenizer in Hugging Face's layout")
        contents = {name: read_file(folder / name) for name in FILES}
        return cls(str(folder), {name: content for name, content in contents.items() if content is not None})

    def __contains__(self, name: str) -> bool:
        return name in self.contents

    def need(self, name: str) -> bytes:
        """The bytes of a required file.

        Args:
            name: one of ``FILES``.

        Raises:
            DataError: the folder has no such file.
        """
        if name not in self.contents:
            raise DataError(f"{self.origin} has no {name}; copy it from the original folder of the tokenizer")
        return self.contents[name]

    def write(self, folder: Path) -> None:
        """Write the files.

        Args:
            folder: where to; it is created if it does not exist.

        Raises:
            DataError: the folder contains a further file of ``FILES``, which would be read as part of this tokenizer.
            UserError: a file cannot be written.
        """
        for name in FILES:
            if name not in self and (folder / name).exists():
                raise DataError(f"{folder / name} belongs to another tokenizer; give a new folder, or remove it")
        for name, content in self.contents.items():
            write_atomically(folder / name, content)

    def json(self, name: str) -> dict[str, Any]:
        """The JSON object in a file; an empty one if the file does not exist.

        Args:
            name: one of ``FILES``.

        Raises:
            DataError: the file does not contain a JSON object.
        """
        return parse_object(self.contents.get(name, b"{}"), f"{self.origin}/{name}")


def read_file(path: Path) -> bytes | None:
    """The bytes of a file; ``None`` if it does not exist.

    Args:
        path: the file.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        return read_bytes(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None


def parse_object(content: bytes, origin: str) -> dict[str, Any]:
    """Parse the content of a file as a JSON object.

    Args:
        content: its bytes.
        origin: its path, for messages.

    Raises:
        DataError: it is not JSON, or not an object.
    """
    try:
        parsed = parse_json(content)
    except ValueError as error:
        raise DataError(f"{origin} is not JSON, or is damaged ({error}); copy it again") from None
    if not isinstance(parsed, dict):
        raise DataError(f"{origin} does not contain a JSON object; copy it again")
    return parsed


def to_json(content: dict[str, Any]) -> bytes:
    """Serialize an object in the form that Hugging Face's tools write: sorted keys, two spaces per level."""
    return (json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()
