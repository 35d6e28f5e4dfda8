"""The usual cause of a violated invariant of a task."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from seqgen.lab.checks.checking import Diagnosis, Outcome


class Cause(Enum):
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
    UNKNOWN = "no experiment names the cause; see the first failure"


def diagnose(outcomes: Sequence[Outcome]) -> Diagnosis:
    """Find the usual cause that explains the violations.

    Args:
        outcomes: what the checks found; at least one violation.
    """
    wrong = {outcome.name: outcome.violation for outcome in outcomes if outcome.violation is not None}
    for name, parts in _CAUSES.items():
        if (violation := wrong.get(name)) is not None:
            return Diagnosis(next(cause for part, cause in parts.items() if part in violation.what))
    return Diagnosis(Cause.UNKNOWN)


_CAUSES: dict[str, dict[str, Cause]] = {
    "ids are in the vocabulary": {"": Cause.IDS},
    "examples are fixed": {"lengths": Cause.LENGTHS, "": Cause.RANDOM_EXAMPLES},
    "restored task = task": {"": Cause.NOT_RESTORED},
    "batches have the examples": {
        "src_lengths": Cause.COUNTS,
        "ntokens": Cause.COUNTS,
        "begins with": Cause.START,
        "shifted right": Cause.NOT_SHIFTED,
        "src_tokens": Cause.PADDING,
        "": Cause.TARGET,
    },
    "validation changes nothing": {"": Cause.VALIDATION},
    "training step": {"": Cause.TRAINING},
    "every example once": {"": Cause.EXAMPLES},
    "resuming continues": {"": Cause.RANDOM_EXAMPLES},
    "text survives": {"": Cause.TEXT},
    "training and decoding encode alike": {"": Cause.ENCODING},
    "alone = in a batch": {"": Cause.LOSS},
    "references score best": {"": Cause.METRICS},
}
"""For each invariant, in the order in which causes are looked for: the cause by a part of the violation's text."""
