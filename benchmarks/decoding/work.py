"""What is measured: works, and the toolkits that do them by turns."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.decoding.models import natural_lengths, random_sources
from benchmarks.decoding.process import Answering, WorkerError
from benchmarks.decoding.worker import Answer, Request

SEQGEN = "seqgen"
BEFORE = "seqgen (before)"


@dataclass(frozen=True)
class Work:
    """Sentences to decode.

    Attributes:
        model: name of what they are decoded with.
        sentences: how many.
        batch: how many at a time.
        beam: hypotheses of each; 1 is greedy.
        source: tokens of each, end-of-sentence included; 0 for lengths like those of Multi30k.
        length: tokens of each output, end-of-sentence included where there is one.
        semantics: of ``SequenceGenerator``.
    """

    model: str
    sentences: int
    batch: int
    beam: int
    source: int
    length: int
    semantics: str

    def request(self, vocabulary: int) -> Request:
        """What a worker is asked for, with random words of a vocabulary of this size."""
        if self.source:
            lengths = [self.source - 1] * self.sentences
        else:
            lengths = natural_lengths(self.sentences)
        eos = 1 if self.semantics == "huggingface" else 2
        wanted = {name: getattr(self, name) for name in ("batch", "beam", "length", "semantics")}
        return {"sources": random_sources(lengths, vocabulary, eos), **wanted}


@dataclass(frozen=True)
class Toolkit:
    """What does the work.

    Attributes:
        name: of the toolkit, or of the way it goes.
        format: dtype.
        worker: has the model.
        options: what its requests say besides.
        decodes: whether it has outputs to compare.
    """

    name: str
    format: str
    worker: Answering
    options: dict[str, Any] = field(default_factory=dict)
    decodes: bool = True


@dataclass
class Measured:
    """How a toolkit did a work.

    Attributes:
        work: the work.
        toolkit: name of the toolkit.
        format: dtype.
        seconds: of each batch, one list for each round.
        processor_seconds: of all threads, of each round.
        peak_bytes: the largest size of the process, weights included, of each round.
        used_bytes: the same less the size before the work, of each round.
        same: share of sentences whose best output is that of seqgen in float32.
        drift: how much lower the mean score of a token is than in seqgen's outputs in float32, both scored in float32.
        elsewhere: tokens a second that were measured on another machine, where nothing was measured here.
    """

    work: Work
    toolkit: str
    format: str
    seconds: list[list[float]] = field(default_factory=list)
    processor_seconds: list[float] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)
    used_bytes: list[int] = field(default_factory=list)
    same: float | None = None
    drift: float | None = None
    elsewhere: float | None = None

    def add(self, answer: Answer) -> None:
        """Take the figures of a round."""
        for name in ("seconds", "processor_seconds", "peak_bytes", "used_bytes"):
            getattr(self, name).append(answer[name])

    @property
    def tokens_per_second(self) -> float:
        """Of the best hypotheses; the median of the rounds."""
        if self.elsewhere is not None:
            return self.elsewhere
        return self.work.sentences * self.work.length / statistics.median(map(sum, self.seconds))

    @property
    def sentences_per_second(self) -> float:
        """The median of the rounds."""
        return self.tokens_per_second / self.work.length

    def latency(self, percent: int) -> float | None:
        """Seconds that so many percent of the sentences take at most, where they are decoded one at a time."""
        times = sorted(second for seconds in self.seconds for second in seconds)
        if self.work.batch > 1 or not times:
            return None
        return times[min(len(times) * percent // 100, len(times) - 1)]

    @property
    def bytes_per_hypothesis(self) -> float | None:
        """Memory that the work takes besides the weights, the encoder's included, for each row of the largest batch."""
        rows = min(self.work.batch, self.work.sentences) * self.work.beam
        return statistics.median(self.used_bytes) / rows if self.used_bytes else None

    def record(self) -> dict[str, Any]:
        """Everything, for JSON."""
        figures = {
            "tokens_per_second": self.tokens_per_second,
            "sentences_per_second": self.sentences_per_second,
            "p50_seconds": self.latency(50),
            "p95_seconds": self.latency(95),
            "bytes_per_hypothesis": self.bytes_per_hypothesis,
        }
        values = asdict(self)
        return {**values.pop("work"), **values, **figures}


