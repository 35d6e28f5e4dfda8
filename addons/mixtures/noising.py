"""Span corruption: how a text becomes an input with hidden tokens and a target (Raffel et al. 2020, section 3.1.4).

The text ``a b c d e`` with ``b c`` and ``e`` hidden, sentinels ``<0> <1>`` and end-of-sentence ``.`` gives the input
``a <0> d <1> .`` and the target ``<0> b c <1> e .``. ``examples/papers/t5_objectives.py`` has the other objectives of
the paper. The results depend only on the tokens and the state of a random generator, so that each example can be
reproduced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from seqgen.extend import DataError

Tokens: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True)
class NoiseTokens:
    """The ids of the tokens that the objectives insert.

    Attributes:
        eos: end-of-sentence, the last token of each input and target.
        sentinels: ``(n,)`` int64, the replacements of the first hidden span, the second one, and so on.
    """

    eos: int
    sentinels: Tokens


def span_counts(length: int, density: float, mean_span: float) -> tuple[int, int]:
    """The numbers of tokens and spans that span corruption hides in a text.

    Args:
        length: number of tokens of the text.
        density: fraction of the tokens to hide.
        mean_span: mean length of a hidden span, in tokens.

    Returns:
        The number of hidden tokens and of hidden spans. Both are at least 1, and there are at most as many spans as
        visible tokens.
    """
    length = max(length, 2)
    noise = min(max(round(length * density), 1), length - 1)
    return noise, min(max(round(noise / mean_span), 1), noise, length - noise)


def random_segmentation(total: int, parts: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Divide items into non-empty parts; all divisions are equally likely.

    Cuts after the second and the seventh of 10 items give parts of 2, 5 and 3.

    Args:
        total: number of items.
        parts: number of parts, at most ``total``.
        rng: draws the cuts.

    Returns:
        ``(parts,)`` int64 sizes of the parts.
    """
    cuts = np.sort(rng.choice(total - 1, parts - 1, replace=False)) + 1
    return np.diff(cuts, prepend=0, append=total).astype(np.int64)


def span_mask(length: int, density: float, mean_span: float, rng: np.random.Generator) -> Mask:
    """Hide spans of random length. Visible and hidden spans alternate; the first is visible, the last hidden.

    Args:
        length: number of tokens of the text.
        density: fraction of the tokens to hide.
        mean_span: mean length of a hidden span, in tokens.
        rng: draws the spans.

    Returns:
        ``(length,)`` bool, true where a token is hidden. In a text of one token, none is hidden.
    """
    noise, spans = span_counts(length, density, mean_span)
    hidden = random_segmentation(noise, spans, rng)
    visible = random_segmentation(max(length, 2) - noise, spans, rng)
    # visible 2 1, hidden 1 3 -> 2 1 1 3 -> F F T F T T T
    sizes = np.stack([visible, hidden], axis=1).ravel()
    mask: Mask = np.repeat(np.arange(2 * spans) % 2 == 1, sizes)[:length]
    return mask


def replace_spans(tokens: Tokens, mask: Mask, sentinels: Tokens) -> tuple[Tokens, Tokens]:
    """Replace each hidden span by a sentinel, and list the sentinels, each followed by its span.

    If the last token is visible, the list ends with one more sentinel, as in figure 2 of the paper.

    Args:
        tokens: ``(n,)`` int64.
        mask: ``(n,)`` bool, true where a token is hidden.
        sentinels: int64 ids: one for each hidden span, and one more if the last token is visible.

    Returns:
        The text with sentinels and the list, both 1-D int64.

    Raises:
        DataError: there are too few sentinels.
    """
    starts = mask & ~np.concatenate([[False], mask[:-1]])  # the first position of each span
    spans = int(starts.sum())
    closing = len(mask) > 0 and not mask[-1]
    check_sentinels(spans + closing, len(sentinels))
    numbered = tokens.copy()
    numbered[starts] = sentinels[:spans]
    before = (np.cumsum(mask) - 1)[starts]  # hidden tokens before each span
    listed = np.insert(tokens[mask], before, sentinels[:spans])
    return numbered[~mask | starts], np.append(listed, sentinels[spans : spans + closing])


