"""The line stage of ``generation.input_split``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from seqgen.config import GenerationConfig
from seqgen.extend import (
    ConfigError,
    DataError,
    InputLine,
    LanguageReader,
    LineOrder,
    LineStage,
    Ranking,
    Resources,
    Split,
    TextHypothesis,
    TextModel,
    Translation,
    library_errors,
    register_line_stage,
)


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split(":") for pair in text.split())


LANGUAGES = _pairs("""
am:amh ar:arb bg:bul bn:ben ca:cat da:dan de:deu el:ell en:eng es:spa fi:fin fr:fra gu:guj hi:hin hy:hye it:ita ja:jpn
kk:kaz kn:kan ml:mal mr:mar my:mya nl:nld pa:pan pl:pol pt:por ru:rus sk:slk ta:tam te:tel uk:ukr zh:zho
""")
"""The languages for which the package sentencex has rules: ISO 639-1 codes, each with its ISO 639-3 code."""

MOST = 1 << 24
"""The largest number of sentences of a line, since sentence ``i`` of line ``n`` has the number ``n * MOST + i``."""

WINDOW = 1 << 13
"""Characters of a line that the rules read at a time, because the package takes quadratic time for unclosed quotation
marks: 120 s for a line of 1 MB that is read as a whole."""


@dataclass(frozen=True)
class SplitText:
    """The sentences of a text, and the white space around them.

    Attributes:
        sentences: the sentences, without white space at either end.
        spaces: the white space before each sentence, and after the last one; so one more than sentences.
        notes: what the rules could not split.
    """

    sentences: list[str]
    spaces: list[str]
    notes: tuple[str, ...] = ()

    def joined(self, outputs: Sequence[str]) -> str:
        """Join the outputs of the sentences with the white space of the text.

        Where the text has none, because its sentences end with a full stop such as U+3002, a space follows an output
        that ends with an ASCII character.

        Args:
            outputs: one for each sentence.
        """
        found = [self.spaces[0]]
        for sentence, output, space in zip(self.sentences, outputs, self.spaces[1:], strict=True):
            of_ascii = output != "" and output[-1].isascii() and not sentence[-1:].isascii()
            found += [output, space or " " * of_ascii]
        return "".join([*found[:-1], self.spaces[-1]])


def split_text(text: str, language: str) -> SplitText:
    """Split a text into sentences; a newline always ends one.

    Args:
        text: the text.
        language: a code of ``LANGUAGES``.
    """
    sentences, spaces, notes = list[str](), [""], dict[str, None]()
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        for piece in _segments(line, language, notes):
            sentence = piece.strip()
            if not sentence:
                spaces[-1] += piece
                continue
            before, after = piece.split(sentence, 1)
            spaces[-1] += before
            sentences.append(sentence)
            spaces.append(after)
    return SplitText(sentences, spaces, tuple(notes))


def _segments(line: str, language: str, notes: dict[str, None]) -> Iterator[str]:
    """Split a line by the rules of a language, and add notes on what they could not split.

    The rules read ``WINDOW`` characters at a time. The last sentence of a window is read again with the next one,
    because its end is not known.
    """
    from sentencex import segment

    start = 0
    while start < len(line):
        # the package panics at white space outside of ASCII before a full stop
        window = re.sub(r"[^\S\x00-\x7f](?=\.)", " ", line[start : start + WINDOW])
        try:
            with library_errors("sentencex"):
                pieces = segment(language, window)
        except DataError:
            pieces = []
        if "".join(pieces) != window:
            notes[f"the rules for the language {language!r} failed, so a part of the text is not split"] = None
            pieces = [window]
        if start + WINDOW < len(line):
            if len(pieces) > 1:
                del pieces[-1]
            else:
                notes[f"a sentence of more than {WINDOW} characters is decoded in parts"] = None
                pieces = [window[: window.rfind(" ") + 1 or WINDOW]]
        for piece in pieces:
            yield line[start : start + len(piece)]
            start += len(piece)


@register_line_stage("paragraphs")
class ParagraphStage(LineStage):
    """Splits lines into sentences, which are decoded like separate lines, and joins their outputs.

    Args:
        cfg: the decoding settings.
        models: the models that decode, each with its task.

    Raises:
        ConfigError: the package that splits is not installed, the language of the source is unknown or has no rules, or
            the model continues text.
    """

    order = LineOrder.TEXT
    key = "input_split"
    splits = True
    streams = False

    def __init__(self, cfg: GenerationConfig, models: Sequence[TextModel]):
        try:
            import sentencex  # noqa: F401
        except ImportError:
            raise ConfigError(f"{_key(cfg)} needs a package: pip install sentencex") from None
        self.cfg = cfg
        self.ranking = Ranking(cfg.normalize_scores, cfg.length_penalty, cfg.length_penalty_form)
        task = models[0].task
        known = task.source_tokenizer.languages.source_lang if task.source_tokenizer.languages else ""
        self.default = known or str(getattr(task.cfg, "source_lang", ""))
        if models[0].model.left_pad_source:
            raise ConfigError(f"{_key(cfg)} cannot be used with a decoder-only model, which continues the line")
        languages = LanguageReader(models, cfg)
        if "source_lang" not in languages.fields:
            self.language(languages.fixed.source_lang)

    @classmethod
    def build(cls, cfg: GenerationConfig, resources: Resources) -> ParagraphStage:
        """See ``LineStage``."""
        return cls(cfg, resources.models)

    def language(self, source_lang: str) -> str:
        """The language whose rules split a line.

        Args:
            source_lang: the language of the line; empty for that of the model.

        Raises:
            ConfigError: it is unknown, or there are no rules for it.
        """
        code = self.cfg.input_split_lang or source_lang or self.default
        beginning = re.split("[-_]", code.lower())[0]
        for short, long in LANGUAGES.items():
            if beginning in (short, long):
                return short
        why = f"has no rules for the language {code!r}" if code else "needs the language of the source"
        raise ConfigError(f"{_key(self.cfg)} {why}; set generation.input_split_lang, one of {', '.join(LANGUAGES)}")

    def split(self, line: InputLine) -> Split:
        """Split a line into its sentences; a blank line is one. The prefix is the first one's; see ``LineStage``.

        Raises:
            DataError: the line has too many sentences, or a language without rules.
        """
        where = f"line {line.number + 1}"
        try:
            blank = SplitText([line.text], ["", ""])
            text = split_text(line.text, self.language(line.languages.source_lang)) if line.text.strip() else blank
        except ConfigError as error:
            raise DataError(f"{where}: {error}") from None
        first, count = line.number * MOST, len(text.sentences)
        parts = [
            replace(line, number=first + i, text=sentence, prefix="" if i else line.prefix, ends_line=i == count - 1)
            for i, sentence in enumerate(text.sentences)
        ]
        return Split(parts, partial(self._translation, line.number, text))

    def _translation(self, number: int, split: SplitText, parts: Sequence[Translation]) -> Translation:
        """The translation of a line from those of its sentences."""
        source = split.joined(split.sentences)
        if len(parts) == 1:
            whole = [replace(each, text=split.joined([each.text])) for each in parts[0].hypotheses]
            notes = [*split.notes, *parts[0].notes]
            return replace(parts[0], id=number, source=source, hypotheses=whole, notes=notes)
        texts = [part.hypotheses[0].text if part.hypotheses else "" for part in parts]
        best = [part.hypotheses[0] for part in parts if part.hypotheses]
        noted = [f"sentence {place}: {note}" for place, part in enumerate(parts, start=1) for note in part.notes]
        return Translation(
            number,
            source,
            torch.cat([part.source_tokens for part in parts]),
            [self._concatenated(best, split.joined(texts))] if best else [],
            [*split.notes, *noted],
            constraints=[each for part in parts for each in part.constraints],
            prefix=parts[0].prefix,
            sentences=list(parts),
        )

    def _concatenated(self, parts: list[TextHypothesis], text: str) -> TextHypothesis:
        """The outputs of sentences as one, whose score follows from all their tokens by the rule of the search."""
        tokens = torch.cat([each.tokens for each in parts])
        scores = torch.cat([each.positional_scores for each in parts])
        score = float(self.ranking.score(scores.sum(), len(tokens)))
        kept: dict[str, Any] = {name: any(getattr(one, name) for one in parts) for name in ("timed_out", "forced_end")}
        if parts[0].top_tokens is not None:
            kept |= {name: torch.cat([getattr(each, name) for each in parts]) for name in ("top_tokens", "top_scores")}
        fields = {name: [each.fields[name] for each in parts] for name in parts[0].fields}
        # without those of another width in each sentence, such as values of source positions
        alike = [name for name, values in fields.items() if len({one.shape[1:] for one in values}) == 1]
        kept["fields"] = {name: torch.cat(fields[name]) for name in alike}
        return TextHypothesis(tokens, score, scores, text=text, **kept)


def _key(cfg: GenerationConfig) -> str:
    return f"generation.input_split={cfg.input_split}"
