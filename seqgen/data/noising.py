"""Denoising objectives: the tokens hidden from the input, and the target (Raffel et al. 2020, section 3.3).

Of the text ``a b c d e`` with ``b c`` and ``e`` hidden, sentinels ``<0> <1>``, the mask ``<M>`` (sentinel 0) and
end-of-sentence ``.``::

    objective                          input            target
    span_corruption, iid_spans         a <0> d <1> .    <0> b c <1> e .
    span_drop, iid_drop                a d .            b c e .
    mass                               a <M> <M> d <M>. a b c d e .
    bert                               a <M> x d <M> .  a b c d e .        x: any word
    prefix_lm                          a b .            c d e .
    deshuffling                        d a e c b .      a b c d e .

All results depend only on the tokens and a random generator, so an example can be reproduced.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from seqgen.errors import DataError
from seqgen.renamed import former_names

globals()["__getattr__"] = former_names(__name__)  # not a function, so that type checkers still know each name

Tokens: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]

RANDOM_SHARE = 0.1
"""Fraction of the tokens hidden by ``bert`` that are replaced by a random word instead of the mask."""


@dataclass(frozen=True)
class NoiseTokens:
    """The ids of the tokens that the objectives insert.

    Attributes:
        eos: end-of-sentence, which ends every input and target.
        sentinels: ``(n,)`` int64, what stands for the first hidden span, for the second, ...
        words: ``(w,)`` int64, the ids that a random word is drawn from.
    """

    eos: int
    sentinels: Tokens
    words: Tokens


def span_counts(length: int, density: float, mean_span: float) -> tuple[int, int]:
    """How many tokens and spans of a text span corruption hides.

    Args:
        length: tokens of the text.
        density: share of the tokens to hide.
        mean_span: mean length of a hidden span, in tokens.

    Returns:
        Tokens that are hidden and the number of spans: at least one of each, and at least as many tokens that are not.
    """
    length = max(length, 2)
    noise = min(max(round(length * density), 1), length - 1)
    return noise, min(max(round(noise / mean_span), 1), noise, length - noise)


def raw_length(input_length: int, density: float, mean_span: float) -> int:
    """How long a text must be for span corruption to make an input of a given length of it.

    With 15% hidden in spans of 3, 568 tokens make an input of 512 (483 tokens, 28 sentinels, end-of-sentence) and a
    target of 114 (85 tokens, 28 sentinels, end-of-sentence).

    Args:
        input_length: most tokens of the input, end-of-sentence included.
        density: share of the tokens to hide.
        mean_span: mean length of a hidden span, in tokens.

    Returns:
        The largest number of tokens whose input fits.
    """
    return SpanCorruption(density, mean_span).raw_length(input_length)


def random_segmentation(total: int, parts: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Divide ``total`` items into ``parts`` non-empty parts, every division being equally likely.

    10 items in 3 parts, cut after the second and the seventh, are parts of 2, 5 and 3.

    Args:
        total: items.
        parts: at most ``total``.
        rng: draws the cuts.

    Returns:
        ``(parts,)`` int64 sizes.
    """
    cuts = np.sort(rng.choice(total - 1, parts - 1, replace=False)) + 1
    return np.diff(cuts, prepend=0, append=total).astype(np.int64)


def span_mask(length: int, density: float, mean_span: float, rng: np.random.Generator) -> Mask:
    """Hide spans of random length: a visible span first, a hidden one last, by turns.

    Args:
        length: tokens of the text.
        density: share of the tokens to hide.
        mean_span: mean length of a hidden span, in tokens.
        rng: draws the spans.

    Returns:
        ``(length,)`` bool, true where a token is hidden. A text of one token is left as it is.
    """
    noise, spans = span_counts(length, density, mean_span)
    hidden = random_segmentation(noise, spans, rng)
    visible = random_segmentation(max(length, 2) - noise, spans, rng)
    # visible 2 1, hidden 1 3 -> 2 1 1 3 -> F F T F T T T
    sizes = np.stack([visible, hidden], axis=1).ravel()
    mask: Mask = np.repeat(np.arange(2 * spans) % 2 == 1, sizes)[:length]
    return mask