def check_sentinels(needed: int, there: int) -> None:
    """Check the number of sentinels.

    Args:
        needed: number of sentinels that a text needs.
        there: number of sentinels in the vocabulary.

    Raises:
        DataError: there are too few.
    """
    if needed > there:
        raise DataError(
            f"hiding parts of a text needs {needed} sentinels, but the tokenizer has {there}; set a smaller "
            "task.input_length, a larger task.mean_span_length, a smaller task.noise_density, or a tokenizer with more "
            "sentinels"
        )


class Objective:
    """The base class of denoising objectives; an objective makes an input and a target from a text.

    A subclass implements ``corrupt``, and ``lengths`` and ``sentinels_needed`` if the defaults do not hold.

    Args:
        density: fraction of the tokens to hide.
        mean_span: mean length of a hidden span, in tokens.
    """

    def __init__(self, density: float = 0.15, mean_span: float = 3.0):
        self.density, self.mean_span = density, mean_span

    def corrupt(self, tokens: Tokens, noise: NoiseTokens, rng: np.random.Generator) -> tuple[Tokens, Tokens]:
        """Make the input and the target, without end-of-sentence.

        Args:
            tokens: ``(n,)`` int64 text, ``n >= 1``.
            noise: ids of end-of-sentence and sentinels.
            rng: the source of randomness.

        Returns:
            The input and the target, both 1-D int64.
        """
        raise NotImplementedError

    def lengths(self, length: int) -> tuple[int, int]:
        """The maximum lengths of the input and the target of a text, in tokens, end-of-sentence included.

        Args:
            length: number of tokens of the text.
        """
        return length + 1, length + 1

    def sentinels_needed(self, length: int) -> int:
        """The number of sentinels that a text needs.

        Args:
            length: number of tokens of the text.
        """
        return 0

    def __call__(self, tokens: Tokens, noise: NoiseTokens, rng: np.random.Generator) -> tuple[Tokens, Tokens]:
        """Make the input and the target, each with end-of-sentence; see ``corrupt``."""
        source, target = self.corrupt(tokens, noise, rng)
        return np.append(source, noise.eos), np.append(target, noise.eos)

    def raw_length(self, input_length: int) -> int:
        """The length of the longest text whose input is not longer than a limit.

        With 15% hidden in spans of 3, a text of 568 tokens has an input of 512 (483 tokens, 28 sentinels,
        end-of-sentence) and a target of 114 (85 tokens, 28 sentinels, end-of-sentence).

        Args:
            input_length: maximum tokens of the input, end-of-sentence included.

        Returns:
            Number of tokens of the text.
        """
        length = 1
        while self.lengths(length + 1)[0] <= input_length:
            length += 1
        # As in the paper's code: with half of the tokens hidden, the target must not be longer than the input.
        if self.density == 0.5 and length > 1 and self.lengths(length)[1] > input_length:
            length -= 1
        return length


class SpanCorruption(Objective):
    """Spans of random length are replaced by sentinels; T5's objective."""

    def corrupt(self, tokens: Tokens, noise: NoiseTokens, rng: np.random.Generator) -> tuple[Tokens, Tokens]:
        """See ``Objective``."""
        return replace_spans(tokens, span_mask(len(tokens), self.density, self.mean_span, rng), noise.sentinels)

    def lengths(self, length: int) -> tuple[int, int]:
        """The exact lengths; see ``Objective``."""
        noise, spans = span_counts(length, self.density, self.mean_span)
        return (length - noise + spans + 1, noise + spans + 1) if length > 1 else (2, 2)

    def sentinels_needed(self, length: int) -> int:
        """One for each span."""
        return span_counts(length, self.density, self.mean_span)[1]
