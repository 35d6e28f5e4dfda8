"""Context-free grammars that the output follows (Earley 1970, "An Efficient Context-Free Parsing Algorithm"; Willard
and Louf 2023, "Efficient Guided Generation for Large Language Models", for decoding with parsers).

A state q is the set of all partial parses of a text: items (rest, address), where rest is what an alternative still has
to read, and the address (state, rule) says where the rule began. With c(q), the smallest number of characters that
completes the text, and r tokens left after token v:

    predict    (A rest, a) in q:  (alternative of A, (q, A)) in q; with an empty rest (alternative of A, a) instead
    scan       (x rest, a) in q:  (rest, a) in d(q, x)
    complete   ((), (p, A)) in q:  (rest, a) in q, for each (A rest, a) in p
    score(v | q) = log p(v) if d(q, v) is not empty and c(d(q, v)) <= r, else -inf

States with equal items are one state, however the text got there. Ambiguity and left recursion are no special case.

``seqgen-generate common.user_dir=examples/papers/automata path=runs/bytes_lm input=test.en
generation.processors=[grammar] processor.grammar.file=examples/papers/automata/arithmetic.gbnf``

Expect outputs that the grammar derives, also at the maximum length. The vocabulary needs a token for each single
character of the grammar, as tokenizers of bytes or characters have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from .automaton import NEVER, Automaton, least_sums
from .characters import Terminal
from .gbnf import Rules, Sequence

Address: TypeAlias = tuple[int, str]
"""The state in which a rule was begun, and the rule."""
Item: TypeAlias = tuple[Sequence, Address]
WHOLE: Address = (0, "")


class Earley(Automaton):
    """A context-free grammar; its states are numbers of item sets.

    Args:
        rules: the grammar; every rule derives some text.
        root: the rule of the whole text.
    """

    def __init__(self, rules: Rules, root: str):
        self.rules, self.lengths = rules, shortest(rules)
        self.numbers: dict[frozenset[Item], int] = {}
        self.items: list[frozenset[Item]] = [frozenset()]  # number 0 is not a state: `WHOLE` has it
        self.closures: dict[int, dict[Terminal, set[Item]]] = {}
        self.waiting: dict[Address, set[Item]] = {}  # the items that continue where a rule ends
        self.costs: dict[Address, int] = {WHOLE: 0}  # characters that are needed after the end of a rule
        self.steps: dict[tuple[int, str], int | None] = {}
        self.start = self._number([((root,), WHOLE)])

    def step(self, state: int, character: str) -> int | None:
        """See ``Automaton.step``."""
        key = (state, character)
        if key not in self.steps:
            edges = self._closure(state).items()
            items = [item for terminal, found in edges if terminal.reads(character) for item in found]
            self.steps[key] = self._number(items) if items else None
        return self.steps[key]

    def accepts(self, state: int) -> bool:
        """See ``Automaton.accepts``."""
        return self.remaining(state) == 0

    def remaining(self, state: int) -> int:
        """See ``Automaton.remaining``; each character is a token."""
        return min(self._cost(item) for item in self.items[state])

    def _number(self, items: Iterable[Item]) -> int:
        key = frozenset(items)
        if key not in self.numbers:
            self.numbers[key] = len(self.items)
            self.items.append(key)
        return self.numbers[key]

    def _cost(self, item: Item) -> int:
        return self._length(item[0]) + self.costs[item[1]]

    def _length(self, sequence: Sequence) -> int:
        return sum(1 if isinstance(symbol, Terminal) else self.lengths[symbol] for symbol in sequence)

    def _closure(self, state: int) -> dict[Terminal, set[Item]]:
        """The successors of a state: for each of them, items of the next state."""
        if state in self.closures:
            return self.closures[state]
        edges: dict[Terminal, set[Item]] = {}
        waiting: dict[Address, set[Item]] = {}
        found = set(self.items[state])
        work = list(found)
        while work:
            sequence, address = work.pop()
            new: list[Item] = []
            if not sequence:
                new += self.waiting.get(address, ())  # nothing for rules of this state: see `nullable` below
            elif isinstance(symbol := sequence[0], Terminal):
                edges.setdefault(symbol, set()).add((sequence[1:], address))
            else:
                rest = (sequence[1:], address)
                begun = address
                if rest[0]:
                    begun = (state, symbol)
                    waiting.setdefault(begun, set()).add(rest)
                new += [(alternative, begun) for alternative in self.rules[symbol]]
                if self.lengths[symbol] == 0:  # nullable
                    new.append(rest)
            work += (fresh := set(new) - found)
            found |= fresh
        self._add_costs(waiting)
        self.waiting |= waiting
        self.closures[state] = edges
        return edges

    def _add_costs(self, waiting: Mapping[Address, set[Item]]) -> None:
        ways = {
            address: [
                (self._length(rest), (outer,)) if outer in waiting else (self._cost((rest, outer)), ())
                for rest, outer in items
            ]
            for address, items in waiting.items()
        }
        self.costs |= {**dict.fromkeys(waiting, NEVER), **least_sums(ways)}


def shortest(rules: Rules) -> dict[str, int]:
    """The length of the shortest text of each rule; at least ``NEVER`` if it has none."""
    ways = {}
    for name, alternatives in rules.items():
        names = [[symbol for symbol in sequence if isinstance(symbol, str)] for sequence in alternatives]
        ways[name] = [(len(all_) - len(named), named) for all_, named in zip(alternatives, names, strict=True)]
    return {**dict.fromkeys(rules, NEVER), **least_sums(ways)}
