"""Regular expressions that the output matches (Willard and Louf 2023, "Efficient Guided Generation for Large Language
Models"; Thompson 1968, "Regular Expression Search Algorithm", for the compilation).

An automaton has states q, a start state and accepting states. Reading the text of token v leads from q to d(q, v), or
nowhere. With c(q), the smallest number of tokens from q to an accepting state, and r tokens left after this one:

    score(v | q) = log p(v) if c(d(q, v)) <= r, else -inf
    score(end-of-sentence | q) = log p(end-of-sentence) if q accepts, else -inf

``seqgen-generate common.user_dir=examples/papers/automata.py path=runs/a input=test.en generation.processors=[regex]
processor.regex.pattern='(a|two) [a-z ]+'``

Expect outputs that match the whole pattern, also at the maximum length. The syntax is Python's: ``. [a-z] [^a-z] ( ) |
* + ? {m} {m,} {m,n}``, the escapes ``\\d \\w \\s``, and ``\\`` before other characters. A given prefix must match too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, Self

from seqgen.config import option
from seqgen.errors import ConfigError
from seqgen.generation.component import Resources
from seqgen.generation.processors.automaton import Automaton, FollowAutomaton, TokenTexts
from seqgen.registry import register_logits_processor

Characters = Callable[[str], bool]  # which characters an edge reads
Fragment = Callable[[int], int]  # adds states from which the text continues in the given state; returns the first one
CLASSES: dict[str, Characters] = {"d": str.isdecimal, "s": str.isspace, "w": lambda c: c.isalnum() or c == "_"}


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
        found, waiting = set(states), list(states)
        while waiting:
            new = [state for state in self.empty[waiting.pop()] if state not in found]
            found.update(new)
            waiting += new
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
        text, closed, _ = self.pattern[self.place :].partition("}")
        low, comma, high = text.partition(",")
        if not closed or not low.isdecimal() or (high and not high.isdecimal()):
            self._fail("a wrong number of repetitions")
        if not int(low) <= int(high or low) <= 1000:
            self._fail("a wrong number of repetitions")
        self.place += len(text) + 1
        return int(low), int(high or low) if high or not comma else None

    def _single(self) -> Fragment:
        if self._take("("):
            inner = self._choice()
            return inner if self._take(")") else self._fail("a missing ')'")
        if self.pattern[self.place] in "*+?{":
            self._fail("nothing to repeat")
        reads = self._one_of() if self._take("[") else self._characters()
        return lambda follow: self._add(reads=(reads, follow))

    def _one_of(self) -> Characters:
        inverted, parts = bool(self._take("^")), []
        while not self._take("]"):
            parts.append(self._characters(inside=True))
        return lambda character: any(part(character) for part in parts) != inverted

    def _characters(self, inside: bool = False) -> Characters:
        """A character, an escape or ``.``; inside brackets, a character, an escape or a range."""
        first = self._take() or self._fail("an unexpected end")
        if first == "." and not inside:
            return lambda character: character != "\n"
        if first == "\\":
            first = self._take() or self._fail("an unexpected end")
            if first in CLASSES:
                return CLASSES[first]
            if first.isalnum():
                self._fail("an unknown escape")
        if inside and self.pattern[self.place :][:1] == "-" and self.pattern[self.place :][1:2] not in ("]", ""):
            last = self._take() and self._take()
            return lambda character: first <= character <= last
        return lambda character: character == first


@dataclass
class RegexConfig:
    """Configuration of the processor; its fields are the keys ``processor.regex.FIELD``."""

    pattern: str = option("", "regular expression that the whole output matches")


@register_logits_processor("regex", config=RegexConfig)
class RegexProcessor(FollowAutomaton):
    """Allows only outputs that match a regular expression."""

    @classmethod
    def build(cls, cfg: RegexConfig, resources: Resources) -> Self:
        """Compile the expression; the text of tokens comes from the tokenizer."""
        if not cfg.pattern:
            raise ConfigError("processor.regex.pattern is empty; give a regular expression")
        return cls(Regex(cfg.pattern), TokenTexts(resources))
