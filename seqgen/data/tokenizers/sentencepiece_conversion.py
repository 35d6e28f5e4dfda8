"""Conversion of a SentencePiece model to a pipeline of the ``tokenizers`` library."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Pipeline

from seqgen.data.pipeline_limits import pipeline_errors
from seqgen.data.tokenizers.base import SENTINEL
from seqgen.errors import DataError

UNIGRAM = 1
"""Number of the unigram algorithm in SentencePiece's file format."""
CONTROL, USER_DEFINED = 3, 4
"""Numbers of two kinds of pieces in SentencePiece's file format."""


@dataclass(frozen=True)
class Piece:
    """A piece of a model.

    Attributes:
        text: its string.
        score: its log-probability, in nats.
        kind: ``CONTROL``, ``USER_DEFINED`` or another kind of the file format.
    """

    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class Model:
    """The parts of a SentencePiece model that a pipeline needs.

    Attributes:
        pieces: the pieces in the order of their ids.
        algorithm: ``UNIGRAM`` or another number.
        unk: id of the unknown piece.
        charsmap: the compiled table of character normalization; empty if the model has none.
    """

    pieces: list[Piece]
    algorithm: int
    unk: int
    charsmap: bytes


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Read the fields of a serialized protocol buffer.

    Args:
        message: the bytes.

    Yields:
        The number of each field and its value: an integer, or bytes.

    Raises:
        ValueError: the bytes are not a protocol buffer.
    """
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            if at >= len(message) or shift > 63:  # a varint has at most ten bytes
                raise ValueError("the message is truncated")
            byte = message[at]
            value, at, shift = value | (byte & 127) << shift, at + 1, shift + 7
            if byte < 128:
                return value

    while at < len(message):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            yield number, varint()
            continue
        if kind not in (1, 2, 5):
            raise ValueError(f"there is no wire type {kind}")
        size = varint() if kind == 2 else 8 if kind == 1 else 4
        if at + size > len(message):
            raise ValueError("the message is truncated")
        at += size
        yield number, message[at - size : at]


def read_model_file(model: bytes, origin: str) -> Model:
    """Read the parts of a SentencePiece model that a pipeline needs.

    Args:
        model: the content of the model's file.
        origin: the file, for messages.

    Raises:
        DataError: ``model`` is not a SentencePiece model.
    """
    pieces: list[Piece] = []
    algorithm, unk, charsmap = UNIGRAM, 0, b""
    try:
        for number, value in fields(model):
            if number == 1:
                piece = dict(fields(value))
                score = struct.unpack("<f", piece.get(2, bytes(4)))[0]
                pieces.append(Piece(piece[1].decode(), score, piece.get(3, 1)))
            elif number == 2:
                trainer = dict(fields(value))
                algorithm, unk = trainer.get(3, algorithm), trainer.get(40, unk)
            elif number == 3:
                charsmap = dict(fields(value)).get(2, charsmap)
    except (ValueError, KeyError, TypeError, AttributeError, struct.error):
        pieces = []
    if not pieces:
        raise DataError(f"{origin} is not a SentencePiece model, or is damaged")
    return Model(pieces, algorithm, unk, charsmap)


def to_pipeline(model: bytes, extra_ids: int, add_prefix_space: bool, legacy: bool, origin: str) -> Pipeline:
    """Convert a T5 tokenizer's model as ``transformers`` does, except that no end-of-sentence is appended.

    Args:
        model: the content of the model's file.
        extra_ids: number of sentinels; their ids follow those of the pieces, and ``<extra_id_0>`` has the highest.
        add_prefix_space: whether a space is added at the beginning of a text.
        legacy: whether a space is also added to each part between two special tokens.
        origin: the model's file, for messages.

    Returns:
        The pipeline.

    Raises:
        DataError: ``model`` is not a SentencePiece model, or not a unigram model.
    """
    source = read_model_file(model, origin)
    if source.algorithm != UNIGRAM:
        raise DataError(f"{origin} is not a unigram model, which the fast tokenizer needs; add its tokenizer.json")
    sentinels = [(SENTINEL.format(i), 0.0) for i in reversed(range(extra_ids))]
    vocabulary = [(piece.text, piece.score) for piece in source.pieces] + sentinels
    steps: list[Any] = [normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), "▁")]
    with pipeline_errors(f"{origin} is not a SentencePiece model, or is damaged"):
        pipeline = Pipeline(models.Unigram(vocabulary, unk_id=source.unk, byte_fallback=False))
        if source.charsmap:
            steps.insert(0, normalizers.Precompiled(source.charsmap))
    pipeline.normalizer = normalizers.Sequence(steps)
    own = [piece for piece in source.pieces if piece.kind in (CONTROL, USER_DEFINED)]
    pipeline.add_tokens([AddedToken(p.text, normalized=False, special=p.kind == CONTROL) for p in own])
    scheme = ("always" if legacy else "first") if add_prefix_space else "never"
    pipeline.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)
    pipeline.decoder = decoders.Metaspace(replacement="▁", prepend_scheme=scheme)
    return pipeline
