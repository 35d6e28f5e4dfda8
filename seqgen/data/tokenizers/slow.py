"""Tokenizers that find added tokens first, and then cut the text between them: ByT5's, Marian's and M2M-100's."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

from tokenizers import AddedToken

from seqgen.core.errors import DataError
from seqgen.data.tokenizers import files as layout
from seqgen.data.tokenizers.base import SPACE, Tokenizer
from seqgen.data.tokenizers.files import AddedVocabulary, SpecialTokens, Token, TokenizerFiles
from seqgen.data.tokenizers.languages import M2M100, WMT21, Languages, TargetLanguage
from seqgen.data.tokenizers.pretrained_base import PretrainedTokenizer
from seqgen.data.tokenizers.sentencepiece_tokenizer import load_processor


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
        for alone, run in groupby(tokens, self._alone.__contains__):
            group = list(run)
            texts += group if alone else [self.join(group)]
        return self.clean_up(" ".join([text for text in texts[:-1] if text] + texts[-1:]))

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


BYT5_FIRST = ("<pad>", "</s>", "<unk>")
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
        # special tokens that the files give with flags replace the tokens of ``BYT5_FIRST``
        given_first = (special.named.get(key) for key in ("pad_token", "eos_token", "unk_token"))
        first = {i: token for i, token in enumerate(given_first) if isinstance(token, AddedToken)}
        special.added = {**first, **special.added}
        if special.additional != []:
            special.add_sentinels(125, alone=True)
        tokens = dict(enumerate([*BYT5_FIRST, *map(chr, range(256))]))
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
        return ord(piece) + len(BYT5_FIRST)

    def token_bytes(self) -> list[bytes | None]:
        """See ``Tokenizer.token_bytes``."""
        first, added = len(BYT5_FIRST), self.added.tokens
        ids = range(len(self.dictionary))
        return [bytes([i - first]) if 0 <= i - first < 256 and i not in added else None for i in ids]

    def join(self, pieces: list[str]) -> str:
        """See ``SlowTokenizer.join``; bytes that are not valid UTF-8 are left out."""
        content = (piece.encode() if piece in self.added.ids else bytes([ord(piece)]) for piece in pieces)
        return b"".join(content).decode(errors="ignore")


CODES = {"m2m100": M2M100, "wmt21": WMT21}
M2M100_FORMAT, MARIAN_FORMAT = "__{}__", ">>{}<<"
"""The token of a language, by its code."""
_MARIAN_CODE = re.compile(r">>(.*?)<<", re.DOTALL)

SOURCE, TARGET = "source", "target"
M2M100_NAMED = {**layout.DEFAULTS, "bos_token": "<s>", "sep_token": "</s>"}


class VocabularyTokenizer(SlowTokenizer):
    """A tokenizer that cuts text with SentencePiece, and whose pieces have the ids of a vocabulary file.

    Args:
        name: the file of the SentencePiece model.
        ids: the id of each piece.
        files: its files.
        arguments: the others of ``SlowTokenizer``.
    """

    after_special = ""
    """What follows a special token that is written between two texts."""

    def __init__(self, name: str, ids: dict[str, int], files: TokenizerFiles, *arguments: Any):
        self._ids = ids
        self._processor = load_processor(files.need(name), f"{files.location}/{name}")
        super().__init__(files, *arguments)

    def pieces(self, text: str) -> list[str]:
        """See ``SlowTokenizer.pieces``."""
        pieces: list[str] = self._processor.encode(text, out_type=str)
        return pieces

    def piece_id(self, piece: str) -> int:
        """See ``SlowTokenizer.piece_id``."""
        return self._ids.get(piece, self._ids[str(self.special.named["unk_token"])])

    def join(self, pieces: list[str]) -> str:
        """See ``SlowTokenizer.join``; special tokens are not given to SentencePiece."""
        decode: Callable[[list[str]], str] = self._processor.decode
        text = ""
        for special, run in groupby(pieces, self._special.__contains__):
            group = list(run)
            text += "".join(piece + self.after_special for piece in group) if special else decode(group)
        return text.strip()


class M2M100Tokenizer(VocabularyTokenizer):
    """M2M-100's tokenizer. The ids of the languages follow those of the vocabulary.

    Args:
        files: its files.
        vocab_size: see ``load_pretrained_tokenizer``.

    Raises:
        DataError: a file is missing or damaged.
        ConfigError: a language in the configuration does not exist.
    """

    def __init__(self, files: TokenizerFiles, vocab_size: int | None = None):
        special = SpecialTokens.read(files)
        special.fill(M2M100_NAMED)
        vocabulary = read_vocabulary(files, layout.VOCAB_FILE, str(special.named["unk_token"]))
        name = str(special.config.get("language_codes", "m2m100"))
        if name not in CODES:
            raise DataError(f"{files.location}/{layout.CONFIG_FILE}: language_codes={name} is neither m2m100 nor wmt21")
        codes = {code: len(vocabulary) + i for i, code in enumerate(CODES[name])}
        unlisted = {index: M2M100_FORMAT.format(code) for code, index in codes.items()}
        ids = {**vocabulary, **{token: index for index, token in unlisted.items()}}
        pieces = {index: piece for piece, index in vocabulary.items()}
        super().__init__(layout.FAIRSEQ_MODEL_FILE, ids, files, special, pieces, len(pieces), vocab_size, unlisted)
        languages = Languages(codes, TargetLanguage.FIRST, "en", token_format=M2M100_FORMAT)
        self.languages = languages.checked(f"{files.location}/{layout.CONFIG_FILE}", special.config)


def read_vocabulary(files: TokenizerFiles, name: str, *needed: str) -> dict[str, int]:
    """Read a file with the id of each piece.

    Args:
        files: the tokenizer's files.
        name: the file.
        needed: tokens that it must contain.

    Raises:
        DataError: the file is missing or damaged.
    """
    files.need(name)
    ids, where = files.json(name), f"{files.location}/{name}"
    if not ids or {type(index) for index in ids.values()} != {int} or sorted(ids.values()) != list(range(len(ids))):
        raise DataError(f"{where} is damaged: its ids are not the numbers from 0 to {len(ids) - 1}; copy it again")
    for token in needed:
        if token not in ids:
            raise DataError(f"{where} does not contain {token!r}, which {layout.CONFIG_FILE} names; copy both again")
    return ids


class MarianTokenizer(VocabularyTokenizer):
    """The tokenizer of one side of a Marian model.

    A text can begin with the token of the target language, such as ``>>fra<<``.

    Args:
        files: its files; both sides have the same ones.
        vocab_size: see ``load_pretrained_tokenizer``.
        side: ``source`` or ``target``.
        target_vocab_size: ``vocab_size`` of the target with ``separate_vocabs``; otherwise it has no effect.

    Raises:
        DataError: a file is missing or damaged.
    """

    def __init__(
        self,
        files: TokenizerFiles,
        vocab_size: int | None = None,
        side: str = SOURCE,
        target_vocab_size: int | None = None,
    ):
        self.side, self.target_vocab_size = side, target_vocab_size
        self.further = {"target_vocab_size": target_vocab_size, "side": side}
        special = SpecialTokens.read(files)
        special.fill()
        self.separate = bool(special.config.get("separate_vocabs"))
        needed = (str(special.named[key]) for key in ("unk_token", "pad_token"))
        listed = read_vocabulary(files, layout.VOCAB_FILE, *needed)
        by_id = {index: piece for piece, index in listed.items()}
        add_tokens(special.all(), special.added, by_id)  # both sides have the special tokens of the source
        ids = listed
        if self.separate and side == TARGET:
            ids = read_vocabulary(files, layout.TARGET_VOCAB_FILE, str(special.named["unk_token"]))
        name = layout.TARGET_MODEL_FILE if side == TARGET else layout.SOURCE_MODEL_FILE
        pieces = {index: piece for piece, index in ids.items()}
        super().__init__(name, ids, files, special, pieces, len(listed), vocab_size)
        names = {found[1]: index for token, index in listed.items() if (found := _MARIAN_CODE.fullmatch(token))}
        if names:
            self.languages = Languages(names, TargetLanguage.SOURCE, token_format=MARIAN_FORMAT, in_text=True)

    @cached_property
    def target_side(self) -> Tokenizer:  # type: ignore[override]
        """See ``Tokenizer.target_side``."""
        if self.side == TARGET:
            return self
        return MarianTokenizer(self.files, self.target_vocab_size if self.separate else self.vocab_size, TARGET)

    def pieces(self, text: str) -> list[str]:
        """See ``SlowTokenizer.pieces``; the token of a language at the beginning is one piece."""
        found = _MARIAN_CODE.match(text)
        return [found[0], *super().pieces(text[found.end() :])] if found else super().pieces(text)

    after_special = " "

    def join(self, pieces: list[str]) -> str:
        """See ``SlowTokenizer.join``."""
        return super().join(pieces).replace(SPACE, " ").strip()

    def fingerprint(self) -> str:
        """See ``Tokenizer.fingerprint``."""
        return f"{super().fingerprint()}:{self.side}"
