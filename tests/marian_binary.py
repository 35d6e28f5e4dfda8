"""Small models in Marian's binary format, and lexical shortlists."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from seqgen.data.tokenizers.sentencepiece_tokenizer import train_sentencepiece

MAGIC = 0xF11A48D5013417F5


def write_binary(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]], int8: bool = False) -> None:
    """Write a model; with ``int8`` its matrices are quantized."""
    from seqgen.addons.marian.binary import binary_model, encode

    path.write_bytes(binary_model([encode(name, array, int8) for name, array in arrays.items()]))


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
