"""Regular expressions that the output matches (Willard and Louf 2023, "Efficient Guided Generation for Large Language
Models"; Thompson 1968, "Regular Expression Search Algorithm", for the compilation).

An automaton has states q, a start state and accepting states. Reading the text of token v leads from q to d(q, v), or
nowhere. With c(q), the smallest number of tokens from q to an accepting state, and r tokens left after this one:

    score(v | q) = log p(v) if c(d(q, v)) <= r, else -inf
    score(end-of-sentence | q) = log p(end-of-sentence) if q accepts, else -inf

``seqgen-generate common.user_dir=examples/papers/automata path=runs/a input=test.en generation.processors=[regex]
processor.regex.pattern='(a|two) [a-z ]+'``

Expect outputs that match the whole pattern, also at the maximum length. The syntax is Python's: ``. [a-z] [^a-z] ( ) |
* + ? {m} {m,} {m,n}``, the escapes ``\\d \\w \\s``, and ``\\`` before signs. A given prefix must match too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, Self

from seqgen.extend import ConfigError, Resources, option, register_logits_processor

from .automaton import Automaton, FollowAutomaton, TokenTexts

ONE_CHARACTER = re.compile(r"\[\^?(\\.|[^]\\])(\\.|[^]\\])*]|\\[dDsSwW]|\\\W|[^[\\]")
"""A part of an expression that reads one character: brackets, an escape, ``.`` or a character; for Python's ``re``."""

Characters = Callable[[str], object]  # which characters an edge reads
Fragment = Callable[[int], int]  # adds states that lead to the given state, and returns the first of them


class Regex(Automaton):
    """A regular expression; its states are sets of states of Thompson's automaton."""

    def __init__(self, pattern: str):
        self.pattern, self.place = pattern, 0
        self.empty: list[list[int]] = []  # for each state, where one gets without reading
        self.reads: list[tuple[Characters, int] | None] = []  # for each state, the edge that reads a character
        whole = self._choice()
        if self.place < len(pattern):
            self._fail("an unexpected ')'")
        self.final = self._add()
        self.start = self.closure([whole(self.final)])

    def step(self, state: frozenset[int], character: str) -> frozenset[int] | None:
        """See ``Automaton.step``."""
        edges = (edge for number in state if (edge := self.reads[number]) is not None)
        return self.closure([target for reads, target in edges if reads(character)]) or None

    def accepts(self, state: frozenset[int]) -> bool:
        """See ``Automaton.accepts``."""
        return self.final in state

    def closure(self, states: Sequence[int]) -> frozenset[int]:
        """These states and all that are reached from them without reading."""
        found = list(states)
        for state in found:  # which grows
            found += [other for other in self.empty[state] if other not in found]
        return frozenset(found)

    def _add(self, *empty: int, reads: tuple[Characters, int] | None = None) -> int:
        self.empty.append(list(empty))
        self.reads.append(reads)
        return len(self.empty) - 1

    def _fail(self, what: str) -> NoReturn:
        raise ConfigError(f"processor.regex.pattern={self.pattern!r} has {what} at position {self.place}")

    def _take(self, characters: str = "") -> str:
        """Read the next character if it is one of these (any one by default); returns it, or nothing."""
        found = self.pattern[self.place : self.place + 1]
        found = found if not characters or found in characters else ""
        self.place += len(found)
        return found

    def _choice(self) -> Fragment:
        first = self._sequence()
        if not self._take("|"):
            return first
        second = self._choice()
        return lambda follow: self._add(first(follow), second(follow))

    def _sequence(self) -> Fragment:
        if self.place == len(self.pattern) or self.pattern[self.place] in "|)":
            return lambda follow: follow
        first, rest = self._repeated(self._single()), self._sequence()
        return lambda follow: first(rest(follow))

    def _repeated(self, one: Fragment) -> Fragment:
        if not (sign := self._take("*+?{")):
            return one
        low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(sign) or self._counts()

        def build(follow: int) -> int:
            last = self._add(follow)
            if high is None:
                self.empty[last].append(one(last))
            for _ in range((high or low) - low):
                last = self._add(one(last), follow)
            for _ in range(low):
                last = one(last)
            return last

        return self._repeated(build)

    def _counts(self) -> tuple[int, int | None]:
        found = re.match(r"(\d+)(,?)(\d*)}", self.pattern[self.place :])
        low, high = (int(found[1]), int(found[3] or found[1])) if found else (1, 0)
        if not found or not low <= high <= 1000:
            self._fail("a wrong number of repetitions")
        self.place += found.end()
        return low, high if found[3] or not found[2] else None

    def _single(self) -> Fragment:
        if self._take("("):
            inner = self._choice()
            return inner if self._take(")") else self._fail("a missing ')'")
        if self._take("*+?{"):
            self._fail("nothing to repeat")
        found = ONE_CHARACTER.match(self.pattern, self.place) or self._fail("an unknown escape or a missing ']'")
        try:
            reads = re.compile(found[0]).fullmatch
        except re.error as error:
            self._fail(f"{found[0]!r}, {error},")
        self.place = found.end()
        return lambda follow: self._add(reads=(reads, follow))


@dataclass
class RegexConfig:
    """The keys ``processor.regex.FIELD``."""

    pattern: str = option(".*", "regular expression that the whole output matches")


@register_logits_processor("regex", config=RegexConfig)
class RegexProcessor(FollowAutomaton):
    """Allows only outputs that match a regular expression."""

    @classmethod
    def build(cls, cfg: RegexConfig, resources: Resources) -> Self:
        """Compile the expression; the text of tokens comes from the tokenizer."""
        return cls(Regex(cfg.pattern), TokenTexts(resources))
