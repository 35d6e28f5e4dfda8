"""Python tokenizers of T5: SentencePiece with sentinels, with and without ``legacy``, and the bytes of ByT5."""

from __future__ import annotations

from tokenizers import AddedToken

from seqgen.data.tokenizers.base import SENTINEL, SPACE, TokenBytes
from seqgen.data.tokenizers.files import MODEL_FILE, TokenizerFiles
from seqgen.data.tokenizers.sentencepiece_tokenizer import load_processor
from seqgen.data.tokenizers.slow import OnceEndedTokenizer, SentencePieceSlowTokenizer, join_spaced
from seqgen.data.tokenizers.special_tokens import SpecialTokens

NO_DUMMY_PREFIX = b"\x1a\x02\x18\x00"
"""Bytes that, appended to a model file, set ``normalizer_spec.add_dummy_prefix`` (field 3 of field 3) to false: parsing
two concatenated protocol buffers merges the second into the first."""


class SlowT5Tokenizer(OnceEndedTokenizer, SentencePieceSlowTokenizer):
    """T5's Python tokenizer, which finds the sentinels in a text and gives the parts between them to SentencePiece.

    With ``legacy``, SentencePiece adds a space before each part. Without, a space is added only at the beginning of the
    text.

    Args:
        files: its files.
        vocab_size: see ``load_pretrained_tokenizer``.

    Raises:
        DataError: a file is missing or damaged.
    """

    def __init__(self, files: TokenizerFiles, vocab_size: int | None = None):
        special = SpecialTokens.read(files)
        legacy = special.config.get("legacy")
        self.legacy = legacy is None or bool(legacy)
        self.add_prefix_space = bool(special.config.get("add_prefix_space", True))
        model = files.need(MODEL_FILE)
        processor = load_processor(model, f"{files.origin}/{MODEL_FILE}")
        if not self.legacy:
            processor = load_processor(model + NO_DUMMY_PREFIX, f"{files.origin}/{MODEL_FILE}")
        size = processor.vocab_size()
        top = size - 1 + special.number("extra_ids", 100)
        flags = {"lstrip": True, "rstrip": True, "normalized": False, "special": True}
        count = special.add_t5_sentinels()
        own = {top - i: AddedToken(SENTINEL.format(i), **flags) for i in range(count)}
        special.added = {**own, **special.added}
        special.fill(special=True)
        pieces = {i: processor.id_to_piece(i) for i in range(size)}
        super().__init__(processor, files, special, pieces, size, vocab_size)
        self._unk = str(special.named["unk_token"])
        self._unk_length = len(processor.encode(self._unk))

    def tokenize(self, text: str) -> list[str]:
        """See ``SlowTokenizer.tokenize``."""
        if self.legacy or not text:
            return super().tokenize(text)
        text = text.replace(SPACE, " ")
        tokens = super().tokenize(SPACE + text if self.add_prefix_space else text)
        return tokens[1:] if len(tokens) > 1 and tokens[0] == SPACE and tokens[1] in self._special else tokens

    def pieces(self, text: str) -> list[str]:
        """See ``SlowTokenizer.pieces``."""
        if self.legacy or not text.startswith((SPACE, " ")):
            return super().pieces(text)
        # SentencePiece drops a leading space; a prefix that is removed afterwards keeps it: "<unk> a" -> < unk > ▁a
        pieces = super().pieces(self._unk + text)
        return pieces[self._unk_length :] if len(pieces) >= self._unk_length else pieces

    def join(self, pieces: list[str]) -> str:
        """See ``SlowTokenizer.join``."""
        if self.add_prefix_space and pieces[0].startswith(SPACE):
            pieces = [pieces[0][1:], *pieces[1:]]
        return join_spaced(pieces, self._special, self._text)


FIRST = ("<pad>", "</s>", "<unk>")
"""The tokens with the ids 0 to 2; the bytes follow from id 3."""


class ByteTokenizer(OnceEndedTokenizer):
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
