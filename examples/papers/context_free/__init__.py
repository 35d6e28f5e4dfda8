"""Outputs that follow a context-free grammar of your own: gbnf.py reads the file, earley.py follows the text.

``common.user_dir=examples/papers/context_free`` registers ``generation.processors=[grammar]``.
"""

from . import characters, earley, gbnf, processor

__all__ = ["characters", "earley", "gbnf", "processor"]
