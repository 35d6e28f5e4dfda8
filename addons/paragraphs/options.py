"""The keys of paragraphs, see ``stage``."""

from __future__ import annotations

from dataclasses import dataclass

from seqgen.config import INPUT, KEEPS_SCORES, NOT_IN_TRAINING, WHOLE_LINE, Requirement, decoding_key


@dataclass
class ParagraphOptions:
    """How lines of several sentences are split."""

    input_split: str = decoding_key(
        "",
        "sentences: split each line into sentences, decode these, and join their outputs with the white space of the "
        "line; needs the package sentencex",
        INPUT | KEEPS_SCORES | NOT_IN_TRAINING,
        Requirement(
            lambda cfg: not cfg.uses(WHOLE_LINE),
            "gives one output of the whole line, without {keys}; remove one of them",
            WHOLE_LINE,
        ),
        choices=("", "sentences"),
    )
    input_split_lang: str = decoding_key(
        "",
        "language whose rules split lines into sentences, such as en; empty for that of the source",
        INPUT | KEEPS_SCORES | NOT_IN_TRAINING,
        Requirement(lambda cfg: cfg.input_split, "has no effect without generation.input_split; set both or neither"),
    )
