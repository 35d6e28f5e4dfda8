"""All invariants by name, and a check of a model against each of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from seqgen.laws import passes, search, stepping, weights
from seqgen.laws.subject import NotApplicableError, Subject, Violation

Invariant = Callable[[Subject], None]

PASSES: dict[str, Invariant] = {
    "evaluation is deterministic": passes.evaluation_is_deterministic,
    "every token is read, later ones are not": passes.every_token_is_read,
    "the start token is read": passes.start_token_is_read,
    "alone = in a batch": passes.alone_equals_batched,
    "encoder output is reordered": passes.encoder_output_is_reordered,
    "attention is a distribution": passes.attention_is_a_distribution,
    "probabilities sum to one": passes.probabilities_sum_to_one,
}
STEPPING: dict[str, Invariant] = {
    "steps = parallel pass": stepping.stepped_equals_parallel,
    "steps after any order of rows": stepping.stepped_after_any_order,
    "steps after reordering beams": stepping.stepped_after_reordering_beams,
    "steps after rolling back": stepping.stepped_after_rolling_back,
    "batches that join": stepping.batches_that_join,
    "start offsets": stepping.start_offsets,
    "attention in steps": stepping.attention_stepped,
    "two decodes at a time": stepping.states_do_not_mix,
    "copies share no state": stepping.copies_share_no_state,
}
WEIGHTS: dict[str, Invariant] = {
    "every parameter is trained": weights.every_parameter_is_trained,
    "saved weights are the model": weights.saved_weights_are_the_model,
    "no stale weight after training": weights.fresh_after_training,
    "no stale weight after a step in eval()": weights.fresh_after_a_step_in_evaluation_mode,
    "no stale weight after loading": weights.fresh_after_loading,
    "no stale weight after moving": weights.fresh_after_moving,
    "no stale weight after a change in place": weights.fresh_after_a_change_in_place,
    "inference mode": weights.inference_mode,
}
SEARCH: dict[str, Invariant] = {
    "search: cached = uncached": search.cached_equals_uncached,
    "search: alone = in a batch": search.alone_decoded_equals_batched,
    "search: beams in place = moved": search.indirection_equals_moving,
    "search: beam of one = greedy": search.beam_of_one_is_greedy,
    "search: beam = exhaustive": search.beam_equals_exhaustive,
    "search: scorer = generator": search.scorer_equals_generator,
    "search: [m, m] = m": search.ensemble_of_itself,
}


@dataclass(frozen=True)
class Outcome:
    """What the check of one invariant found.

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


def check(subject: Subject, peaked: Subject | None = None) -> Iterator[Outcome]:
    """Check all invariants.

    Args:
        subject: the model.
        peaked: the model for the invariants of search, if they need other weights: random ones with clear peaks.

    Yields:
        What was found, for each invariant.
    """
    for invariants, chosen in ((PASSES | STEPPING | WEIGHTS, subject), (SEARCH, peaked or subject)):
        for name, invariant in invariants.items():
            yield check_one(name, invariant, chosen)


def check_one(name: str, invariant: Invariant, subject: Subject) -> Outcome:
    """Check one invariant; what the model raises counts as a violation.

    Args:
        name: its name.
        invariant: its function.
        subject: the model.
    """
    own, begin = replace(subject), time.perf_counter()
    violation, reason = None, ""
    try:
        with torch.no_grad():
            invariant(own)
    except Violation as error:
        violation = error
    except NotApplicableError as error:
        reason = str(error)
    except Exception as error:  # the model is the user's, and may raise anything
        violation = Violation(f"{type(error).__name__}: {_first_line(str(error))}")
        violation.__cause__ = error
    finally:
        subject.model.eval()
    difference = own.largest if violation is None else violation.difference
    return Outcome(name, time.perf_counter() - begin, difference, violation, reason)


def failed(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The invariants that do not hold."""
    return [outcome for outcome in outcomes if outcome.violation is not None]


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
