"""Marian's tokenizer: one SentencePiece model for each side, and a vocabulary with the ids."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from seqgen.data.tokenizers.base import Tokenizer, write_settings
from seqgen.data.tokenizers.files import (
    SOURCE_MODEL_FILE,
    TARGET_MODEL_FILE,
    TARGET_VOCAB_FILE,
    VOCAB_FILE,
    TokenizerFiles,
)
from seqgen.data.tokenizers.languages import Languages, TargetLanguage
from seqgen.data.tokenizers.m2m100 import read_vocabulary
from seqgen.data.tokenizers.sentencepiece_tokenizer import load_processor
from seqgen.data.tokenizers.slow import SentencePieceSlowTokenizer, add_tokens
from seqgen.data.tokenizers.special_tokens import SpecialTokens
from seqgen.data.tokenizers.token_bytes import SPACE

FRAME = ">>{}<<"
SOURCE, TARGET = "source", "target"


class MarianTokenizer(SentencePieceSlowTokenizer):
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
        own = read_vocabulary(files, VOCAB_FILE, *(str(special.named[key]) for key in ("unk_token", "pad_token")))
        by_id = {index: piece for piece, index in own.items()}
        add_tokens(special.all(), special.added, by_id)  # both sides have the special tokens of the source
        self._ids = own
        if self.separate and side == TARGET:
            self._ids = read_vocabulary(files, TARGET_VOCAB_FILE, str(special.named["unk_token"]))
        name = TARGET_MODEL_FILE if side == TARGET else SOURCE_MODEL_FILE
        processor = load_processor(files.need(name), f"{files.origin}/{name}")
        pieces = {index: piece for piece, index in self._ids.items()}
        super().__init__(processor, files, special, pieces, len(own), vocab_size)
        before, after = FRAME.split("{}")
        codes = {token: index for token, index in own.items() if token.startswith(before) and token.endswith(after)}
        if codes:
            names = {token.removeprefix(before).removesuffix(after): index for token, index in codes.items()}
            self.languages = Languages(names, TargetLanguage.SOURCE, frame=FRAME, in_text=True)

    @cached_property
    def target_side(self) -> Tokenizer:  # type: ignore[override]
        """See ``Tokenizer.target_side``."""
        if self.side == TARGET:
            return self
        return MarianTokenizer(self.files, self.target_vocab_size if self.separate else self.vocab_size, TARGET)

    def pieces(self, text: str) -> list[str]:
        """See ``SlowTokenizer.pieces``; the token of a language at the beginning is one piece."""
        before, after = FRAME.split("{}")
        end = text.find(after) + len(after)
        if not text.startswith(before) or end < len(after):
            return super().pieces(text)
        return [text[:end], *super().pieces(text[end:])]

    def piece_id(self, piece: str) -> int:
        """See ``SlowTokenizer.piece_id``."""
        return self._ids.get(piece, self._ids[str(self.special.named["unk_token"])])

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
