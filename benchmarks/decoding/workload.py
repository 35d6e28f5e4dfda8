"""Workloads, and the comparison of toolkits that decode them."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.decoding.models import natural_lengths, random_sources
from benchmarks.decoding.process import WorkerError, WorkerHandle
from benchmarks.decoding.worker import Answer, Request

SEQGEN = "seqgen"
BEFORE = "seqgen (before)"


@dataclass(frozen=True)
class Workload:
    """Sentences to decode, and how.

    Attributes:
        model: name of the model.
        sentences: number of sentences.
        batch: number of sentences in a batch.
        beam: beam size; 1 is greedy search.
        source: tokens of each source, including end-of-sentence; 0 for lengths like those of Multi30k.
        length: tokens of each output, including end-of-sentence if it has one.
        semantics: ``generation.semantics``.
        eos: id of end-of-sentence; ``None`` for that of T5 or, with fairseq's semantics, of fairseq.
    """

    model: str
    sentences: int
    batch: int
    beam: int
    source: int
    length: int
    semantics: str
    eos: int | None = None

    def request(self, vocabulary: int) -> Request:
        """The request to a worker, with random sources from a vocabulary of this size."""
        if self.source:
            lengths = [self.source - 1] * self.sentences
        else:
            lengths = natural_lengths(self.sentences)
        eos = (1 if self.semantics == "huggingface" else 2) if self.eos is None else self.eos
        wanted = {name: getattr(self, name) for name in ("batch", "beam", "length", "semantics")}
        return {"sources": random_sources(lengths, vocabulary, eos), **wanted}


@dataclass(frozen=True)
class Toolkit:
    """A toolkit that decodes workloads.

    Attributes:
        name: name of the toolkit or its variant.
        format: dtype.
        worker: the process that has loaded the model.
        options: entries that are added to each request to this toolkit.
        decodes: whether it decodes, so that its outputs are compared; false if it only runs matrix products.
    """

    name: str
    format: str
    worker: WorkerHandle
    options: dict[str, Any] = field(default_factory=dict)
    decodes: bool = True


@dataclass
class Measured:
    """The figures of one toolkit for one workload.

    Attributes:
        workload: what was decoded.
        toolkit: name of the toolkit.
        format: dtype.
        seconds: wall time of each batch, one list for each round.
        processor_seconds: CPU time of all threads, for each round.
        peak_bytes: peak memory of the process including weights, for each round.
        used_bytes: peak memory minus the memory before the workload, for each round.
        same: fraction of sentences whose best output equals that of seqgen in float32.
        drift: mean log-probability per token of the reference outputs (seqgen in float32), minus that of these
            outputs; seqgen computes both in float32.
    """

    workload: Workload
    toolkit: str
    format: str
    seconds: list[list[float]] = field(default_factory=list)
    processor_seconds: list[float] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)
    used_bytes: list[int] = field(default_factory=list)
    same: float | None = None
    drift: float | None = None

    def add(self, answer: Answer) -> None:
        """Add the figures of a round."""
        for name in ("seconds", "processor_seconds", "peak_bytes", "used_bytes"):
            getattr(self, name).append(answer[name])

    @property
    def tokens_per_second(self) -> float:
        """Tokens of the best hypotheses per second; the median over the rounds."""
        return self.workload.sentences * self.workload.length / statistics.median(map(sum, self.seconds))

    @property
    def sentences_per_second(self) -> float:
        """Sentences per second; the median over the rounds."""
        return self.tokens_per_second / self.workload.length

    def latency(self, percent: int) -> float | None:
        """Percentile of the seconds per sentence; ``None`` unless sentences are decoded one at a time."""
        times = sorted(second for seconds in self.seconds for second in seconds)
        if self.workload.batch > 1 or not times:
            return None
        return times[min(len(times) * percent // 100, len(times) - 1)]

    @property
    def bytes_per_hypothesis(self) -> float | None:
        """Memory without weights, divided by the rows (hypotheses) of a full batch; the median over the rounds."""
        rows = min(self.workload.batch, self.workload.sentences) * self.workload.beam
        return statistics.median(self.used_bytes) / rows if self.used_bytes else None

    def record(self) -> dict[str, Any]:
        """All figures, for JSON."""
        figures = {
            "tokens_per_second": self.tokens_per_second,
            "sentences_per_second": self.sentences_per_second,
            "p50_seconds": self.latency(50),
            "p95_seconds": self.latency(95),
            "bytes_per_hypothesis": self.bytes_per_hypothesis,
        }
        values = asdict(self)
        return {**values.pop("workload"), **values, **figures}


@dataclass(frozen=True)
class Shares:
    """The share of each part of seqgen in the time of a workload.

    Attributes:
        workload: what was decoded.
        toolkit: name of the variant of seqgen.
        format: dtype.
        parts: the share of each part, between 0 and 1; empty if the toolkit failed.
    """

    workload: Workload
    toolkit: str
    format: str
    parts: dict[str, float]


TIE = 1e-4
"""Two outputs tie if their mean log-probabilities per token differ by at most this many nats."""


@dataclass
class Comparison:
    """Compares toolkits that decode the same workloads.

    In each round, all toolkits run one workload before the next begins, so that slow phases of the machine affect all
    of them; every other round runs them in the reverse order.

    Attributes:
        workloads: the workloads, all for one model.
        toolkits: the toolkits; the first is the reference, seqgen in float32.
        vocabulary: vocabulary size.
        disagreements: messages about outputs of a wrong length, and about float32 outputs whose scores differ from
            those of the reference by more than ``TIE``.
    """

    workloads: Sequence[Workload]
    toolkits: Sequence[Toolkit]
    vocabulary: int
    disagreements: list[str] = field(default_factory=list)

    def run(self, rounds: int) -> list[Measured]:
        """Run all workloads.

        Args:
            rounds: number of measurements of each workload by each toolkit.

        Returns:
            The figures of each workload by each toolkit, except toolkits that failed at their first request.

        Raises:
            WorkerError: seqgen in float32 failed.
        """
        results = {load: [Measured(load, kit.name, kit.format) for kit in self.toolkits] for load in self.workloads}
        for kit in self.toolkits:  # warm-up
            self.ask(kit, self.workloads[0].request(self.vocabulary))
        for number in range(rounds):
            for load, measured in results.items():
                request = load.request(self.vocabulary)
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
                    f"round {number + 1} of {rounds}: {describe(load)}: {so_far(measured)}", file=sys.stderr, flush=True
                )
        return [one for measured in results.values() for one in measured if one.seconds]

    def shares(self, rounds: int) -> list[Shares]:
        """Decode again with seqgen and measure its parts; see ``step_times``.

        Args:
            rounds: number of measurements; the median of each share counts.
        """
        found = []
        for load in self.workloads:
            request = {**load.request(self.vocabulary), "shares": True}
            for kit in self.toolkits:
                if kit.name.split(", ")[0] == SEQGEN:
                    answers = [answer for _ in range(rounds) if (answer := self.ask(kit, request)) is not None]
                    parts = {
                        part: statistics.median(answer["shares"][part] for answer in answers)
                        for part in (answers[0]["shares"] if answers else ())
                    }
                    found.append(Shares(load, kit.name, kit.format, parts))
        return found

    def ask(self, kit: Toolkit, request: Request) -> Answer | None:
        """Send a request to a toolkit. A toolkit that fails is not used again; a failure of the reference is raised."""
        if kit.worker.failed:
            return None
        try:
            return kit.worker.answer({**request, **kit.options})
        except WorkerError as error:
            if kit.worker is self.toolkits[0].worker:
                raise
            kit.worker.failed = True
            print(f"{kit.name} in {kit.format} failed and is not used again: {error}", file=sys.stderr)
            return None

    def compare(self, request: Request, reference: Answer, outputs: list[list[int]], one: Measured) -> None:
        """Compare a toolkit's outputs with those of seqgen in float32; sets ``same`` and ``drift``."""
        pairs = list(zip(reference["outputs"], outputs, strict=True))
        one.same, one.drift = sum(a == b for a, b in pairs) / len(pairs), 0.0
        if lengths := {len(output) for output in outputs} - {request["length"]}:
            self.disagreements.append(
                f"{one.toolkit} in {one.format}: {describe(one.workload)}: outputs have {sorted(lengths)[0]} tokens"
            )
        if one.same == 1:
            return
        theirs = self.score(request, outputs)["scores"]
        losses = [a - b for a, b in zip(reference["scores"], theirs, strict=True)]
        one.drift = statistics.mean(losses)
        if one.format == "float32" and (worst := max(map(abs, losses))) > TIE:
            self.disagreements.append(
                f"{one.toolkit} does not agree with seqgen in float32: {describe(one.workload)}: {one.same:.1%} of the "
                f"outputs are the same, and scores per token differ by up to {worst:.1e}, more than {TIE:.0e}"
            )
            print(self.disagreements[-1], file=sys.stderr)

    def score(self, request: Request, outputs: list[list[int]]) -> Answer:
        """The mean log-probability per token of each output, computed by seqgen in float32."""
        return self.toolkits[0].worker.answer({**request, "outputs": outputs})


def so_far(measured: Sequence[Measured]) -> str:
    """The speeds so far of all toolkits for one workload, in one line."""
    return ", ".join(f"{one.toolkit} {one.format} {one.tokens_per_second:.0f}" for one in measured if one.seconds)


def describe(workload: Workload) -> str:
    """A workload in words."""
    search = f"beam {workload.beam}" if workload.beam > 1 else "greedy"
    source = f"source {workload.source}, " if workload.source else ""
    batches = f"{workload.sentences} sentences in batches of {workload.batch}"
    return f"{workload.model}, {batches}, {search}, {source}{workload.length} tokens"
