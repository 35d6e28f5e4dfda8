"""ByT5's tokenizer, whose tokens are bytes."""

from __future__ import annotations

from tokenizers import AddedToken

from seqgen.data.tokenizers.base import SENTINEL, TokenBytes
from seqgen.data.tokenizers.files import TokenizerFiles
from seqgen.data.tokenizers.slow import SlowTokenizer
from seqgen.data.tokenizers.special_tokens import SpecialTokens

FIRST = ("<pad>", "</s>", "<unk>")
"""The tokens with the ids 0 to 2; the bytes follow from id 3."""


class ByteTokenizer(SlowTokenizer):
    """ByT5's tokenizer (Xue et al. 2022): byte ``b`` has the id ``b + 3``, and sentinel ``i`` has the id ``259 + i``.

    Args:
        files: its files; there is no model file.
        vocab_size: see ``load_pretrained_tokenizer``.

    Raises:
        DataError: a file is damaged.
    """

    def __init__(self, files: TokenizerFiles, vocab_size: int | None = None):
        special = SpecialTokens.read(files)
        special.fill(lstrip=True, rstrip=True)
        # special tokens that the files give with flags replace the tokens of ``FIRST``
        given_first = (special.named.get(key) for key in ("pad_token", "eos_token", "unk_token"))
        first = {i: token for i, token in enumerate(given_first) if isinstance(token, AddedToken)}
        special.added = {**first, **special.added}
        count = special.number("extra_ids", 125)
        if count and special.additional is None:
            special.additional = [SENTINEL.format(i) for i in range(count)]
        elif count and special.additional:
            given = len({str(token) for token in special.additional if "extra_id" in str(token)})
            if given != count:
                raise special.differing_sentinels(count, given)
        tokens = dict(enumerate([*FIRST, *map(chr, range(256))]))
        super().__init__(files, special, tokens, 256, vocab_size)

    def encode(self, text: str) -> list[int]:
        """See ``Tokenizer.encode``; end-of-sentence at the end of the text is left out, as the caller appends it."""
        ids = super().encode(text)
        return ids[:-1] if ids and ids[-1] == self.dictionary.eos() else ids

    def pieces(self, text: str) -> list[str]:
        """See ``SlowTokenizer.pieces``."""
        return [chr(byte) for byte in text.encode()]

    def piece_id(self, piece: str) -> int:
        """See ``SlowTokenizer.piece_id``."""
        return ord(piece) + len(FIRST)

    def token_bytes(self) -> TokenBytes:
        """See ``Tokenizer.token_bytes``."""
        pieces: TokenBytes = [None] * len(self.dictionary)
        for byte in range(256):
            index = byte + len(FIRST)
            pieces[index] = None if index in self.added.tokens else bytes([byte])
        return pieces

    def join(self, pieces: list[str]) -> str:
        """See ``SlowTokenizer.join``; bytes that are not valid UTF-8 are left out."""
        content = (piece.encode() if piece in self.added.ids else bytes([ord(piece)]) for piece in pieces)
        return b"".join(content).decode(errors="ignore")
