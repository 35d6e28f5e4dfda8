"""Input lines: text, phrases and prefix of one line, encoded for every model."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from seqgen.config import GenerationConfig
from seqgen.data.tokenizers.languages import TargetLanguage
from seqgen.errors import DataError
from seqgen.generation.component import Phrase
from seqgen.generation.ensemble.member import INPUT
from seqgen.structures import EncoderOut
from seqgen.text.languages import LanguageReader, LineLanguages, TextModel, encode_source
from seqgen.text.results import Translation
from seqgen.text.sources import EncodedSource, MemberSource, check_encodable, source_text

_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass
class InputLine:
    """An encoded line and its translation.

    Attributes:
        translation: the translation, which decoding completes.
        sources: for each model ``(S,)`` int64 source ids, end-of-sentence included; no tensors for an empty line.
        phrases: the phrases that the output must contain, each as its alternatives in target ids.
        prefix: the target ids with which the output begins.
        first_token: the token of the target language, if the output begins with it.
        start_token: the token of the target language, if it is the start token of the decoder.
        encoder_out: the encoder's output ``(1, S, C)``, if it was given in place of the text.
        languages: the languages of the line.
        ends_line: false for a sentence of a line that is not its last one.
    """

    translation: Translation
    sources: list[Tensor]
    phrases: list[Phrase] = field(default_factory=list)
    prefix: list[int] = field(default_factory=list)
    first_token: int | None = None
    start_token: int | None = None
    encoder_out: EncoderOut | None = None
    languages: LineLanguages = LineLanguages()
    ends_line: bool = True

    @property
    def length(self) -> int:
        """The largest number of source tokens over all models."""
        return max(len(source) for source in self.sources)


class InputEncoder:
    """Encodes lines, and notes in each translation what was truncated or is not in a vocabulary.

    Args:
        models: the models that read the source: the members, and the draft model if there is one. The task of the first
            one encodes phrases and prefixes.
        cfg: the decoding settings.
        last_steps: maps source lengths ``(N,)`` to the largest number of output tokens ``(N,)``, end-of-sentence not
            counted.
        sources: what each model reads, see ``sources_from_config``; the input line where there is no entry.
        num_members: how many of the models are members; their positions limit the output. By default all.
    """

    def __init__(
        self,
        models: Sequence[TextModel],
        cfg: GenerationConfig,
        last_steps: Callable[[Tensor], Tensor],
        sources: Sequence[str | MemberSource] = (),
        num_members: int | None = None,
    ):
        self.sources = sources
        self.models, self.cfg, self.last_steps = models, cfg, last_steps
        self.members = models[:num_members]
        self.task = models[0].task
        self.languages = LanguageReader(models, cfg)

    def encode(
        self, number: int, line: str | EncodedSource, prefix: str = "", languages: LineLanguages | None = None
    ) -> InputLine:
        """Encode a line; sources are truncated to the length that each model can read.

        Args:
            number: number of the line, from 0.
            line: the line. With ``cfg.constraints``, phrases follow the source, separated by tabs. Fields with the
                line's languages are removed first. If the source is encoded already, its ids are not computed again.
            prefix: the forced beginning of the output.
            languages: the languages of the line; ``None`` to find them.

        Returns:
            The encoded line.

        Raises:
            DataError: the line or its prefix is not text, the line has too few fields for ``cfg.members`` or the
                languages, a field is not a language, or the line is encoded already with other languages.
            ConfigError: the line is encoded already, and the models cannot decode such a source.
        """
        encoded = line if isinstance(line, EncodedSource) else None
        text = line.text if isinstance(line, EncodedSource) else line
        check_text(text, f"line {number + 1}")
        check_text(prefix, f"the prefix of line {number + 1}")
        if languages is None:
            text, languages = self.languages.read(number, text) if text.strip() else (text, LineLanguages())
        text, *phrases = text.split("\t") if self.cfg.constraints else [text]
        translation = Translation(number, text, torch.empty(0, dtype=torch.int64), prefix=prefix)
        if encoded is None and not text.strip() and not self.task.reads_empty_lines:
            unused = " and ".join(name for name, given in (("prefix", prefix), ("phrases", phrases)) if given)
            further = f"; its {unused} had no effect" if unused else ""
            translation.notes.append(f"the line is empty, and so is its output{further}")
            return InputLine(translation, [])
        if encoded is None:
            sources = self._sources(translation, languages)
        else:
            check_encodable(self.models)
            self._check_languages(number, encoded.languages, languages)
            sources = [encoded.tokens]
            translation.member_sources.append(translation.source)
            translation.notes.extend(encoded.notes)
        if not sources:
            return InputLine(translation, [])
        translation = replace(translation, source_tokens=sources[0])
        return InputLine(
            translation,
            sources,
            self._phrases(phrases, translation, sources),
            self._prefix(translation, sources, languages),
            self.languages.target_token(languages, TargetLanguage.FIRST),
            self.languages.target_token(languages, TargetLanguage.START),
            None if encoded is None else encoded.encoder_out,
            languages,
        )

    def _check_languages(self, number: int, encoded: LineLanguages, given: LineLanguages) -> None:
        """Refuse languages that an encoded source would need to have been encoded with."""
        both = LineLanguages(given.source_lang or encoded.source_lang, given.target_lang or encoded.target_lang)
        if both != encoded and not torch.equal(*(encode_source(self.task, "", one) for one in (encoded, both))):
            raise DataError(
                f"line {number + 1} was encoded with other languages than source_lang={both.source_lang!r}, "
                f"target_lang={both.target_lang!r}, and this model reads them in the source; give encode the same ones"
            )

    def longest_output(self, sources: Sequence[Tensor]) -> int:
        """The longest output of a line in tokens, end-of-sentence not counted.

        Args:
            sources: ``(S,)`` int64 source ids for each model.
        """
        rooms = [_room(*pair) for pair in zip(self.members, sources, strict=False)]
        longest = int(self.last_steps(torch.tensor([len(sources[0])]))[0])
        return min([longest, *(room - 1 for room in rooms if room is not None)])

    def _sources(self, translation: Translation, languages: LineLanguages) -> list[Tensor]:
        """The source ids for each model; none if a prompt leaves no room for an output."""
        text, notes = translation.source, translation.notes
        if "\t" in text and not self.cfg.members:
            notes.append(
                "the text after a tab is part of the source; with generation.constraints it would be a phrase that the "
                "output must contain"
            )
        tokenizer = self.task.source_tokenizer
        if text.endswith("\r") and tokenizer.encode(text) != tokenizer.encode(text[:-1]):
            notes.append("the line ends with a carriage return, which the model reads; convert the file to Unix lines")
        if unknown := tokenizer.unknown(text):
            shown = " ".join(dict.fromkeys(unknown[:100]))[:60]
            notes.append(f"the vocabulary lacks {shown}")
        sources = []
        wanted = [*self.sources, *[INPUT] * len(self.models)]
        for model, source in zip(self.models, wanted, strict=False):
            own = source_text(source, text, translation.id)
            ids, longest = encode_source(model.task, own, languages), model.model.max_positions()[0]
            if (room := _room(model, ids)) is not None and room < 1:
                notes.append(
                    f"the prompt has {len(ids)} tokens and the model {longest} positions, so that the output is empty"
                )
                return []
            words = model.task.source_dictionary
            if words.pad() != words.eos() and words.pad() in ids:
                notes.append(f"the source contains padding (id {words.pad()}), which the model does not attend to")
            if len(ids) > longest:
                tail = len(model.task.source_tokenizer.source_tokens().after)
                notes.append(f"of {len(ids)} source tokens only the first {longest - tail} were read")
                ids = torch.cat([ids[: longest - tail], ids[len(ids) - tail :]])
            sources.append(ids)
            if len(sources) <= len(self.members):
                translation.member_sources.append(own)
        return sources

    def _phrases(self, phrases: list[str], translation: Translation, sources: Sequence[Tensor]) -> list[Phrase]:
        """The ids of the phrases of a line; alternatives with tokens outside the vocabulary are left out.

        Of a phrase that no output has room for, only so many tokens are returned that this stays so.
        """
        tokenizer, too_many = self.task.target_tokenizer, self.longest_output(sources) + 2
        encoded: list[Phrase] = []
        for phrase in phrases:
            some = []
            for text in alternatives(phrase):
                if lacking := tokenizer.unknown(text):
                    translation.notes.append(
                        f"the phrase {text!r} is left out: the vocabulary lacks {' '.join(lacking)}"
                    )
                else:
                    some.append(tokenizer.encode(text)[:too_many])
            if some:
                translation.constraints.append(phrase.strip())
                encoded.append(some)
        return encoded

    def _prefix(self, translation: Translation, sources: Sequence[Tensor], languages: LineLanguages) -> list[int]:
        """The ids of the prefix of a line's output, truncated to the largest output length."""
        notes, prefix = translation.notes, translation.prefix
        if not prefix:
            return []
        target = self.task.target_tokenizer
        ids = [*target.target_tokens(languages.target_lang).before, *target.encode(prefix)]
        if lacking := self.task.target_tokenizer.unknown(prefix):
            notes.append(f"the vocabulary lacks these parts of the prefix: {' '.join(dict.fromkeys(lacking))[:60]}")
        longest = self.longest_output(sources)
        if len(ids) > longest:
            notes.append(f"of {len(ids)} prefix tokens only the first {longest} fit into the longest output")
        return ids[:longest]


