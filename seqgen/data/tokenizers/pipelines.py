"""Pipelines of the ``tokenizers`` library: conversion from SentencePiece, and limits.

The steps of a ``tokenizer.json`` rewrite a text one after the other. Thirty-two steps that replace each character by
two make four billion characters of one, and the library has no limit. Therefore the steps are checked first.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer as Pipeline, decoders, models, normalizers, pre_tokenizers

from seqgen.core.errors import DataError
from seqgen.system.error_messages import library_errors

MAX_GROWTH = 1000
"""Maximum factor by which a text may grow; that of T5 and related tokenizers is below 50."""

_GROWTH = {"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18, "Lowercase": 3, "BertNormalizer": 3, "ByteLevel": 2}
"""Maximum factor by which a step of each type lets a text grow; 2 for other types."""
_SHRINKING = frozenset({"Strip", "StripAccents", "Nmt", "Fuse", "Split", "Whitespace", "WhitespaceSplit", "Digits"})
"""Types of steps that never make a text longer."""
_NESTED = ("normalizers", "pretokenizers", "decoders")


def check_growth(pipeline: dict[str, Any], location: str) -> None:
    """Check that the steps of a pipeline cannot make a text more than ``MAX_GROWTH`` times longer.

    Args:
        pipeline: the content of a ``tokenizer.json``.
        location: the file, for messages.

    Raises:
        DataError: they can, or a table in them is damaged.
    """
    try:
        encoding = _growth(pipeline.get("normalizer")) * _growth(pipeline.get("pre_tokenizer"))
        decoding = _growth(pipeline.get("decoder"))
    except ValueError as error:
        raise DataError(f"{location} is damaged: {error}; copy it again") from None
    if max(encoding, decoding) > MAX_GROWTH:
        raise DataError(
            f"{location} has steps (such as Replace) that can make a text more than {MAX_GROWTH} times longer; "
            "use the tokenizer as its authors published it"
        )


def _growth(step: Any) -> float:
    """Maximum factor by which a step, including its inner steps, lets a text grow."""
    if not isinstance(step, dict):
        return 1.0
    kind = str(step.get("type"))
    if kind == "Sequence":
        total = 1.0
        for key in _NESTED:
            for inner in step[key] if isinstance(step.get(key), list) else []:
                total = min(total * _growth(inner), MAX_GROWTH + 1.0)  # the limit avoids an overflow
        return total
    if kind == "Replace":
        pattern, length = step.get("pattern"), len(str(step.get("content", "")))
        text = pattern.get("String") if isinstance(pattern, dict) else pattern
        # a regular expression may match the empty text, between any two characters
        return max(1.0, length / len(text)) if isinstance(text, str) and text else 1.0 + length
    if kind == "Prepend":
        return 1.0 + len(str(step.get("prepend", "")))
    if kind == "Precompiled":
        return _longest_in_charsmap(step.get("precompiled_charsmap"))
    return 1.0 if kind in _SHRINKING else _GROWTH.get(kind, 2.0)


def _longest_in_charsmap(encoded: Any) -> float:
    """Length of the longest replacement in SentencePiece's table: size of the index, index, null-terminated texts.

    Raises:
        ValueError: it is no such table; the library would panic, and print that.
    """
    try:
        table = base64.b64decode(encoded, validate=True)
        size = int.from_bytes(table[:4], "little")
        table[4 + size :].decode()
        if size < 4 or size % 4 or len(table) < 4 + size:
            raise ValueError
    except (ValueError, TypeError):
        raise ValueError("a precompiled_charsmap is not one of SentencePiece") from None
    return float(max(1, *(len(text.decode()) for text in table[4 + size :].split(b"\0"))))


UNIGRAM, BPE = 1, 2
"""Numbers of the algorithms in SentencePiece's file format."""
CONTROL, USER_DEFINED = 3, 4
"""Numbers of two kinds of pieces in SentencePiece's file format."""


class Piece(NamedTuple):
    """A piece of a model.

    Attributes:
        text: its string.
        score: its log-probability, in nats.
        kind: ``CONTROL``, ``USER_DEFINED`` or another kind of the file format.
    """

    text: str
    score: float
    kind: int


