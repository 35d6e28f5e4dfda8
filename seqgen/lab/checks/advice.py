"""The usual causes of violated invariants of decoding components, criteria and tasks, and what to do about them."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import torch

from seqgen.lab.checks import search
from seqgen.lab.checks.checking import Advice, Diagnosis, Wrong
from seqgen.lab.checks.components import alone_equals_batched
from seqgen.lab.checks.criteria import Training
from seqgen.lab.checks.decoding import Decoding
from seqgen.lab.checks.search import same_hypotheses
from seqgen.lab.checks.tasks import Prepared


class ComponentCause(Enum):
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


_TOGETHER: dict[str, Any] = {"end_symbols": [], "min_len": 5}
"""All outputs end at the same step, so that no sentence leaves the batch early."""


def _repeated(subject: Decoding, wrong: Wrong) -> Diagnosis:
    def seeded() -> Any:
        torch.manual_seed(0)
        return subject.decode(subject.batch())

    repeats = _holds(lambda: same_hypotheses(subject, seeded(), seeded(), ""))
    return Diagnosis(ComponentCause.RANDOMNESS if repeats else ComponentCause.KEPT_ON_SELF)


def _only_joining(subject: Decoding, wrong: Wrong) -> Diagnosis | None:
    return Diagnosis(ComponentCause.CANNOT_JOIN) if len(wrong) == 1 else None


def _batched(subject: Decoding, wrong: Wrong) -> Diagnosis:
    for rules in subject.all_rules:
        subject.rules = rules
        if _holds(lambda: alone_equals_batched(subject)):
            continue
        if _holds(lambda: search.alone_equals_batched(subject, **_TOGETHER)):
            return Diagnosis(ComponentCause.NOT_SELECTED)
        if _holds(lambda: search.alone_equals_batched(subject, lengths=[5] * 5)):
            return Diagnosis(ComponentCause.SOURCE_PADDING)
        break
    return Diagnosis(ComponentCause.MIXES_SENTENCES)


def _holds(law: Callable[[], object]) -> bool:
    try:
        law()
    except Exception:
        return False
    return True


COMPONENT_ADVICE: Advice[Decoding] = [
    ("calls change nothing else", "becomes", ComponentCause.NAN),
    ("calls change nothing else", "in place", ComponentCause.CONTEXT_CHANGED),
    ("calls change nothing else", "the call changes", ComponentCause.CHANGED_BY_CALL),
    ("calls change nothing else", "the processor returns", ComponentCause.SHAPE),
    ("state follows the beams", "", ComponentCause.NOT_REORDERED),
    ("state of sentences that leave", "", ComponentCause.NOT_SELECTED),
    ("candidates are continuations", "independent_rows", ComponentCause.NOT_INDEPENDENT),
    ("candidates are continuations", "not in the range", ComponentCause.INDICES),
    ("candidates are continuations", "shapes", ComponentCause.INDICES),
    ("candidates are continuations", "does not exist", ComponentCause.FORBIDDEN),
    ("decodes are repeatable", "", _repeated),
    ("two decodes at a time", "", ComponentCause.KEPT_ON_SELF),
    ("optimized = not optimized", "skip_log_softmax", ComponentCause.NOT_NORMALIZED),
    ("optimized = not optimized", "use_cache", ComponentCause.CACHE),
    ("joining = one batch", "", _only_joining),
    ("alone = in a batch", "", _batched),
    ("order of sentences", "", _batched),
    ("alone = in a batch, sampled", "", _batched),
    ("observed = not observed", "", ComponentCause.OBSERVER),
    ("scorer = generator", "", ComponentCause.SCORER),
    ("joining = one batch", "", ComponentCause.CANNOT_JOIN),
    ("NaN is an error", "", ComponentCause.NAN_HIDDEN),
    ("forbidden tokens", "", ComponentCause.FORBIDDEN),
    ("a sentence without outputs", "", ComponentCause.FORBIDDEN),
    ("candidates are continuations", "", ComponentCause.FIRST_STEP),
    ("hypotheses differ", "", ComponentCause.FIRST_STEP),
    ("scores are the model's", "", ComponentCause.SCORES),
    ("hypotheses end, are sorted", "", ComponentCause.OUTPUTS),
    ("calls change nothing else", "", ComponentCause.CHANGED_BY_CALL),
    ("forks are independent", "", ComponentCause.SHARED_BY_FORKS),
    ("vocabularies of other sizes", "", ComponentCause.VOCABULARY),
    ("blocks of the vocabulary", "", ComponentCause.VOCABULARY),
    ("scores depend on the hypothesis", "", ComponentCause.MIXES_BEAMS),
]
"""What to say about the violations of a decoding component."""


class CriterionCause(Enum):
    """The usual causes; the value says what to do."""

    RANDOMNESS = (
        "the loss is random in evaluation, or depends on earlier calls; draw random numbers only if model.training is "
        "true, and keep nothing on the criterion"
    )
    GRADIENT = (
        "a part of the loss has no gradient or a wrong one; look for detach, item, data and torch.no_grad, and for a "
        "custom backward"
    )
    PADDING = (
        "padding of the target is counted; leave out the positions whose target is padding (target_logits does so)"
    )
    SOURCE_PADDING = "the loss depends on padding of the source; pass batch.source.src_lengths to the model"
    MEAN = "the loss is a mean; return the sum over target tokens, since the trainer divides by the sum of sample_size"
    SAMPLE_SIZE = (
        "sample_size or a logged value does not add up over ranks; count what the loss is summed over, without padding"
    )
    MIXES_SENTENCES = "the loss of a sentence depends on the other sentences; do not normalize over the batch"
    LOGGING = "a logged value is wrong; log detached sums over the batch (see CriterionOut.logging)"
    CHANGED = "the criterion changes the batch, the weights or the mode of the model; copy what you change"
    LOSS = "the loss has to be a finite scalar tensor with a gradient, and sample_size a positive number"


def _of_the_sum(subject: Training, wrong: Wrong) -> Diagnosis:
    """Why the parts of a batch do not sum to the batch; a mean does not change if each sentence occurs twice."""
    once, twice = (float(subject.compute(subject.batch(rows)).loss) for rows in ([0, 1], [0, 1, 0, 1]))
    return Diagnosis(CriterionCause.MEAN if abs(twice - once) < 1e-8 else CriterionCause.MIXES_SENTENCES)


CRITERION_ADVICE: Advice[Training] = [
    ("the loss is a scalar", "has no gradient", CriterionCause.GRADIENT),
    ("the loss is a scalar", "logged", CriterionCause.LOGGING),
    ("the loss is a scalar", "", CriterionCause.LOSS),
    ("inputs are not changed", "", CriterionCause.CHANGED),
    ("losses are repeatable", "", CriterionCause.RANDOMNESS),
    ("gradients accumulate", "", CriterionCause.RANDOMNESS),
    ("padding counts nothing", "of the source changes the loss", CriterionCause.SOURCE_PADDING),
    ("padding counts nothing", "changes the loss", CriterionCause.PADDING),
    ("sum over ranks = whole batch", "logged", CriterionCause.LOGGING),
    ("sum over ranks = whole batch", "sample_size", CriterionCause.SAMPLE_SIZE),
    ("sum over ranks = whole batch", "", _of_the_sum),
    ("gradient = finite differences", "", CriterionCause.GRADIENT),
    ("padding counts nothing", "", CriterionCause.SAMPLE_SIZE),
    ("order of sentences", "", CriterionCause.MIXES_SENTENCES),
    ("logged counts", "", CriterionCause.LOGGING),
]
"""What to say about the violations of a criterion."""


class TaskCause(Enum):
    """The usual causes; the value says what to do."""

    TEXT = "decode is not the inverse of encode_target; tokens are lost, joined wrongly or changed"
    IDS = "an id is not in the vocabulary, or an example has padding; collate adds padding, an example has none"
    RANDOM_EXAMPLES = (
        "examples depend on the order in which they are read; draw random numbers from the seed, epoch and position "
        "that example gets"
    )
    LENGTHS = "lengths does not count the tokens of the examples; count all of them, end-of-sentence included"
    ENCODING = (
        "training data are encoded in another way than the input of decoding; let load_dataset and encode_source add "
        "the same tokens, end-of-sentence included"
    )
    EXAMPLES = "an epoch leaves examples out or repeats them; each example needs its own position and id"
    PADDING = "a batch is padded wrongly; pad sources with source_dictionary.pad() on model.left_pad_source's side"
    COUNTS = "src_lengths or ntokens are wrong; they count the tokens without padding"
    NOT_SHIFTED = "the decoder reads the token that it has to predict; prev_output_tokens is the target, shifted right"
    START = "prev_output_tokens does not begin with model.start_token(eos)"
    TARGET = "targets are not those of the examples; pad them on the right with target_dictionary.pad()"
    VALIDATION = "valid_step changes training; compute it without gradients, training mode and random numbers"
    TRAINING = "train_step returns no differentiable loss; do not detach it"
    LOSS = "the loss of an example depends on the other examples of its batch; see the masks, or valid_step"
    NOT_RESTORED = (
        "setup_task makes another vocabulary when a run is resumed; if the run folder has a tokenizer, load it"
    )
    METRICS = "metrics confuses outputs and references, or returns scores of which smaller ones are better"


TASK_ADVICE: Advice[Prepared] = [
    ("ids are in the vocabulary", "", TaskCause.IDS),
    ("examples are fixed", "lengths", TaskCause.LENGTHS),
    ("examples are fixed", "", TaskCause.RANDOM_EXAMPLES),
    ("restored task = task", "", TaskCause.NOT_RESTORED),
    ("batches have the examples", "src_lengths", TaskCause.COUNTS),
    ("batches have the examples", "ntokens", TaskCause.COUNTS),
    ("batches have the examples", "begins with", TaskCause.START),
    ("batches have the examples", "shifted right", TaskCause.NOT_SHIFTED),
    ("batches have the examples", "src_tokens", TaskCause.PADDING),
    ("batches have the examples", "", TaskCause.TARGET),
    ("validation changes nothing", "", TaskCause.VALIDATION),
    ("training step", "", TaskCause.TRAINING),
    ("every example once", "", TaskCause.EXAMPLES),
    ("resuming continues", "", TaskCause.RANDOM_EXAMPLES),
    ("text survives", "", TaskCause.TEXT),
    ("training and decoding encode alike", "", TaskCause.ENCODING),
    ("alone = in a batch", "", TaskCause.LOSS),
    ("references score best", "", TaskCause.METRICS),
]
"""What to say about the violations of a task."""
