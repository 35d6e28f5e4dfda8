"""The base of processors that restrict the output's text to the language of an automaton."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from seqgen.extend import BatchInfo, Candidates, ConfigError, LogitsProcessor, Resources, StepContext

K = TypeVar("K")

NEVER = 2**40
"""The distance to acceptance of a state from which no text is accepted."""


class Automaton(ABC):
    """A deterministic automaton over characters; a state is any hashable value, for example a stack."""

    start: Hashable
    """The state before the first character."""

    @abstractmethod
    def step(self, state: Any, character: str) -> Hashable | None:
        """The state after a character; ``None`` if no accepted text continues like this."""

    @abstractmethod
    def accepts(self, state: Any) -> bool:
        """True if the text may end in this state."""

    def remaining(self, state: Any) -> int | None:
        """A number of tokens that certainly suffices to reach an accepting state.

        Returns:
            An upper bound, 0 in accepting states; in the others, some token decreases it. By default ``None``: the
            smallest number is then computed from the tokens, which visits all states, so that there must be few.
        """
        return None


class TokenTexts:
    """The text that each token adds to the output.

    Args:
        resources: the target vocabulary and its tokenizer.

    Raises:
        ConfigError: there is no tokenizer.
    """

    def __init__(self, resources: Resources):
        words, decode = resources.dictionary, resources.decode
        if decode is None:
            raise ConfigError("a processor that reads text needs a tokenizer of the target language")
        self.ends = [words.eos(), *resources.extra_end_tokens]
        special = {words.pad(), words.bos(), words.unk(), *self.ends}
        ordinary = [token for token in range(len(words)) if token not in special]
        self.first = {token: decode([token]) for token in ordinary}
        anchor = next((token for token in ordinary if self.first[token].strip()), 0)
        skipped = len(decode([anchor]))
        self.later = {token: decode([anchor, token])[skipped:] for token in ordinary}
        self.size = len(words)


class FollowAutomaton(LogitsProcessor):
    """Allows the tokens with which the text stays in the language of an automaton and can end in time.

    End-of-sentence is allowed in accepting states only. A token is allowed if an accepting state can be reached with
    the tokens that remain before the maximum length. Tokens without text, and unknown tokens, are not allowed.

    Args:
        automaton: the automaton.
        texts: the text of each token.

    Raises:
        ConfigError: no sequence of tokens has an accepted text.
    """

    shift_invariant = True
    can_merge = True
    beam_state = ("states",)
    states: Tensor  # (sentences, beam) int64

    def __init__(self, automaton: Automaton, texts: TokenTexts):
        self.automaton, self.texts = automaton, texts
        # whether it is before the first token, and the state; number 0 has no continuations
        self.known: list[tuple[bool, Any]] = [(False, None), (True, automaton.start)]
        self.numbers = {state: number for number, state in enumerate(self.known)}
        self.rows: dict[int, tuple[Tensor, Tensor]] = {}
        self.distances: list[int] | None = None
        if automaton.remaining(automaton.start) is None:
            self.distances = self._all_distances()
        if self._distance(1) >= NEVER:
            raise ConfigError("no sequence of tokens of the target vocabulary has an allowed text")

    def begin(self, batch: BatchInfo) -> Self:
        """Return a copy for this batch, whose beams are in the start state."""
        processor = super().begin(batch)
        processor.states = torch.ones(batch.num_sentences, batch.beam_size, dtype=torch.int64, device=batch.device)
        return processor

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        needed = torch.stack([self._row(number)[1] for number in self.states.flatten().tolist()]).to(lprobs.device)
        left = context.max_lengths - context.step - 1  # tokens between this one and end-of-sentence
        return lprobs.masked_fill(needed > left.unsqueeze(1), -torch.inf)

    def advance(self, active: Candidates) -> None:
        """Follow the beams, then read the newest token of each."""
        super().advance(active)
        pairs = zip(self.states.flatten().tolist(), active.tokens.flatten().tolist(), strict=True)
        states = [int(self._row(number)[0][token]) for number, token in pairs]
        self.states = self.states.new_tensor(states).view_as(self.states)

    def _row(self, number: int) -> tuple[Tensor, Tensor]:
        """The number of the next state ``(V,)`` by token, and how many tokens it then needs ``(V,)``, made once."""
        if number not in self.rows:
            targets = self._targets(number)
            needed = torch.tensor([self._distance(target) for target in targets])
            if number and self.automaton.accepts(self.known[number][1]):
                needed[self.texts.ends] = -1  # allowed at the maximum length too
            self.rows[number] = torch.tensor(targets), needed
        return self.rows[number]

    def _targets(self, number: int) -> list[int]:
        targets = [0] * self.texts.size
        if number == 0:
            return targets
        first, start = self.known[number]
        for token, text in (self.texts.first if first else self.texts.later).items():
            state: Hashable | None = start if text else None
            for character in text:
                state = self.automaton.step(state, character)
                if state is None:
                    break
            if state is not None:
                key = (False, state)
                if key not in self.numbers:
                    self.numbers[key] = len(self.known)
                    self.known.append(key)
                targets[token] = self.numbers[key]
        return targets

    def _distance(self, number: int) -> int:
        if number == 0:
            return NEVER
        if self.distances is not None:
            return self.distances[number]
        found = self.automaton.remaining(self.known[number][1])
        return NEVER if found is None else found

    def _all_distances(self) -> list[int]:
        """The smallest number of tokens from each state to an accepting one; visits all states."""
        targets: list[set[int]] = [set()]
        while len(targets) < len(self.known):
            targets.append(set(self._targets(len(targets))) - {0})
        ways: list[list[tuple[int, Sequence[int]]]] = [[(1, (t,)) for t in following] for following in targets]
        for number, (_, state) in enumerate(self.known):
            if number and self.automaton.accepts(state):
                ways[number] = [(0, ())]
        found = least_sums(dict(enumerate(ways)))
        return [found.get(number, NEVER) for number in range(len(self.known))]


def least_sums(ways: Mapping[K, Iterable[tuple[int, Sequence[K]]]]) -> dict[K, int]:
    """The smallest value of each key, where a value is that of one of the key's ways (Knuth 1977, "A Generalization of
    Dijkstra's Algorithm").

    Args:
        ways: the ways of each key: a number that is not negative, and keys whose values are added to it.

    Returns:
        The values by key; keys that always need themselves have none.
    """
    users: dict[K, list[list[Any]]] = {}
    best: list[tuple[int, int, K]] = []  # a heap; numbers decide between equal values
    for key, choices in ways.items():
        for number, needed in choices:
            way: list[Any] = [number, len(needed), key]  # the sum so far, and how many values are missing
            for other in needed:
                users.setdefault(other, []).append(way)
            if not needed:
                heapq.heappush(best, (number, len(best), key))
    found: dict[K, int] = {}
    pushed = len(best)
    while best:
        value, _, key = heapq.heappop(best)
        if key in found:
            continue
        found[key] = value
        for way in users.get(key, ()):
            way[0], way[1] = way[0] + value, way[1] - 1
            if not way[1]:
                pushed += 1
                heapq.heappush(best, (way[0], pushed, way[2]))
    return found
