"""Fuzzing: every reader of seqgen with damaged and malicious inputs, and decoding with random settings.

::

    python -m tests.fuzzing                          many cases of each reader
    python -m tests.fuzzing run cases=1 first=4711   one case again

A case passes if the input is read correctly, or is refused with one sentence of a user error. ``sandbox`` has the rule,
``readers`` the inputs and what reads them, ``mutation`` the damage.
"""
