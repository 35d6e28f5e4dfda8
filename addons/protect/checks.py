"""The line stage of ``generation.check_outputs``: what many bad translations have, and few good ones."""

from __future__ import annotations

import re
from typing import Any

import seqgen.extend as api
from seqgen.addons.protect.spans import PATTERNS
from seqgen.addons.protect.stage import ReviewStage

# the least words of a source, and the share of the words of its output that are in the source, of a copy
COPIED_WORDS, COPIED_SHARE = 4, 0.7
# the least characters of a source, and the share of them that its output has, below which it lacks a part
LONG, SHORT_SHARE = 40, 0.55
# the probability from which a language is recognized
SURE = 0.5

_WORD = re.compile(r"[^\W\d_]+")
_LOOP = re.compile(r"\b(\w[^\n]{0,60}?)(?:\W+\1\b){2,}|(\S{1,10}?)\2{5,}", re.IGNORECASE)
_WIDE = re.compile("[\u3040-\u9fff\uac00-\ud7af]")


def suspicious(source: str, output: str) -> list[str]:
    """What a translation has that good ones do not have.

    Args:
        source: the source, without spans that are copied.
        output: its translation, likewise.
    """
    read, written = (_WORD.findall(text.lower()) for text in (source, output))
    # a character of Chinese, Japanese or Korean is as much as three letters
    long, short = (len(_WIDE.sub("   ", text)) for text in (source, output))
    notes = []
    if len(read) >= COPIED_WORDS and sum(word in read for word in written) >= COPIED_SHARE * max(1, len(written)):
        notes.append("the output is nearly a copy of the source")
    if long >= LONG and short < SHORT_SHARE * long:
        notes.append(f"the output has {short} characters for {long} of the source and may lack a part")
    if (loop := _LOOP.search(output)) and not _LOOP.search(source):
        notes.append(f"the output repeats itself: {loop[1] or loop[2]}")
    return notes


@api.register_line_stage("output_checks")
class ChecksStage(ReviewStage):
    """Marks outputs that are probably bad for review.

    Raises:
        ConfigError: the package that recognizes languages is not installed.
    """

    key = "check_outputs"

    def __init__(self) -> None:
        try:
            from py3langid import langid
        except ImportError:
            raise api.ConfigError("generation.check_outputs=true needs a package: pip install py3langid") from None
        self.languages: Any = langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)

    def write(self, line: api.InputLine, translation: api.Translation) -> api.Translation:
        """Add notes, and mark the line if there are any; see ``LineStage``."""
        texts = translation.source, translation.text
        source, output = (re.sub("|".join(PATTERNS.values()), " ", text) for text in texts)
        notes = suspicious(source, output) if output.strip() else []
        (language, sure), (other, also) = map(self.languages.classify, (source, output))
        if not notes and language == other and min(sure, also) > SURE:
            notes = ["the output is in the language of the source"]
        return self.marked(translation, notes)
