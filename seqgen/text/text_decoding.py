"""Decoding of lines: they are encoded, batched, decoded, and returned as one translation for each line, in order.

Data passes through ``InputEncoder`` (lines to ids), ``Batcher`` (ids to batches), the generator (batches to
hypotheses), ``LineStages`` and ``Ranker`` (their order) and ``OutputNotes``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch

from seqgen.config.settings import ResolvedSettings
from seqgen.core.errors import ConfigError
from seqgen.core.sequence_generator import SequenceGenerator
from seqgen.core.structures import Hypothesis
from seqgen.data.pair_dataset import pad_rows
from seqgen.decoding.building import Resources, apply_keys
from seqgen.decoding.continuous_batching import generate_continuously
from seqgen.decoding.forbidding import WatchedScoring
from seqgen.decoding.observers import Streamer
from seqgen.decoding.scorer import SequenceScorer
from seqgen.system.devices import out_of_memory
from seqgen.text.batching import Batcher
from seqgen.text.input_line import InputEncoder, InputLine, sources_from_config, with_prefixes
from seqgen.text.line_stages import LineStages
from seqgen.text.members import TextModel
from seqgen.text.output_notes import OutputNotes
from seqgen.text.reranking import Ranker
from seqgen.text.results import DecodedLine, Details, TextHypothesis, Translation, attend_to_source
from seqgen.text.word_streaming import WordStreamer, continuation

BUFFER_SIZE = 4096
"""Default number of lines that are read before they are decoded together."""

RESCORED_TOKENS = 1024
"""Maximum number of target tokens in one scoring batch; each needs a score for every token of the vocabulary."""


class TextDecoding:
    """Decodes lines with one model or an ensemble; ``Translator.prepare`` makes it.

    Args:
        members: the models, which share one target vocabulary.
        settings: the decoding settings; their objects ``rewriters``, ``mbr`` and ``rerank`` add and rank hypotheses.
        generator: made from the same models and settings.
        details: which optional fields of hypotheses are computed.
        streamer: receives tokens or words as they are generated; lines are then decoded in their order instead of
            being batched by length.
        notes: see the attribute.
        draft: the model that drafts for the generator; it encodes the source with the tokenizer of its task.

    Attributes:
        notes: notes for the user about the settings, and, once lines are decoded, why that was slower than it might be:
            this depends on how many lines are decoded together, so that it is no note on a line.
        stages: the line stages.
        input_encoder: encodes lines.
        batcher: divides them into batches.
        ranker: ranks their hypotheses; ``None`` for the order of the search.
        output_notes: writes notes on them.

    Raises:
        ConfigError: a key cannot be used with these models or this generator.
    """

    def __init__(
        self,
        members: Sequence[TextModel],
        settings: ResolvedSettings,
        generator: SequenceGenerator,
        details: Details,
        streamer: Streamer | None = None,
        notes: Sequence[str] = (),
        draft: TextModel | None = None,
    ):
        cfg, setup = settings.generation, generator.setup
        self.members, self.cfg, self.generator = list(members), cfg, generator
        self.details, self.streamer, self.notes = details, streamer, list(notes)
        self.task = self.members[0].task
        self.models = [member.model for member in self.members]
        self.device = next(self.models[0].parameters()).device
        readers = [*self.members, *([] if draft is None else [draft])]
        target = self.task.target_tokenizer
        resources = Resources.of(
            cfg,
            target.dictionary,
            target,
            source_dictionary=self.task.source_dictionary,
            device=self.device,
            models=self.members,
            observers=setup.observers,
            ensemble=settings.ensemble,
            objects=settings.objects,
        )
        sources = sources_from_config(cfg, resources)
        self.stages, last_steps = LineStages(cfg, resources), setup.limits.last_steps
        read = self.stages.read, self.stages.reads_empty
        self.input_encoder = InputEncoder(readers, cfg, last_steps, [*sources, *sources[:1]], len(self.members), *read)
        of_batches = (self.input_encoder.languages, cfg.batch_size, cfg.max_tokens, setup.beam_size, setup.vocab_size)
        self.batcher = Batcher(readers, *of_batches, streamer is not None, self.device)
        if (stage := self.stages.unstreamed or next(iter(self.stages.rewriting), None)) and streamer is not None:
            raise ConfigError(f"generation.{stage.key} cannot be streamed; remove it, or do not stream")
        ranks = cfg.mbr or cfg.rerank or {"mbr", "rerank"} & settings.objects.keys()
        self.ranker = Ranker(cfg, settings.objects, setup.beam_size, resources) if ranks else None
        self.output_notes = OutputNotes(cfg, setup, self.task)

    @cached_property
    def scorer(self) -> SequenceScorer:
        """Scores outputs with the models, without processors and penalties."""
        ensemble, words = self.generator.setup.ensemble, self.task.target_dictionary
        of_members = (words.pad(), words.eos(), self.cfg.normalize_scores, ensemble.combination)
        return apply_keys("scorer", SequenceScorer(ensemble.members, *of_members), self.cfg)

    def translate(
        self,
        lines: Iterable[str],
        prefixes: Iterable[str] | None = None,
        buffer_size: int = 0,
        numbers: Iterable[int] | None = None,
        on_line: Callable[[], None] | None = None,
    ) -> Iterator[Translation]:
        """Decode lines.

        Args:
            lines: the lines; ``buffer_size`` of them are read at a time.
            prefixes: the forced beginning of each output, read together with the lines; ``None`` for none.
            buffer_size: number of lines that are read, batched by length and decoded together; 0 for
                ``cfg.buffer_size``, and for ``BUFFER_SIZE`` if that is 0, too.
            numbers: number of each line, its ``Translation.id``, on which random numbers depend; counted from 0 by
                default.
            on_line: called when a line is decoded, which is before its translation is yielded.

        Yields:
            One translation for each line, in order.

        Raises:
            DataError: there are more lines than prefixes, or fewer.
        """
        streamer = self.streamer if isinstance(self.streamer, WordStreamer) else None
        if streamer is not None:
            streamer.bind(self._decode_ids)
        with nullcontext() if streamer is None else closing(streamer):
            numbered = zip(numbers or itertools.count(), with_prefixes(lines, prefixes), strict=bool(numbers))
            size = buffer_size or self.cfg.buffer_size or BUFFER_SIZE
            while buffer := list(itertools.islice(numbered, size)):
                split = [self.stages.split(self.input_encoder.read(number, *pair)) for number, pair in buffer]
                decoded = self._translate_buffer([part for parts, _ in split for part in parts], on_line)
                for parts, join in split:
                    yield join([next(decoded) for _ in parts])

    def _translate_buffer(
        self, parts: Sequence[InputLine], on_line: Callable[[], None] | None
    ) -> Iterator[Translation]:
        """Decode lines, which are not encoded.

        If memory runs out, the lines before the first unfinished one are yielded before the error.
        """
        lines = [self.input_encoder.encode(part) for part in parts]
        found = {line.number: self._written(line, line.translation()) for line in lines if not line.sources}
        readable = list[InputLine]()
        try:
            for line in lines:
                if self.streamer is not None and not line.sources:
                    self.streamer.end(line.number)
                elif isinstance(self.streamer, WordStreamer):
                    self.streamer.begin(line.number, self.task.prompt(line.sources[0]).tolist())
            for line, translation in self._translated(parts, lines):
                found[line.number] = translation
                readable.append(line)
                if on_line is not None and line.ends_line:
                    on_line()
            self._add_notes(sorted(self.generator.setup.notes))
            if self.details.rescores:
                for batch in self.batcher.batches(sorted(readable, key=lambda line: line.number)):
                    found |= {one.id: one for one in self._with_details([(line, found[line.number]) for line in batch])}
        except Exception as error:
            if out_of_memory(error) and not self.details.rescores:
                finished = itertools.takewhile(lambda line: line.number in found, lines)
                yield from (found[line.number] for line in finished)
            raise
        yield from (found[line.number] for line in lines)

    def _translated(
        self, parts: Sequence[InputLine], lines: Sequence[InputLine]
    ) -> Iterator[tuple[InputLine, Translation]]:
        """Decode lines, some of them again and again if a line stage asks for it.

        Args:
            parts: the lines before they are encoded.
            lines: the same, encoded.

        Yields:
            Each line that is not empty, as it was decoded at last, and its translation.
        """
        read, waiting = {part.number: part for part in parts}, lines
        while waiting:
            again = []
            for line, translation in self._ranked([line for line in waiting if line.sources]):
                asked = self.stages.again(read[line.number], translation)
                if asked is not None and (encoded := self.input_encoder.encode(asked)).sources:
                    read[line.number] = asked
                    again.append(encoded)
                else:
                    yield line, translation
            waiting = again

    def _ranked(self, lines: Sequence[InputLine]) -> Iterator[tuple[InputLine, Translation]]:
        """Decode lines, let stages and the ranker change their hypotheses, and note what a user should know.

        Yields:
            Each line when it is done, and its translation.
        """
        found = ((line, self._with_texts(line, items, width)) for line, items, width in self._decoded(lines))
        for group in _groups(found, self.cfg.batch_size if self.ranker or self.stages.rewriting else 1):
            some = [(line, each) for line, each in group if each[1]]
            readers, decoded = [line for line, _ in some], [each for _, each in some]
            for stage in self.stages.rewriting if some else ():
                stage.rewrite(readers, decoded, partial(self._detailed, Details(scores=True)))
            if self.ranker is not None and some:
                for (_, hypotheses), in_order in zip(decoded, self.ranker.ranked(decoded), strict=True):
                    hypotheses[:] = in_order
            for line, (translation, hypotheses) in group:
                notes = self.output_notes.on_search(line, hypotheses, partial(self._forbidding, line))
                done = replace(translation, hypotheses=hypotheses, notes=[*translation.notes, *notes])
                yield line, self._written(line, done)

    def _decoded(self, lines: Sequence[InputLine]) -> Iterator[tuple[InputLine, Sequence[Hypothesis], int]]:
        """Decode lines, in batches or as one batch that waiting lines join.

        Yields:
            Each line when it is done, its hypotheses, and the columns of the batch's source, over which attention is
            defined (0 without attention).
        """
        if self.generator.can_merge and self.task.joins_batches and not self._inference_arguments(lines):
            by_number = {line.number: line for line in lines}
            for number, hypotheses in generate_continuously(self.generator, self.batcher.waiting(lines)):
                yield by_number[number], hypotheses, 0
            return
        for number, rows in enumerate(self.batcher.batches(lines)):
            if number and self.streamer is None:
                self._add_notes(self._why_separate(lines))
            batch = self.batcher.collate([(line, None) for line in rows])
            results = self.task.inference_step(self.generator, self.models, batch, **self._inference_arguments(rows))
            for line, hypotheses in zip(rows, results, strict=True):
                yield line, hypotheses, batch.source.src_tokens.size(1)

    def _why_separate(self, lines: Sequence[InputLine]) -> Iterator[str]:
        """Why lines are decoded in separate batches, if the user did not ask for that."""
        given = " and ".join(self._inference_arguments(lines))
        reason = self.generator.setup.merge_obstacle or (
            f"their {given.replace('_', ' ')} cannot be merged" if given else "the task does not support it"
        )
        if not reason.startswith("fast."):
            yield f"continuous batching is not used, so decoding is slower: {reason}"

    def _inference_arguments(self, lines: Sequence[InputLine]) -> dict[str, Any]:
        """Optional arguments of ``Task.inference_step``: constraints, prefixes and streamer."""
        arguments: dict[str, Any] = {}
        if self.cfg.is_constrained:
            arguments["constraints"] = [line.phrases for line in lines]
        if any(line.prefix_tokens for line in lines):
            rows = [torch.tensor(line.prefix_tokens, dtype=torch.int64) for line in lines]
            arguments["prefix_tokens"] = pad_rows(rows, self.task.target_dictionary.pad()).to(self.device)
        if self.streamer is not None:
            arguments["streamer"] = self.streamer
        return arguments

    def _with_texts(self, line: InputLine, hypotheses: Sequence[Hypothesis], width: int) -> DecodedLine:
        """Decode the hypotheses of a line to text.

        Args:
            line: the line.
            hypotheses: ids and scores, best first.
            width: columns of the batch's source, over which attention is defined; 0 without attention.
        """
        prompt, found = self.task.prompt(line.sources[0]).tolist(), []
        needs_all = self.ranker or self.stages.rewriting or self.stages.needs_all
        for hypothesis in hypotheses if needs_all else hypotheses[: self.cfg.nbest]:
            aligned = attend_to_source(hypothesis, width, len(line.sources[0]), self.models[0].left_pad_source)
            tokens = aligned.tokens
            text = continuation(self._decode_ids, prompt, tokens.tolist()) if prompt else self.task.decode(tokens)
            found.append(TextHypothesis(**vars(aligned), text=text))
        return line.translation(), found

    def _forbidding(self, line: InputLine) -> str:
        """The class of the component that forbids all outputs of a line, which is decoded again; empty if none does."""
        found: list[str] = []
        scoring = partial(WatchedScoring, found=found)
        generator = SequenceGenerator(replace(self.generator.setup, observers=(), scoring=scoring))
        arguments = {name: value for name, value in self._inference_arguments([line]).items() if name != "streamer"}
        self.task.inference_step(generator, self.models, self.batcher.collate([(line, None)]), **arguments)
        return "".join(found)

    def _written(self, line: InputLine, translation: Translation) -> Translation:
        """The translation of a line with what the stages write, and with ``nbest`` of its hypotheses."""
        found = self.stages.write(line, translation, of_search=True)
        best = found.hypotheses[: self.cfg.nbest]
        notes = [*found.notes, *self.output_notes.on_outputs(line, best)] if line.sources else found.notes
        return self.stages.write(line, replace(found, hypotheses=best, notes=notes), of_search=False)

    def _add_notes(self, notes: Iterable[str]) -> None:
        """Add notes on speed, unless there is one with the same reason."""
        known = "\n".join(self.notes)
        self.notes += [note for note in notes if note.partition(": ")[2] not in known]

    def _decode_ids(self, ids: Sequence[int]) -> str:
        return self.task.decode(torch.tensor(ids, dtype=torch.int64))

    def _with_details(self, found: Sequence[tuple[InputLine, Translation]]) -> Iterator[Translation]:
        """Run the models over the hypotheses of some lines, for their optional fields."""
        pairs = [(line, item) for line, translation in found for item in translation.hypotheses]
        detailed = self._detailed(self.details, pairs)
        for _, translation in found:
            hypotheses = list(itertools.islice(detailed, len(translation.hypotheses)))
            yield replace(translation, hypotheses=hypotheses)

    def _detailed(
        self, details: Details, pairs: Sequence[tuple[InputLine, TextHypothesis]]
    ) -> Iterator[TextHypothesis]:
        """Some hypotheses with their optional fields, and with scores if they have none."""
        longest = max((len(item.tokens) for _, item in pairs), default=1)
        # the attention weights of all layers and heads of many rows would not fit into memory
        rows = 1 if details.internals else max(1, RESCORED_TOKENS // longest)
        for start in range(0, len(pairs), rows):
            some = pairs[start : start + rows]
            items = [item for _, item in some]
            if items[0].member_tokens is None:  # the search of different vocabularies has computed them
                batch = self.batcher.collate([(line, item.tokens) for line, item in some], self.members)
                items = details.added(items, batch, self.scorer, self.generator.setup.ranking)
            yield from items


def _groups(found: Iterable[tuple[InputLine, DecodedLine]], size: int) -> Iterator[list[tuple[InputLine, DecodedLine]]]:
    """Gather ``size`` lines at a time; if memory runs out, those before are still yielded before the error."""
    group = list[tuple[InputLine, DecodedLine]]()
    try:
        for each in found:
            group.append(each)
            if len(group) == size:
                yield group
                group = []
    except Exception as error:
        if out_of_memory(error):
            error.with_traceback(None)  # its frames would keep memory
            yield group
        raise
    yield group
