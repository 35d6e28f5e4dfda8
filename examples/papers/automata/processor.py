"""The processor ``grammar``, which allows only outputs that the grammar of a file derives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from seqgen.extend import ConfigError, Resources, nearest, option, register_logits_processor

from .automaton import NEVER, FollowAutomaton, TokenTexts
from .earley import Earley, shortest
from .gbnf import GrammarFile


@dataclass
class GrammarConfig:
    """The keys ``processor.grammar.FIELD``."""

    file: str = option("", "file with the grammar, in GBNF", role="input_path")
    root: str = option("root", "rule that derives the whole output")


@register_logits_processor("grammar", config=GrammarConfig)
class GrammarProcessor(FollowAutomaton):
    """Allows only outputs that a context-free grammar derives."""

    @classmethod
    def build(cls, cfg: GrammarConfig, resources: Resources) -> Self:
        """Read the grammar; the text of tokens comes from the tokenizer."""
        if not cfg.file:
            raise ConfigError("the processor grammar needs processor.grammar.file=FILE, a grammar in GBNF")
        grammar, texts = GrammarFile(Path(cfg.file)), TokenTexts(resources)
        if cfg.root not in grammar.lines:
            raise ConfigError(
                f"{cfg.file} has no rule {cfg.root!r}{nearest(cfg.root, grammar.lines)}; set processor.grammar.root"
            )
        check(grammar, cfg.root, {text for text in texts.later.values() if len(text) == 1})
        return cls(Earley(grammar.rules, cfg.root), texts)


def check(grammar: GrammarFile, root: str, characters: set[str]) -> None:
    """Refuse rules without any text, and characters that the vocabulary does not have.

    Args:
        grammar: the grammar.
        root: the rule of the whole text; only rules that it uses need characters of the vocabulary.
        characters: those that are tokens.

    Raises:
        DataError: there is such a rule or character.
    """
    lengths = shortest(grammar.rules)
    for name, line in grammar.lines.items():
        if lengths[name] >= NEVER:
            grammar.fail(line, f"has the rule {name!r}, which never ends, because each alternative needs it again")
    used, seen = [root], {root}
    for name in used:  # which grows
        symbols = {symbol for sequence in grammar.rules[name] for symbol in sequence}
        for symbol in symbols:
            if isinstance(symbol, str):
                used += [symbol] if symbol not in seen else []
                seen.add(symbol)
            elif not any(map(symbol.reads, characters)):
                grammar.fail(symbol.line, "needs a character that is no token of the target vocabulary")
