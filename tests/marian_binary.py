"""Writes Marian's binary formats: models in float32 or in 8-bit integers, and lexical shortlists."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from seqgen.data.tokenizers.sentencepiece_tokenizer import train_sentencepiece

FLOAT32, INT8, INTGEMM8 = 0x404, 0x101, 0x4101
MAGIC = 0xF11A48D5013417F5


def quantized(array: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.float32]:
    """Integers from -127 to 127 and the factor by which they are divided."""
    factor = np.float32(127) / np.abs(array).max().astype(np.float32)
    return np.rint(array * factor).astype(np.int8), factor


def is_matrix(name: str, array: np.ndarray[Any, Any]) -> bool:
    """True for the arrays that Marian's converter stores in 8 bits."""
    return array.ndim == 2 and min(array.shape) > 1 and array.dtype == np.float32


def write_binary(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]], int8: bool = False) -> None:
    """Write a model; with ``int8`` its matrices are quantized, and transposed except embeddings."""
    tensors = []
    for name, array in arrays.items():
        if int8 and is_matrix(name, array):
            integers, factor = quantized(array)
            content = (integers if "Wemb" in name else integers.T).tobytes() + factor.tobytes()
            tensors.append((name, INTGEMM8, array.shape, content))
        else:
            kind = INT8 if array.dtype in (np.int8, np.uint8) else FLOAT32
            tensors.append((name, kind, array.shape, array.tobytes()))
    path.write_bytes(encoded(tensors))


def encoded(tensors: Sequence[tuple[str | bytes, int, Sequence[int], bytes]], version: int = 1) -> bytes:
    """The content of a file: name, type, shape and data of each tensor; data is aligned to 256 bytes."""
    names = [(name.encode() if isinstance(name, str) else name) + b"\0" for name, _, _, _ in tensors]
    data = [content + bytes(-len(content) % 256) for _, _, _, content in tensors]
    parts = [struct.pack("<QQ", version, len(tensors))]
    for (_, kind, shape, _), name, content in zip(tensors, names, data, strict=True):
        parts.append(struct.pack("<4Q", len(name), kind, len(shape), len(content)))
    parts += [*names, *(struct.pack(f"<{len(shape)}i", *shape) for _, _, shape, _ in tensors)]
    padding = -(sum(map(len, parts)) + 8) % 256
    return b"".join([*parts, struct.pack("<Q", padding), bytes(padding), *data])


def shortlist(lists: Sequence[Sequence[int]], frequent: int) -> bytes:
    """The content of a shortlist: ids of target tokens for each source token, and the number of frequent tokens."""
    offsets = np.cumsum([0, *map(len, lists)]).astype("<u8")
    ids = np.array([token for one in lists for token in one], "<u4")
    header = struct.pack("<4Q", frequent, max(map(len, lists)), len(offsets), len(ids))
    return with_checksum(header + offsets.tobytes() + ids.tobytes())


def with_checksum(content: bytes) -> bytes:
    """The content of a shortlist, with magic number and checksum before it."""
    checksum = 0
    for (value,) in struct.iter_unpack("<Q", content[: len(content) // 8 * 8]):
        checksum = (checksum ^ (value + 0x9E3779B9 + (checksum << 6) + (checksum >> 2))) % 2**64
    return struct.pack("<2Q", MAGIC, checksum) + content


PIECES = 35


def model_files(folder: Path) -> dict[str, bytes]:
    """The files of a small model of Firefox, by name, the model's first; the folder is for temporary files."""
    lines = ["der Hund sieht den Baum", "ein Ball und zwei Männer", "the dog has a ball", "é 日本"] * 9
    known = dict(np.load(Path(__file__).parent / "recorded" / "marian" / "transformer.npz"))
    known |= {"Wemb": np.eye(PIECES, 8, dtype=np.float32), "decoder_ff_logit_out_b": np.ones((1, PIECES), np.float32)}
    write_binary(folder / "model.bin", known, int8=True)
    ids = {"eos": 0, "unk": 1, "bos": -1, "pad": -1}
    return {
        "model.enpt.intgemm.alphas.bin": (folder / "model.bin").read_bytes(),
        "vocab.enpt.spm": train_sentencepiece(lines, vocab_size=PIECES, special_ids=ids),
        "lex.50.50.enpt.s2t.bin": shortlist([[]] * PIECES, PIECES),
    }
