"""Input lines: text, phrases and prefix of one line, encoded for every model, and what each member reads of it."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from seqgen.config import GenerationConfig
from seqgen.core.component import Component, Phrase
from seqgen.core.contract import check_returned
from seqgen.core.errors import DataError
from seqgen.core.member import EMPTY
from seqgen.decoding.building import Resources, build_component
from seqgen.decoding.members import field_of
from seqgen.registry import MEMBER_SOURCES
from seqgen.text.languages import LanguageReader, LineLanguages, encode_source
from seqgen.text.members import TextModel
from seqgen.text.results import TextHypothesis, Translation

UNKNOWN = "the model reads an unknown token in place of text that is not in its vocabulary: "
"""The beginning of the note on characters or words that are not in a vocabulary, which follow."""
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class InputLine:
    """An encoded line.

    Attributes:
        number: number of the line, from 0.
        text: the line without languages and phrases.
        sources: for each model ``(S,)`` int64 source ids, end-of-sentence included; no tensors for an empty line. A
            line stage may set them before the line is encoded, empty ones for models that read the text.
        member_sources: the text that each member reads.
        demanded: the phrases that the output must contain, each as its alternatives.
        phrases: the same in target ids.
        prefix: the text with which the output begins.
        prefix_tokens: its target ids.
        languages: the languages of the line.
        notes: messages for the user about the input.
        ends_line: false for a part of a line that is not its last one.
        extras: values of line stages, by name.
        columns: further inputs of the models, see ``Task.split_columns``.
        longest_output: tokens of its longest output, end-of-sentence not counted.
    """

    number: int
    text: str
    sources: Sequence[Tensor] = ()
    member_sources: Sequence[str] = ()
    demanded: Sequence[Sequence[str]] = ()
    phrases: Sequence[Phrase] = ()
    prefix: str = ""
    prefix_tokens: Sequence[int] = ()
    languages: LineLanguages = LineLanguages()
    notes: Sequence[str] = ()
    ends_line: bool = True
    extras: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, Any] = field(default_factory=dict)
    longest_output: int = 0

    @property
    def length(self) -> int:
        """The largest number of source tokens over all models."""
        return max(len(source) for source in self.sources)

    def demanding(self, *phrases: Sequence[str]) -> InputLine:
        """The line with further phrases that its output must contain.

        Args:
            phrases: each as its alternatives; a key that selects the constrained search must be set, such as
                ``generation.constraints``.
        """
        return replace(self, demanded=[*self.demanded, *phrases])

    def with_extra(self, name: str, value: Any) -> InputLine:
        """The line with a value of a line stage.

        Args:
            name: the value's name.
            value: the value.
        """
        return replace(self, extras={**self.extras, name: value})

    def translation(self, hypotheses: Sequence[TextHypothesis] = (), notes: Sequence[str] = ()) -> Translation:
        """The result of the line; see ``Translation``.

        Args:
            hypotheses: its hypotheses, best first.
            notes: messages for the user about the output.
        """
        phrases = self.demanded if self.phrases else ()
        return Translation(
            id=self.number,
            source=self.text,
            source_tokens=self.sources[0] if self.sources else torch.empty(0, dtype=torch.int64),
            hypotheses=list(hypotheses),
            notes=[*self.notes, *notes],
            constraints=["|".join(text.replace("|", r"\|") for text in phrase) for phrase in phrases],
            prefix=self.prefix,
            languages={key: code for key, code in self.languages._asdict().items() if code},
            member_sources=list(self.member_sources),
        )


class MemberSource(Component):
    """Gives a member of an ensemble a text to read in place of the input line; a subclass implements ``__call__``.

    A source registered with ``@register_member_source`` is selected by its name, for one member or several
    (``generation.member_sources=[input,NAME]``).
    """

    def __call__(self, line: str, number: int) -> str:
        """Find the text that the member reads.

        Args:
            line: the input line.
            number: number of the line, from 0. The text may depend on it, but not on the batch.

        Returns:
            The text, which the member's tokenizer encodes.
        """
        raise NotImplementedError


def sources_from_config(cfg: GenerationConfig, resources: Resources) -> list[str | MemberSource]:
    """The entries of ``generation.member_sources``, registered names replaced by their components.

    Raises:
        ConfigError: an entry is not a source.
    """
    return [
        build_component(MEMBER_SOURCES, name, MemberSource, cfg, resources) if MEMBER_SOURCES.find(name) else name
        for name in cfg.member_sources
    ]


def source_text(source: str | MemberSource, line: str, number: int) -> str:
    """The text that a member reads.

    Args:
        source: ``"input"``, ``"empty"``, ``"fieldN"`` or a component.
        line: the input line.
        number: number of the line, from 0.

    Raises:
        DataError: the line has too few fields.
    """
    if isinstance(source, MemberSource):
        return check_returned(source, "__call__", source(line, number), str)
    if source == EMPTY:
        return ""
    fields, wanted = line.split("\t"), field_of(source)
    if wanted > len(fields):
        raise DataError(
            f"line {number + 1} has {len(fields)} fields, and generation.member_sources names field {wanted}; separate "
            "fields by tabs"
        )
    return fields[wanted - 1] if wanted else line


class InputEncoder:
    """Encodes lines, and notes what was truncated or is not in a vocabulary.

    Args:
        models: the models that read the source: the members, and the draft model if there is one. The task of the first
            one encodes phrases and prefixes.
        cfg: the decoding settings.
        last_steps: maps source lengths ``(N,)`` to the largest number of output tokens ``(N,)``, end-of-sentence not
            counted.
        sources: what each model reads, see ``sources_from_config``; the input line where there is no entry.
        num_members: how many of the models are members; their positions limit the output. By default all.
        read_line: changes a line before it is encoded, see ``LineStages.read``; ``None`` for no change.
        reads_empty: whether empty lines are read and decoded, also if the task does not; see ``LineStage.reads_empty``.
    """

    def __init__(
        self,
        models: Sequence[TextModel],
        cfg: GenerationConfig,
        last_steps: Callable[[Tensor], Tensor],
        sources: Sequence[str | MemberSource] = (),
        num_members: int | None = None,
        read_line: Callable[[InputLine], InputLine] | None = None,
        reads_empty: bool = False,
    ):
        self.sources, self.read_line = sources, read_line or (lambda line: line)
        self.models, self.cfg, self.last_steps = models, cfg, last_steps
        self.members = models[:num_members]
        self.task = models[0].task
        self.reads_empty = reads_empty or self.task.reads_empty_lines
        self.languages = LanguageReader(models, cfg)
        self._longest: dict[tuple[int, ...], int] = {}

    def read(self, number: int, line: str, prefix: str = "") -> InputLine:
        """Separate a line from its languages, phrases and columns.

        Args:
            number: number of the line, from 0.
            line: the line. With ``cfg.constraints``, phrases follow the source, separated by tabs. Fields with the
                line's languages are removed first.
            prefix: the forced beginning of the output.

        Returns:
            The line, which is not encoded.

        Raises:
            DataError: the line or its prefix is not text, the line has too few fields for the languages, or a field is
                not a language.
        """
        check_text(line, f"line {number + 1}")
        check_text(prefix, f"the prefix of line {number + 1}")
        rest, languages = self.languages.read(number, line) if line.strip() else (line, self.languages.fixed)
        text, *phrases = rest.split("\t") if self.cfg.constraints else [rest]
        demanded = list(map(split_alternatives, phrases))
        text, columns = self.task.split_columns(text, number) if text.strip() else (text, {})
        return InputLine(number, text, prefix=prefix, languages=languages, demanded=demanded, columns=columns)

    def encode(self, line: InputLine) -> InputLine:
        """Encode a line; sources are truncated to the length that each model can read.

        Args:
            line: the line as ``read`` returned it, or a part of it.

        Raises:
            DataError: the line has too few fields for ``cfg.member_sources``.
        """
        if not (line.text.strip() or self.reads_empty):
            given = (("prefix", line.prefix), ("phrases", line.demanded))
            unused = " and ".join(name for name, value in given if value)
            further = f"; its {unused} had no effect" if unused else ""
            return replace(line, notes=[f"the line is empty, and so is its output{further}"])
        read, notes = self.read_line(line), list[str]()
        sources, texts = self._read_sources(read, notes)
        read = replace(read, member_sources=texts, notes=notes)
        if len(sources) < len(self.models):
            return replace(read, sources=(), extras={})
        longest = self.longest_output(sources)
        demanded, phrases = self._encode_phrases(read.demanded, longest + 2, notes)
        prefix_tokens = self._encode_prefix(read, longest, notes) if read.prefix else ()
        read = replace(read, sources=sources, longest_output=longest)
        return replace(read, demanded=demanded, phrases=phrases, prefix_tokens=prefix_tokens)

    def longest_output(self, sources: Sequence[Tensor]) -> int:
        """The longest output of a line in tokens, end-of-sentence not counted.

        Args:
            sources: ``(S,)`` int64 source ids for each model.
        """
        lengths = tuple(map(len, sources))
        if lengths not in self._longest:
            rooms = [output_room(*pair) for pair in zip(self.members, sources, strict=False)]
            longest = int(self.last_steps(torch.tensor(lengths[:1]))[0])
            self._longest[lengths] = min([longest, *(room - 1 for room in rooms if room is not None)])
        return self._longest[lengths]

    def _read_sources(self, line: InputLine, notes: list[str]) -> tuple[list[Tensor], list[str]]:
        """The source ids for each model, fewer if a prompt leaves no room for an output; what each member reads."""
        self._note_text(line.text, notes)
        sources, texts = list[Tensor](), list[str]()
        for index, model in enumerate(self.models):
            read = source_text(self.sources[index], line.text, line.number) if index < len(self.sources) else line.text
            ids, longest = encode_source(model.task, read, line.languages), model.model.max_positions()[0]
            ids = next((given for given in line.sources[index : index + 1] if len(given)), ids)
            if (room := output_room(model, ids)) is not None and room < 1:
                notes.append(
                    f"the prompt has {len(ids)} tokens and the model {longest} positions, so the output is empty"
                )
                break
            words = model.task.source_dictionary
            if words.pad() != words.eos() and words.pad() in ids:
                notes.append(f"the source contains padding (id {words.pad()}), which the model does not attend to")
            if len(ids) > longest:
                tail = len(model.task.source_tokenizer.source_tokens().after)
                notes.append(f"of {len(ids)} source tokens only the first {longest - tail} were read")
                ids = torch.cat([ids[: longest - tail], ids[len(ids) - tail :]])
            sources.append(ids)
            texts += [read] if index < len(self.members) else []
        return sources, texts

    def _note_text(self, text: str, notes: list[str]) -> None:
        """Note a tab, a carriage return, and characters that are not in the vocabulary."""
        tokenizer = self.task.source_tokenizer
        if "\t" in text and not self.cfg.member_sources:
            notes.append(
                "the text after a tab is part of the source; with generation.constraints it would be a phrase that the "
                "output must contain"
            )
        if text.endswith("\r") and tokenizer.encode(text) != tokenizer.encode(text[:-1]):
            notes.append("the line ends with a carriage return, which the model reads; convert the file to Unix lines")
        if unknown := tokenizer.unknown(text):
            notes.append(UNKNOWN + " ".join(dict.fromkeys(unknown[:100]))[:60])

    def _encode_phrases(
        self, phrases: Sequence[Sequence[str]], too_many: int, notes: list[str]
    ) -> tuple[list[Sequence[str]], list[Phrase]]:
        """Phrases and their ids; alternatives with tokens outside the vocabulary are left out.

        Of a phrase of ``too_many`` tokens, for which no output has room, only so many are returned; likewise of equal
        phrases.
        """
        tokenizer, texts, ids = self.task.target_tokenizer, list[Sequence[str]](), list[Phrase]()
        counts = Counter[tuple[str, ...]]()
        for phrase in map(tuple, phrases):
            counts[phrase] += 1
            if counts[phrase] > too_many:
                continue
            some = []
            for text in phrase:
                if lacking := tokenizer.unknown(text):
                    notes.append(f"the phrase {text!r} is left out: not in the vocabulary: {' '.join(lacking)}")
                else:
                    some.append(tokenizer.encode(text)[:too_many])
            if some:
                texts.append(phrase)
                ids.append(some)
        return texts, ids

    def _encode_prefix(self, line: InputLine, longest: int, notes: list[str]) -> list[int]:
        """The ids of the prefix of a line, truncated to the largest output length."""
        target = self.task.target_tokenizer
        ids = [*target.target_tokens(line.languages.target_lang).before, *target.encode(line.prefix)]
        if lacking := target.unknown(line.prefix):
            notes.append(f"parts of the prefix are not in the vocabulary: {' '.join(dict.fromkeys(lacking))[:60]}")
        if len(ids) > longest:
            notes.append(f"of {len(ids)} prefix tokens only the first {longest} fit into the longest output")
        return ids[:longest]


def split_alternatives(phrase: str) -> list[str]:
    r"""The alternatives of a phrase: ``a b|c`` gives ``a b`` and ``c``; in ``a\|b`` the bar is part of the text."""
    texts = (text.replace(r"\|", "|").strip() for text in re.split(r"(?<!\\)\|", phrase))
    return [text for text in texts if text]


def output_room(member: TextModel, source: Tensor) -> int | None:
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


def with_prefixes(lines: Iterable[str], prefixes: Iterable[str] | None) -> Iterator[tuple[str, str]]:
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
            one, other = ("prefix", "line") if line is None else ("line", "prefix")
            raise DataError(f"{one} {number} has no {other}; give one prefix for each line, an empty one for none")
        yield line, prefix
