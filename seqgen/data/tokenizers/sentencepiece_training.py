"""Training SentencePiece models (Kudo and Richardson 2018)."""

from __future__ import annotations

import io
import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping

import sentencepiece

from seqgen.errors import DataError, UserError

logger = logging.getLogger(__name__)

LOGGED_LINES = 1_000_000
"""Number of lines between two messages about reading the text."""

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
    key: str = "vocab_size",
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
        key: the configuration key of ``vocab_size``, for messages.

    Returns:
        The content of the model file.

    Raises:
        DataError: the text has no words, or too few or too many characters for ``vocab_size``.
        UserError: iterating over ``lines`` raised it.
    """
    logger.info("training a SentencePiece model (%s) of %d pieces", model_type, vocab_size)
    start = time.perf_counter()
    model = io.BytesIO()
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
            bos_id=special_ids["bos"],
            pad_id=special_ids["pad"],
            eos_id=special_ids["eos"],
            unk_id=special_ids["unk"],
            minloglevel=4,
        )
    except (RuntimeError, ValueError, OSError) as error:
        raise reader.error or _explain(str(error), vocab_size, key) from None
    logger.info("trained it on %s lines in %.1f s", f"{reader.count:,}", time.perf_counter() - start)
    return model.getvalue()


class _Reader:
    """Iterates over lines, logs how many are read, and keeps the error that ended the iteration, which SentencePiece
    replaces by its own.
    """

    def __init__(self, lines: Iterable[str]):
        self.lines = lines
        self.error: UserError | None = None
        self.count = 0

    def __iter__(self) -> Iterator[str]:
        try:
            for line in self.lines:
                self.count += 1
                if self.count % LOGGED_LINES == 0:
                    logger.info("read %s lines", f"{self.count:,}")
                for start in range(0, len(line), MAX_CHARACTERS):
                    yield line[start : start + MAX_CHARACTERS]
        except UserError as error:
            self.error = error
            raise
        if self.count > LOGGED_LINES:
            logger.info("read all %s lines; computing the pieces", f"{self.count:,}")


def _explain(message: str, vocab_size: int, key: str) -> DataError:
    if found := re.search(r"too high \(\d+\)\. Please set it to a value <= (\d+)", message):
        return DataError(
            f"the training text is too small for a vocabulary of {vocab_size} pieces; "
            f"set {key} to at most {found.group(1)}"
        )
    if found := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return DataError(
            f"the training text has more characters than a vocabulary of {vocab_size} pieces can hold; "
            f"set {key} to at least {found.group(1)}, or character_coverage lower"
        )
    if "sentences_.empty()" in message or "all_chars_count" in message:
        return DataError("the training text has no words to learn a vocabulary from; every line is empty")
    return DataError(f"SentencePiece cannot be trained on this text: {' '.join(message.split())}")
