"""What a user is told of wrong input: tables of calls and commands, each with words of the sentence that refuses it."""

import inspect
import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest

from seqgen.core.errors import UserError
from tests.commands import command, refused

LINE = b"the dog sees a man\n"
"""What a command reads from ``input=-``."""

OF_LIBRARIES = ("\n", "Traceback", "ListConfig", "converted to", "viable", "Ambiguous", "mismatched")
"""What no sentence has: words of a library's message that a user would not understand."""

_TRAINING = "train run_dir={tmp_path}/made"
TRANSLATION = f"{_TRAINING} task=translation task.source_lang=en task.target_lang=de task.train={{data}}/train"
TRANSLATION += " task.valid={data}/val"
LANGUAGE_MODEL = f"{_TRAINING} task=language_modeling model=transformer_lm_tiny task.vocab_size=30"
LANGUAGE_MODEL += " task.train={data}/train.de task.valid={data}/val.de.gz"
"""Commands that train on the corpus, to which keys are added."""

Row = tuple[Any, ...]


def refusals(*rows: Row, error: type[Exception] | tuple[type[Exception], ...] = UserError) -> Callable[..., None]:
    """Make a test of rows: what is refused, then words that the sentence has, all of them.

    What is refused is a call or a command. A call is a function that raises ``error``; its parameters without
    defaults are names of fixtures. A command is a text such as ``generate path={run} generation.beam=x``; a name in
    braces is a fixture, and the command ends with exit code 2 and one sentence, without a traceback.

    >>> test_values = refusals(
    ...     (lambda: Dictionary.load("nothere"), "nothere", "no such file"),
    ...     ("generate path={run} input=- generation.beam=x", "generation.beam=x", "a whole number"),
    ... )
    """

    @pytest.mark.parametrize("row", rows, ids=[f"{number}: {row[1]}"[:70] for number, row in enumerate(rows)])
    def test(row: Row, request: pytest.FixtureRequest) -> None:
        what, *words = row
        assert words, "a refusal without words would not be noticed if another took its place"
        if isinstance(what, str):
            line = re.sub(r"\{(\w+)\}", lambda name: str(request.getfixturevalue(name[1])), what)
            name, *arguments = shlex.split(line)
            refused(command(name, *arguments, stdin=LINE), *words)
        else:
            names = (name for name, one in inspect.signature(what).parameters.items() if one.default is one.empty)
            given = {name: request.getfixturevalue(name) for name in names}
            with pytest.raises(error) as caught:
                what(**given)
            message = str(caught.value)
            for word in words:
                assert word in message, message
            for word in OF_LIBRARIES:
                assert word not in message, message

    return test
