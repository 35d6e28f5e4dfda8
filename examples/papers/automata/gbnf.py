"""Grammar files in GBNF, the notation of llama.cpp: a Backus-Naur form with the repetitions of regular expressions.

``name ::= …``, alternatives ``|``, groups ``( )``, ``"text"``, ``[a-z]``, ``[^a-z]``, ``.`` (any character), the
repetitions ``* + ? {m} {m,} {m,n}``, and ``#`` before a comment. A rule ends where the next one begins. Escapes are
``\\n \\r \\t \\\\ \\" \\[ \\]``, ``\\xHH``, ``\\uHHHH`` and ``\\UHHHHHHHH``. A repetition becomes a separate rule,
recursive on the left: ``x*`` is ``r ::= "" | r x``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NoReturn, TypeAlias

from seqgen.extend import DataError, nearest, read_lines, shown

from .characters import ANY, ESCAPE, Terminal, literal, ranges

TOKENS = re.compile(
    rf"""(?P<space>(?:\s|\#.*)+)|(?P<rule>[\w-]+)\s*::=|(?P<name>[\w-]+)|(?P<sign>[|()*+?.])
    |"(?P<text>(?:[^"\\\n]|{ESCAPE})*)"|\[(?P<set>(?:[^]\\\n]|{ESCAPE})+)]|\{{(?P<counts>\d+(?:,\d*)?)}}""",
    re.VERBOSE,
)
MAX_NESTED, MAX_REPEATED = 100, 1000

Sequence: TypeAlias = tuple[str | Terminal, ...]
"""Names of rules, and characters."""
Rules: TypeAlias = dict[str, list[Sequence]]
"""The alternatives of each rule."""


class GrammarFile:
    """Reads a grammar.

    Args:
        path: the file.

    Raises:
        DataError: it cannot be read, or is not a grammar; the message has the number of the line.

    Attributes:
        rules: the rules of the file, and those of its groups and repetitions, whose names begin with a bracket.
        lines: the line of each rule of the file.
    """

    def __init__(self, path: Path):
        self.path, self.rules, self.lines = path, Rules(), dict[str, int]()
        self.used: dict[str, int] = {}
        text, line, place = "\n".join(read_lines(path)), 1, 0
        self.tokens: list[tuple[str, str, int]] = []  # kind, text, line; reversed
        while place < len(text):
            if (found := TOKENS.match(text, place)) is None:
                self.fail(line, f"cannot be read from {shown(text[place : place + 20].splitlines()[0])} on")
            assert found.lastgroup
            if found.lastgroup != "space":
                self.tokens.append((found.lastgroup, found[found.lastgroup], line))
            line, place = line + found[0].count("\n"), found.end()
        self.tokens = [*self.tokens, ("end", "", line)][::-1]
        while (token := self.tokens.pop())[0] != "end":
            self._rule(*token)
        for name, line in self.used.items():
            if name not in self.rules:
                self.fail(line, f"has the name {name!r}, for which there is no rule{nearest(name, self.lines)}")

    def fail(self, line: int, what: str) -> NoReturn:
        """Refuse the file."""
        raise DataError(f"line {line} of {self.path} {what}")

    def _rule(self, kind: str, name: str, line: int) -> None:
        if kind != "rule":
            self.fail(line, f"has {name!r} where a rule or the end of the file is expected; write NAME ::= …")
        if name in self.rules:
            self.fail(line, f"has a second rule {name!r}; the first one is in line {self.lines[name]}")
        self.lines[name], self.rules[name] = line, []
        self.rules[name] += self._alternatives(0)

    def _take(self, *signs: str) -> str:
        """Read the next token if it is one of these signs; returns it, or nothing."""
        kind, text, _ = self.tokens[-1]
        return self.tokens.pop()[1] if kind == "sign" and text in signs else ""

    def _add(self, *alternatives: Sequence) -> Sequence:
        name = f"[{len(self.rules)}]"
        self.rules[name] = list(alternatives)
        return (name,)

    def _alternatives(self, depth: int) -> list[Sequence]:
        found = [self._sequence(depth)]
        while self._take("|"):
            found.append(self._sequence(depth))
        return found

    def _sequence(self, depth: int) -> Sequence:
        found: Sequence = ()
        while (one := self._single(depth)) is not None:
            while (sign := self._take("*", "+", "?")) or self.tokens[-1][0] == "counts":
                one = self._repeated(one, sign)
            found += one
        return found

    def _repeated(self, one: Sequence, sign: str) -> Sequence:
        _, counts, line = ("", {"*": "0,", "+": "1,", "?": "0,1"}[sign], 0) if sign else self.tokens.pop()
        first, comma, last = counts.partition(",")
        if len(one) > 1:
            one = self._add(one)
        low, high = int(first[:9]), int((last or first)[:9])
        if not low <= high <= MAX_REPEATED:
            self.fail(line, f"repeats {{{counts}}} times; the second number is {low} to {MAX_REPEATED}")
        if comma and not last:
            rest = f"[{len(self.rules)}]"
            self.rules[rest] = [(), (rest, *one)]
            return (*one * low, rest)
        optional: Sequence = ()
        for _ in range(high - low):  # {0,2} of x is (x (x)?)?
            optional = self._add((), one + optional)
        return one * low + optional

    def _single(self, depth: int) -> Sequence | None:
        """The next element of a sequence; ``None`` at its end."""
        kind, text, line = self.tokens[-1]
        if kind in ("rule", "end", "counts") or (kind == "sign" and text in "|)*+?"):
            if kind == "counts" or text in ("*", "+", "?") or (text == ")" and not depth):
                self.fail(line, f"has an unexpected {text!r}")
            return None
        self.tokens.pop()
        if kind == "name":
            self.used.setdefault(text, line)
            return (text,)
        if text == "(" and kind == "sign":
            if depth == MAX_NESTED:
                self.fail(line, f"has more than {MAX_NESTED} groups inside each other")
            group = self._add(*self._alternatives(depth + 1))
            return group if self._take(")") else self.fail(line, "has '(' without ')'")
        if kind == "sign":
            return (ANY,)
        try:
            return literal(text, line) if kind == "text" else (ranges(text, line),)
        except ValueError as error:
            self.fail(line, f"has {error}")
