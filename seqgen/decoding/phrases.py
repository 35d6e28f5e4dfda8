"""Phrases that outputs must contain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from seqgen.core.component import Phrases
from seqgen.core.errors import ConfigError


def tokens_of(phrases: Phrases) -> list[int]:
    """The tokens of some phrases, with those of all alternatives."""
    items: Iterator[Any] = (item for phrase in phrases for item in phrase)
    return [token for item in items for token in ([item] if isinstance(item, int) else item)]


def check_phrases(phrases: Sequence[Phrases], sentences: int, vocab: int) -> None:
    """Check constraints against the batch and the vocabulary.

    Args:
        phrases: the phrases of each sentence.
        sentences: sentences of the batch.
        vocab: size of the vocabulary.

    Raises:
        ConfigError: there are not as many lists as sentences, or something in a phrase is not an id of the vocabulary.
    """
    if len(phrases) != sentences:
        raise ConfigError(
            f"there are constraints for {len(phrases)} sentences, but the batch has {sentences}; give a list of "
            "phrases for each sentence, an empty one for none"
        )
    for sentence, row in enumerate(phrases):
        wrong = [token for token in tokens_of(row) if not isinstance(token, int) or not 0 <= token < vocab]
        if wrong:
            raise ConfigError(
                f"a phrase of sentence {sentence} has {wrong[0]!r}, not an id of the target vocabulary of {vocab} "
                "tokens; a phrase is a list of ids, or a list of such lists for alternatives"
            )
