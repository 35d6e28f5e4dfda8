"""The declaration of a key, and the meaning of a key of the ``generation`` group to the rest of the program.

A feature declares its keys in its own folder, in a dataclass of such fields; see ``generation.OPTIONS``.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

DEFAULT_COMBINATION = "probability"
"""The combination of the members of an ensemble if none is named."""

Tags: TypeAlias = frozenset[str]
"""The meaning of a key of the ``generation`` group to the rest of the program: a union of the constants below."""

MODEL: Tags = frozenset({"MODEL"})
"""A model may have a setting, which applies where the user gives none."""
CALL: Tags = frozenset({"CALL"})
"""Chosen for each decode."""
INPUT: Tags = frozenset({"INPUT"})
"""Determines how input lines are read."""
FILES: Tags = frozenset({"FILES"})
"""Names a file."""
SPEED: Tags = frozenset({"SPEED"})
"""Changes speed and memory, not outputs."""
SCOPES = MODEL | CALL | INPUT | FILES | SPEED
"""The facts that say whose key it is; each key has one of them."""

ENSEMBLE: Tags = frozenset({"ENSEMBLE"})
"""Combines several models."""
STRATEGY: Tags = frozenset({"STRATEGY"})
"""Chooses or configures a built-in search strategy."""
WARPER: Tags = frozenset({"WARPER"})
"""Truncates the distribution before a token is drawn."""
KEEPS_SCORES: Tags = frozenset({"KEEPS_SCORES"})
"""Does not change the log-probabilities of tokens."""
NOT_IN_TRAINING: Tags = frozenset({"NOT_IN_TRAINING"})
"""Has no effect in a criterion that decodes."""
SCORES_TARGETS: Tags = frozenset({"SCORES_TARGETS"})
"""Has an effect on the scores of known targets."""
CONSTRAINS: Tags = frozenset({"CONSTRAINS"})
"""Demands phrases in the outputs."""
LISTS_OUTPUTS: Tags = frozenset({"LISTS_OUTPUTS"})
"""Names a file of the outputs that are allowed."""
NEEDS_STEPS: Tags = frozenset({"NEEDS_STEPS"})
"""Needs the decoding loop of ``Session``."""
WHOLE_LINE: Tags = frozenset({"WHOLE_LINE"})
"""Is about a whole line of input, which is then not split."""


class Requirement(NamedTuple):
    """A requirement of a key on the other keys, which applies if the key is given.

    Attributes:
        met: returns a true value if a configuration meets the requirement; it gets the whole ``generation`` group.
        sentence: the error message without its beginning "generation.KEY=VALUE ".
        keys: facts; ``{keys}`` in the sentence stands for the keys that have one of them.
    """

    met: Callable[[Any], object]
    sentence: str
    keys: Tags = frozenset()


CONSTRAINED = (
    Requirement(
        lambda cfg: not cfg.uses(WARPER),
        "must be able to generate the tokens of the phrases where they are improbable, but top_k, top_p and the other "
        "keys that truncate the distribution forbid improbable tokens; remove these keys",
    ),
    Requirement(
        lambda cfg: cfg.beam > 1,
        "with one beam would begin every output with the phrases; set generation.beam to 2 or more",
    ),
)
"""The requirements of a key that demands phrases."""


def option(
    default: Any,
    help: str,
    *,
    choices: Sequence[str] | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    role: Literal["", "input_path", "output_path", "code"] = "",
    other_names: Sequence[str] = (),
    **facts: Any,
) -> Any:
    """Declare a configuration field::

        dropout: float = option(0.1, "dropout probability of features", minimum=0, maximum=1)

    Args:
        default: the default; a list is copied for each instance.
        help: one line that says what the value does, with its unit.
        choices: the allowed values of a string.
        minimum: smallest allowed value of a number, or of each number in a list.
        maximum: largest allowed value, likewise.
        role: ``input_path`` if the value names a file or folder to read, ``output_path`` if it names something that is
            written, ``code`` if it names something that can run code. The last two are taken from the command line
            only, not from ``config=FILE``.
        other_names: names of the key in other toolkits that are not its last part; a hint for a key that does not
            exist gives this key for them.
        facts: further facts, which become metadata of the field.

    Returns:
        The dataclass field.
    """
    limits = {"choices": choices, "minimum": minimum, "maximum": maximum}
    return _field(default, {"help": help, **limits, "role": role, "other_names": other_names, **facts})


def like(config: type, name: str, default: Any = dataclasses.MISSING) -> Any:
    """Declare a configuration field as another configuration declares it.

    Args:
        config: the other configuration.
        name: its field.
        default: the default, if it differs.
    """
    field = {field.name: field for field in dataclasses.fields(config)}[name]
    return _field(getattr(config(), name) if default is dataclasses.MISSING else default, field.metadata)


def _field(default: Any, metadata: Mapping[str, Any]) -> Any:
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: copy.copy(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def decoding_key(
    default: Any, help: str, facts: Tags, *needs: Requirement, limit_from_files: float | None = None, **declaration: Any
) -> Any:
    """Declare a key of the ``generation`` group.

    Args:
        default: the default.
        help: one line for ``--help``.
        facts: the meaning of the key to the rest of the program, with one of ``SCOPES``.
        needs: requirements on the other keys, in the order in which they are checked.
        limit_from_files: the maximum value of a model's setting: a file from elsewhere cannot demand all memory or
            an endless output.
        declaration: choices, minimum, maximum, role and other names; see ``option``.
    """
    return option(default, help, **declaration, facts=facts, needs=needs, limit_from_files=limit_from_files)
