"""Turning the tokenized output of older checkpoints into text: removing BPE marks, and Moses detokenization."""

from __future__ import annotations

import re
from collections.abc import Callable

from seqgen.errors import ConfigError, nearest

BPE_MARKS: dict[str, Callable[[str], str]] = {
    # subword-nmt's format: "lo@@ w@@ er" is "lower"; a mark at the end, as of an output that is cut off, goes too
    "subword_nmt": lambda text: re.sub(r"@@( |$)", "", text),
    "sentencepiece": lambda text: text.replace(" ", "").replace("▁", " ").strip(),
}
"""Functions that join subwords, by the name of the format."""

_WITHOUT_PREFIXES = ("ja", "ko", "zh")
"""Languages of sacremoses for which it has no list of abbreviations."""


def text_cleaner(remove_bpe: str, detokenize: str) -> Callable[[str], str]:
    """Make the function that turns a tokenized output into text.

    Args:
        remove_bpe: a name of ``BPE_MARKS``; empty to leave marks.
        detokenize: language of the Moses detokenizer, such as ``de``; empty to leave tokens.

    Returns:
        The function, from an output to its text.

    Raises:
        ConfigError: the detokenizer is not installed, or does not know the language.
    """
    join = BPE_MARKS.get(remove_bpe, str)
    if not detokenize:
        return join
    try:
        from sacremoses import MosesDetokenizer
        from sacremoses.corpus import NonbreakingPrefixes
    except ImportError:
        raise ConfigError(f"detokenize={detokenize} needs a package: pip install sacremoses") from None
    known = sorted({*NonbreakingPrefixes().available_langs.values(), *_WITHOUT_PREFIXES})
    if detokenize not in known:
        raise ConfigError(
            f"detokenize={detokenize}: sacremoses does not know this language{nearest(detokenize, known)}; the "
            f"languages are {', '.join(known)}, and en suits most others"
        )
    moses = MosesDetokenizer(lang=detokenize)
    return lambda text: str(moses.detokenize(join(text).split()))
