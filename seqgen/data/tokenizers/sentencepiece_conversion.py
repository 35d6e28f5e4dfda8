"""Making a pipeline of the ``tokenizers`` library from a SentencePiece model."""

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
CONTROL, USER_DEFINED = 3, 4


@dataclass(frozen=True)
class Piece:
    """A piece of a model: its string, its log-probability, and what kind of piece it is."""

    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class Model:
    """What a pipeline needs of a SentencePiece model.

    Attributes:
        pieces: in the order of their ids.
        algorithm: ``UNIGRAM`` or another.
        unk: id of the unknown piece.
        charsmap: the compiled normalization of characters; empty where there is none.
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
        The number of a field and its value: a whole number, or bytes.

    Raises:
        ValueError: it is none.
    """
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            if at >= len(message) or shift > 63:  # a number has ten bytes at most
                raise ValueError("cut off")
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
            raise ValueError(f"no wire type {kind}")
        size = varint() if kind == 2 else 8 if kind == 1 else 4
        if at + size > len(message):
            raise ValueError("cut off")
        at += size
        yield number, message[at - size : at]


def read_model_file(model: bytes, origin: str) -> Model:
    """Read what a pipeline needs of a SentencePiece model.

    Args:
        model: the content of the model's file.
        origin: the file, for messages.

    Raises:
        DataError: it is not a SentencePiece model.
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
        raise DataError(f"{origin} is not a SentencePiece model, or damaged")
    return Model(pieces, algorithm, unk, charsmap)


def to_pipeline(model: bytes, extra_ids: int, add_prefix_space: bool, legacy: bool, origin: str) -> Pipeline:
    """Make the pipeline that ``transformers`` makes from a T5 tokenizer's model, without its end-of-sentence.

    Args:
        model: the content of the model's file.
        extra_ids: number of sentinels, whose ids follow those of the pieces and go downwards.
        add_prefix_space: whether a text gets a space at its beginning.
        legacy: whether each part between two special tokens gets one too.
        origin: the model's file, for messages.

    Raises:
        DataError: it is not a SentencePiece model, or none of kind unigram.
    """
    source = read_model_file(model, origin)
    if source.algorithm != UNIGRAM:
        raise DataError(f"{origin} is not a unigram model, which the fast tokenizer needs; add its tokenizer.json")
    sentinels = [(SENTINEL.format(i), 0.0) for i in reversed(range(extra_ids))]
    vocabulary = [(piece.text, piece.score) for piece in source.pieces] + sentinels
    steps: list[Any] = [normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), "▁")]
    with pipeline_errors(f"{origin} is not a SentencePiece model, or damaged"):
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
