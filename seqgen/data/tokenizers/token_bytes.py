"""The bytes of single tokens: what each token adds to a text, for tokenizers whose tokens are spelled in known ways."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from seqgen.errors import ConfigError

TokenBytes = list[bytes | None]
"""The bytes of each id; ``None`` for a token without text, such as end-of-sentence, padding or the unknown token."""

SPACE = "▁"
"""The character by which SentencePiece marks a space."""
_FALLBACK = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}


def of_spaced_pieces(pieces: Sequence[str | None], silent: Collection[int | None]) -> TokenBytes:
    """The bytes of SentencePiece's pieces: ``▁`` is a space, and ``<0xE4>`` a byte if all 256 bytes are pieces.

    Args:
        pieces: the piece of each id; ``None`` for an unused id.
        silent: ids without text.
    """
    fallback = _FALLBACK if set(pieces) >= set(_FALLBACK) else {}
    return [
        (fallback.get(piece) or piece.replace(SPACE, " ").encode()) if piece and i not in silent else None
        for i, piece in enumerate(pieces)
    ]


def of_byte_characters(tokens: Sequence[str | None], silent: Collection[int | None]) -> TokenBytes:
    """The bytes of GPT-2's tokens, in which every byte is written as a printable character: ``Ġ`` is a space.

    Args:
        tokens: the token of each id; ``None`` for an unused id.
        silent: ids without text.
    """
    byte_of = dict(_byte_characters())
    return [
        bytes(byte_of[character] for character in token)
        if token and i not in silent and all(character in byte_of for character in token)
        else None
        for i, token in enumerate(tokens)
    ]


def _byte_characters() -> Iterator[tuple[str, int]]:
    """Printable bytes are their own characters; the n-th of the others is the character ``256 + n``."""
    others = 0
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174:
            yield chr(byte), byte
        else:
            yield chr(256 + others), byte
            others += 1


def no_token_bytes(tokenizer: object) -> ConfigError:
    """The error for a tokenizer that does not implement ``token_bytes``."""
    return ConfigError(
        f"{type(tokenizer).__name__} does not return the bytes of its tokens, which members with different target "
        "vocabularies need to agree on a text; implement its token_bytes, or leave out this model"
    )