class Model(NamedTuple):
    """The parts of a SentencePiece model that a pipeline needs.

    Attributes:
        location: its file, for messages.
        pieces: the pieces in the order of their ids.
        algorithm: ``UNIGRAM``, ``BPE`` or another number.
        unk: id of the unknown piece.
        unk_piece: the unknown piece.
        byte_fallback: whether the bytes of unknown characters are pieces.
        charsmap: the compiled table of character normalization; empty if the model has none.
    """

    location: str
    pieces: list[Piece]
    algorithm: int
    unk: int
    unk_piece: str
    byte_fallback: bool
    charsmap: bytes

    def vocabulary(self, first: int = 0) -> list[tuple[str, float]]:
        """The pieces and their scores.

        Args:
            first: pieces with lower ids are left out.
        """
        return [(piece.text, piece.score) for piece in self.pieces[first:]]


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Read the fields of a serialized protocol buffer.

    Args:
        message: the bytes.

    Yields:
        The number of each field and its value: an integer, or bytes.

    Raises:
        ValueError: the bytes are not a protocol buffer.
        KeyError: likewise.
    """
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while at < len(message) and shift < 70:  # a varint has at most ten bytes
            byte = message[at]
            value, at, shift = value | (byte & 127) << shift, at + 1, shift + 7
            if byte < 128:
                return value
        raise ValueError("the message is truncated")

    while at < len(message):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            yield number, varint()
            continue
        size = varint() if kind == 2 else {1: 8, 5: 4}[kind]
        if at + size > len(message):
            raise ValueError("the message is truncated")
        at += size
        yield number, message[at - size : at]


def read_model_file(model: bytes, location: str) -> Model:
    """Read the parts of a SentencePiece model that a pipeline needs.

    Args:
        model: the content of the model's file.
        location: the file, for messages.

    Raises:
        DataError: ``model`` is not a SentencePiece model.
    """
    pieces: list[Piece] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    try:
        for number, value in fields(model):
            if number == 1:
                piece = dict(fields(value))
                score = struct.unpack("<f", piece.get(2, bytes(4)))[0]
                pieces.append(Piece(piece[1].decode(), score, piece.get(3, 1)))
            elif number in (2, 3):
                (trainer if number == 2 else normalizer).update(fields(value))
        unk_piece = trainer.get(45, b"<unk>").decode()
    except (ValueError, KeyError, TypeError, AttributeError, struct.error):
        pieces = []
    if not pieces:
        raise DataError(f"{location} is not a SentencePiece model, or is damaged")
    algorithm, unk, byte_fallback = trainer.get(3, UNIGRAM), trainer.get(40, 0), bool(trainer.get(35, False))
    return Model(location, pieces, algorithm, unk, unk_piece, byte_fallback, normalizer.get(2, b""))


def build_pipeline(
    source: Model,
    vocabulary: Sequence[tuple[str, float]],
    unk: int,
    scheme: str = "always",
    splits: bool = False,
) -> Pipeline:
    """Make the pipeline that ``transformers`` makes of a SentencePiece model, without tokens around a text.

    Args:
        source: the model.
        vocabulary: the tokens in the order of their ids, with their scores.
        unk: id of the unknown token.
        scheme: where a space is added: ``always``, ``first`` or ``never``.
        splits: whether the text is cut at white space first, so that spaces are not pieces.

    Returns:
        The pipeline.

    Raises:
        DataError: the model is damaged.
    """
    steps: list[Any] = [normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), "▁")]
    with library_errors(f"{source.location} is not a SentencePiece model, or is damaged"):
        pipeline = Pipeline(_algorithm(source, vocabulary, unk))
        if source.charsmap:
            steps.insert(0, normalizers.Precompiled(source.charsmap))
    pipeline.normalizer = normalizers.Sequence(steps)
    special = [piece for piece in source.pieces if piece.kind in (CONTROL, USER_DEFINED)]
    pipeline.add_tokens([AddedToken(p.text, normalized=False, special=p.kind == CONTROL) for p in special])
    spaces = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)
    pipeline.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces]) if splits else spaces
    text = decoders.Metaspace(replacement="▁", prepend_scheme=scheme)
    # transformers converts a model that writes unknown characters as bytes too, and loses these characters
    pipeline.decoder = decoders.Sequence([decoders.ByteFallback(), text]) if source.byte_fallback else text
    return pipeline


def _algorithm(source: Model, vocabulary: Sequence[tuple[str, float]], unk: int) -> Any:
    if source.algorithm == UNIGRAM:
        return models.Unigram(list(vocabulary), unk_id=unk, byte_fallback=source.byte_fallback)
    if source.algorithm != BPE:
        raise ValueError("it is neither a unigram nor a BPE model")
    ids = {token: index for index, (token, _) in enumerate(vocabulary)}
    pieces = {piece.text: index for index, piece in enumerate(source.pieces)}
    merges = []  # which SentencePiece stores only as scores of pieces
    for piece, score in dict(vocabulary).items():
        halves = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        possible = [(left, right, score) for left, right in halves if left in pieces and right in pieces]
        merges += sorted(possible, key=lambda merge: (pieces[merge[0]], pieces[merge[1]]))
    merges.sort(key=lambda merge: (merge[2], len(merge[0]), len(merge[1])), reverse=True)
    pairs = [(left, right) for left, right, _ in merges]
    return models.BPE(ids, pairs, unk_token=source.unk_piece, fuse_unk=True, byte_fallback=source.byte_fallback)
