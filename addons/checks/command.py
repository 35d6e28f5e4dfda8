"""``seqgen-check``: checks of models and of other components.

``seqgen-check KIND=NAME`` checks the invariants of a component, ``path=RUN`` those of a trained model.
"""

from __future__ import annotations

import sys
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import make_dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from seqgen.addons.checks import kinds
from seqgen.addons.checks.checking import Compared, Outcome, Raised, causes, check as check_invariants, failed
from seqgen.addons.checks.kinds import KINDS
from seqgen.cli.command import INFORMING
from seqgen.config import SINGLE_COMPONENTS, option, text_list, text_values
from seqgen.extend import DECODING_COMPONENTS, ConfigError, nearest, printable, run, set_up_device, split_argument

HOW = """in float64 on the CPU. Prints a line for each invariant; if one fails, the first step, sentence and beam that
differ, and the probable cause. Exit code: 0 if all invariants hold, 1 if one fails or none can be
checked, 2 if what is checked cannot be built."""

COLUMN, WIDTH = 20, 80
"""Column in which the description of a check begins in ``--help``, and the width of the text."""

FIXED = ("beam", "semantics", "nbest", "min_len", "max_len", "end_symbols")
"""Keys of ``generation`` that the checks set themselves."""


class Check(NamedTuple):
    """The check of a kind of component.

    Attributes:
        schema: the root dataclass of its configuration.
        what: what it checks, for ``--help``.
        subject: builds what is checked, given the configuration and a temporary folder.
    """

    schema: type
    what: str
    subject: Callable[[Any, Path], Compared]


def _of_components(group: str) -> Check:
    """The check of a kind of decoding component."""
    what = KINDS[group].what
    fields = [(group, str, option("", f"{what}, by name"))]
    schema = make_dataclass(f"{group.title()}CheckConfig", fields, bases=(kinds.DecodingCheckConfig,))
    return Check(schema, what, lambda cfg, _: kinds.component_subject(group, cfg))


def with_chooser(group: str, overrides: list[str]) -> list[str]:
    """Add the key of ``generation`` that selects the component, after the others of its kind.

    Args:
        group: the kind of component.
        overrides: the ``key=value`` arguments, with ``KIND=NAME``.

    Raises:
        ConfigError: the component is not registered, or a key is given that the check sets itself.
    """
    registry, chooser = DECODING_COMPONENTS[group]
    key = f"generation.{chooser}"
    name = dict(split_argument(override) for override in overrides)[group]
    registry.entry(name)  # the error message for a name that does not exist
    fixed = [f"generation.{fixed_key}" for fixed_key in FIXED] + ([key] if group in SINGLE_COMPONENTS else [])
    for override in overrides:
        if (given := override.partition("=")[0]) in fixed:
            raise ConfigError(f"{given}: the check sets this key itself; remove it")
    names = name if group in SINGLE_COMPONENTS else text_list([*text_values(overrides, key), name])
    return [*(override for override in overrides if not override.startswith(f"{key}=")), f"{key}={names}"]


_MODEL = Check(kinds.ModelCheckConfig, "a trained model", lambda cfg, _: kinds.model_subject(cfg))