def _room(member: TextModel, source: Tensor) -> int | None:
    """The longest output of a source, end-of-sentence included; ``None`` if it does not depend on the source."""
    lengths = member.model.max_target_lengths(torch.tensor([len(source)]))
    return None if lengths is None else int(lengths[0])


def check_text(text: object, where: str) -> None:
    """Check that a line can be encoded.

    Args:
        text: the line.
        where: what and where it is, for messages.

    Raises:
        DataError: it is not text, or contains half of a surrogate pair.
    """
    if not isinstance(text, str):
        raise DataError(f"{where} is of type {type(text).__name__}; give text")
    if half := _SURROGATE.search(text):
        raise DataError(f"{where} contains half of a surrogate pair, {half[0]!r}, which is not a character; remove it")


def alternatives(phrase: str) -> list[str]:
    r"""The alternatives of a phrase: ``a b|c`` gives ``a b`` and ``c``; in ``a\|b`` the bar is part of the text."""
    texts = (text.replace(r"\|", "|").strip() for text in re.split(r"(?<!\\)\|", phrase))
    return [text for text in texts if text]


def with_prefixes(
    lines: Iterable[str | EncodedSource], prefixes: Iterable[str] | None
) -> Iterator[tuple[str | EncodedSource, str]]:
    """Pair each line with the prefix of its output.

    Args:
        lines: the lines.
        prefixes: one for each line; ``None`` for empty ones.

    Yields:
        Pairs of a line and its prefix.

    Raises:
        DataError: there are more lines than prefixes, or fewer.
    """
    if prefixes is None:
        yield from ((line, "") for line in lines)
        return
    for number, (line, prefix) in enumerate(itertools.zip_longest(lines, prefixes), start=1):
        if line is None or prefix is None:
            which = "prefix" if line is None else "line"
            raise DataError(
                f"{which} {number} has no {'line' if line is None else 'prefix'}; give one prefix for each line, an "
                "empty one for none"
            )
        yield line, prefix
