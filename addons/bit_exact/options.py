"""The key of bit-exact decoding, see ``decoding``."""

from __future__ import annotations

from dataclasses import dataclass

from seqgen.config import MODEL, SCORES_TARGETS, decoding_key


@dataclass
class BitExactOptions:
    """Whether outputs have the same bits in every batch."""

    bit_exact: bool = decoding_key(
        False,
        "tokens and scores of a sentence have the same bits in every batch, order and number of threads; slower",
        MODEL | SCORES_TARGETS,
        setup="seqgen.addons.bit_exact.decoding:exact_setup",
        scorer="seqgen.addons.bit_exact.decoding:exact_scorer",
    )
