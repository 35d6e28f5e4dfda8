"""Writes a trace while lines are decoded."""

from __future__ import annotations

import copy
import dataclasses
import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from seqgen import __version__
from seqgen.addons.traces.recorder import Tracer
from seqgen.addons.traces.trace import FORMAT, VERSION, SentenceTrace, TracedOutput, TraceHeader, plain
from seqgen.config import TraceConfig
from seqgen.extend import (
    DECODING_COMPONENTS,
    ConfigError,
    InputLine,
    Ranking,
    ScoredTarget,
    Search,
    TextDecoding,
    TextHypothesis,
    Translation,
    disk_errors,
    encode_target,
    has_steps,
)

_TOGETHER = 32
"""Lines whose references are scored together."""


class TraceWriter:
    """Writes the trace of a decode; the results of decoding do not change::

        with TraceWriter(Path("trace.jsonl.gz"), decoding, references=references) as trace:
            for translation in decoding.translate(trace.lines(lines)):
                trace.add(translation)

    Args:
        path: the file, which is compressed if its name ends in ``.gz``.
        decoding: the prepared decoding, to which the observer is added.
        options: what is recorded.
        references: the reference of each line, if there are references.
        names: names of the models.

    Raises:
        ConfigError: the strategy cannot be traced.
    """

    def __init__(
        self,
        path: Path,
        decoding: TextDecoding,
        options: TraceConfig | None = None,
        references: Sequence[str] | None = None,
        names: Sequence[str] = (),
    ):
        self.path, self.decoding, self.options = path, decoding, options or TraceConfig()
        self.references = references
        setup = decoding.generator.setup
        if any(member.task.target_dictionary != decoding.task.target_dictionary for member in decoding.members):
            raise ConfigError(_no_steps("an ensemble of models with different vocabularies"))
        if not has_steps(setup.search):
            raise ConfigError(_no_steps(_called(setup.search)))
        if (stage := decoding.stages.unstreamed) is not None:
            raise ConfigError(f"lines that generation.{stage.key} changes cannot be traced; remove it")
        self.tracer = Tracer(self.options, setup, self._reference_tokens)
        decoding.generator = copy.copy(decoding.generator)
        decoding.generator.setup = dataclasses.replace(setup, observers=[*setup.observers, self.tracer])
        dtypes = [weight.dtype for weight in decoding.models[0].parameters() if weight.is_floating_point()]
        self.dtype = torch.float64 if torch.float64 in dtypes else torch.float32
        self.pieces = dict(enumerate(decoding.task.target_dictionary.symbols))
        self.texts: dict[int, str] = {}
        self.waiting: list[Translation] = []
        self.read = self.written = self.characters = 0
        self._file: IO[bytes] | None = None
        self._checksum = 0
        self._names = list(names)

    def __enter__(self) -> TraceWriter:
        gz = self.path.name.endswith(".gz")
        self._file = gzip.open(self.path, "wb", compresslevel=3) if gz else open(self.path, "wb")  # type: ignore[assignment]
        decoding, setup = self.decoding, self.decoding.generator.setup
        header = TraceHeader(
            seqgen=__version__,
            models=self._names,
            members=len(setup.ensemble.members),
            search=type(setup.search).__name__,
            rules=setup.rules.name,
            beam=setup.beam_size,
            nbest=decoding.cfg.nbest,
            dtype=str(self.dtype).removeprefix("torch."),
            ranking=setup.ranking,
            early_stopping=setup.early_stopping,
            seed=decoding.cfg.seed if decoding.cfg.uses_seed else None,
            processors=[type(processor).__name__ for processor in setup.processors],
            recorded=sorted(self.tracer.needs),
            candidates=self.options.candidates,
        )
        self.digits = header.digits
        self._write({"format": FORMAT, "version": VERSION, **plain(header, header.digits)})
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        assert self._file is not None
        if kind is None:
            self._flush()
            complete, checksum = self.written == self.read, self._checksum
            self._write({"end": True, "sentences": self.written, "complete": complete, "crc32": checksum})
        self._file.close()

    def lines(self, lines: Iterable[str]) -> Iterator[str]:
        """Pass lines through, and remember those that are traced until their translation is added."""
        for number, line in enumerate(lines):
            self.read += 1
            if self.tracer.wants(number):
                self.texts[number] = line
            yield line

    def add(self, translation: Translation) -> None:
        """Write the trace of a line; lines come in order."""
        if not self.tracer.wants(translation.id):
            self.tracer.forget(translation.id)
            return
        self.waiting.append(translation)
        if len(self.waiting) == _TOGETHER:
            self._flush()

    @property
    def notes(self) -> list[str]:
        """Notes for the user, at the end."""
        if self.written == self.read:
            return []
        key = "max_megabytes" if self.tracer.full else "sentences"
        return [
            f"the trace has only the first {self.written} of {self.read} lines: it reached trace_options.{key}="
            f"{getattr(self.options, key):g}; 0 removes the limit"
        ]

    def _flush(self) -> None:
        """Write the lines that wait."""
        references = self._scored_references()
        limit = self.options.max_megabytes * 1e6
        for translation in self.waiting:
            if not self.tracer.full:
                sentence = self._sentence(translation, references.get(translation.id))
                self._write(sentence.record(self.digits, self.options.candidates))
                self.written += 1
                self.tracer.full = bool(limit) and self.characters > limit
            self.tracer.forget(translation.id)
            self.texts.pop(translation.id, None)
        self.waiting = []

    def _sentence(self, translation: Translation, reference: ScoredTarget | None) -> SentenceTrace:
        steps = self.tracer.steps(translation.id)
        if translation.hypotheses and not steps:
            raise ConfigError(_no_steps(_called(self.decoding.generator.setup.search)))
        width = len(translation.source_tokens)
        hypotheses = [_hypothesis(item, width) for item in translation.hypotheses]
        source = self.decoding.task.source_dictionary
        return SentenceTrace(
            id=translation.id,
            source=translation.source,
            source_pieces=[source.symbol(token) for token in translation.source_tokens.tolist()],
            steps=steps,
            hypotheses=hypotheses,
            pieces=self.pieces,
            reference=self._reference(translation.id, reference),
            notes=translation.notes,
        )

    def _reference(self, number: int, scored: ScoredTarget | None) -> TracedOutput | None:
        followed = self.tracer.references.get(number)
        if self.references is None or followed is None or not followed.tokens:
            return None
        output = TracedOutput(
            self.references[number], followed.tokens, float("-inf"), (), search_scores=followed.scores
        )
        if scored is None:
            return output
        scores = scored.hypothesis.positional_scores.tolist()
        members = [scores.tolist() for scores in scored.member_scores] if len(scored.member_scores) > 1 else ()
        return dataclasses.replace(output, score=scored.hypothesis.score, scores=scores, members=members)

    def _reference_tokens(self, number: int) -> Sequence[int]:
        """The ids of the reference of a line; empty without one."""
        if self.references is None or number >= len(self.references):
            return ()
        line = self.decoding.input_encoder.read(number, self.texts[number])
        tokens: list[int] = encode_target(self.decoding.task, self.references[number], line.languages).tolist()
        return tokens

    def _scored_references(self) -> dict[int, ScoredTarget]:
        """The scores of the references of the lines that wait, by the number of the line, if they are asked for."""
        wanted: dict[int, Wanted] = {}
        for translation in self.waiting if self.options.reference_scores else ():
            number, followed = translation.id, self.tracer.references.get(translation.id)
            encoder = self.decoding.input_encoder
            line = encoder.encode(encoder.read(number, self.texts[number], translation.prefix))
            if followed is None or not line.sources:
                continue
            pair = line, torch.tensor(followed.tokens, dtype=torch.int64)
            if can_score(self.decoding, pair):
                wanted[number] = pair
        return dict(zip(wanted, score_outputs(self.decoding, list(wanted.values())), strict=True))

    def _write(self, record: dict[str, Any]) -> None:
        assert self._file is not None
        text = json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        # some programs break lines at these characters, too
        line = re.sub("[\x85\u2028\u2029]", lambda found: f"\\u{ord(found[0]):04x}", text) + "\n"
        self.characters += len(line)
        self._checksum = zlib.crc32(line.encode(), self._checksum)
        with disk_errors(self.path):
            self._file.write(line.encode())


