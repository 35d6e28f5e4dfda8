"""Lines of text in, as many lines of text out, in order: what stands between text and the generator.

``seqgen-generate`` and the validation of ``seqgen-train`` both decode through here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from seqgen.config import GenerationConfig
from seqgen.errors import CheckpointError, DataError
from seqgen.generation.scorer import SequenceScorer
from seqgen.model import EncoderDecoderModel
from seqgen.structures import Batch, Hypothesis
from seqgen.task import Task


@dataclass(frozen=True)
class TextHypothesis:
    """A hypothesis and its text."""

    text: str
    hypothesis: Hypothesis


@dataclass
class Translation:
    """The answer to one line.

    Attributes:
        id: number of the line, from 0.
        source: the line.
        source_tokens: ``(S,)`` int64, what the first model read; empty for an empty line.
        hypotheses: best first; none for an empty line.
        constraints: phrases that the line demands of its output, after tabs (``generation.constraints``).
        notes: what was out of the ordinary, such as a truncation, in words.
    """

    id: int
    source: str
    source_tokens: Tensor
    hypotheses: list[TextHypothesis] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    constraints: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The best hypothesis, on one line."""
        return self.hypotheses[0].text.replace("\n", " ") if self.hypotheses else ""


@dataclass
class _Line:
    """A line on its way: its translation so far, its ids as each member reads them, and those of its phrases."""

    translation: Translation
    sources: list[Tensor]
    phrases: list[list[int]] = field(default_factory=list)

    @property
    def length(self) -> int:
        return max(len(source) for source in self.sources)