CHECKS: dict[str, Check] = {
    **{group: _of_components(group) for group in KINDS},
    "task": Check(
        kinds.TaskCheckConfig,
        "a task, with the data that its keys name or that it generates, and a small random model",
        kinds.task_subject,
    ),
    "criterion": Check(
        kinds.CriterionCheckConfig,
        "a training criterion, with a random model",
        lambda cfg, _: kinds.criterion_subject(cfg),
    ),
    "path": _MODEL,
    "model": _MODEL._replace(what="a random model for a vocabulary of 23 tokens"),
}
"""The check of each kind of component, by the key that names the component. The check of another component can also
get a model."""


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the command."""
    name, *arguments = list(sys.argv[1:] if argv is None else argv) or [""]
    if name == "--completion":
        _run("model", [name, *arguments])
    if name in ("-h", "--help"):
        print("Usage: seqgen-check KIND=NAME [key=value ...]")
        print("seqgen-check KIND=NAME --help lists the keys of a component's check")
        print("", textwrap.fill(f"Checks the invariants of a component, {HOW}", WIDTH), "", sep="\n")
        for kind, check in CHECKS.items():
            first = f"  {kind}={'RUN' if kind == 'path' else 'NAME'}".ljust(COLUMN)
            print(textwrap.fill(check.what, WIDTH, initial_indent=first, subsequent_indent=" " * COLUMN))
        sys.exit(0)
    if "=" in name:
        given = [argument.partition("=")[0] for argument in (name, *arguments)]
        found = [kind for kind in CHECKS if kind in given]
        others = [kind for kind in found if kind not in ("path", "model")]
        if len(others) > 1:
            _fail(f"{others[0]} and {others[1]} are two components; check them one at a time")
        if found or "config" in given or {*INFORMING} & {*arguments}:
            _run(found[0] if found else "model", [name, *arguments])
    meant = nearest(name.partition("=")[0], CHECKS)
    wrong = f"there is no check {name!r}{meant}" if name else "the check is missing"
    choices = ", ".join(f"{kind}={'RUN' if kind == 'path' else 'NAME'}" for kind in reversed(CHECKS))
    _fail(f"{wrong}; give {choices}")


def _fail(message: str) -> NoReturn:
    print(f"seqgen-check: {message}", file=sys.stderr)
    sys.exit(2)


def _run(kind: str, argv: Sequence[str]) -> NoReturn:
    """Check a component as the arguments say, and exit."""
    check = CHECKS[kind]
    description = f"checks the invariants of {check.what}, {HOW}"
    complete = partial(with_chooser, kind) if kind in KINDS else list
    run(check.schema, partial(check_component, check), description, argv, complete=complete)


def check_component(check: Check, cfg: Any) -> int:
    """Check the invariants of a component, and print a line for each.

    Args:
        check: the check of its kind.
        cfg: the configuration.

    Returns:
        The exit code: 0 if all invariants hold, 1 if one fails or none can be checked.

    Raises:
        UserError: the component, or what it is checked with, cannot be built.
    """
    if cfg.common.device not in ("auto", "cpu"):
        raise ConfigError(f"common.device={cfg.common.device}: the checks run on the CPU; remove the key")
    set_up_device(cfg.common)
    found, shown = list[Outcome](), set[str]()
    with tempfile.TemporaryDirectory() as folder:
        subject = check.subject(cfg, Path(folder))
        print(f"{'invariant':<42} {'result':<8} {'difference':>10} {'seconds':>8}")
        for outcome in check_invariants(subject):
            found.append(outcome)
            print(printable(_line(outcome, shown)), flush=True)
    wrong = failed(found)
    checked = len([outcome for outcome in found if not outcome.reason])
    print(f"{checked - len(wrong)} of {checked} invariants hold")
    for cause in causes(found, subject) if wrong else []:
        print(f"probable cause: {cause}")
    return 1 if wrong or not checked else 0


def _line(outcome: Outcome, errors: set[str]) -> str:
    """The line of an invariant; ``errors`` has the errors that were shown before, and gets this one."""
    if outcome.reason:
        return f"{outcome.name:<42} not run: {outcome.reason}"
    violation = outcome.violation
    shown = f"{outcome.name:<42} {'failed' if violation else 'passed':<8} {outcome.difference:>10.1e}"
    shown += f" {outcome.seconds:>8.2f}"
    if violation is None:
        return shown
    if isinstance(violation, Raised):
        again = violation.what in errors
        errors.add(violation.what)
        return f"{shown}\n    {'the same error' if again else violation.what}"
    parts = {"step": violation.step, "sentence": violation.sentence, "beam": violation.beam}
    place = ", ".join(f"{name} {number}" for name, number in parts.items() if number is not None)
    return f"{shown}\n    {place + ': ' if place else ''}{violation.what}"
