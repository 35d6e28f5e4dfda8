"""The keys of rewriting, see ``stage`` and ``unknown_words``."""

from __future__ import annotations

from dataclasses import dataclass

from seqgen.config import CALL, FILES, KEEPS_SCORES, NOT_IN_TRAINING, decoding_key


@dataclass
class RewritingOptions:
    """What changes outputs after the search."""

    rewriters: list[str] = decoding_key(
        [],
        "names of rewriters, which add hypotheses that the search did not find",
        CALL | KEEPS_SCORES | NOT_IN_TRAINING,
    )
    replace_unknown: str = decoding_key(
        "",
        "replace unknown words by the source word with the highest attention (source), or by its translation in a FILE "
        "with lines SOURCE<tab>TARGET",
        FILES | KEEPS_SCORES | NOT_IN_TRAINING,
        role="input_path",
    )
