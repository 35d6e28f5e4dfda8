"""The base class of tokenizers that find added tokens first, and then cut the text between them into pieces."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from tokenizers import AddedToken

from seqgen.data.tokenizers.base import SPACE
from seqgen.data.tokenizers.files import TokenizerFiles
from seqgen.data.tokenizers.pretrained_base import PretrainedTokenizer
from seqgen.data.tokenizers.special_tokens import AddedVocabulary, SpecialTokens, Token


class SlowTokenizer(PretrainedTokenizer):
    """A tokenizer that cuts a text at its added tokens and then each part into pieces.

    ``transformers`` calls these tokenizers slow. A subclass implements ``pieces``, ``piece_id`` and ``join``.

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


class SentencePieceSlowTokenizer(SlowTokenizer):
    """A tokenizer that cuts a text at its added tokens and gives each part to SentencePiece.

    Args:
        processor: the ``SentencePieceProcessor``.
        arguments: those of ``SlowTokenizer``.

    Attributes:
        offset: the difference between the id of a piece and its number in the model.
    """

    offset = 0

    def __init__(self, processor: Any, *arguments: Any):
        self._processor = processor
        super().__init__(*arguments)

    def pieces(self, text: str) -> list[str]:
        """See ``SlowTokenizer.pieces``."""
        pieces: list[str] = self._processor.encode(text, out_type=str)
        return pieces

    def piece_id(self, piece: str) -> int:
        """See ``SlowTokenizer.piece_id``."""
        index: int = self._processor.piece_to_id(piece)
        return index + self.offset

    def _text(self, pieces: list[str]) -> str:
        text: str = self._processor.decode(pieces)
        return text

    def join(self, pieces: list[str]) -> str:
        """See ``SlowTokenizer.join``; special tokens are not given to SentencePiece."""
        text = ""
        run: list[str] = []
        for piece in pieces:
            if piece in self._special:
                text += self._text(run) + self.written(piece)
                run = []
            else:
                run.append(piece)
        return (text + self._text(run)).strip()

    def written(self, token: str) -> str:
        """A special token as it is written between two texts."""
        return token


def join_spaced(pieces: Sequence[str], special: Collection[str], text_of: Callable[[list[str]], str]) -> str:
    """Join pieces and special tokens as T5 and mBART-50 do.

    Args:
        pieces: the strings of the pieces.
        special: the special tokens. A space is written before the text that precedes the first of several.
        text_of: joins the pieces between two special tokens.
    """
    text = ""
    run: list[str] = []
    after_special = False
    for piece in pieces:
        if piece in special:
            text += ("" if after_special else " ") + text_of(run) + piece
            run = []
        else:
            run.append(piece)
        after_special = piece in special
    return (text + text_of(run)).strip()


class OnceEndedTokenizer(SlowTokenizer):
    """A tokenizer of T5's family: if a text ends with end-of-sentence, no second one is appended."""

    def encode(self, text: str) -> list[int]:
        """See ``Tokenizer.encode``; end-of-sentence at the end of the text is left out, as the caller appends it."""
        ids = super().encode(text)
        return ids[:-1] if ids and ids[-1] == self.dictionary.eos() else ids


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
