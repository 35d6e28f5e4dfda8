"""The line stages of ``generation.protect`` and ``generation.check_outputs``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import seqgen.extend as api
from seqgen.addons.protect.form import STAND_INS, TYPOGRAPHIC, Form, stand_ins
from seqgen.addons.protect.spans import Span, faults, find_spans, missing, pattern_of


class ReviewStage(api.LineStage):
    """Marks translations for review in the extra ``review``, as the add-on confidence does."""

    def marked(self, translation: api.Translation, notes: Sequence[str]) -> api.Translation:
        """The translation with notes, and with the mark if there are any.

        Args:
            translation: the translation.
            notes: what a person should look at.
        """
        found = replace(translation, notes=[*translation.notes, *notes])
        return found.with_extra("review", True if notes else translation.extras.get("review"))

    def joined(self, whole: api.Translation, parts: Sequence[api.Translation]) -> api.Translation:
        """Mark a line of which a sentence is marked; see ``LineStage``."""
        return whole.with_extra("review", any(part.extras["review"] for part in parts))

    @classmethod
    def columns(cls, translation: api.Translation) -> Mapping[str, str]:
        """Write the mark in tables; see ``LineStage``."""
        return {"review": "review" if translation.extras.get("review") else ""}

    def counts(self, translation: api.Translation) -> Mapping[str, int]:
        """Count the lines, and those that a person should read; see ``LineStage``."""
        return {"lines": 1, "marked": int(bool(translation.extras["review"]))}

    @classmethod
    def summary(cls, sums: Mapping[str, int]) -> str:
        """Say how many lines are marked; see ``LineStage``."""
        return f"{sums['marked']} of {sums['lines']} lines are marked for review"


@api.register_line_stage("protect")
class ProtectStage(ReviewStage):
    """Keeps spans of lines: if an output lacks one, the line is decoded again with stand-ins in place of the spans.

    On the line, the extra ``protect`` is how it is decoded: the kind of its stand-ins (0 for none, and in the last
    attempt ``STAND_INS + 1``), and whether numbers have them, too; after ``read`` it is the ``Form``.

    Args:
        cfg: the decoding settings.
        models: the models that decode.

    Raises:
        ConfigError: an entry of ``generation.protect`` is wrong, or the model continues text.
    """

    order = api.LineOrder.TEXT
    key = "protect"
    streams = False

    def __init__(self, cfg: api.GenerationConfig, models: Sequence[api.TextModel]):
        if models[0].model.left_pad_source:
            raise api.ConfigError("generation.protect cannot be used with a decoder-only model, which continues lines")
        self.entries, self.pattern = cfg.protect, pattern_of(cfg.protect)
        self.tokenizer, self.known = models[0].task.source_tokenizer, dict[str, bool]()

    @classmethod
    def build(cls, cfg: api.GenerationConfig, resources: api.Resources) -> ProtectStage:
        """See ``LineStage``."""
        return cls(cfg, resources.models)

    def _lacks(self, sign: str) -> bool:
        if sign not in self.known:
            self.known[sign] = "signs" in self.entries and bool(self.tokenizer.unknown(sign))
        return self.known[sign]

    def _spans(self, text: str) -> list[Span]:
        """The spans of a text, signs that no plain one stands for included."""
        signs = (sign for sign in sorted({*text} - TYPOGRAPHIC) if not (sign.isalnum() or sign.isspace()))
        lacking = "".join(filter(self._lacks, signs))
        return find_spans("|".join(filter(None, [self.pattern, lacking and f"[{re.escape(lacking)}]+"])), text)

    def read(self, line: api.InputLine) -> api.InputLine:
        """Change the text into its form; see ``LineStage``."""
        (kind, numbers), spans = line.extras.get("protect", (0, False)), self._spans(line.text)
        marks = [span.text for span in spans]
        if 0 < kind <= STAND_INS:
            replaced = [place for place, span in enumerate(spans) if numbers or not span.number]
            for place, mark in zip(replaced, stand_ins(kind, line.text), strict=False):
                marks[place] = mark
        form = Form(line.text, spans, marks, self._lacks, "case" in self.entries and not line.prefix)
        return replace(line, text=form.text).with_extra("protect", form)

    def write(self, line: api.InputLine, translation: api.Translation) -> api.Translation:
        """Put the spans back, and mark an output that lacks one for review; see ``LineStage``."""
        if (form := line.extras.get("protect")) is None:  # the line is empty
            return self.marked(translation, [])
        found = translation.hypotheses
        kept = [each for each in found if form.holds(found[0].text) and form.holds(each.text)]
        texts = [replace(each, text=form.restored(each.text)) for each in kept]
        notes = [f"{len(found) - len(kept)} hypotheses without protected text are left out"] * (len(kept) < len(found))
        whole = replace(translation, source=form.source, hypotheses=texts, notes=[*translation.notes, *notes])
        return self.marked(whole, faults(form.spans, form.source, whole.text))

    def again(self, line: api.InputLine, translation: api.Translation) -> api.InputLine | None:
        """Try the next kind of stand-ins if the output lacks a span; see ``LineStage``."""
        kind, numbers = line.extras.get("protect", (0, False))
        lost = missing(self._spans(line.text), line.text, translation.text)
        if not lost or kind > STAND_INS:
            return None
        return line.with_extra("protect", (kind + 1, numbers or any(span.number for span in lost)))
