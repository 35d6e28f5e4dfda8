"""Outputs that follow an automaton: a regular expression, JSON, or a context-free grammar of your own.

automaton.py has the processor that all three share; regular.py and json_texts.py are automata. For grammars, gbnf.py
reads the file, and earley.py follows the text.

``common.user_dir=examples/papers/automata`` registers ``generation.processors=[regex]``, ``[json]`` and ``[grammar]``.
"""

from . import automaton, characters, earley, gbnf, json_texts, processor, regular

__all__ = ["automaton", "characters", "earley", "gbnf", "json_texts", "processor", "regular"]
