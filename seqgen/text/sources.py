"""Sources: what each member of an ensemble reads of an input line, and lines that are encoded already."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seqgen.config import GenerationConfig
from seqgen.encoder import Encoder
from seqgen.errors import ConfigError, DataError
from seqgen.generation.component import Component, Resources, build
from seqgen.generation.ensemble.member import EMPTY, field_of
from seqgen.registry import MEMBER_SOURCES
from seqgen.structures import EncoderOut
from seqgen.system.contract import returned
from seqgen.text.languages import LineLanguages, TextModel


class MemberSource(Component):
    """Gives a member of an ensemble a text to read in place of the input line; a subclass implements ``__call__``.

    A source registered with ``@register_member_source`` is selected by its name, for one member or several
    (``generation.members=[input,NAME]``).
    """

    def __call__(self, line: str, number: int) -> str:
        """Find the text that the member reads.

        Args:
            line: the input line.
            number: number of the line, from 0. The text may depend on it, but not on the batch.

        Returns:
            The text, which the member's tokenizer encodes.
        """
        raise NotImplementedError


def sources_from_config(cfg: GenerationConfig, resources: Resources) -> list[str | MemberSource]:
    """The entries of ``generation.members``, registered names replaced by their components.

    Raises:
        ConfigError: an entry is not a source.
    """
    return [
        build(MEMBER_SOURCES, name, MemberSource, cfg, resources) if MEMBER_SOURCES.find(name) else name
        for name in cfg.members
    ]


def source_text(source: str | MemberSource, line: str, number: int) -> str:
    """The text that a member reads.

    Args:
        source: ``"input"``, ``"empty"``, ``"fieldN"`` or a component.
        line: the input line.
        number: number of the line, from 0.

    Raises:
        DataError: the line has too few fields.
    """
    if isinstance(source, MemberSource):
        return returned(source, "__call__", source(line, number), str)
    if source == EMPTY:
        return ""
    fields, wanted = line.split("\t"), field_of(source)
    if wanted > len(fields):
        raise DataError(
            f"line {number + 1} has {len(fields)} fields, and generation.members asks for field {wanted}; separate "
            "fields by tabs"
        )
    return fields[wanted - 1] if wanted else line


@dataclass(frozen=True)
class EncodedSource:
    """A source with the encoder's output, which ``Translator.translate`` decodes in place of a text.

    ``Translator.encode`` makes it; ``dataclasses.replace`` makes an edited copy.

    Attributes:
        text: the text, as ``translate`` would read it.
        tokens: ``(S,)`` int64 source ids, which decoding components can read; the encoder is not run on them.
        encoder_out: the encoder's output, ``(1, S, C)``.
        notes: what was noted when the text was encoded, such as a truncation; the translation has these notes, too.
        languages: the languages with which the text was encoded.

    Raises:
        DataError: ``tokens`` are not ids, or ``encoder_out`` is not that of one sentence with a position for each.
    """

    text: str
    tokens: Tensor
    encoder_out: EncoderOut
    notes: Sequence[str] = ()
    languages: LineLanguages = LineLanguages()

    def __post_init__(self) -> None:
        if not isinstance(self.encoder_out, EncoderOut):
            raise DataError(
                f"the encoder output of {self.text!r} is of type {type(self.encoder_out).__name__}; give the "
                "EncoderOut that an encoder returns, or EncoderOut(encoder_out)"
            )
        ids = self.tokens
        if not isinstance(ids, Tensor) or ids.dtype != torch.int64 or ids.dim() != 1 or not len(ids):
            given = f"{tuple(ids.shape)} {ids.dtype}" if isinstance(ids, Tensor) else type(ids).__name__
            raise DataError(f"the tokens of {self.text!r} are {given}; give at least one id as a tensor (S,) of int64")
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


def check_fits(encoder: Encoder, eos: int, text: str, encoder_out: EncoderOut) -> None:
    """Compare an encoder output that a model could not decode with one that its encoder returns.

    Args:
        encoder: the encoder of the model.
        eos: id of end-of-sentence, the source that it encodes for the comparison.
        text: the text of the source, for the message.
        encoder_out: the encoder output.

    Raises:
        DataError: it lacks a tensor, or has another hidden size or dtype.
    """
    source = torch.tensor([[eos]], device=next(encoder.parameters()).device)
    expected = encoder(source, torch.ones_like(source[:, 0]))
    needed = [
        name for name, value in vars(expected).items() if isinstance(value, Tensor) and name != "encoder_padding_mask"
    ]
    lacking = [name for name in needed if getattr(encoder_out, name, None) is None]
    what = f"the encoder output of {text!r}"
    if lacking:
        raise DataError(f"{what} lacks {', '.join(lacking)}, which this model reads; give what its encoder returns")
    for name in needed:
        given, wanted = getattr(encoder_out, name), getattr(expected, name)
        if (given.shape[2:], given.dtype) != (wanted.shape[2:], wanted.dtype):
            described = [f"({', '.join(map(str, one.shape[2:]))}) of {one.dtype}" for one in (given, wanted)]
            raise DataError(f"{what} has {described[0]} for each position in {name}; this model reads {described[1]}")


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
