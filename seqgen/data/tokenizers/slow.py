"""The base class of tokenizers that find added tokens first, and then cut the text between them into pieces."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from tokenizers import AddedToken

from seqgen.data.tokenizers.base import SENTINEL, SPACE, TokenBytes
from seqgen.data.tokenizers.files import AddedVocabulary, SpecialTokens, Token, TokenizerFiles
from seqgen.data.tokenizers.pretrained_base import PretrainedTokenizer


class SlowTokenizer(PretrainedTokenizer):
    """A tokenizer that cuts a text at its added tokens and then each part into pieces.

    ``transformers`` calls these tokenizers slow: those of Marian, M2M-100 and ByT5. A subclass implements ``pieces``,
    ``piece_id`` and ``join``.

    Args:
        files: its files.
        special: its special tokens; those that are missing from ``special.added`` are added to it.
        pieces: its pieces by id.
        base_size: number of ids of the pieces; a special token with a lower id is a piece, not an addition.
        vocab_size: see ``load_pretrained_tokenizer``.
        unlisted: further tokens by id, which a text does not contain unless they are among ``special``.
    """

    def __init__(
        self,
        files: TokenizerFiles,
        special: SpecialTokens,
        pieces: Mapping[int, str],
        base_size: int,
        vocab_size: int | None,
        unlisted: Mapping[int, str] | None = None,
    ):
        tokens = dict(pieces)
        add_tokens(special.all(), special.added, tokens)
        self.added = AddedVocabulary(special.added)
        tokens.update({**(unlisted or {}), **{index: token.content for index, token in special.added.items()}})
        self._tokens = tokens
        self._special = {str(token) for token in special.all()}
        above = {str(t) for t in special.additional or [] if self.added.ids.get(str(t), 0) >= base_size}
        self._alone = (set(self.added.ids) - self._special) | above
        if "backend" in special.config:  # version 5 of transformers decodes without spaces around added tokens
            self._alone = set()
        super().__init__(files, special, tokens, vocab_size)

    @abstractmethod
    def pieces(self, text: str) -> list[str]:
        """Cut a text that contains no added token into pieces.

        Args:
            text: the text between two added tokens.

        Returns:
            The strings of the pieces, in order.
        """

    @abstractmethod
    def piece_id(self, piece: str) -> int:
        """The id of a piece.

        Args:
            piece: its string, as ``pieces`` returns it.
        """

    @abstractmethod
    def join(self, pieces: list[str]) -> str:
        """Join pieces into text.

        Args:
            pieces: the strings of the pieces, at least one.
        """

    def tokenize(self, text: str) -> list[str]:
        """Cut a text into added tokens and pieces.

        Args:
            text: one line.

        Returns:
            The strings of the tokens, in order.
        """
        if self.special.config.get("split_special_tokens"):
            return self.pieces(text) if text else []
        parts = self.added.split(text)
        return [token for part in parts for token in ([part] if part in self.added.ids else self.pieces(part))]

    def encode(self, text: str) -> list[int]:
        """See ``Tokenizer.encode``."""
        added = self.added.ids
        return [added[token] if token in added else self.piece_id(token) for token in self.tokenize(text)]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """See ``PretrainedTokenizer.decode``."""
        tokens = [self._tokens[index] for index in ids if index in self._tokens]
        if skip_special_tokens:
            tokens = [token for token in tokens if token not in self._special]
        texts: list[str] = []
        run: list[str] = []
        for token in tokens:
            if token not in self._alone:
                run.append(token)
                continue
            if run and (text := self.join(run)):
                texts.append(text)
            texts.append(token)
            run = []
        if run:
            texts.append(self.join(run))
        return self.clean_up(" ".join(texts))

    def tokens_and_added(self) -> tuple[list[str | None], set[int]]:
        """See ``PretrainedTokenizer.tokens_and_added``."""
        tokens = [self._tokens.get(i) for i in range(len(self.dictionary))]
        return tokens, {*self.added.tokens, *(i for i, token in enumerate(tokens) if token in self._special)}

    def unknown(self, text: str) -> list[str]:
        """See ``Tokenizer.unknown``."""
        pieces = [piece for piece in self.tokenize(text) if piece not in self.added.ids]
        lacking = [piece.strip(SPACE) for piece in pieces if self.piece_id(piece) == self.dictionary.unk()]
        return [piece for piece in lacking if piece]


def add_tokens(tokens: Iterable[Token], added: dict[int, AddedToken], pieces: dict[int, str]) -> None:
    """Add special tokens to the added tokens; those that are not pieces get the next free ids.

    Args:
        tokens: the special tokens.
        added: the added tokens by id; changed in place.
        pieces: the pieces by id.
    """
    ids = {piece: index for index, piece in pieces.items() if index not in added}
    ids.update((token.content, index) for index, token in added.items())
    known = {token.content for token in added.values()}
    for token in tokens:
        if isinstance(token, str):
            if token in known:
                continue
            token = AddedToken(token, special=True, normalized=False)
        token.special = True
        index = ids.setdefault(token.content, len(ids))
        known.add(token.content)
        added[index] = token


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
