"""A model whose invariants are checked: inputs for it, and comparisons of what it computes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seqgen.data.dictionary import Dictionary
from seqgen.decoder import IncrementalDecoder
from seqgen.lab.checks.checking import Compared, NotApplicableError
from seqgen.language_model import LanguageModel
from seqgen.model import EncoderDecoderModel
from seqgen.structures import EncoderOut

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
"""The largest difference of two logits that counts as equal."""

LENGTHS = [5, 3, 8, 1]
"""The length of each source, end-of-sentence included."""

BEAM = 3
"""Target rows of each sentence."""


@dataclass
class Inputs:
    """Sources of unequal length, and a target prefix for each."""

    src_tokens: Tensor
    src_lengths: Tensor
    prev_output_tokens: Tensor
    padded_left: bool = False

    def alone(self, row: int) -> tuple[Tensor, Tensor, Tensor]:
        """Source, its length and target of one row, without padding."""
        length = int(self.src_lengths[row])
        tokens = self.src_tokens[row : row + 1]
        tokens = tokens[:, tokens.size(1) - length :] if self.padded_left else tokens[:, :length]
        return tokens, self.src_lengths[row : row + 1], self.prev_output_tokens[row : row + 1]

    def inputs_with_source(self, row: int, column: int, first_word: int) -> Inputs:
        """The same inputs with another word, one of seven, in one place of the source."""
        changed = self.src_tokens.clone()
        changed[row, column] = first_word + (changed[row, column] + 1) % 7
        return replace(self, src_tokens=changed)

    def sources(self, pad: int, left: bool) -> Tensor:
        """The sources, padded on the left or on the right."""
        if not left:
            return self.src_tokens
        width = self.src_tokens.size(1)
        rows = [
            torch.cat([row.new_full((width - n,), pad), row[:n]])
            for row, n in zip(self.src_tokens, self.src_lengths.tolist(), strict=True)
        ]
        return torch.stack(rows)


@dataclass(frozen=True)
class Ids:
    """The ids of a model's inputs.

    Attributes:
        pad: id of padding.
        eos: id of end-of-sentence.
        start: the first id of a target prefix.
        words: the smallest id of a range without special tokens, and the first id after that range.
        vocab: size of the target vocabulary.
        left: whether sources are padded on the left.
    """

    pad: int
    eos: int
    start: int
    words: tuple[int, int]
    vocab: int
    left: bool = False

    def inputs(self, lengths: Sequence[int], target_length: int, rows_per_sentence: int = 1, seed: int = 1) -> Inputs:
        """Random inputs.

        Args:
            lengths: length of each source, end-of-sentence included.
            target_length: columns of the target prefix.
            rows_per_sentence: target rows for each source.
            seed: seed of the tokens.
        """
        generator = torch.Generator().manual_seed(seed)
        src_tokens = torch.full((len(lengths), max(lengths)), self.pad)
        for row, length in enumerate(lengths):
            words = torch.randint(*self.words, (length - 1,), generator=generator)
            begin = max(lengths) - length if self.left else 0
            src_tokens[row, begin : begin + length] = torch.cat([words, torch.tensor([self.eos])])
        rows = len(lengths) * rows_per_sentence
        targets = torch.randint(*self.words, (rows, target_length), generator=generator)
        targets[:, 0] = self.start
        return Inputs(src_tokens, torch.tensor(lengths), targets, self.left)


def words_between(special: Sequence[int], size: int) -> tuple[int, int]:
    """The longest range of ids without special tokens: of 23 ids and the special ones 0 to 3, ``(4, 23)``.

    Args:
        special: ids of special tokens.
        size: size of the vocabulary.
    """
    borders = [-1, *sorted({token for token in special if 0 <= token < size}), size]
    begin, end = max(itertools.pairwise(borders), key=lambda pair: pair[1] - pair[0])
    return begin + 1, end


@dataclass
class Subject(Compared):
    """A model whose invariants are checked.

    Attributes:
        model: the model, in evaluation mode.
        dictionary: the target vocabulary.
        ids: the ids of its inputs.
        build: builds a model with the same configuration and other random weights; ``None`` for a trained model.
        peaked: the model for the invariants of search, if they need other weights: random ones with clear peaks.
    """

    model: EncoderDecoderModel
    dictionary: Dictionary
    ids: Ids
    build: Callable[[], EncoderDecoderModel] | None = None
    peaked: Subject | None = None

    @classmethod
    def of(
        cls,
        model: EncoderDecoderModel,
        dictionary: Dictionary,
        source_size: int,
        tolerance: float = 1e-10,
        build: Callable[[], EncoderDecoderModel] | None = None,
    ) -> Subject:
        """Describe a model.

        Args:
            model: the model.
            dictionary: its target vocabulary.
            source_size: size of its source vocabulary.
            tolerance: see ``Compared``.
            build: see the class.
        """
        pad, eos = dictionary.pad(), dictionary.eos()
        start, size = model.start_token(eos), len(dictionary)
        special = [pad, eos, start, dictionary.bos(), dictionary.unk()]
        words = words_between(special, min(size, source_size))
        ids = Ids(pad, eos, start, words, size, model.left_pad_source)
        return cls(model, dictionary, ids, build, tolerance=tolerance)

    @property
    def decoder(self) -> IncrementalDecoder:
        """The decoder.

        Raises:
            NotApplicableError: it cannot continue from a state.
        """
        decoder = self.model.decoder
        if not isinstance(decoder, IncrementalDecoder):
            raise NotApplicableError("the decoder is not an IncrementalDecoder: it has no decoding state")
        return decoder

    @property
    def is_language_model(self) -> bool:
        """Whether it is decoder-only: it does not read the start token, and has no attention to a source."""
        return isinstance(self.model, LanguageModel)

    @property
    def reads_start_offsets(self) -> bool:
        """Whether it supports ``IncrementalState.start_offsets``; language models count the prompt's columns."""
        return self.decoder.can_merge and not self.is_language_model

    def inputs(
        self, lengths: Sequence[int] = LENGTHS, target_length: int = 6, rows_per_sentence: int = 1, seed: int = 1
    ) -> Inputs:
        """Random inputs; see ``Ids.inputs``."""
        return self.ids.inputs(lengths, target_length, rows_per_sentence, seed)

    def logits(self, batch: Inputs) -> Tensor:
        """Logits ``(N, T, V)`` of the parallel pass."""
        out: Tensor = self.model(batch.src_tokens, batch.src_lengths, batch.prev_output_tokens).logits
        return out

    def encode(self, batch: Inputs) -> EncoderOut:
        """The encoder's output, one row for each sentence."""
        out: EncoderOut = self.model.encoder(batch.src_tokens, batch.src_lengths)
        return out

    def restore(self) -> None:
        """Put the model into evaluation mode."""
        self.model.eval()


def expand(encoder_out: EncoderOut, rows_per_sentence: int) -> EncoderOut:
    """Repeat the row of each sentence for each of its beams."""
    return encoder_out.map(lambda tensor: tensor.repeat_interleave(rows_per_sentence, dim=0))


def tiny_dictionary(words: int = 19) -> Dictionary:
    """``<s> <pad> </s> <unk>`` and the words ``w0``, ``w1``, ... with ids from 4."""
    result = Dictionary()
    for number in range(words):
        result.add_symbol(f"w{number}")
    return result


def randomize_(model: EncoderDecoderModel, seed: int = 0, factor: float = 1.0) -> EncoderDecoderModel:
    """Make biases and zero matrices random too, since an error could be invisible where parameters are zero.

    Args:
        model: the model, changed in place and put into evaluation mode.
        seed: seed of the changes.
        factor: multiplies all parameters; above 1 the distributions have clear peaks, so that hypotheses differ and end
            at different steps.

    Returns:
        The model.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1 or not parameter.any():
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.add_(noise.to(parameter) * 0.1)
            parameter.mul_(factor)
    return model.eval()
