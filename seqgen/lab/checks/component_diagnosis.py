"""The usual cause of a violated invariant of a decoding component, found by small experiments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import torch

from seqgen.lab.checks.checking import Diagnosis, Outcome, Violation
from seqgen.lab.checks.components import alone_equals_batched
from seqgen.lab.checks.decoding import LENGTHS, Decoding
from seqgen.lab.checks.search import same_hypotheses


class Cause(Enum):
    """The usual causes; the value says what to do."""

    RANDOMNESS = (
        "the component draws from PyTorch's own random numbers; use seqgen.generation.search.sampling, whose numbers "
        "depend on a seed, the line number and the step"
    )
    KEPT_ON_SELF = (
        "the component keeps values of a batch on the object that all batches share; let begin return a copy (call "
        "super().begin) and store them there"
    )
    NOT_REORDERED = (
        "a state does not follow the beams; name its tensor (sentences, beam, ...) in beam_state, and call "
        "super().advance where you override advance"
    )
    NOT_SELECTED = (
        "a state keeps the rows of sentences that have left the batch; name its tensor in sentence_state or beam_state"
    )
    MIXES_SENTENCES = (
        "the result of a sentence depends on the other sentences of the batch; do not reduce over the first dimension"
    )
    SOURCE_PADDING = (
        "the result depends on the padding of the source; leave out the positions where context.src_padding is true"
    )
    MIXES_BEAMS = "the scores of a beam depend on the other beams of its sentence; compute each row by itself"
    NOT_NORMALIZED = (
        "additive or shift_invariant is true, but the component needs normalized log-probabilities: adding a constant "
        "to the scores of a row changes its choices; remove the attribute"
    )
    CACHE = (
        "the result differs if nothing is cached (debug.use_cache=false computes all positions at each step): the "
        "component changes a decoder's cache or features in place, or depends on how a step is computed"
    )
    CANNOT_JOIN = (
        "can_merge is true, but the component reads context.step, tokens or source ids, or a state is not merged; use "
        "context.steps, name the state in sentence_state or beam_state, or remove the attribute"
    )
    NOT_INDEPENDENT = "independent_rows is true, but candidate i does not continue beam i; remove the attribute"
    FIRST_STEP = (
        "the same hypothesis is kept twice; at context.step == 0 all beams are equal, so that only the first one may "
        "be expanded"
    )
    INDICES = (
        "tokens or beams of candidates are wrong; of an index into (beam * V) scores, the beam is index // V and the "
        "token index % V"
    )
    FORBIDDEN = "candidates with a score of -inf become possible; leave -inf as it is"
    NAN_HIDDEN = "scores that are NaN are replaced or compared away, so that a damaged model is not noticed"
    SCORES = (
        "the scores of candidates are not scores + lprobs; return these sums, or set adjusts_scores if a penalty is "
        "intended"
    )
    OUTPUTS = "hypotheses do not end, or are not sorted; see the method finished"
    NAN = (
        "a score becomes NaN or infinite, often because -inf is multiplied by zero or subtracted from itself; leave "
        "-inf as it is"
    )
    CONTEXT_CHANGED = (
        "the component writes into a tensor that it was given, of the context or the scores of a member; clone it first"
    )
    CHANGED_BY_CALL = (
        "a call changes the component's own tensors, or returns one of them; change state in advance, and return a new "
        "tensor"
    )
    SHAPE = "the result has another shape or dtype; return (rows, V) scores in the dtype of the argument"
    SHARED_BY_FORKS = "a fork shares a tensor that is changed in place; name the tensor in sentence_state or beam_state"
    VOCABULARY = "the component works for one size of the vocabulary only; take the size from lprobs.size(-1)"
    OBSERVER = "the observer changes a tensor of the record; clone what you change"
    SCORER = (
        "the combination gives another score where all positions are known; ignores_context is true only for a "
        "combination that does not read the context"
    )
    UNKNOWN = "no experiment names the cause; see the first failure"


Wrong = Mapping[str, Violation]


def diagnose(subject: Decoding, outcomes: Sequence[Outcome]) -> Diagnosis:
    """Find the usual cause that explains the violations.

    Args:
        subject: the component.
        outcomes: what the checks found; at least one violation.
    """
    wrong = {outcome.name: outcome.violation for outcome in outcomes if outcome.violation is not None}
    for experiment in (_of_calls, _of_state, _of_candidates, _repeated, _claims, _batched, _by_name):
        try:
            with torch.no_grad():
                cause = experiment(subject, wrong)
        except Exception:  # the component may raise anything; the next experiment may still work
            continue
        if cause is not None:
            return Diagnosis(cause)
    return Diagnosis(Cause.UNKNOWN)


_IN_CALLS = {
    "becomes": Cause.NAN,
    "in place": Cause.CONTEXT_CHANGED,
    "the call changes": Cause.CHANGED_BY_CALL,
    "the processor returns": Cause.SHAPE,
}
"""The cause by a part of the violation."""


def _of_calls(subject: Decoding, wrong: Wrong) -> Cause | None:
    found = wrong.get("calls change nothing else")
    if found is None:
        return None
    return next((cause for part, cause in _IN_CALLS.items() if part in found.what), None)


def _of_state(subject: Decoding, wrong: Wrong) -> Cause | None:
    if "state follows the beams" in wrong:
        return Cause.NOT_REORDERED
    if "state of sentences that leave" in wrong:
        return Cause.NOT_SELECTED
    return None


def _of_candidates(subject: Decoding, wrong: Wrong) -> Cause | None:
    found = wrong.get("candidates are continuations")
    if found is not None and "independent_rows" in found.what:
        return Cause.NOT_INDEPENDENT
    if found is not None and ("not in the range" in found.what or "shapes" in found.what):
        return Cause.INDICES
    if found is not None and "does not exist" in found.what:
        return Cause.FORBIDDEN
    return None


def _repeated(subject: Decoding, wrong: Wrong) -> Cause | None:
    if "decodes are repeatable" in wrong:

        def seeded() -> Any:
            torch.manual_seed(0)
            return subject.decode(subject.batch())

        return (
            Cause.RANDOMNESS if _holds(lambda: same_hypotheses(subject, seeded(), seeded(), "")) else Cause.KEPT_ON_SELF
        )
    return Cause.KEPT_ON_SELF if "two decodes at a time" in wrong else None


_TOGETHER: dict[str, Any] = {"end_symbols": [], "min_len": 5}
"""All outputs end at the same step, so that no sentence leaves the batch early."""


def _claims(subject: Decoding, wrong: Wrong) -> Cause | None:
    optimized = wrong.get("optimized = not optimized")
    if optimized is not None and "skip_log_softmax" in optimized.what:
        return Cause.NOT_NORMALIZED
    if optimized is not None and "use_cache" in optimized.what:
        return Cause.CACHE
    if wrong.keys() == {"joining = one batch"}:
        return Cause.CANNOT_JOIN
    return None


def _batched(subject: Decoding, wrong: Wrong) -> Cause | None:
    if not wrong.keys() & {"alone = in a batch", "order of sentences", "alone = in a batch, sampled"}:
        return None
    for rules in subject.all_rules:
        subject.rules = rules
        if _holds(lambda: alone_equals_batched(subject)):
            continue
        if _alone_equals_batched(subject, LENGTHS, **_TOGETHER):
            return Cause.NOT_SELECTED
        if _alone_equals_batched(subject, [5] * 5):
            return Cause.SOURCE_PADDING
        return Cause.MIXES_SENTENCES
    return Cause.MIXES_SENTENCES


def _alone_equals_batched(subject: Decoding, lengths: list[int], **options: Any) -> bool:
    def compare() -> None:
        together = subject.decode(subject.batch(lengths=lengths), **options)
        for row in range(len(lengths)):
            alone = subject.decode(subject.batch([row], lengths), **options)
            same_hypotheses(subject, together[row : row + 1], alone, "")

    return _holds(compare)


_NAMED = {
    "observed = not observed": Cause.OBSERVER,
    "scorer = generator": Cause.SCORER,
    "joining = one batch": Cause.CANNOT_JOIN,
    "NaN is an error": Cause.NAN_HIDDEN,
    "forbidden tokens": Cause.FORBIDDEN,
    "a sentence without outputs": Cause.FORBIDDEN,
    "candidates are continuations": Cause.FIRST_STEP,
    "hypotheses differ": Cause.FIRST_STEP,
    "scores are the model's": Cause.SCORES,
    "hypotheses end, are sorted": Cause.OUTPUTS,
    "calls change nothing else": Cause.CHANGED_BY_CALL,
    "forks are independent": Cause.SHARED_BY_FORKS,
    "vocabularies of other sizes": Cause.VOCABULARY,
    "blocks of the vocabulary": Cause.VOCABULARY,
    "scores depend on the hypothesis": Cause.MIXES_BEAMS,
}
"""The cause of a violation that no experiment explains, in this order."""


def _by_name(subject: Decoding, wrong: Wrong) -> Cause | None:
    return next((cause for name, cause in _NAMED.items() if name in wrong), None)


def _holds(law: Callable[[], object]) -> bool:
    try:
        law()
    except Exception:
        return False
    return True
