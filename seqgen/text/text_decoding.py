"""Decoding of lines: they are encoded, batched, decoded, and returned as one translation for each line, in order."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from seqgen.config import GenerationConfig
from seqgen.errors import ConfigError, DataError
from seqgen.generation.certificate import Certificate
from seqgen.generation.component import Resources
from seqgen.generation.ensemble.member import encode
from seqgen.generation.finished import Ranking
from seqgen.generation.scorer import SequenceScorer
from seqgen.generation.sequence_generator import SequenceGenerator
from seqgen.generation.setup import Streamer
from seqgen.structures import Batch, Hypothesis
from seqgen.system.devices import out_of_memory
from seqgen.task import Task
from seqgen.text.input_line import InputEncoder, InputLine, with_prefixes
from seqgen.text.languages import LineLanguages, TextModel, encode_source, tokens_of
from seqgen.text.reranking import (
    Reranker,
    Utility,
    by_expected_utility,
    expected_utilities,
    reranked,
    reranker_from_config,
    utility_from_config,
)
from seqgen.text.results import Details, TextHypothesis, Translation, attend_to_source
from seqgen.text.sentences import ParagraphReader
from seqgen.text.sources import EncodedSource, check_encodable, check_fits, merged_encodings, sources_from_config
from seqgen.text.unknown_words import UnknownWords
from seqgen.text.word_streaming import WordStreamer, continuation

BUFFER_SIZE = 4096
"""Default number of lines that are read before they are decoded together."""

SENTENCE_SCORES = 2**20
"""Scores of a decoding step (beam times vocabulary) up to which a sentence counts as one sentence of a batch.