class Translator:
    """Decodes text with one model or an ensemble.

    Args:
        tasks: the task of each member; each encodes the source in its own way.
        models: the members, over one target vocabulary.
        cfg: how to decode.
        need_attention: whether hypotheses carry attention and alignment.

    Raises:
        CheckpointError: the members' target vocabularies differ.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        models: Sequence[EncoderDecoderModel],
        cfg: GenerationConfig,
        need_attention: bool = False,
    ):
        self.tasks, self.models, self.cfg = list(tasks), list(models), cfg
        self.task = self.tasks[0]
        for number, task in enumerate(self.tasks[1:], start=2):
            if task.target_dictionary != self.task.target_dictionary:
                raise CheckpointError(
                    f"model {number} of the ensemble writes another target vocabulary ({len(task.target_dictionary)} "
                    f"symbols) than model 1 ({len(self.task.target_dictionary)} symbols); an ensemble needs models "
                    "that were trained with the same one"
                )
        self.generator = self.task.build_generator(self.models, cfg, need_attention=need_attention)
        self.device = next(self.models[0].parameters()).device
        self.tokens_written = 0

    def translate(self, lines: Iterable[str], buffer_size: int = 4096) -> Iterator[Translation]:
        """Decode lines.

        Args:
            lines: the text, read as it is needed.
            buffer_size: how many lines are read before they are decoded together, similar lengths in a batch.

        Yields:
            One translation for each line, in order.
        """
        numbered = enumerate(lines)
        while buffer := list(itertools.islice(numbered, buffer_size)):
            yield from self._translate_buffer([self._encode(number, text) for number, text in buffer])

    def score(self, sources: Sequence[str], references: Sequence[str]) -> Iterator[Hypothesis]:
        """Find the log-probabilities that the models give to known targets.

        Args:
            sources: the source lines.
            references: the target of each.

        Yields:
            For each line, in order, its target with scores. An empty line is scored like any other.

        Raises:
            DataError: a line is longer than a model can read or write.
        """
        first = self.task
        pad, eos = first.target_dictionary.pad(), first.target_dictionary.eos()
        scorer = SequenceScorer(
            self.models, pad, eos, not self.cfg.unnormalized, self.cfg.ensemble_average, self.cfg.ensemble_weights
        )
        for start in range(0, len(sources), self.cfg.batch_size):
            rows = range(start, min(start + self.cfg.batch_size, len(sources)))
            targets = [first.encode_target(references[i]) for i in rows]
            batches = []
            for task, model in zip(self.tasks, self.models, strict=True):
                encoded = [task.encode_source(sources[i]) for i in rows]
                _check_lengths(rows, encoded, targets, model.max_positions())
                batches.append(task.collate(list(zip(rows, encoded, targets, strict=True)), model))
            batch = batches[0]
            batch.member_sources = [other.source for other in batches] if len(batches) > 1 else None
            yield from (hypotheses[0] for hypotheses in scorer.generate(batch.to(self.device)))

    def _translate_buffer(self, lines: list[_Line]) -> list[Translation]:
        for batch in self._batches([line for line in lines if line.sources]):
            phrases = [line.phrases for line in batch]
            demands: dict[str, Any] = {"constraints": phrases} if self.cfg.constraints else {}
            results = self.task.inference_step(self.generator, self.models, self._collate(batch), **demands)
            for line, hypotheses in zip(batch, results, strict=True):
                self._take(line.translation, hypotheses)
        return [line.translation for line in lines]

    def _encode(self, number: int, text: str) -> _Line:
        """Turn a line into ids, cut to what each model can read; an empty line has none."""
        text, *phrases = text.split("\t") if self.cfg.constraints else [text]
        translation = Translation(number, text, torch.empty(0, dtype=torch.int64))
        if not text.strip():
            translation.notes.append("the line is empty, and so is its answer")
            return _Line(translation, [])
        unknown = self.task.source_tokenizer.unknown(text)
        if unknown:
            shown = " ".join(dict.fromkeys(unknown[:100]))[:60]
            translation.notes.append(f"the vocabulary lacks {shown}")
        sources = []
        for task, model in zip(self.tasks, self.models, strict=True):
            ids, longest = task.encode_source(text), model.max_positions()[0]
            if len(ids) > longest:
                translation.notes.append(f"of {len(ids)} source tokens only the first {longest - 1} were read")
                ids = torch.cat([ids[: longest - 1], ids[-1:]])
            sources.append(ids)
        translation.source_tokens = sources[0]
        return _Line(translation, sources, self._encode_phrases(phrases, translation))

    def _encode_phrases(self, phrases: list[str], translation: Translation) -> list[list[int]]:
        """Turn the phrases that a line demands into ids; one that the vocabulary cannot write is left out."""
        encoded = []
        for phrase in (phrase.strip() for phrase in phrases):
            if lacking := self.task.target_tokenizer.unknown(phrase):
                translation.notes.append(f"the phrase {phrase!r} is left out: the vocabulary lacks {' '.join(lacking)}")
            elif phrase:
                translation.constraints.append(phrase)
                encoded.append(self.task.target_tokenizer.encode(phrase))
        return encoded

    def _batches(self, lines: list[_Line]) -> Iterator[list[_Line]]:
        """Batches of similar length within the budgets, the longest first."""
        batch: list[_Line] = []
        for line in sorted(lines, key=lambda line: line.length, reverse=True):
            full = len(batch) == self.cfg.batch_size or (len(batch) + 1) * (batch or [line])[0].length > (
                self.cfg.max_tokens
            )
            if batch and full:
                yield batch
                batch = []
            batch.append(line)
        if batch:
            yield batch

    def _collate(self, lines: list[_Line]) -> Batch:
        batches = [
            task.collate([(line.translation.id, line.sources[member], None) for line in lines], model)
            for member, (task, model) in enumerate(zip(self.tasks, self.models, strict=True))
        ]
        batch = batches[0]
        batch.member_sources = [other.source for other in batches] if len(batches) > 1 else None
        return batch.to(self.device)

    def _take(self, translation: Translation, hypotheses: list[Hypothesis]) -> None:
        if not hypotheses:
            translation.notes.append("every output was forbidden, so that the answer is empty")
        elif len(hypotheses) < self.cfg.nbest:
            translation.notes.append(f"only {len(hypotheses)} of {self.cfg.nbest} hypotheses are possible")
        kept = hypotheses[: self.cfg.nbest]
        translation.hypotheses = [TextHypothesis(self.task.decode(h.tokens), h) for h in kept]
        self.tokens_written += len(kept[0].tokens) if kept else 0


def _check_lengths(
    rows: Iterable[int], sources: Sequence[Tensor], targets: Sequence[Tensor], longest: tuple[int, int]
) -> None:
    for row, source, target in zip(rows, sources, targets, strict=True):
        for side, tokens, limit in (("source", source, longest[0]), ("reference", target, longest[1])):
            if len(tokens) > limit:
                raise DataError(
                    f"{side}, line {row + 1}: {len(tokens)} tokens are more than the {limit} that the model can take; "
                    "shorten the line"
                )
