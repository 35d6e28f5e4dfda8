"""The common base of all checks: comparisons, violations, outcomes, and the search for causes."""

from __future__ import annotations

import itertools
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from seqgen.extend import ConfigError, ContractError, parse_yaml
from seqgen.system.error_messages import missing_hook


@dataclass(eq=False)
class Violation(Exception):
    """An invariant does not hold.

    Attributes:
        what: what is wrong, in words.
        difference: the largest difference; infinity if a value is not a number, or if there is nothing to compare.
        step: number of target tokens before the first position that differs.
        sentence: the sentence that differs there.
        beam: its first beam that differs.
    """

    what: str
    difference: float = float("inf")
    step: int | None = None
    sentence: int | None = None
    beam: int | None = None


def require(
    holds: object, what: str, step: int | None = None, sentence: int | None = None, beam: int | None = None
) -> None:
    """Raise a ``Violation`` unless something holds.

    Args:
        holds: whether it holds.
        what: what is wrong otherwise.
        step: see ``Violation``.
        sentence: likewise.
        beam: likewise.
    """
    if not holds:
        raise Violation(what, step=step, sentence=sentence, beam=beam)


@contextmanager
def at(**place: int | None) -> Iterator[None]:
    """Set the place of the violations that are raised in the ``with`` block.

    Args:
        place: the step, sentence or beam of the violation; ``None`` for none.
    """
    try:
        yield
    except Violation as error:
        vars(error).update(place)
        raise


class Raised(Violation):
    """An error is raised where an invariant is checked.

    Args:
        error: the error.

    Attributes:
        by_user: whether the user's code raises it, or calls or returns what leads to it.
    """

    def __init__(self, error: Exception):
        places = [
            (str(frame.f_globals.get("__name__")).partition(".")[0], frame.f_code.co_filename, line)
            for frame, line in traceback.walk_tb(error.__traceback__)
        ]
        places = [place for place in places if place[0] not in _LIBRARIES]
        of_user = [place for place in places if _is_of_user(place[0])]
        _, file, line = (of_user or places)[-1]
        why = (isinstance(error, NotImplementedError) and missing_hook(error)) or str(error).strip().partition("\n")[0]
        contract = isinstance(error, ContractError)
        super().__init__(why if contract else f"{type(error).__name__}: {why} ({file}:{line})")
        self.by_user = contract or bool(of_user)
        self.__cause__ = error


_LIBRARIES = {"torch", "numpy", *sys.stdlib_module_names}
"""Packages whose code is not the place of an error: the place is the line that calls them."""


def _is_of_user(module: str) -> bool:
    return module.partition(".")[0] not in {"seqgen", *_LIBRARIES}


ERROR = "the component leads to the error above; correct that first"
UNKNOWN = "not known; see the first failure"
ADVICE: dict[str, dict[str, str]] = parse_yaml((resources.files(__package__) / "advice.yaml").read_bytes())
"""The causes of violations, by the kind of what is checked; a cause with an empty key applies to all."""

S = TypeVar("S", bound="Compared")


class NotApplicableError(Exception):
    """An invariant is about something that the model does not have; the message says what."""


def needs(holds: object, otherwise: str) -> None:
    """Raise a ``NotApplicableError`` unless an invariant can be checked.

    Args:
        holds: whether it can be checked.
        otherwise: why not.
    """
    if not holds:
        raise NotApplicableError(otherwise)


