"""The tokenizer of SentencePiece models (Kudo and Richardson 2018)."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import sentencepiece

from seqgen.data.dictionary import FAIRSEQ_SPECIALS, Dictionary
from seqgen.data.tokenizers.base import Tokenizer, register_tokenizer, write_settings
from seqgen.data.tokenizers.token_bytes import TokenBytes, of_spaced_pieces
from seqgen.errors import DataError
from seqgen.system.files import write_atomically
from seqgen.system.reading import read_bytes

MIN_SHARED = 0.1
"""Minimum fraction of a model's pieces in a given vocabulary; with fewer, the vocabulary is that of another model."""

# SentencePiece has a random generator for each thread, but one seed for all: no other thread may set it meanwhile.
_SAMPLING = threading.Lock()


def read_model(path: Path) -> bytes:
    """Read the file of a SentencePiece model.

    Args:
        path: the file.

    Returns:
        Its content.

    Raises:
        DataError: the file is missing or cannot be read.
    """
    try:
        return read_bytes(path)
    except FileNotFoundError:
        raise DataError(f"there is no SentencePiece model {path}") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None


@register_tokenizer("sentencepiece")
class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model, with its own ids or with those of a given vocabulary.

    Args:
        model: the content of the model's file.
        dictionary: a vocabulary such as fairseq's ``dict.txt``, in which the id of each piece is found by its string;
            ``None`` for the model's own ids.
        origin: the model's file, for messages.
        alpha: smoothing of sampled segmentations (unigram) or probability of dropping a merge (BPE).
        nbest: number of best segmentations to sample from; -1 for all (unigram only).

    Raises:
        DataError: ``model`` is not a SentencePiece model, or ``dictionary`` contains hardly any of its pieces.
    """

    def __init__(
        self,
        model: bytes,
        dictionary: Dictionary | None = None,
        *,
        origin: str = "the SentencePiece model",
        alpha: float = 0.1,
        nbest: int = -1,
    ):
        self.model = model
        self.alpha = alpha
        self.nbest = nbest
        self.native = dictionary is None
        self._processor = load_processor(model, origin)
        own = own_dictionary(self._processor)
        super().__init__(own if dictionary is None else dictionary)
        pieces = own.symbols[: self._processor.vocab_size()]
        self._own_unk = self._processor.unk_id()
        self._own_silent = {i for i in range(len(pieces)) if self._processor.is_control(i)}
        self._to_dictionary = None if dictionary is None else [dictionary.index(piece) for piece in pieces]
        ordinary = [piece for piece in pieces if piece not in FAIRSEQ_SPECIALS]
        if dictionary is not None and sum(piece in dictionary for piece in ordinary) < MIN_SHARED * len(ordinary):
            raise DataError(
                f"the vocabulary contains hardly any piece of {origin}; give the dict.txt that was made with it"
            )

    def encode(self, text: str) -> list[int]:
        """See ``Tokenizer.encode``."""
        ids: list[int] = self._processor.encode(text)
        return self._translate(ids, text)

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        """See ``Tokenizer.encode_lines``."""
        many: list[list[int]] = self._processor.encode(list(lines), num_threads=1)
        if self.native:
            return many
        return [self._translate(ids, text) for ids, text in zip(many, lines, strict=True)]

    def _translate(self, ids: list[int], text: str) -> list[int]:
        if self._to_dictionary is None:
            return ids
        if self._own_unk in ids:
            # a piece that is unknown to the model may still be a token of the vocabulary
            return [self.dictionary.word_index(piece) for piece in self._processor.encode(text, out_type=str)]
        return [self._to_dictionary[i] for i in ids]

    def decode(self, ids: Sequence[int]) -> str:
        """See ``Tokenizer.decode``."""
        text: str
        if self._to_dictionary is None:
            size = self._processor.vocab_size()
            text = self._processor.decode([i for i in ids if i < size and i not in self._own_silent])
        else:
            dictionary = self.dictionary
            silent = {dictionary.pad(), dictionary.eos(), dictionary.bos()}
            text = self._processor.decode([dictionary.symbol(i) for i in ids if i not in silent])
        return text

    def sample(self, text: str, seed: int) -> list[int]:
        """See ``Tokenizer.sample``."""
        out_type = int if self.native else str
        with _SAMPLING:
            sentencepiece.set_random_generator_seed(seed)
            pieces = self._processor.encode(
                text, out_type=out_type, enable_sampling=True, alpha=self.alpha, nbest_size=self.nbest
            )
        return list(pieces) if self.native else [self.dictionary.word_index(piece) for piece in pieces]

    def unknown(self, text: str) -> list[str]:
        """See ``Tokenizer.unknown``."""
        pieces = self._processor.encode(text, out_type=str)
        if self.native:
            lacking = [piece for piece in pieces if self._processor.piece_to_id(piece) == self._own_unk]
        else:
            unk = self.dictionary.unk()
            lacking = [piece for piece in pieces if self.dictionary.word_index(piece) == unk]
        return [piece.strip("▁") for piece in lacking if piece.strip("▁")]

    def token_bytes(self) -> TokenBytes:
        """See ``Tokenizer.token_bytes``."""
        controls = {self._processor.id_to_piece(i) for i in self._own_silent}
        named = {i for i, symbol in enumerate(self.dictionary) if symbol in controls}
        return of_spaced_pieces(self.dictionary.symbols, named | set(self.dictionary.special_ids.values()))

    def fingerprint(self) -> str:
        """See ``Tokenizer.fingerprint``."""
        own = hashlib.sha256(self.model).hexdigest()
        return f"sentencepiece:{own}:{'' if self.native else self.dictionary.fingerprint()}"

    def save(self, folder: Path) -> None:
        """See ``Tokenizer.save``."""
        settings = {"tokenizer": "sentencepiece", "alpha": self.alpha, "nbest": self.nbest}
        write_settings(folder, {**settings, "dictionary": not self.native})
        write_atomically(folder / "sentencepiece.model", self.model)
        if not self.native:
            self.dictionary.save(folder / "dictionary.json")

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Self:
        """See ``Tokenizer.load``."""
        path = folder / "sentencepiece.model"
        dictionary = Dictionary.load(folder / "dictionary.json") if settings.get("dictionary") else None
        try:
            alpha, nbest = float(settings["alpha"]), int(settings["nbest"])
        except (KeyError, TypeError, ValueError):
            raise DataError(
                f"{folder / 'tokenizer.json'} is damaged; copy the folder again or train the tokenizer again"
            ) from None
        return cls(read_model(path), dictionary, origin=str(path), alpha=alpha, nbest=nbest)

    def __reduce__(self) -> tuple[Any, ...]:
        dictionary = None if self.native else self.dictionary
        return _restore, (self.model, dictionary, self.alpha, self.nbest)


def _restore(model: bytes, dictionary: Dictionary | None, alpha: float, nbest: int) -> SentencePieceTokenizer:
    return SentencePieceTokenizer(model, dictionary, alpha=alpha, nbest=nbest)


def load_processor(model: bytes, origin: str) -> Any:
    """Make a ``SentencePieceProcessor``.

    Args:
        model: the content of the model's file.
        origin: the file, for messages.

    Returns:
        The processor.

    Raises:
        DataError: ``model`` is not a SentencePiece model.
    """
    try:
        processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model) if model else None
        for index in range(processor.vocab_size() if processor else 0):
            processor.id_to_piece(index)  # fails if the piece is not valid UTF-8
    except (RuntimeError, OSError, ValueError):
        processor = None
    if processor is None or processor.vocab_size() == 0:
        raise DataError(f"{origin} is not a SentencePiece model, or is damaged")
    return processor


def own_dictionary(processor: Any) -> Dictionary:
    """The pieces of a SentencePiece model with the model's own ids.

    Args:
        processor: a ``SentencePieceProcessor``.

    Returns:
        The vocabulary; padding and end-of-sentence are appended if the model does not have them.
    """
    pieces = [processor.id_to_piece(i) for i in range(processor.vocab_size())]

    def special(index: int, token: str) -> int:
        if index < 0:
            pieces.append(token if token not in pieces else f"<seqgen:{token.strip('<>')}>")
            return len(pieces) - 1
        return index

    pad = special(processor.pad_id(), "<pad>")
    eos = special(processor.eos_id(), "</s>")
    bos = processor.bos_id()
    return Dictionary(pieces, pad=pad, eos=eos, unk=processor.unk_id(), bos=bos if bos >= 0 else None)
