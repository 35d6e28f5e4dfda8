"""SentencePiece models (Kudo and Richardson 2018): training them, and their tokenizer."""

from __future__ import annotations

import hashlib
import io
import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import sentencepiece

from seqgen.core.errors import DataError, UserError
from seqgen.data.dictionary import FAIRSEQ_SPECIALS, Dictionary
from seqgen.data.tokenizers.base import SPACE, Tokenizer, of_spaced_pieces, register_tokenizer, write_settings
from seqgen.system.error_messages import reading_errors
from seqgen.system.files import write_atomically
from seqgen.system.reading import read_bytes

MIN_SHARED = 0.1
"""Minimum fraction of a model's pieces in a given vocabulary; with fewer, the vocabulary is that of another model."""


def read_model(path: Path) -> bytes:
    """Read the file of a SentencePiece model.

    Args:
        path: the file.

    Returns:
        Its content.

    Raises:
        DataError: the file is missing or cannot be read.
    """
    with reading_errors(path, DataError, f"there is no SentencePiece model {path}"):
        return read_bytes(path)


@register_tokenizer("sentencepiece")
class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model, with its own ids or with those of a given vocabulary.

    Args:
        model: the content of the model's file.
        dictionary: a vocabulary such as fairseq's ``dict.txt``, in which the id of each piece is found by its string;
            ``None`` for the model's own ids.
        location: the model's file, for messages.

    Raises:
        DataError: ``model`` is not a SentencePiece model, or ``dictionary`` contains hardly any of its pieces.
    """

    def __init__(
        self, model: bytes, dictionary: Dictionary | None = None, *, location: str = "the SentencePiece model"
    ):
        self.model = model
        self.native = dictionary is None
        self._processor = load_processor(model, location)
        native = native_dictionary(self._processor)
        super().__init__(native if dictionary is None else dictionary)
        pieces = native.symbols[: self._processor.vocab_size()]
        self._native_silent = {i for i in range(len(pieces)) if self._processor.is_control(i)}
        self._to_dictionary = None if dictionary is None else [dictionary.index(piece) for piece in pieces]
        ordinary = [piece for piece in pieces if piece not in FAIRSEQ_SPECIALS]
        if dictionary is not None and sum(piece in dictionary for piece in ordinary) < MIN_SHARED * len(ordinary):
            raise DataError(
                f"the vocabulary contains too few pieces of {location}; give the dict.txt that was made with that model"
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
        if self._processor.unk_id() in ids:
            # a piece that is unknown to the model may still be a token of the vocabulary
            return [self.dictionary.word_index(piece) for piece in self._processor.encode(text, out_type=str)]
        return [self._to_dictionary[i] for i in ids]

    def decode(self, ids: Sequence[int]) -> str:
        """See ``Tokenizer.decode``."""
        dictionary, pieces = self.dictionary, list[Any]()
        if self._to_dictionary is None:
            size = self._processor.vocab_size()
            pieces = [i for i in ids if i < size and i not in self._native_silent]
        else:
            silent = {dictionary.pad(), dictionary.eos(), dictionary.bos()}
            pieces = [dictionary.symbol(i) for i in ids if i not in silent]
        text: str = self._processor.decode(pieces)
        return text

    def unknown(self, text: str) -> list[str]:
        """See ``Tokenizer.unknown``."""
        pieces, unk = self._processor.encode(text, out_type=str), self.dictionary.unk()
        lacking = [piece.strip(SPACE) for piece in pieces if self.dictionary.word_index(piece) == unk]
        return [piece for piece in lacking if piece]

    def token_bytes(self) -> list[bytes | None]:
        """See ``Tokenizer.token_bytes``."""
        controls = {self._processor.id_to_piece(i) for i in self._native_silent}
        named = {i for i, symbol in enumerate(self.dictionary) if symbol in controls}
        return of_spaced_pieces(self.dictionary.symbols, named | set(self.dictionary.special_ids.values()))

    def fingerprint(self) -> str:
        """See ``Tokenizer.fingerprint``."""
        model = hashlib.sha256(self.model).hexdigest()
        return f"sentencepiece:{model}:{'' if self.native else self.dictionary.fingerprint()}"

    def save(self, folder: Path) -> None:
        """See ``Tokenizer.save``."""
        write_settings(folder, {"tokenizer": "sentencepiece", "dictionary": not self.native})
        write_atomically(folder / "sentencepiece.model", self.model)
        if not self.native:
            self.dictionary.save(folder / "dictionary.json")

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Self:
        """See ``Tokenizer.load``."""
        path = folder / "sentencepiece.model"
        dictionary = Dictionary.load(folder / "dictionary.json") if settings.get("dictionary") else None
        return cls(read_model(path), dictionary, location=str(path))

    def __reduce__(self) -> tuple[Any, ...]:
        return SentencePieceTokenizer, (self.model, None if self.native else self.dictionary)


def load_processor(model: bytes, location: str) -> Any:
    """Make a ``SentencePieceProcessor``.

    Args:
        model: the content of the model's file.
        location: the file, for messages.

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
        raise DataError(f"{location} is not a SentencePiece model, or is damaged")
    return processor