@dataclass(kw_only=True)
class Compared:
    """The subject of checks, with comparisons of results; a subclass adds what the invariants need.

    Attributes:
        advice: the causes of violations, see ``advice.yaml``; by default those of a model.
        varied: what the variants are, as a key.
        owners: the classes whose methods a cause may name, the most probable first.
        tolerance: the largest difference that counts as equal; see ``same``.
        invariants: what is checked.
        then: another subject whose invariants are checked afterwards.
        variants: what the invariants are checked under, one after the other: rules of decoding, or splits of a task.
        variant: the one in use; a violation names it.
        lines: the text and ids of sources; random ones if there are none.
        largest: the largest difference of all comparisons so far.
    """

    advice = ADVICE["model"]
    varied = ""
    owners: Sequence[type] = ()
    tolerance: float = 1e-10
    invariants: Invariants[Any] = field(default_factory=dict)
    then: Compared | None = None
    lines: Sequence[tuple[str, Sequence[int]]] = ()
    variants: Sequence[str] = ("",)
    variant: str = ""
    largest: float = field(default=0.0, init=False)

    def restore(self) -> None:
        """Undo what an invariant may have changed; called after each."""

    def hold(self, invariant: Callable[[Any], object]) -> None:
        """Check an invariant under all variants.

        Args:
            invariant: its function, which raises ``Violation`` or ``NotApplicableError``.
        """
        reasons: list[Exception] = []
        for variant in self.variants:
            self.variant = variant
            try:
                invariant(self)
            except (NotApplicableError, ConfigError) as error:  # what a component refuses is no fault
                reasons.append(error)
            except Violation as error:
                error.what += f" ({self.varied}={variant})" if variant else ""
                raise
        if len(reasons) == len(self.variants):
            raise NotApplicableError(str(reasons[0]))

    def place(self, methods: Sequence[str]) -> str:
        """The first of some methods that the user's code defines, with its file and line, to be added to a cause."""
        for cls, method in itertools.product(self.owners, methods):
            home = next((home for home in cls.__mro__ if method in vars(home)), object)
            if code := _is_of_user(home.__module__) and getattr(getattr(cls, method), "__code__", None):
                return f"; see {cls.__name__}.{method} ({code.co_filename}:{code.co_firstlineno})"
        lacking = [cls.__name__ for cls in self.owners if _is_of_user(cls.__module__)]
        return f"; see {lacking[0]}, which inherits {methods[0]}" if lacking else ""

    def same(
        self,
        got: Tensor,
        wanted: Tensor,
        *,
        step: int = 0,
        rows: Sequence[int] | None = None,
        beam: int = 1,
        what: str = "the logits differ",
        tolerance: float | None = None,
    ) -> None:
        """Compare two results; the largest difference is recorded.

        Args:
            got: ``(N, T, ...)``.
            wanted: what it should be.
            step: number of target tokens before the first column.
            rows: row of the batch of each row; by default in order.
            beam: rows of each sentence.
            what: what is wrong if they differ.
            tolerance: the largest difference that counts as equal, by default that of the subject; if ``wanted`` has
                values above 1, it is multiplied by the largest of them.

        Raises:
            Violation: they differ.
        """
        if got.shape != wanted.shape:
            raise Violation(f"{what}: the shape is {tuple(got.shape)} and should be {tuple(wanted.shape)}")
        apart = torch.where(got == wanted, 0.0, (got.double() - wanted.double()).abs()).nan_to_num(nan=torch.inf)
        if apart.numel() == 0:
            return
        self.largest = max(self.largest, float(apart.max()))
        magnitude = max(1.0, float(wanted.double().abs().nan_to_num(0.0, 0.0).max()))
        wrong = apart > (self.tolerance if tolerance is None else tolerance) * magnitude
        if wrong.any():
            wrong = wrong.flatten(2).any(-1) if wrong.dim() > 2 else wrong
            column = int(wrong.any(0).nonzero()[0])
            row = int(wrong[:, column].nonzero()[0])
            row = row if rows is None else rows[row]
            raise Violation(what, float(apart.max()), step + column, row // beam, row % beam if beam > 1 else None)

    def same_value(self, got: Any, wanted: Any, what: str, tolerance: float | None = None) -> None:
        """Compare two numbers or tensors whose positions are no places in a batch.

        Args:
            got: the value.
            wanted: what it should be.
            what: what is wrong if they differ.
            tolerance: see ``same``.

        Raises:
            Violation: they differ.
        """
        values = (torch.as_tensor(value, dtype=torch.float64).detach().reshape(1, -1) for value in (got, wanted))
        with at(step=None, sentence=None, beam=None):
            self.same(*values, what=what, tolerance=tolerance)


Invariants: TypeAlias = dict[str, Callable[[S], object]]
"""Invariants by name: functions that raise ``Violation`` or ``NotApplicableError``."""


@dataclass(frozen=True)
class Outcome:
    """The result of the check of an invariant.

    Attributes:
        name: name of the invariant.
        seconds: how long the check took.
        difference: the largest difference.
        violation: where it fails; ``None`` if it holds or was not checked.
        reason: why it was not checked; empty if it was.
    """

    name: str
    seconds: float
    difference: float
    violation: Violation | None = None
    reason: str = ""


def holds(invariant: Callable[[], object]) -> bool:
    """True if an invariant raises nothing."""
    try:
        invariant()
    except Exception:
        return False
    return True


def check(subject: Compared, invariants: Invariants[Any] | None = None) -> Iterator[Outcome]:
    """Check invariants one after the other; an error that is raised counts as a violation (``Raised``).

    Args:
        subject: what is checked; the subject that comes then is checked, too.
        invariants: their functions by name; those of the subject by default.

    Yields:
        What was found, for each invariant.
    """
    for name, invariant in (invariants or subject.invariants).items():
        checked, begin = replace(subject), time.perf_counter()
        violation, reason = None, ""
        try:
            with torch.no_grad():
                checked.hold(invariant)
        except Violation as error:
            violation = error
        except NotApplicableError as error:
            reason = str(error)
        except Exception as error:  # the component is the user's, and may raise anything
            violation = Raised(error)
        finally:
            subject.restore()
        difference = checked.largest if violation is None else violation.difference
        yield Outcome(name, time.perf_counter() - begin, difference, violation, reason)
    if subject.then is not None:
        yield from check(subject.then)


def failed(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The invariants that do not hold."""
    return [outcome for outcome in outcomes if outcome.violation is not None]


def causes(outcomes: Sequence[Outcome], subject: Compared) -> list[str]:
    """Find the causes of what failed. An error of the component that comes first is a cause by itself.

    Errors are among the violations that the advice explains only if the first invariant holds, the simplest use of the
    component: then it matters in which other one they occur.

    Args:
        outcomes: what the checks found; at least one violation.
        subject: what was checked.
    """
    wrong = failed(outcomes)
    first = wrong[0].violation
    if wrong[0] is outcomes[0] and isinstance(first, Raised):
        wrong = [outcome for outcome in wrong if not isinstance(outcome.violation, Raised)]
    found = [ERROR] if not wrong or (isinstance(first, Raised) and first.by_user) else []
    return [*found, diagnose(wrong, subject)] if wrong else found


def diagnose(outcomes: Sequence[Outcome], subject: Compared) -> str:
    """Find the usual cause that explains violations.

    Args:
        outcomes: what the checks found; at least one violation.
        subject: what was checked.
    """
    wrong = {outcome.name: outcome.violation for outcome in outcomes if outcome.violation is not None}
    of_all = {"": True, "rounding": all(0 < violation.difference < 1e-5 for violation in wrong.values())}
    for key, cause in subject.advice.items():
        name, _, part = key.partition(" | ")
        if of_all.get(name) or (name in wrong and part in wrong[name].what):
            text, _, methods = cause.partition(" @")
            return text + (subject.place(methods.split(",")) if methods else "")
    return UNKNOWN
