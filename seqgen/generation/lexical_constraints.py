"""Phrases that an output must contain, and how far each hypothesis has come with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seqgen.generation.search import Phrases

NONE = -1


@dataclass(frozen=True)
class Progress:
    """How far hypotheses have come with the phrases of their sentence.

    Attributes:
        met: ``(sentences, k, P)`` bool, the phrases that they contain.
        matched: ``(sentences, k, P)`` int64, with how many tokens of each phrase they end; 0 for those that are met and
            for those whose turn has not come.
    """

    met: Tensor
    matched: Tensor

    def gather(self, beams: Tensor) -> Progress:
        """The progress of other beams, ``beams`` being ``(sentences, k)`` int64."""
        index = beams.unsqueeze(-1).expand(-1, -1, self.met.size(-1))
        return Progress(self.met.gather(1, index), self.matched.gather(1, index))

    def select(self, keep: Tensor) -> Progress:
        """The progress of some sentences, ``keep`` being ``(kept,)`` int64."""
        return Progress(self.met.index_select(0, keep), self.matched.index_select(0, keep))


class LexicalConstraints:
    """The phrases of a batch as tensors, ``P`` for each sentence, of at most ``L`` tokens.

    A phrase is met when it occurs. One that is listed twice must occur twice, and those in a given order must occur one
    after the other. Both are one rule: a phrase may have a predecessor, and its turn comes after that one is met.

    Args:
        phrases: the phrases of each sentence, as ids.
        ordered: whether they must occur in the order given.
        device: where the tensors live.
    """

    def __init__(self, phrases: Sequence[Phrases], ordered: bool, device: torch.device):
        some = [[list(phrase) for phrase in own if phrase] for own in phrases]
        count = max((len(own) for own in some), default=0) or 1
        longest = max((len(phrase) for own in some for phrase in own), default=0) or 1
        padded = [[*own, *([[]] * (count - len(own)))] for own in some]
        self.tokens = _tensor([[_pad(phrase, longest, NONE) for phrase in own] for own in padded], device)
        self.lengths = _tensor([[len(phrase) for phrase in own] for own in padded], device)
        self.predecessors = _tensor([_predecessors(own, ordered) for own in padded], device)
        self.table = _tensor([[_automaton(phrase, longest) for phrase in own] for own in padded], device)

    def select(self, keep: Tensor) -> None:
        """Forget all sentences but those in ``keep``, ``(kept,)`` int64."""
        self.tokens, self.lengths = self.tokens.index_select(0, keep), self.lengths.index_select(0, keep)
        self.predecessors, self.table = self.predecessors.index_select(0, keep), self.table.index_select(0, keep)

    def start(self, beam: int) -> Progress:
        """The progress of ``beam`` hypotheses without tokens; a phrase that only fills up is met from the start."""
        met = self.lengths.eq(0).unsqueeze(1).expand(-1, beam, -1)
        return Progress(met, torch.zeros_like(met, dtype=torch.int64))

    def advance(self, progress: Progress, tokens: Tensor) -> Progress:
        """Append a token to each hypothesis.

        Args:
            progress: before.
            tokens: ``(sentences, k)`` int64.
        """
        same = self.tokens.unsqueeze(1) == tokens[..., None, None]  # (sentences, k, P, L)
        place = same.to(torch.int8).argmax(-1)
        # the automaton's entry (phrase, matched, place): how much is matched after the phrase's token at that place
        entries = progress.matched * self.table.size(-1) + place
        table = self.table.flatten(2).unsqueeze(1).expand(-1, tokens.size(1), -1, -1)
        after = table.gather(-1, entries.unsqueeze(-1)).squeeze(-1)
        matched = torch.where(same.any(-1) & self._open(progress.met), after, 0)
        complete = matched == self.lengths.unsqueeze(1)
        return Progress(progress.met | complete, matched.masked_fill(complete, 0))

    def bank(self, progress: Progress) -> Tensor:
        """How many tokens of the phrases each hypothesis has, ``(sentences, k)`` int64.

        Those of the phrases that are met, and of the others the one that is furthest.
        """
        return (progress.met * self.lengths.unsqueeze(1)).sum(-1) + progress.matched.max(-1).values

    def unmet(self, progress: Progress) -> Tensor:
        """Which hypotheses lack a phrase: ``(sentences, k)`` bool."""
        return ~progress.met.all(-1)

    def next_tokens(self, progress: Progress) -> Tensor:
        """What would bring a hypothesis further: ``(sentences, k, 2 * P)`` int64, ``NONE`` where there is nothing.

        That is how each phrase begins, and how those begun go on. As in fairseq the beginning of a phrase that is met
        counts as well: it stays among the candidates, where it may fill a place in the beam that is left over.
        """
        tokens = self.tokens.unsqueeze(1).expand(-1, progress.met.size(1), -1, -1)
        following = tokens.gather(-1, progress.matched.unsqueeze(-1)).squeeze(-1)
        return torch.cat([tokens[..., 0], following.masked_fill(progress.met, NONE)], dim=-1)

    def _open(self, met: Tensor) -> Tensor:
        """The phrases that are not met and whose turn it is: ``(sentences, k, P)`` bool."""
        predecessors = self.predecessors.unsqueeze(1).expand_as(met)
        return ~met & ((predecessors == NONE) | met.gather(-1, predecessors.clamp(min=0)))


def _predecessors(phrases: Phrases, ordered: bool) -> list[int]:
    """For each phrase, the one that must be met before: the one before it, or the last before it that is the same."""
    if ordered:
        return [i - 1 for i in range(len(phrases))]
    return [max((j for j in range(i) if phrases[j] == phrases[i]), default=NONE) for i in range(len(phrases))]


def _automaton(phrase: Sequence[int], longest: int) -> list[list[int]]:
    """How much of a phrase is matched after each of its tokens (Knuth, Morris and Pratt 1977).

    For the phrase ``a a b``, entry ``[2][0]`` is 2: where ``a a`` is matched and ``a`` follows, the end still matches
    the first two tokens. A token that is not in the phrase always leads to 0.

    Args:
        phrase: the tokens.
        longest: how many rows and columns there are.
    """
    table = [[0] * longest for _ in range(longest)]
    for matched in range(len(phrase)):
        for place, token in enumerate(phrase):
            text = [*phrase[:matched], token]
            lengths = range(min(len(text), len(phrase)), 0, -1)
            table[matched][place] = next((n for n in lengths if text[-n:] == list(phrase[:n])), 0)
    return table


def _pad(values: Sequence[int], size: int, fill: int) -> list[int]:
    return [*values, *([fill] * (size - len(values)))]


def _tensor(values: list[Any], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)
