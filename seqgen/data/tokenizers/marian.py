"""Tokenizers of SentencePiece models and a vocabulary with the ids: Marian's and M2M-100's."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from seqgen.data.tokenizers.base import SPACE, Tokenizer, write_settings
from seqgen.data.tokenizers.files import (
    CONFIG_FILE,
    FAIRSEQ_MODEL_FILE,
    MAX_IDS,
    SOURCE_MODEL_FILE,
    TARGET_MODEL_FILE,
    TARGET_VOCAB_FILE,
    VOCAB_FILE,
    SpecialTokens,
    TokenizerFiles,
)
from seqgen.data.tokenizers.languages import M2M100, WMT21, Languages, TargetLanguage
from seqgen.data.tokenizers.sentencepiece_tokenizer import load_processor
from seqgen.data.tokenizers.slow import SlowTokenizer, add_tokens
from seqgen.errors import DataError, nearest

CODES = {"m2m100": M2M100, "wmt21": WMT21}
M2M100_FORMAT, MARIAN_FORMAT = "__{}__", ">>{}<<"
"""The token of a language, by its code."""

SOURCE, TARGET = "source", "target"
NAMED = {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


class VocabularyTokenizer(SlowTokenizer):
    """A tokenizer that cuts text with SentencePiece, and whose pieces have the ids of a vocabulary file.

    Args:
        processor: the ``SentencePieceProcessor``.
        ids: the id of each piece.
        arguments: those of ``SlowTokenizer``.
    """

    def __init__(self, processor: Any, ids: dict[str, int], *arguments: Any):
        self._processor, self._ids = processor, ids
        super().__init__(*arguments)

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
        run: list[str] = []
        for piece in pieces:
            if piece in self._special:
                text += decode(run) + self.written(piece)
                run = []
            else:
                run.append(piece)
        return (text + decode(run)).strip()

    def written(self, token: str) -> str:
        """A special token as it is written between two texts."""
        return token


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
        special.fill(NAMED)
        processor = load_processor(files.need(FAIRSEQ_MODEL_FILE), f"{files.origin}/{FAIRSEQ_MODEL_FILE}")
        vocabulary = read_vocabulary(files, VOCAB_FILE, str(special.named["unk_token"]))
        name = str(special.config.get("language_codes", "m2m100"))
        if name not in CODES:
            raise DataError(
                f"{files.origin}/{CONFIG_FILE}: language_codes is {name!r}{nearest(name, CODES)}; it must be one of "
                f"{', '.join(CODES)}"
            )
        codes = {code: len(vocabulary) + i for i, code in enumerate(CODES[name])}
        unlisted = {index: M2M100_FORMAT.format(code) for code, index in codes.items()}
        ids = {**vocabulary, **{token: index for index, token in unlisted.items()}}
        pieces = {index: piece for piece, index in vocabulary.items()}
        super().__init__(processor, ids, files, special, pieces, len(pieces), vocab_size, unlisted)
        source, target = (special.config.get(key) for key in ("src_lang", "tgt_lang"))
        default = str("en" if source is None else source)
        languages = Languages(codes, TargetLanguage.FIRST, default, False, str(target or ""), M2M100_FORMAT)
        self.languages = languages.checked(f"{files.origin}/{CONFIG_FILE}")


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
    ids, where = files.json(name), f"{files.origin}/{name}"
    if not ids or len(ids) > MAX_IDS or not all(type(index) is int for index in ids.values()):
        raise DataError(f"{where} does not contain pieces with their ids; copy it again")
    if sorted(ids.values()) != list(range(len(ids))):
        raise DataError(f"{where} is damaged: its {len(ids)} ids are not the numbers from 0 to {len(ids) - 1}")
    for token in needed:
        if token not in ids:
            raise DataError(f"{where} does not contain {token!r}, which {CONFIG_FILE} names; copy both files again")
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
        self.side = side
        self.target_vocab_size = target_vocab_size
        special = SpecialTokens.read(files)
        special.fill()
        self.separate = bool(special.config.get("separate_vocabs"))
        listed = read_vocabulary(files, VOCAB_FILE, *(str(special.named[key]) for key in ("unk_token", "pad_token")))
        by_id = {index: piece for piece, index in listed.items()}
        add_tokens(special.all(), special.added, by_id)  # both sides have the special tokens of the source
        ids = listed
        if self.separate and side == TARGET:
            ids = read_vocabulary(files, TARGET_VOCAB_FILE, str(special.named["unk_token"]))
        name = TARGET_MODEL_FILE if side == TARGET else SOURCE_MODEL_FILE
        processor = load_processor(files.need(name), f"{files.origin}/{name}")
        pieces = {index: piece for piece, index in ids.items()}
        super().__init__(processor, ids, files, special, pieces, len(listed), vocab_size)
        before, after = MARIAN_FORMAT.split("{}")
        codes = {token: index for token, index in listed.items() if token.startswith(before) and token.endswith(after)}
        if codes:
            names = {token.removeprefix(before).removesuffix(after): index for token, index in codes.items()}
            self.languages = Languages(names, TargetLanguage.SOURCE, token_format=MARIAN_FORMAT, in_text=True)

    @cached_property
    def target_side(self) -> Tokenizer:  # type: ignore[override]
        """See ``Tokenizer.target_side``."""
        if self.side == TARGET:
            return self
        return MarianTokenizer(self.files, self.target_vocab_size if self.separate else self.vocab_size, TARGET)

    def pieces(self, text: str) -> list[str]:
        """See ``SlowTokenizer.pieces``; the token of a language at the beginning is one piece."""
        before, after = MARIAN_FORMAT.split("{}")
        end = text.find(after) + len(after)
        if not text.startswith(before) or end < len(after):
            return super().pieces(text)
        return [text[:end], *super().pieces(text[end:])]

    def join(self, pieces: list[str]) -> str:
        """See ``SlowTokenizer.join``."""
        return super().join(pieces).replace(SPACE, " ").strip()

    def written(self, token: str) -> str:
        """A special token, followed by a space."""
        return token + " "

    def fingerprint(self) -> str:
        """See ``Tokenizer.fingerprint``."""
        return f"{super().fingerprint()}:{self.side}"

    def save(self, folder: Path) -> None:
        """See ``Tokenizer.save``."""
        super().save(folder)
        sizes = {"vocab_size": self.vocab_size, "target_vocab_size": self.target_vocab_size}
        write_settings(folder, {"tokenizer": "pretrained", **sizes, "side": self.side})

    def __reduce__(self) -> tuple[Any, ...]:
        return MarianTokenizer, (self.files, self.vocab_size, self.side, self.target_vocab_size)