def _no_steps(name: str) -> str:
    return f"{name} has a loop of its own, whose steps cannot be traced; remove trace, or choose another search"


def _called(search: Search) -> str:
    """The key, or the class, by which a user knows a search strategy."""
    searches, _ = DECODING_COMPONENTS["search"]
    names = [entry.name for entry in searches.entries() if entry.component is type(search)]
    return f"generation.search={names[0]}" if names else f"the search object {type(search).__name__}"


def _hypothesis(item: TextHypothesis, width: int) -> TracedOutput:
    scores, attention = item.positional_scores.tolist(), item.attention
    # attention over something else than the source tokens, such as features, is left out
    rows = None if attention is None or attention.size(1) != width else attention.tolist()
    return TracedOutput(item.text, item.tokens.tolist(), item.score, scores, (), rows)


SCORED_TOKENS = 1024
"""Maximum number of target tokens in one scoring batch; each needs a score for every token of the vocabulary."""

Wanted = tuple[InputLine, Tensor]
"""An encoded line, and the ids ``(T,)`` of an output."""


def can_score(decoding: TextDecoding, wanted: Wanted) -> bool:
    """True if the models have enough positions for an output."""
    line, tokens = wanted
    limits = [member.model.max_positions()[1] for member in decoding.members]
    for member, source in zip(decoding.members, line.sources, strict=False):
        if (room := member.model.max_target_lengths(torch.tensor([len(source)]))) is not None:
            limits.append(int(room[0]))
    return 0 < len(tokens) <= min(limits)


@torch.inference_mode()
def score_outputs(decoding: TextDecoding, outputs: Sequence[Wanted]) -> list[ScoredTarget]:
    """Score given outputs, without temperature, processors and penalties.

    Args:
        decoding: the prepared decoding.
        outputs: pairs of an encoded line and an output.

    Returns:
        The scores of each output. Its ``score`` is the one by which it would rank as a hypothesis, without processors.
    """
    cfg = decoding.cfg
    ranking = Ranking(cfg.normalize_scores, cfg.length_penalty, cfg.length_penalty_form)
    lengths, found = [len(tokens) for _, tokens in outputs], list[ScoredTarget]()
    rows = max(1, SCORED_TOKENS // max(lengths, default=1))
    for start in range(0, len(outputs), rows):
        some = slice(start, start + rows)
        batch = decoding.batcher.collate(outputs[some], decoding.members)
        scored = decoding.scorer.score(batch, lengths[some])
        for length, target in zip(lengths[some], scored, strict=True):
            score = float(ranking.score(target.hypothesis.positional_scores.sum(), length))
            found.append(ScoredTarget(dataclasses.replace(target.hypothesis, score=score), target.member_scores))
    return found
