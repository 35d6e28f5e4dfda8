"""Decoding of lines: text is encoded, batched and decoded, and there is one translation for each line, in order."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from seqgen.config import GenerationConfig
from seqgen.errors import ConfigError, DataError
from seqgen.generation.component import Phrase, Resources
from seqgen.generation.ensemble.member import EMPTY, INPUT, field_of
from seqgen.generation.finished import Ranking
from seqgen.generation.scorer import SequenceScorer
from seqgen.generation.sequence_generator import SequenceGenerator
from seqgen.generation.setup import Streamer
from seqgen.memory import out_of_memory
from seqgen.model import EncoderDecoderModel
from seqgen.structures import Batch, Hypothesis
from seqgen.task import Task
from seqgen.text.alignment import attend_to_source
from seqgen.text.continuation import continuation
from seqgen.text.mbr import Utility, by_expected_utility, expected_utilities, utility_from_config
from seqgen.text.results import TextHypothesis, Translation
from seqgen.text.unknown_words import UnknownWords
from seqgen.text.word_streaming import WordStreamer

BUFFER_SIZE = 4096
"""Default number of lines that are read before they are decoded together."""

RESCORED_TOKENS = 1024
"""Maximum number of target tokens that are scored at once; each needs one score for every token of the vocabulary."""


class TextModel(Protocol):
    """A model and its task, as ``load_model`` returns them."""

    @property
    def task(self) -> Task:
        """Encodes and decodes text."""

    @property
    def model(self) -> EncoderDecoderModel:
        """The model."""

    @property
    def generation(self) -> Mapping[str, Any]:
        """The model's own decoding settings, by the names of ``GenerationConfig``'s fields."""


@dataclass(frozen=True)
class Details:
    """Which optional fields of hypotheses are computed; see ``TextHypothesis``.

    Attributes:
        attention: attention and alignment.
        scores: ``model_score`` and ``member_scores``; needs one more pass of the models.
        hidden: ``hidden``; needs one more pass too.
    """

    attention: bool = False
    scores: bool = False
    hidden: bool = False


@dataclass
class _Line:
    """A line that is being decoded: its translation so far, source ids for each model, phrases and prefix."""

    translation: Translation
    sources: list[Tensor]
    phrases: list[Phrase] = field(default_factory=list)
    prefix: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        return max(len(source) for source in self.sources)


class TextDecoding:
    """Decodes lines with one model or an ensemble; ``Translator.prepare`` makes it.

    Args:
        members: the models, over one target vocabulary.
        cfg: how to decode.
        generator: made from the same models and ``cfg``.
        details: which optional fields of hypotheses are computed.
        streamer: receives tokens or words as they are generated; lines are then decoded in their order instead of
            being batched by length.
        notes: notes for the user about the settings.
        draft: the model that drafts for the generator; it encodes the source with its own tokenizer.
        utility: ranks hypotheses by minimum Bayes risk; by default the one that ``cfg.mbr`` names.

    Raises:
        ConfigError: ``cfg.mbr`` is not registered, or there is one hypothesis only.
    """

    def __init__(
        self,
        members: Sequence[TextModel],
        cfg: GenerationConfig,
        generator: SequenceGenerator,
        details: Details,
        streamer: Streamer | None = None,
        notes: Sequence[str] = (),
        draft: TextModel | None = None,
        utility: Utility | None = None,
    ):
        self.members, self.cfg, self.generator = list(members), cfg, generator
        self.details, self.streamer, self.notes = details, streamer, list(notes)
        self.task = self.members[0].task
        self.models = [member.model for member in self.members]
        self.encoders = [*self.members, *([] if draft is None else [draft])]
        self.device = next(self.models[0].parameters()).device
        self.tokens_written = 0
        target = self.task.target_tokenizer
        self.unknown_words = UnknownWords.from_setting(cfg.replace_unknown, target) if cfg.replace_unknown else None
        resources = Resources(target.dictionary, target.encode)
        self.utility = utility or (utility_from_config(cfg, resources) if cfg.mbr else None)
        if self.utility is not None and generator.beam_size == 1:
            raise ConfigError(
                "minimum Bayes risk compares hypotheses, and there is one; give generation.beam=2 or more"
            )
        ensemble, words = generator.setup.ensemble, target.dictionary
        self.scorer = SequenceScorer(
            ensemble.members, words.pad(), words.eos(), not cfg.unnormalized, ensemble.combination
        )

    def translate(
        self,
        lines: Iterable[str],
        prefixes: Iterable[str] | None = None,
        buffer_size: int = 0,
        first_number: int = 0,
    ) -> Iterator[Translation]:
        """Decode lines.

        Args:
            lines: the text, read as it is needed.
            prefixes: the forced beginning of each output, read together with the lines; ``None`` for none.
            buffer_size: how many lines are read before they are decoded together, batched by length; 0 for
                ``buffer_size`` of the configuration, or else ``BUFFER_SIZE``.
            first_number: number of the first line, on which ids and random numbers depend.

        Yields:
            One translation for each line, in order.

        Raises:
            DataError: there are more lines than prefixes, or fewer.
        """
        streamer = self.streamer if isinstance(self.streamer, WordStreamer) else None
        if streamer is not None:
            streamer.bind(self._decode_ids)
        try:
            numbered = enumerate(_with_prefixes(lines, prefixes), start=first_number)
            size = buffer_size or self.cfg.buffer_size or BUFFER_SIZE
            while buffer := list(itertools.islice(numbered, size)):
                yield from self._translate_buffer([self._encode(number, *pair) for number, pair in buffer])
        except BaseException as error:
            if streamer is not None:
                streamer.close(error)
            raise
        if streamer is not None:
            streamer.close()

    def _translate_buffer(self, lines: list[_Line]) -> Iterator[Translation]:
        """Decode lines; if memory runs out, the finished lines before the first unfinished one are still yielded."""
        try:
            self._finish(lines)
        except Exception as error:
            if out_of_memory(error) and not (self.details.scores or self.details.hidden):
                finished = itertools.takewhile(lambda line: line.translation.hypotheses or not line.sources, lines)
                yield from (line.translation for line in finished)
            raise
        yield from (line.translation for line in lines)

    def _finish(self, lines: list[_Line]) -> None:
        for line in lines:
            if self.streamer is not None and not line.sources:
                self.streamer.end(line.translation.id)
            elif isinstance(self.streamer, WordStreamer):
                self.streamer.begin(line.translation.id, self.task.prompt(line.sources[0]).tolist())
        readable = [line for line in lines if line.sources]
        if self._joins(readable):
            self._roll(readable)
        else:
            for lines_of_batch in self._batches(readable):
                self._decode(lines_of_batch)
        if self.details.scores or self.details.hidden:
            for lines_of_batch in self._batches(readable):
                self._rescore(lines_of_batch)

    def _decode(self, lines: list[_Line]) -> None:
        """Decode a batch."""
        batch = self._collate(self.encoders, [(line, None) for line in lines])
        results = self.task.inference_step(self.generator, self.models, batch, **self._demands(lines))
        width = batch.source.src_tokens.size(1)
        for line, hypotheses in zip(lines, results, strict=True):
            self._finalize(line, hypotheses, width)

    def _joins(self, lines: list[_Line]) -> bool:
        """Whether waiting lines may join a running batch: nothing is in use that needs whole batches."""
        own_step = type(self.task).inference_step is not Task.inference_step
        return self.generator.can_merge and not own_step and not self._demands(lines)

    def _roll(self, lines: list[_Line]) -> None:
        """Decode with continuous batching: waiting lines join the running batch, the longest first."""
        by_number = {line.translation.id: line for line in lines}
        waiting = sorted(lines, key=lambda line: line.length)

        def take(running: int, width: int) -> Batch | None:
            # all rows are as wide as the longest source, so that a short one among long ones costs as much as these
            if not waiting or 2 * waiting[-1].length < width:
                return None
            room = min(self.cfg.batch_size, self.cfg.max_tokens // max(width, waiting[-1].length)) - running
            if room < 1 and running:
                return None
            taken = [waiting.pop() for _ in range(min(max(1, room), len(waiting)))]
            return self._collate(self.encoders, [(line, None) for line in taken])

        for number, hypotheses in self.generator.generate_continuously(take):
            self._finalize(by_number[number], hypotheses, 0)

    def _demands(self, lines: list[_Line]) -> dict[str, Any]:
        """Further arguments of ``Task.inference_step``: constraints, prefixes and streamer, if in use."""
        demands: dict[str, Any] = {}
        if self.cfg.constraints:
            demands["constraints"] = [line.phrases for line in lines]
        if any(line.prefix for line in lines):
            pad = self.task.target_dictionary.pad()
            longest = max(len(line.prefix) for line in lines)
            rows = [line.prefix + [pad] * (longest - len(line.prefix)) for line in lines]
            demands["prefix_tokens"] = torch.tensor(rows, device=self.device)
        if self.streamer is not None:
            demands["streamer"] = self.streamer
        return demands

    def _encode(self, number: int, text: str, prefix: str) -> _Line:
        """Turn a line into ids, truncated to what each model can read; an empty line has none."""
        if not isinstance(text, str) or not isinstance(prefix, str):
            wrong = prefix if isinstance(text, str) else text
            raise DataError(f"line {number + 1} is of type {type(wrong).__name__}; give text")
        text, *phrases = text.split("\t") if self.cfg.constraints else [text]
        translation = Translation(number, text, torch.empty(0, dtype=torch.int64), prefix=prefix)
        if not text.strip() and not self.task.reads_empty_lines:
            unused = " and ".join(name for name, given in (("prefix", prefix), ("phrases", phrases)) if given)
            further = f"; its {unused} had no effect" if unused else ""
            translation.notes.append(f"the line is empty, and so is its output{further}")
            return _Line(translation, [])
        if "\t" in text and not self.cfg.members:
            translation.notes.append(
                "the text after a tab is part of the source; with generation.constraints it would be a phrase that the "
                "output must contain"
            )
        unknown = self.task.source_tokenizer.unknown(text)
        if unknown:
            shown = " ".join(dict.fromkeys(unknown[:100]))[:60]
            translation.notes.append(f"the vocabulary lacks {shown}")
        sources = []
        wanted = [*self.cfg.members, *[INPUT] * len(self.encoders)]
        for member, source in zip(self.encoders, wanted, strict=False):
            own = "" if source == EMPTY else field_text(text, field_of(source), number)
            ids, longest = member.task.encode_source(own), member.model.max_positions()[0]
            if (room := self._room(member, ids)) is not None and room < 1:
                translation.notes.append(
                    f"the prompt has {len(ids)} tokens and the model {longest} positions, so that the output is empty"
                )
                return _Line(translation, [])
            if len(ids) > longest:
                translation.notes.append(f"of {len(ids)} source tokens only the first {longest - 1} were read")
                ids = torch.cat([ids[: longest - 1], ids[-1:]])
            sources.append(ids)
        translation = replace(translation, source_tokens=sources[0])
        line = _Line(translation, sources, self._encode_phrases(phrases, translation))
        line.prefix = self._encode_prefix(line)
        return line

    @staticmethod
    def _room(member: TextModel, source: Tensor) -> int | None:
        """The longest output of a source, end-of-sentence included; ``None`` if it does not depend on the source."""
        lengths = member.model.max_target_lengths(torch.tensor([len(source)]))
        return None if lengths is None else int(lengths[0])

    def _longest_output(self, line: _Line) -> int:
        """The longest output of a line in tokens, without end-of-sentence."""
        rooms = [self._room(*pair) for pair in zip(self.members, line.sources, strict=False)]
        longest = int(self.generator.last_steps(torch.tensor([len(line.sources[0])]))[0])
        return min([longest, *(room - 1 for room in rooms if room is not None)])

    def _encode_phrases(self, phrases: list[str], translation: Translation) -> list[Phrase]:
        """Turn the phrases of a line into ids; a phrase that the vocabulary cannot express is left out."""
        tokenizer = self.task.target_tokenizer
        encoded: list[Phrase] = []
        for phrase in phrases:
            some = []
            for text in _alternatives(phrase):
                if lacking := tokenizer.unknown(text):
                    translation.notes.append(
                        f"the phrase {text!r} is left out: the vocabulary lacks {' '.join(lacking)}"
                    )
                else:
                    some.append(tokenizer.encode(text))
            if some:
                translation.constraints.append(phrase.strip())
                encoded.append(some)
        return encoded

    def _encode_prefix(self, line: _Line) -> list[int]:
        """Turn the prefix of a line's output into ids, truncated to the longest output."""
        notes, prefix = line.translation.notes, line.translation.prefix
        if not prefix:
            return []
        ids = self.task.target_tokenizer.encode(prefix)
        if lacking := self.task.target_tokenizer.unknown(prefix):
            notes.append(f"the vocabulary lacks these parts of the prefix: {' '.join(dict.fromkeys(lacking))[:60]}")
        longest = self._longest_output(line)
        if len(ids) > longest:
            notes.append(f"of {len(ids)} prefix tokens only the first {longest} fit into the longest output")
        return ids[:longest]

    def _batches(self, lines: list[_Line]) -> Iterator[list[_Line]]:
        """Batches within ``batch_size`` and ``max_tokens``: by length, the longest first; with a streamer, in order."""
        if self.streamer is None:
            lines = sorted(lines, key=lambda line: line.length, reverse=True)
        batch: list[_Line] = []
        for line in lines:
            widest = max(line.length, *(other.length for other in batch)) if batch else line.length
            full = len(batch) == self.cfg.batch_size or (len(batch) + 1) * widest > self.cfg.max_tokens
            if batch and full:
                yield batch
                batch = []
            batch.append(line)
        if batch:
            yield batch

    def _collate(self, models: Sequence[TextModel], rows: Sequence[tuple[_Line, Tensor | None]]) -> Batch:
        """A batch of lines, each with a target or none."""
        batches = [
            model.task.collate([(line.translation.id, line.sources[i], target) for line, target in rows], model.model)
            for i, model in enumerate(models)
        ]
        batch = replace(
            batches[0],
            member_sources=[other.source for other in batches] if len(batches) > 1 else None,
            texts=[line.translation.source for line, _ in rows],
        )
        return batch.to(self.device)

    def _finalize(self, line: _Line, hypotheses: list[Hypothesis], width: int) -> None:
        """Turn the hypotheses of a line into text, rank them, and note if there are fewer than ``nbest``."""
        translation, nbest = line.translation, self.cfg.nbest
        if not hypotheses:
            limit = "longest length or less, and found within generation.max_time," if self.cfg.max_time else ""
            lacking = f"no output of the {limit or 'longest length or less'} has all phrases"
            why = lacking if line.phrases else "every output was forbidden"
            translation.notes.append(f"{why}, so that the output is empty")
        elif len(hypotheses) < nbest:
            why = "were found in time" if hypotheses[0].timed_out else "are possible"
            translation.notes.append(f"only {len(hypotheses)} of {nbest} hypotheses {why}")
        wanted = [
            attend_to_source(hypothesis, width, len(line.sources[0]), self.models[0].left_pad_source)
            for hypothesis in (hypotheses[:nbest] if self.utility is None else hypotheses)
        ]
        found = [TextHypothesis(self._text(line, hypothesis), hypothesis) for hypothesis in wanted]
        if self.utility is not None:
            utilities = expected_utilities([item.text for item in found], self.utility)
            found = [replace(found[index], utility=utilities[index]) for index in by_expected_utility(utilities)]
        translation.hypotheses[:] = found[:nbest]
        self._note_cuts(line)
        self.tokens_written += len(found[0].tokens) if found else 0

    def _note_cuts(self, line: _Line) -> None:
        """Note the first output of a line that a limit cut off, or may have cut off."""
        longest = self._longest_output(line)
        if self.cfg.match_source_len and longest == len(line.sources[0]) - 1:
            longest = sys.maxsize  # the user wants exactly that length
        for place, item in enumerate(line.translation.hypotheses, start=1):
            if cut := self._cut(item, longest):
                line.translation.notes.append(f"{'the output' if place == 1 else f'hypothesis {place}'} {cut}")
                break

    def _cut(self, item: TextHypothesis, longest: int) -> str:
        """How a limit changed an output; empty if none did. By fairseq's rules the last token is always an end token.

        Args:
            item: the output.
            longest: tokens that it may have, end-of-sentence not counted.
        """
        cfg, size = self.cfg, len(item.tokens)
        whole = int(item.tokens[-1]) in self.generator.setup.end_tokens
        beginning = " (it is only the beginning of a line of generation.prefix_trie)"
        rest = beginning if cfg.prefix_trie and not whole else ""
        if size > longest and (self.generator.setup.rules.forces_end or cfg.match_source_len or not whole):
            return f"has the longest length that is allowed, {size} tokens, and may be cut off{rest}"
        if item.hypothesis.timed_out and not whole:
            return f"was cut off after generation.max_time={cfg.max_time:g}{rest}"
        if item.hypothesis.timed_out and self.generator.beam_size > 1:
            return f"is the best one after generation.max_time={cfg.max_time:g}, which ended the search"
        return "was cut off by a stopping rule" + rest if rest else ""

    def _text(self, line: _Line, hypothesis: Hypothesis) -> str:
        unknown = self.task.target_dictionary.unk()
        if self.unknown_words is None or unknown not in hypothesis.tokens:
            return self._decoded(line, hypothesis)
        if hypothesis.alignment is None:
            line.translation.notes.append("unknown words are not replaced: the model returns no attention weights")
            return self._decoded(line, hypothesis)
        source = line.translation.source
        return self.unknown_words.text(hypothesis, source, lambda text: len(self.task.encode_source(text)) - 1)

    def _decoded(self, line: _Line, hypothesis: Hypothesis) -> str:
        prompt = self.task.prompt(line.sources[0])
        if len(prompt) == 0:
            return self.task.decode(hypothesis.tokens)
        return continuation(self._decode_ids, prompt.tolist(), hypothesis.tokens.tolist())

    def _decode_ids(self, ids: Sequence[int]) -> str:
        return self.task.decode(torch.tensor(ids))

    def _rescore(self, lines: list[_Line]) -> None:
        """Score the hypotheses of a batch with the models, for the optional fields."""
        pairs = [(line, item) for line in lines for item in line.translation.hypotheses]
        longest = max((len(item.tokens) for _, item in pairs), default=1)
        rows = max(1, RESCORED_TOKENS // longest)
        batches = [pairs[start : start + rows] for start in range(0, len(pairs), rows)]
        detailed = itertools.chain.from_iterable(self._with_details(batch) for batch in batches)
        for line in lines:
            line.translation.hypotheses[:] = itertools.islice(detailed, len(line.translation.hypotheses))

    def _with_details(self, pairs: Sequence[tuple[_Line, TextHypothesis]]) -> list[TextHypothesis]:
        """The hypotheses of some lines with their optional fields."""
        batch = self._collate(self.members, [(line, item.tokens) for line, item in pairs])
        items, lengths = [item for _, item in pairs], [len(item.tokens) for _, item in pairs]
        if self.details.scores:
            cfg = self.cfg
            ranking = Ranking(not cfg.unnormalized, cfg.lenpen, cfg.length_penalty)
            scored = self.scorer.score(batch, lengths)
            sums = [one.hypothesis.positional_scores.sum() for one in scored]
            items = [
                replace(item, model_score=float(ranking.score(total, length)), member_scores=one.member_scores)
                for item, one, total, length in zip(items, scored, sums, lengths, strict=True)
            ]
        if self.details.hidden:
            features = self.scorer.features(batch)
            items = [
                replace(item, hidden=[rows[row, :length] for rows in features])
                for row, (item, length) in enumerate(zip(items, lengths, strict=True))
            ]
        return items


def field_text(line: str, wanted: int, number: int) -> str:
    """One of the fields that tabs separate in an input line.

    Args:
        line: the line.
        wanted: number of the field, from 1; 0 for the whole line.
        number: number of the line, from 0, for the message.

    Raises:
        DataError: the line has too few fields.
    """
    fields = line.split("\t")
    if wanted > len(fields):
        raise DataError(
            f"line {number + 1} has {len(fields)} fields, and generation.members asks for field {wanted}; separate "
            "fields by tabs"
        )
    return fields[wanted - 1] if wanted else line


def _alternatives(phrase: str) -> list[str]:
    r"""The alternatives of a phrase: ``a b|c`` gives ``a b`` and ``c``; in ``a\|b`` the bar is part of the text."""
    texts = (text.replace(r"\|", "|").strip() for text in re.split(r"(?<!\\)\|", phrase))
    return [text for text in texts if text]


def _with_prefixes(lines: Iterable[str], prefixes: Iterable[str] | None) -> Iterator[tuple[str, str]]:
    """Pairs of a line and the prefix of its output."""
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