TIE = 1e-4
"""Mean log-probabilities of a token that are as near as this are a tie."""


@dataclass
class Contest:
    """Toolkits that do the same works by turns, so that a slow moment of the machine meets all alike.

    Attributes:
        works: the works, which all have one model.
        toolkits: the first is seqgen in float32, which the outputs of the others are compared with.
        vocabulary: number of the vocabulary.
        disagreements: sentences on float32 outputs that differ by more than ties.
    """

    works: Sequence[Work]
    toolkits: Sequence[Toolkit]
    vocabulary: int
    disagreements: list[str] = field(default_factory=list)

    def run(self, rounds: int) -> list[Measured]:
        """Do all works so many times.

        Returns:
            The figures of each work by each toolkit; without those of a toolkit that failed.

        Raises:
            WorkerError: seqgen in float32 failed.
        """
        results = {work: [Measured(work, kit.name, kit.format) for kit in self.toolkits] for work in self.works}
        for kit in self.toolkits:  # what is slow only once
            self.ask(kit, self.works[0].request(self.vocabulary))
        for number in range(rounds):
            for work, measured in results.items():
                request = work.request(self.vocabulary)
                reference: Answer = {}
                pairs = list(zip(self.toolkits, measured, strict=True))
                for kit, one in pairs if number % 2 == 0 else reversed(pairs):  # no toolkit is always the first
                    if (answer := self.ask(kit, request)) is None:
                        continue
                    one.add(answer)
                    if number == 0 and kit.decodes:
                        reference = reference or {**answer, **self.score(request, answer["outputs"])}
                        self.compare(request, reference, answer["outputs"], one)
                print(
                    f"round {number + 1} of {rounds}: {describe(work)}: {so_far(measured)}", file=sys.stderr, flush=True
                )
        return [one for measured in results.values() for one in measured if one.seconds]

    def ask(self, kit: Toolkit, request: Request) -> Answer | None:
        """Let a toolkit work; one that fails is left out from then on, unless it is the first."""
        if kit.worker.failed:
            return None
        try:
            return kit.worker.answer({**request, **kit.options})
        except WorkerError as error:
            if kit.worker is self.toolkits[0].worker:
                raise
            kit.worker.failed = True
            print(f"{kit.name} in {kit.format} is left out from here: {error}", file=sys.stderr)
            return None

    def compare(self, request: Request, reference: Answer, outputs: list[list[int]], one: Measured) -> None:
        """Note how much of a toolkit's outputs is what seqgen writes in float32."""
        pairs = list(zip(reference["outputs"], outputs, strict=True))
        one.same, one.drift = sum(a == b for a, b in pairs) / len(pairs), 0.0
        if lengths := {len(output) for output in outputs} - {request["length"]}:
            self.disagreements.append(
                f"{one.toolkit} in {one.format}: {describe(one.work)}: outputs have {sorted(lengths)[0]} tokens"
            )
        if one.same == 1:
            return
        theirs = self.score(request, outputs)["scores"]
        losses = [a - b for a, b in zip(reference["scores"], theirs, strict=True)]
        one.drift = statistics.mean(losses)
        if one.format == "float32" and (worst := max(map(abs, losses))) > TIE:
            self.disagreements.append(
                f"{one.toolkit} does not agree with seqgen in float32: {describe(one.work)}: {one.same:.1%} of the "
                f"outputs are the same, and the scores of a token differ by up to {worst:.1e}, which is no tie"
            )
            print(self.disagreements[-1], file=sys.stderr)

    def score(self, request: Request, outputs: list[list[int]]) -> Answer:
        """The mean log-probability of a token of each output, by seqgen in float32."""
        return self.toolkits[0].worker.answer({**request, "outputs": outputs})


def so_far(measured: Sequence[Measured]) -> str:
    """The tokens a second of all, in words, for those who do not want to wait for the table."""
    return ", ".join(f"{one.toolkit} {one.format} {one.tokens_per_second:.0f}" for one in measured if one.seconds)


def describe(work: Work) -> str:
    """A work in words."""
    search = f"beam {work.beam}" if work.beam > 1 else "greedy"
    source = f"source {work.source}, " if work.source else ""
    return f"{work.model}, {work.sentences} sentences by {work.batch}, {search}, {source}{work.length} tokens"
