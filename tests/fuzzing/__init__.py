"""Fuzzing: every reader of seqgen with mutated and malicious inputs, and decoding with random settings.

::

    python -m tests.fuzzing                                        10,000 cases of each reader
    python -m tests.fuzzing reader=gz seed=1 first=4711 cases=1    one case again

A case passes if the input is read correctly, or is refused with one sentence of a user error. ``sandbox`` has the rule,
``reader`` the base class of the readers, and the other files the readers themselves.
"""