A sentence of more scores counts as several, so that the 64 sentences of a batch have at most 2**26 scores (256 MiB in
float32) and 1,024 beams. T5-small with 32,128 tokens, beam 200 and 16 sentences: 7.2 GiB in one batch, 2.8 GiB in
batches of 5.
"""

COUNTED_VOCABULARY = 2**16
"""The size that a smaller vocabulary counts as, because each beam also has a decoder state."""

RESCORED_TOKENS = 1024
"""Maximum number of target tokens in one scoring batch; each needs a score for every token of the vocabulary."""

PARAGRAPH, PART = 40, 3
"""A translation is noted if its source has at least 40 tokens, and it has less than a third of its usual length."""


class TextDecoding:
    """Decodes lines with one model or an ensemble; ``Translator.prepare`` makes it.

    Args:
        members: the models, which share one target vocabulary.
        cfg: the decoding settings.
        generator: made from the same models and ``cfg``.
        details: which optional fields of hypotheses are computed.
        streamer: receives tokens or words as they are generated; lines are then decoded in their order instead of
            being batched by length.
        notes: notes for the user about the settings.
        draft: the model that drafts for the generator; it encodes the source with its own tokenizer.
        utility: ranks hypotheses by minimum Bayes risk; by default the one that ``cfg.mbr`` names.
        reranker: ranks hypotheses by its scores; by default the one that ``cfg.rerank`` names.
        ensemble: the settings that make the members an ensemble, for components that use the models; see ``Resources``.

    Raises:
        ConfigError: ``cfg.mbr`` or ``cfg.rerank`` is not registered, or is used with a beam of 1.
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
        reranker: Reranker | None = None,
        ensemble: Mapping[str, Any] | None = None,
    ):
        self.members, self.cfg, self.generator = list(members), cfg, generator
        self.details, self.streamer, self.notes = details, streamer, list(notes)
        self.task = self.members[0].task
        self.models = [member.model for member in self.members]
        self.source_models = [*self.members, *([] if draft is None else [draft])]
        self.device = next(self.models[0].parameters()).device
        scores = generator.beam_size * max(generator.setup.vocab_size, COUNTED_VOCABULARY)
        self.weight = max(1.0, scores / SENTENCE_SCORES)
        self.tokens_written = 0
        observers = generator.setup.observers
        self.certificate = next((each for each in observers if isinstance(each, Certificate)), None)
        self.on_line: Callable[[], None] | None = None  # called when a line is decoded, before it is yielded
        target = self.task.target_tokenizer
        self.unknown_words = UnknownWords.from_setting(cfg.replace_unknown, target) if cfg.replace_unknown else None
        of_text = (target.dictionary, target.encode, target.decode)
        resources = Resources(*of_text, device=self.device, models=self.members, ensemble=ensemble or {})
        self.utility = utility or (utility_from_config(cfg, resources) if cfg.mbr else None)
        sources = sources_from_config(cfg, resources)
        self.input_encoder = InputEncoder(self.source_models, cfg, generator.last_steps, sources, len(self.members))
        self.paragraphs = ParagraphReader(self.input_encoder) if cfg.input_split else None
        self.splitter = self.paragraphs if self.paragraphs is not None and self.paragraphs.splits else None
        if self.splitter is not None and streamer is not None:
            raise ConfigError("generation.input_split=sentences cannot be streamed; leave it out, or do not stream")
        self.reranker = reranker or (reranker_from_config(cfg, resources) if cfg.rerank else None)
        if self._ranks and generator.beam_size == 1:
            what = "minimum Bayes risk" if self.utility is not None else "reranking"
            raise ConfigError(f"{what} compares hypotheses, but only one is generated; set generation.beam=2 or more")
        if self.utility is not None and self.reranker is not None:
            raise ConfigError(
                "a utility and a reranker both rank hypotheses; set only one of generation.mbr and generation.rerank"
            )
        decoded_by, words = generator.setup.ensemble, target.dictionary
        self.scorer = SequenceScorer(
            decoded_by.members,
            words.pad(),
            words.eos(),
            not cfg.unnormalized,
            decoded_by.combination,
            bit_exact=cfg.bit_exact,
        )

    def translate(
        self,
        lines: Iterable[str | EncodedSource],
        prefixes: Iterable[str] | None = None,
        buffer_size: int = 0,
        first_number: int = 0,
    ) -> Iterator[Translation]:
        """Decode lines.

        Args:
            lines: the lines, or what ``encode`` returned for them; ``buffer_size`` of them are read at a time.
            prefixes: the forced beginning of each output, read together with the lines; ``None`` for none.
            buffer_size: number of lines that are read, batched by length and decoded together; 0 for
                ``cfg.buffer_size``, and for ``BUFFER_SIZE`` if that is 0, too.
            first_number: number of the first line. The ids of translations and the random numbers depend on it.

        Yields:
            One translation for each line, in order.

        Raises:
            DataError: there are more lines than prefixes, or fewer.
        """
        streamer = self.streamer if isinstance(self.streamer, WordStreamer) else None
        if streamer is not None:
            streamer.bind(self._decode_ids)
        try:
            numbered = enumerate(with_prefixes(lines, prefixes), start=first_number)
            size = buffer_size or self.cfg.buffer_size or BUFFER_SIZE
            while buffer := list(itertools.islice(numbered, size)):
                if self.splitter is not None:
                    yield from self.splitter.translate(buffer, self._translate_buffer)
                else:
                    encode = self.input_encoder.encode
                    yield from self._translate_buffer([encode(number, *pair) for number, pair in buffer])
        except BaseException as error:
            if streamer is not None:
                streamer.close(error)
            raise
        if streamer is not None:
            streamer.close()

    @torch.inference_mode()
    def encode(self, lines: Iterable[str]) -> list[EncodedSource]:
        """Run the encoder on lines, each alone, so that the outputs have no padding.

        Args:
            lines: the lines.

        Returns:
            For each line what ``translate`` can decode in its place.

        Raises:
            ConfigError: there are several models, or the model has no encoder.
            DataError: a line is empty, or encoded already.
        """
        check_encodable(self.source_models)
        if self.splitter is not None:
            raise ConfigError("encode reads whole lines; leave out generation.input_split")
        encoded = []
        with self.generator.setup.ensemble.evaluating():
            for number, text in enumerate(lines):
                if isinstance(text, EncodedSource):
                    raise DataError(f"line {number + 1} is encoded already; give text")
                line = self.input_encoder.encode(number, text)
                if not line.sources:
                    raise DataError(f"line {number + 1} is empty and has no encoder output")
                source = self.collate(self.source_models, [(line, None)]).source
                encoder_out, notes = encode(self.models[0].encoder, source), line.translation.notes
                encoded.append(EncodedSource(text, line.sources[0], encoder_out, notes, line.languages))
        return encoded

    def _translate_buffer(self, lines: list[InputLine]) -> Iterator[Translation]:
        """Decode lines. If memory runs out, the lines before the first unfinished one are yielded before the error."""
        try:
            self._finish(lines)
        except Exception as error:
            if out_of_memory(error) and not self.details.rescores:
                finished = itertools.takewhile(lambda line: line.translation.hypotheses or not line.sources, lines)
                yield from (line.translation for line in finished)
            self._check_encodings(lines)
            raise
        yield from (line.translation for line in lines)

    @torch.inference_mode()
    def _check_encodings(self, lines: list[InputLine]) -> None:
        """After an error in decoding, refuse encoder outputs that are not those of the model."""
        with self.generator.setup.ensemble.evaluating():
            for line in lines:
                if line.encoder_out is not None:
                    of_model = self.models[0].encoder, self.task.source_dictionary.eos()
                    check_fits(*of_model, line.translation.source, line.encoder_out)

    def _finish(self, lines: list[InputLine]) -> None:
        """Decode all lines of a buffer, and fill the optional fields of their hypotheses."""
        for line in lines:
            if self.streamer is not None and not line.sources:
                self.streamer.end(line.translation.id)
            elif isinstance(self.streamer, WordStreamer):
                self.streamer.begin(line.translation.id, self.task.prompt(line.sources[0]).tolist())
        if self.reranker is not None:
            self.reranker.prepare([line.translation for line in lines])
        readable = [line for line in lines if line.sources]
        if self._can_batch_continuously(readable):
            self._decode_continuously(readable)
        else:
            for lines_of_batch in self._batches(readable):
                self._decode(lines_of_batch)
        if self.details.rescores:
            for lines_of_batch in self._batches(readable):
                self._rescore(lines_of_batch)

    def _decode(self, lines: list[InputLine]) -> None:
        """Decode a batch."""
        batch = self.collate(self.source_models, [(line, None) for line in lines])
        results = self.task.inference_step(self.generator, self.models, batch, **self._inference_arguments(lines))
        width = batch.source.src_tokens.size(1)
        for line, hypotheses in zip(lines, results, strict=True):
            self._finalize(line, hypotheses, width)

    def _can_batch_continuously(self, lines: list[InputLine]) -> bool:
        """Whether continuous batching is possible: no component, task or argument needs whole batches."""
        own_step = type(self.task).inference_step is not Task.inference_step
        return self.generator.can_merge and not own_step and not self._inference_arguments(lines)

    def _decode_continuously(self, lines: list[InputLine]) -> None:
        """Decode with continuous batching: waiting lines join the running batch, the longest first."""
        by_number = {line.translation.id: line for line in lines}
        waiting = sorted(lines, key=lambda line: line.length)

        def take(running: int, width: int) -> Batch | None:
            # every row is padded to the longest source: a short source waits until the long ones are finished
            if not waiting or 2 * waiting[-1].length < width:
                return None
            room = self._sentences_of(max(width, waiting[-1].length)) - running
            if room < 1:
                return None
            taken = [waiting.pop() for _ in range(min(room, len(waiting)))]
            return self.collate(self.source_models, [(line, None) for line in taken])

        for number, hypotheses in self.generator.generate_continuously(take):
            self._finalize(by_number[number], hypotheses, 0)

    def _inference_arguments(self, lines: list[InputLine]) -> dict[str, Any]:
        """Optional arguments of ``Task.inference_step``: constraints, prefixes and streamer."""
        arguments: dict[str, Any] = {}
        if self.cfg.constraints:
            arguments["constraints"] = [line.phrases for line in lines]
        if any(line.prefix for line in lines):
            pad = self.task.target_dictionary.pad()
            longest = max(len(line.prefix) for line in lines)
            rows = [line.prefix + [pad] * (longest - len(line.prefix)) for line in lines]
            arguments["prefix_tokens"] = torch.tensor(rows, device=self.device)
        if self.streamer is not None:
            arguments["streamer"] = self.streamer
        return arguments

    def _sentences_of(self, width: int) -> int:
        """The most sentences of a batch whose longest source has ``width`` tokens; at least 1.

        ``batch_size`` and ``max_tokens`` limit them, and a sentence of a wide beam counts as several.
        """
        return max(1, int(min(self.cfg.batch_size, self.cfg.max_tokens // width) / self.weight))

    def _batches(self, lines: list[InputLine]) -> Iterator[list[InputLine]]:
        """Divide lines into batches; see ``_sentences_of``.

        The lines are sorted by length, the longest first; with a streamer they keep their order.
        """
        if self.streamer is None:
            lines = sorted(lines, key=lambda line: line.length, reverse=True)
        batch: list[InputLine] = []
        for line in lines:
            widest = max(line.length, *(other.length for other in batch)) if batch else line.length
            if len(batch) >= self._sentences_of(widest):
                yield batch
                batch = []
            batch.append(line)
        if batch:
            yield batch

    def collate(self, models: Sequence[TextModel], rows: Sequence[tuple[InputLine, Tensor | None]]) -> Batch:
        """Collate lines, each with its target or ``None``, for every model."""
        batches = [
            model.task.collate([(line.translation.id, line.sources[i], target) for line, target in rows], model.model)
            for i, model in enumerate(models)
        ]
        batch = replace(
            batches[0],
            member_sources=[other.source for other in batches] if len(batches) > 1 else None,
            texts=[line.translation.source for line, _ in rows],
            first_tokens=tokens_of([line.first_token for line, _ in rows]),
            start_tokens=tokens_of([line.start_token for line, _ in rows]),
        )
        if (merged := merged_encodings(models[0].model.encoder, [line.encoder_out for line, _ in rows])) is not None:
            batch = replace(batch, source=replace(batch.source, encoder_out=merged))
        return batch.to(self.device)

    def _finalize(self, line: InputLine, hypotheses: list[Hypothesis], width: int) -> None:
        """Decode the hypotheses of a line to text, rank them by utility, and note if there are fewer than ``nbest``.

        Args:
            line: the line, whose translation gets the hypotheses.
            hypotheses: ids and scores, best first.
            width: columns of the batch's source, over which attention is defined; 0 without attention.
        """
        translation, nbest = line.translation, self.cfg.nbest
        if not hypotheses:
            in_time = " and generation.max_time" if self.cfg.max_time else ""
            missing = f"no output within the maximum length{in_time} has all phrases"
            why = missing if line.phrases else "every output was forbidden"
            translation.notes.append(f"{why}, so that the output is empty")
        elif len(hypotheses) < nbest:
            why = "were found in time" if hypotheses[0].timed_out else "are possible"
            translation.notes.append(f"only {len(hypotheses)} of {nbest} hypotheses {why}")
        wanted = [
            attend_to_source(hypothesis, width, len(line.sources[0]), self.models[0].left_pad_source)
            for hypothesis in (hypotheses if self._ranks else hypotheses[:nbest])
        ]
        found = [TextHypothesis(self._text(line, hypothesis), hypothesis) for hypothesis in wanted]
        translation.hypotheses[:] = self._ranked(translation, found)[:nbest]
        if self.certificate is not None:
            bound, exact = self.certificate.found.pop(translation.id)
            line.translation = replace(translation, bound=bound, exact=exact)
        if self.on_line is not None and line.ends_line:
            self.on_line()
        self._note_cuts(line)
        self.tokens_written += len(found[0].tokens) if found else 0

    @property
    def _ranks(self) -> bool:
        """Whether hypotheses are ranked once more after the search."""
        return self.utility is not None or self.reranker is not None

    def _ranked(self, translation: Translation, found: list[TextHypothesis]) -> list[TextHypothesis]:
        """The hypotheses of a line by minimum Bayes risk or by the reranker, best first."""
        if self.utility is not None and found:
            utilities = expected_utilities([item.text for item in found], self.utility)
            return [replace(found[index], utility=utilities[index]) for index in by_expected_utility(utilities)]
        if self.reranker is not None and found:
            scores = reranked(self.reranker, translation, found)
            return [replace(found[index], rerank_score=scores[index]) for index in by_expected_utility(scores)]
        return found

    def _note_cuts(self, line: InputLine) -> None:
        """Add a note on the first hypothesis of a line that a limit has truncated, or on a much too short output."""
        longest = self.input_encoder.longest_output(line.sources)
        if self.cfg.match_source_len and longest == len(line.sources[0]) - 1:
            longest = sys.maxsize  # the user wants exactly that length
        notes, hypotheses = line.translation.notes, line.translation.hypotheses
        cuts = [self._cut(item, longest) for item in hypotheses]
        if place := next((place for place, cut in enumerate(cuts, start=1) if cut), 0):
            notes.append(f"{'the output' if place == 1 else f'hypothesis {place}'} {cuts[place - 1]}")
        if place != 1 and hypotheses:
            notes.extend(filter(None, [self._lacking(line, hypotheses[0])]))

    def _lacking(self, line: InputLine, item: TextHypothesis) -> str:
        """Describe what an output that no limit has cut off may lack; empty if nothing was found."""
        source, output = len(line.sources[0]), len(item.tokens)
        if self.task.translates and not item.text.strip():
            return "the output is empty, which generation.min_len or lenpen can prevent"
        if self.paragraphs is not None:
            return self.paragraphs.note(line)
        if self.task.translates and source >= PARAGRAPH and output < self.cfg.usual_ratio * source / PART:
            return (
                f"the output has {output} tokens for {source} of the source and may lack a part; decode paragraphs "
                "with generation.input_split=sentences"
            )
        return ""

    def _cut(self, item: TextHypothesis, longest: int) -> str:
        """Describe how a limit changed an output, whose last token may be an end token that the limit forced.

        Args:
            item: the output.
            longest: maximum output length in tokens, without end-of-sentence.

        Returns:
            Words that follow "the output" in a note, such as "was cut off ..."; empty if no limit changed it.
        """
        cfg, size, forces_end = self.cfg, len(item.tokens), self.generator.setup.forces_end
        whole = size > 0 and int(item.tokens[-1]) in self.generator.setup.end_tokens
        beginning = " (it is only the beginning of a line of generation.prefix_trie)"
        rest = beginning if cfg.prefix_trie and not whole else ""
        if item.hypothesis.member_tokens is not None and not whole:
            return "was cut off: no token was left on which all models agree, or a model reached its maximum length"
        longest -= forces_end and not whole  # Marian's search ends there without an end token
        if size > longest and (forces_end or not whole):
            empty = "" if item.text.strip() else "is empty and "
            return f"{empty}has the maximum length of {size} tokens and may be cut off{rest}"
        if item.hypothesis.timed_out and not whole:
            return f"was cut off after generation.max_time={cfg.max_time:g}{rest}"
        if item.hypothesis.timed_out and self.generator.beam_size > 1:
            return f"is the best one after generation.max_time={cfg.max_time:g}, which ended the search"
        return "was cut off by a stopping rule" + rest if rest else ""

    def _text(self, line: InputLine, hypothesis: Hypothesis) -> str:
        unknown = self.task.target_dictionary.unk()
        if self.unknown_words is None or unknown not in hypothesis.tokens:
            return self._decoded(line, hypothesis)
        if hypothesis.alignment is None:
            line.translation.notes.append("unknown words are not replaced: the model returns no attention weights")
            return self._decoded(line, hypothesis)
        source = line.translation.source
        return self.unknown_words.text(hypothesis, source, lambda text: self._position_of(text, line.languages))

    def _position_of(self, text: str, languages: LineLanguages) -> int:
        return len(encode_source(self.task, text, languages)) - len(self.task.source_tokenizer.source_tokens().after)

    def _decoded(self, line: InputLine, hypothesis: Hypothesis) -> str:
        prompt = self.task.prompt(line.sources[0])
        if len(prompt) == 0:
            return self.task.decode(hypothesis.tokens)
        return continuation(self._decode_ids, prompt.tolist(), hypothesis.tokens.tolist())

    def _decode_ids(self, ids: Sequence[int]) -> str:
        return self.task.decode(torch.tensor(ids))

    def _rescore(self, lines: list[InputLine]) -> None:
        """Run the models over the hypotheses of a batch, and fill their optional fields."""
        pairs = [(line, item) for line in lines for item in line.translation.hypotheses]
        longest = max((len(item.tokens) for _, item in pairs), default=1)
        # the attention weights of all layers and heads of many rows would not fit into memory
        rows = 1 if self.details.internals else max(1, RESCORED_TOKENS // longest)
        batches = [pairs[start : start + rows] for start in range(0, len(pairs), rows)]
        detailed = itertools.chain.from_iterable(self._with_details(batch) for batch in batches)
        for line in lines:
            line.translation.hypotheses[:] = itertools.islice(detailed, len(line.translation.hypotheses))

    def _with_details(self, pairs: Sequence[tuple[InputLine, TextHypothesis]]) -> list[TextHypothesis]:
        """Fill the optional fields of some hypotheses."""
        if len(self.members) > 1 and pairs and pairs[0][1].hypothesis.member_scores is not None:
            return [replace(item, member_scores=item.hypothesis.member_scores) for _, item in pairs]
        batch = self.collate(self.members, [(line, item.tokens) for line, item in pairs])
        ranking = Ranking(not self.cfg.unnormalized, self.cfg.lenpen, self.cfg.length_penalty)
        return self.details.added([item for _, item in pairs], batch, self.scorer, ranking)
