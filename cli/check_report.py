"""The report of ``seqgen-check KIND=NAME``: a line for each invariant, and the probable cause if one fails."""

from __future__ import annotations

from collections.abc import Iterable

from seqgen.errors import printable
from seqgen.lab.checks.checking import Advice, Outcome, Raised, S, causes, failed


def report(outcomes: Iterable[Outcome], advice: Advice[S], subject: S) -> int:
    """Check invariants, and print what is found.

    Args:
        outcomes: what is found for each invariant, one after the other.
        advice: the causes of violations.
        subject: what is checked.

    Returns:
        The exit code: 0 if all invariants hold, 1 if one fails.
    """
    found: list[Outcome] = []
    shown: set[str] = set()
    print(f"{'invariant':<42} {'result':<8} {'difference':>10} {'seconds':>8}")
    for outcome in outcomes:
        found.append(outcome)
        print(printable(_line(outcome, shown)), flush=True)
    wrong = failed(found)
    checked = len([outcome for outcome in found if not outcome.reason])
    print(f"{checked - len(wrong)} of {checked} invariants hold")
    for diagnosis in causes(found, advice, subject) if wrong else []:
        print(f"probable cause: {diagnosis.cause.value}")
        if diagnosis.module:
            print(f"first layer that differs: {diagnosis.module}")
    return 1 if wrong else 0


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