def iid_mask(length: int, density: float, most_spans: int, rng: np.random.Generator) -> Mask:
    """Hide each token with the same probability.

    Args:
        length: tokens of the text.
        density: the probability.
        most_spans: hidden spans after this one stay visible.
        rng: draws the tokens.

    Returns:
        ``(length,)`` bool, true where a token is hidden.
    """
    mask = rng.random(length) < density
    within: Mask = np.cumsum(_starts(mask)) <= most_spans
    return mask & within


def _starts(mask: Mask) -> Mask:
    """Where a run of true begins."""
    before: Mask = np.concatenate([[False], mask[:-1]])
    return mask & ~before


def replace_spans(tokens: Tokens, mask: Mask, sentinels: Tokens) -> tuple[Tokens, Tokens]:
    """Put a sentinel in place of each hidden span, and list the spans behind their sentinels.

    A text whose end is visible closes the list with one sentinel more, as in figure 2 of the paper.

    Args:
        tokens: ``(n,)`` int64.
        mask: ``(n,)`` bool, true where a token is hidden.
        sentinels: ids, at least one more than there are hidden spans unless the end is hidden.

    Returns:
        The text with sentinels, and the list.

    Raises:
        DataError: there are fewer sentinels than that.
    """
    starts = _starts(mask)
    spans = int(starts.sum())
    closing = len(mask) > 0 and not mask[-1]
    check_sentinels(spans + closing, len(sentinels))
    numbered = tokens.copy()
    numbered[starts] = sentinels[:spans]
    before = (np.cumsum(mask) - 1)[starts]  # hidden tokens before each span
    listed = np.insert(tokens[mask], before, sentinels[:spans])
    return numbered[~mask | starts], np.append(listed, sentinels[spans : spans + closing])


def check_sentinels(needed: int, there: int) -> None:
    """Check that a text does not need more sentinels than there are.

    Raises:
        DataError: it does.
    """
    if needed > there:
        raise DataError(
            f"hiding parts of a text needs {needed} sentinels, but the tokenizer has {there}; set a shorter "
            "task.input_length, a larger task.mean_span_length, a smaller task.noise_density, or a tokenizer with more "
            "sentinels"
        )


class Objective:
    """Makes an input and a target of a text.

    Args:
        density: share of the tokens to hide.
        mean_span: mean length of a hidden span, in tokens.
    """

    def __init__(self, density: float = 0.15, mean_span: float = 3.0):
        self.density, self.mean_span = density, mean_span

    def corrupt(self, tokens: Tokens, noise: NoiseTokens, rng: np.random.Generator) -> tuple[Tokens, Tokens]:
        """Make input and target, without end-of-sentence.

        Args:
            tokens: ``(n,)`` int64, at least one.
            noise: ids of end-of-sentence, sentinels and words.
            rng: what is random.
        """
        raise NotImplementedError

    def lengths(self, length: int) -> tuple[int, int]:
        """The longest input and target that a text of so many tokens can give, end-of-sentence included."""
        return length + 1, length + 1

    def sentinels_needed(self, length: int) -> int:
        """How many sentinels a text of so many tokens needs."""
        return 0

    def __call__(self, tokens: Tokens, noise: NoiseTokens, rng: np.random.Generator) -> tuple[Tokens, Tokens]:
        """Make input and target, each with end-of-sentence; see ``corrupt``."""
        source, target = self.corrupt(tokens, noise, rng)
        return np.append(source, noise.eos), np.append(target, noise.eos)

    def raw_length(self, input_length: int) -> int:
        """The longest text, in tokens, whose input is at most ``input_length``, end-of-sentence included."""
        length = 1
        while self.lengths(length + 1)[0] <= input_length:
            length += 1
        # As in the paper's code: with half of the tokens hidden, the target must not be longer than the input.
        if self.density == 0.5 and length > 1 and self.lengths(length)[1] > input_length:
            length -= 1
        return length


class SpanCorruption(Objective):
    """Spans of random length are replaced by sentinels: T5's own objective."""

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


