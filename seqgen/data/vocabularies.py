"""The vocabularies that a model is built for, and the sizes of its embeddings."""

from __future__ import annotations

from typing import Protocol

from seqgen.core.errors import ConfigError
from seqgen.data.dictionary import Dictionary


class Vocabularies(Protocol):
    """The vocabularies that a model is built for; every ``Task`` has them."""

    @property
    def source_dictionary(self) -> Dictionary:
        """The vocabulary of the source."""

    @property
    def target_dictionary(self) -> Dictionary:
        """The vocabulary of the target."""


def embedding_sizes(task: Vocabularies, vocab_size: int, decoder_start_token_id: int) -> tuple[int, int]:
    """The rows of the source's and of the target's embedding.

    Args:
        task: gives the dictionaries.
        vocab_size: the rows of each; 0 for the sizes of the dictionaries.
        decoder_start_token_id: the first decoder input; -1 for a token of the dictionary.

    Returns:
        Both numbers.

    Raises:
        ConfigError: ``vocab_size`` is too small for a dictionary, or the first decoder input has no row.
    """
    sizes = len(task.source_dictionary), len(task.target_dictionary)
    if vocab_size and vocab_size < (longer := max(sizes)):
        raise ConfigError(
            f"model.vocab_size={vocab_size} is too small for a vocabulary of {longer} tokens; set at least {longer}, "
            "or 0 for the size of the vocabulary"
        )
    source, target = (vocab_size or size for size in sizes)
    if decoder_start_token_id >= target:
        raise ConfigError(
            f"model.decoder_start_token_id={decoder_start_token_id} is outside the vocabulary of {target} tokens"
        )
    return source, target


def check_joined(task: Vocabularies, model: str) -> None:
    """Check that source and target have one vocabulary.

    Args:
        task: gives the dictionaries.
        model: the model that needs it, for the message.

    Raises:
        ConfigError: they differ.
    """
    source, target = task.source_dictionary, task.target_dictionary
    if not (source is target or source == target):
        raise ConfigError(
            f"model={model} has one embedding for source and target and needs one vocabulary for both; set "
            "task.joined_dictionary=true, or choose another model"
        )
