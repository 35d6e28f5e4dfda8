"""JSON that always parses, by a pushdown automaton (Willard and Louf 2023, "Efficient Guided Generation for Large
Language Models", section 4; the grammar is that of RFC 8259).

A state is a mode (what may follow, for example a string or a comma) and the stack s of open objects and arrays. With
c(mode, s), a number of characters that completes the text, and r tokens left after token v:

    score(v | mode, s) = log p(v) if v leads to (mode', s') with |s'| <= depth and c(mode', s') <= r, else -inf
    c(mode, s) = c(mode) + |s|        one bracket closes each open object or array

so that everything that was opened is closed before the maximum length. End-of-sentence needs an empty stack.

``seqgen-generate common.user_dir=examples/papers/automata path=runs/bytes_lm input=test.en generation.processors=[json]
processor.json.root=object processor.json.depth=3``

Expect outputs that ``json.loads`` accepts. The vocabulary needs tokens for the single characters ``{ } [ ] " : 0``, as
tokenizers of bytes or characters have; others are refused. One space is allowed after a comma or colon.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self, TypeAlias

from seqgen.extend import ConfigError, Resources, option, register_logits_processor

from .automaton import Automaton, FollowAutomaton, TokenTexts

State: TypeAlias = tuple[str, str]
"""The mode and the stack, whose characters are the brackets that close it, the innermost last."""
CLOSES = {"{": "}", "[": "]"}
DIGITS, NONZERO, HEXADECIMAL = frozenset("0123456789"), frozenset("123456789"), frozenset("0123456789abcdefABCDEF")
LITERALS = ("true", "false", "null")
NUMBERS: dict[str, list[tuple[frozenset[str], str]]] = {
    "minus": [(frozenset("0"), "zero"), (NONZERO, "integer")],
    "zero": [(frozenset("."), "point"), (frozenset("eE"), "exponent")],
    "integer": [(DIGITS, "integer"), (frozenset("."), "point"), (frozenset("eE"), "exponent")],
    "point": [(DIGITS, "fraction")],
    "fraction": [(DIGITS, "fraction"), (frozenset("eE"), "exponent")],
    "exponent": [(frozenset("+-"), "sign"), (DIGITS, "power")],
    "sign": [(DIGITS, "power")],
    "power": [(DIGITS, "power")],
}
"""For each mode inside a number, the characters that continue it, and the mode after them."""

NEEDED = {
    **dict.fromkeys(("element", "member", "after", "zero", "integer", "fraction", "power"), 0),
    **dict.fromkeys(("value", "value ", "text", "minus", "point", "exponent", "sign"), 1),
    **{"object": 2, "colon": 2, "text\\": 2, "name": 3, "name\\": 4, "key": 4, "key ": 4},
}
"""For each mode, the characters that complete it, without closing brackets: for a key ``"":0``."""


class Json(Automaton):
    """JSON with a bounded stack; for the arguments see ``JsonConfig``."""

    def __init__(self, depth: int, root: str = "object", literals: tuple[str, ...] = LITERALS):
        self.depth, self.literals = depth, literals
        self.start: State = (root, "")

    def step(self, state: State, character: str) -> State | None:
        """See ``Automaton.step``."""
        mode, stack = state
        if mode in ("value ", "key ") and character == " ":
            return mode.strip(), stack
        if mode.strip() in ("value", "element", "object"):
            return self.value(mode, stack, character)
        if mode.strip() in ("key", "member") and character == '"':
            return "name", stack
        if mode[:4] in ("name", "text"):
            return self.string(mode, stack, character)
        if mode == "colon" and character == ":":
            return "value ", stack
        if mode.startswith("word"):  # the rest of a literal
            rest = mode[5:]
            return None if character != rest[0] else (f"word {rest[1:]}" if rest[1:] else "after", stack)
        for characters, following in NUMBERS.get(mode, ()):
            if character in characters:
                return following, stack
        ended = mode == "member" or (mode in ("after", *NUMBERS) and NEEDED[mode] == 0)
        if ended and stack and character == stack[-1]:
            return "after", stack[:-1]
        if ended and stack and character == "," and mode != "member":
            return ("key " if stack[-1] == "}" else "value "), stack
        return None

    def value(self, mode: str, stack: str, character: str) -> State | None:
        """The state after the first character of a value, or of the element of an array that may be empty."""
        if mode == "element" and character == "]":
            return "after", stack[:-1]
        if character in CLOSES and (mode != "object" or character == "{"):
            inside = "member" if character == "{" else "element"
            return (inside, stack + CLOSES[character]) if len(stack) < self.depth else None
        if mode == "object":
            return None
        if word := next((word for word in self.literals if word[0] == character), None):
            return f"word {word[1:]}", stack
        if character == '"':
            return "text", stack
        kind = {"-": "minus", "0": "zero", **dict.fromkeys(NONZERO, "integer")}.get(character)
        return (kind, stack) if kind else None

    def string(self, mode: str, stack: str, character: str) -> State | None:
        """The state after a character of a string; ``mode`` is ``text`` or ``name``, then what an escape has read."""
        kind, escape = mode[:4], mode[4:]
        if not escape:
            if character == '"':
                return ("colon" if kind == "name" else "after"), stack
            return (kind + "\\" if character == "\\" else kind, stack) if character >= " " else None
        if escape == "\\":
            known = {"u": kind + "\\u", **dict.fromkeys('"\\/bfnrt', kind)}
            return (known[character], stack) if character in known else None
        return (kind if len(escape) == 5 else mode + "0", stack) if character in HEXADECIMAL else None

    def accepts(self, state: State) -> bool:
        """See ``Automaton.accepts``."""
        return not state[1] and state[0] not in ("element", "member") and NEEDED.get(state[0]) == 0

    def remaining(self, state: State) -> int:
        """See ``Automaton.remaining``; each of these characters is a token."""
        mode, stack = state
        if mode.startswith("word"):
            return len(mode) - 5 + len(stack)
        if "\\u" in mode:
            return 4 - (len(mode) - 6) + NEEDED[mode[:4]] + len(stack)
        return NEEDED[mode] + len(stack)


@dataclass
class JsonConfig:
    """The keys ``processor.json.FIELD``."""

    root: str = option("object", "what the whole output is", choices=("object", "value"))
    depth: int = option(4, "objects and arrays that are open at the same time", minimum=1)


@register_logits_processor("json", config=JsonConfig)
class JsonProcessor(FollowAutomaton):
    """Allows only JSON."""

    @classmethod
    def build(cls, cfg: JsonConfig, resources: Resources) -> Self:
        """Make the processor; the text of tokens comes from the tokenizer."""
        texts = TokenTexts(resources)
        single = set(texts.later.values())
        if lacking := [character for character in '{}[]":0' if character not in single]:
            raise ConfigError(f"processor.json needs tokens for single characters; not in the vocabulary: {lacking}")
        literals = tuple(word for word in LITERALS if set(word) <= single)
        return cls(Json(cfg.depth, cfg.root, literals), texts)