class SpanDrop(Objective):
    """Spans of random length are left out."""

    def corrupt(self, tokens: Tokens, noise: NoiseTokens, rng: np.random.Generator) -> tuple[Tokens, Tokens]:
        """See ``Objective``."""
        mask = span_mask(len(tokens), self.density, self.mean_span, rng)
        return tokens[~mask], tokens[mask]

    def lengths(self, length: int) -> tuple[int, int]:
        """The exact lengths; see ``Objective``."""
        noise, _ = span_counts(length, self.density, self.mean_span)
        return (length - noise + 1, noise + 1) if length > 1 else (2, 1)


class IIDSpans(Objective):
    """Single tokens are hidden at random; adjacent hidden tokens share one sentinel."""

    def corrupt(self, tokens: Tokens, noise: NoiseTokens, rng: np.random.Generator) -> tuple[Tokens, Tokens]:
        """See ``Objective``."""
        mask = iid_mask(len(tokens), self.density, len(noise.sentinels) - 1, rng)
        return replace_spans(tokens, mask, noise.sentinels)

    def lengths(self, length: int) -> tuple[int, int]:
        """See ``Objective``."""
        return length + 1, length + 2

    def sentinels_needed(self, length: int) -> int:
        """A bound that one text in 30,000 exceeds: the mean plus four standard deviations.

        A span begins where a hidden token follows a visible one, which has probability ``d (1 - d)`` at each position.
        """
        rate = self.density * (1 - self.density)
        spans = length * rate + 4 * math.sqrt(length * rate * max(1 - 3 * rate, 0))
        return min(math.ceil(spans), (length + 1) // 2) + 1


class IIDDrop(Objective):
    """Single tokens are left out at random."""

    def corrupt(self, tokens: Tokens, noise: NoiseTokens, rng: np.random.Generator) -> tuple[Tokens, Tokens]:
        """See ``Objective``."""
        mask = iid_mask(len(tokens), self.density, len(tokens), rng)
        return tokens[~mask], tokens[mask]


class Mass(Objective):
    """Single tokens are masked in the input; the target is the whole text (after Song et al. 2019)."""

    random_share = 0.0

    def corrupt(self, tokens: Tokens, noise: NoiseTokens, rng: np.random.Generator) -> tuple[Tokens, Tokens]:
        """See ``Objective``."""
        masked = iid_mask(len(tokens), self.density, len(tokens), rng)
        source = np.where(masked, noise.sentinels[0], tokens)
        if self.random_share:
            replaced = masked & (rng.random(len(tokens)) < self.random_share)
            source[replaced] = rng.choice(noise.words, int(replaced.sum()))
        return source, tokens

    def sentinels_needed(self, length: int) -> int:
        """One: the mask."""
        return 1


class Bert(Mass):
    """As ``mass``, but some masked tokens are replaced by a random word (after Devlin et al. 2019)."""

    random_share = RANDOM_SHARE


class PrefixLM(Objective):
    """The text is cut at a random position; the input is its first part, the target its second part."""

    def corrupt(self, tokens: Tokens, noise: NoiseTokens, rng: np.random.Generator) -> tuple[Tokens, Tokens]:
        """See ``Objective``."""
        cut = int(rng.integers(1, len(tokens))) if len(tokens) > 1 else 0
        return tokens[:cut], tokens[cut:]


class Deshuffling(Objective):
    """The input is the shuffled tokens, the target the original text (after Liu et al. 2019)."""

    def corrupt(self, tokens: Tokens, noise: NoiseTokens, rng: np.random.Generator) -> tuple[Tokens, Tokens]:
        """See ``Objective``."""
        return rng.permutation(tokens), tokens


OBJECTIVES: dict[str, Callable[[float, float], Objective]] = {
    "span_corruption": SpanCorruption,
    "span_drop": SpanDrop,
    "iid_spans": IIDSpans,
    "iid_drop": IIDDrop,
    "bert": Bert,
    "mass": Mass,
    "prefix_lm": PrefixLM,
    "deshuffling": Deshuffling,
}
