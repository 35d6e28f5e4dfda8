"""The key of glossaries; docs/terminology.md."""

from __future__ import annotations

from dataclasses import dataclass

from seqgen.config import CONSTRAINED, CONSTRAINS, FILES, NOT_IN_TRAINING, decoding_key


@dataclass
class GlossaryOptions:
    """Terms whose translations are given."""

    glossary: str = decoding_key(
        "",
        "file with lines SOURCE<tab>TARGET: the translation of a line with a source term must contain the target term, "
        "or one of several (a|b)",
        FILES | CONSTRAINS | NOT_IN_TRAINING,
        *CONSTRAINED,
        role="input_path",
    )
