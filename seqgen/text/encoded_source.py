"""Sources that are encoded before they are decoded."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from seqgen.encoder import Encoder
from seqgen.errors import ConfigError, DataError
from seqgen.structures import EncoderOut
from seqgen.text.text_model import TextModel


@dataclass(frozen=True)
class EncodedSource:
    """A source with the encoder's output, which ``Translator.translate`` decodes in place of a text.

    ``Translator.encode`` makes it; ``dataclasses.replace`` makes an edited copy.

    Attributes:
        text: the text, as ``translate`` would read it.
        tokens: ``(S,)`` int64 source ids, which decoding components can read; the encoder is not run on them.
        encoder_out: the encoder's output, ``(1, S, C)``.
        notes: what was noted when the text was encoded, such as a truncation; the translation has these notes, too.

    Raises:
        DataError: ``encoder_out`` is not that of one sentence with a position for each token.
    """

    text: str
    tokens: Tensor
    encoder_out: EncoderOut
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        shape = tuple(self.encoder_out.encoder_out.shape)
        if len(shape) != 3 or shape[:2] != (1, len(self.tokens)):
            raise DataError(
                f"the encoder output of {self.text!r} has the shape {shape}, but the source has {len(self.tokens)} "
                f"tokens; give an encoder output of the shape (1, {len(self.tokens)}, hidden size)"
            )


def check_encodable(models: Sequence[TextModel]) -> None:
    """Refuse models that cannot decode an ``EncodedSource``.

    Args:
        models: all models that read the source.

    Raises:
        ConfigError: there are several, or sources are padded on the left.
    """
    if len(models) > 1:
        raise ConfigError(f"an encoded source is that of one model, and {len(models)} read the source; give one model")
    if models[0].model.left_pad_source:
        raise ConfigError(
            "an encoded source needs an encoder whose sources are padded on the right; a decoder-only model has none"
        )


def merged_encodings(encoder: Encoder, encodings: Sequence[EncoderOut | None]) -> EncoderOut | None:
    """The encoder outputs of all sentences of a batch as one value.

    Args:
        encoder: the encoder.
        encodings: ``(1, S, C)`` for each sentence, or ``None`` for each.

    Returns:
        ``(N, S, C)``, padded on the right; ``None`` if there are no encoder outputs.

    Raises:
        DataError: only some of the sentences are encoded.
    """
    given = [one for one in encodings if one is not None]
    if given and len(given) < len(encodings):
        raise DataError("some lines are encoded and some are not; encode all of them, or none")
    return functools.reduce(encoder.merge_encoder_outs, given) if given else None