def native_dictionary(processor: Any) -> Dictionary:
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


logger = logging.getLogger(__name__)

THREADS = 8
"""Number of training threads; fixed, because the order of floating-point additions and so the pieces depend on it."""

MAX_LINES = 5_000_000
"""Maximum number of lines to train on; of a longer text, this many lines are sampled, so that it fits into memory."""

FAIRSEQ_IDS = {"bos": 0, "pad": 1, "eos": 2, "unk": 3}
"""Ids of the special tokens in vocabularies that seqgen trains, the same as fairseq's."""

T5_IDS = {"pad": 0, "eos": 1, "unk": 2, "bos": -1}
"""Ids of the special tokens in T5's vocabulary, which has no begin-of-sentence."""

MAX_CHARACTERS = 1000
"""Longer lines are cut into parts of this length, since SentencePiece would leave them out."""


def train_sentencepiece(
    lines: Iterable[str],
    *,
    vocab_size: int,
    model_type: str = "unigram",
    character_coverage: float = 1.0,
    hard_vocab_limit: bool = True,
    special_ids: Mapping[str, int] = FAIRSEQ_IDS,
) -> bytes:
    """Train a SentencePiece model; the same text and settings give the same model.

    Args:
        lines: the text.
        vocab_size: number of pieces, the special tokens included.
        model_type: ``unigram`` or ``bpe``.
        character_coverage: fraction of the text's characters that get a piece of their own.
        hard_vocab_limit: whether it is an error if the text is too small for ``vocab_size``; if not, there are
            fewer pieces.
        special_ids: ids of ``pad``, ``eos``, ``unk`` and ``bos``; -1 for a token that the model does not have.

    Returns:
        The content of the model file.

    Raises:
        DataError: the text has no words, or too few or too many characters for ``vocab_size``.
        UserError: iterating over ``lines`` raised it.
        KeyboardInterrupt: likewise.
    """
    logger.info("training a SentencePiece model (%s) of %d pieces", model_type, vocab_size)
    start = time.perf_counter()
    model = io.BytesIO()
    ids: dict[str, Any] = {f"{name}_id": index for name, index in special_ids.items()}
    reader = _Reader(lines)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(reader),
            model_writer=model,
            vocab_size=vocab_size,
            model_type=model_type,
            character_coverage=character_coverage,
            hard_vocab_limit=hard_vocab_limit,
            num_threads=THREADS,
            input_sentence_size=MAX_LINES,
            shuffle_input_sentence=True,
            **ids,
            minloglevel=4,
        )
    except (RuntimeError, ValueError, OSError) as error:
        raise reader.error or _explain(str(error), vocab_size) from None
    logger.info("trained it on %s lines in %.1f s", f"{reader.count:,}", time.perf_counter() - start)
    return model.getvalue()


class _Reader:
    """Iterates over lines, counts them, and keeps the error that ended the iteration, which SentencePiece
    replaces.
    """

    def __init__(self, lines: Iterable[str]):
        self.lines = lines
        self.error: UserError | KeyboardInterrupt | None = None
        self.count = 0

    def __iter__(self) -> Iterator[str]:
        try:
            for line in self.lines:
                self.count += 1
                for start in range(0, len(line), MAX_CHARACTERS):
                    yield line[start : start + MAX_CHARACTERS]
        except (UserError, KeyboardInterrupt) as error:
            self.error = error
            raise


def _explain(message: str, vocab_size: int) -> DataError:
    if found := re.search(r"too high \(\d+\)\. Please set it to a value <= (\d+)", message):
        return DataError(
            f"the training text is too small for a vocabulary of {vocab_size} pieces; "
            f"set task.vocab_size to at most {found.group(1)}"
        )
    if found := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return DataError(
            f"the training text has more characters than a vocabulary of {vocab_size} pieces can hold; "
            f"set task.vocab_size to at least {found.group(1)}, or character_coverage lower"
        )
    if "sentences_.empty()" in message or "all_chars_count" in message:
        return DataError("the training text has no words to learn a vocabulary from; every line is empty")
    return DataError(f"SentencePiece cannot be trained on this text: {' '.join(message.split())}")
