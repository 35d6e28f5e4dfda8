"""The usual causes of violated invariants of decoding components."""

from __future__ import annotations

from enum import Enum

from seqgen.lab.checks.checking import Advice
from seqgen.lab.checks.subject import Decoding


class Cause(Enum):
    """The usual causes of violated invariants of a decoding component; the value says what to do."""

    NOT_REPEATABLE = (
        "the component draws from PyTorch's own random numbers (use uniform of seqgen.extend, whose numbers depend on "
        "a seed, the line number and the step), or keeps values of a batch on the object that all batches share (let "
        "begin return a copy)"
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
        "the result of a sentence depends on the other sentences of the batch; do not reduce over the first "
        "dimension, and leave out the positions of the source where context.src_padding is true"
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
    SHARED_BY_FORKS = "a fork shares a tensor that is changed in place; name the tensor in sentence_state or beam_state"
    VOCABULARY = "the component works for one size of the vocabulary only; take the size from lprobs.size(-1)"
    OBSERVER = "the observer changes a tensor of the record or context; clone what you change"
    SCORER = (
        "the combination gives another score where all positions are known; ignores_context is true only for a "
        "combination that does not read the context"
    )


COMPONENT_ADVICE: Advice[Decoding] = [
    ("calls change nothing else", "becomes", Cause.NAN),
    ("calls change nothing else", "in place", Cause.CONTEXT_CHANGED),
    ("calls change nothing else", "the call changes", Cause.CHANGED_BY_CALL),
    ("state follows the beams", "", Cause.NOT_REORDERED),
    ("state of sentences that leave", "", Cause.NOT_SELECTED),
    ("candidates are continuations", "independent_rows", Cause.NOT_INDEPENDENT),
    ("candidates are continuations", "not in the range", Cause.INDICES),
    ("candidates are continuations", "of another beam", Cause.INDICES),
    ("candidates are continuations", "does not exist", Cause.FORBIDDEN),
    ("decodes are repeatable", "", Cause.NOT_REPEATABLE),
    ("two decodes at a time", "", Cause.KEPT_ON_SELF),
    ("optimized = not optimized", "skip_log_softmax", Cause.NOT_NORMALIZED),
    ("optimized = not optimized", "use_cache", Cause.CACHE),
    ("alone = in a batch", "", Cause.MIXES_SENTENCES),
    ("alone = in a batch, sampled", "", Cause.MIXES_SENTENCES),
    ("observed = not observed", "", Cause.OBSERVER),
    ("scorer = generator", "", Cause.SCORER),
    ("joining = one batch", "", Cause.CANNOT_JOIN),
    ("NaN is an error", "", Cause.NAN_HIDDEN),
    ("forbidden tokens", "", Cause.FORBIDDEN),
    ("a sentence without outputs", "", Cause.FORBIDDEN),
    ("candidates are continuations", "", Cause.FIRST_STEP),
    ("hypotheses differ", "", Cause.FIRST_STEP),
    ("scores are the model's", "", Cause.SCORES),
    ("hypotheses end, are sorted", "", Cause.OUTPUTS),
    ("calls change nothing else", "", Cause.CHANGED_BY_CALL),
    ("forks are independent", "", Cause.SHARED_BY_FORKS),
    ("blocks of the vocabulary", "", Cause.VOCABULARY),
    ("scores depend on the hypothesis", "", Cause.MIXES_BEAMS),
]
"""What to say about the violations of a decoding component."""
