"""Invariants of logits processors: what a call reads and changes, and that scores depend on the hypothesis alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad as pad_columns

from seqgen.data.pair_dataset import pad_rows
from seqgen.generation.candidates import Candidates
from seqgen.generation.component import Component, Composite
from seqgen.generation.context import StepContext
from seqgen.generation.processors.base import LogitsProcessor
from seqgen.generation.search.base import Search
from seqgen.lab.checks.checking import Invariants, Violation, at, needs, require
from seqgen.lab.checks.components import SHARED
from seqgen.lab.checks.decoding import Decoding
from seqgen.lab.checks.search import alone_equals_batched


class Probe(Composite, LogitsProcessor):
    """Calls a processor, and checks each call.

    Args:
        processor: the processor.
    """

    def __init__(self, processor: LogitsProcessor):
        self.parts = [processor]

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        (processor,) = self.parts
        seen = {name: value for name in READ if (value := attrgetter(name)(context)) is not None}
        before, state = {name: tensor.clone() for name, tensor in seen.items()}, _tensors_of(processor)
        with at(step=context.step):
            found = processor(lprobs.clone(), context)
            self._check_values(found, lprobs, context)
            for name, tensor in before.items():
                require(torch.equal(tensor, seen[name]), f"the processor changes context.{name} in place")
            _check_state(processor, state, "the call changes the state")
            kept: Tensor = found.clone()
            found.fill_(5.0)  # as a later processor may do
            again = processor(lprobs.clone(), context)
            same = torch.equal(again.nan_to_num(), kept.nan_to_num())
            require(same, "a second call with the same scores and context gives another result")
        return kept

    def _check_values(self, found: Tensor, lprobs: Tensor, context: StepContext) -> None:
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        require(shape == tuple(lprobs.shape), f"the processor returns {shape} for scores {tuple(lprobs.shape)}")
        what = f"the processor returns {found.dtype} for scores in {lprobs.dtype}"
        require(found.dtype == lprobs.dtype, what)
        wrong = (found.isnan() & ~lprobs.isnan()) | ((found == torch.inf) & (lprobs != torch.inf))
        for row, token in wrong.nonzero().tolist():
            what = f"the score of token {token} becomes {found[row, token]}; before it was {lprobs[row, token]}"
            sentence, beam = divmod(row, context.rows_per_sentence)
            raise Violation(what, sentence=sentence, beam=beam)


READ = (
    *("tokens", "scores", "sentences.max_lengths", "sentences.ids", "src_tokens", "src_padding"),
    *("sentences.src_tokens", "sentences.src_padding", "prefix_tokens"),
)
"""The tensors of a context that a processor may read."""


def _tensors_of(part: Component) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in vars(part).items() if isinstance(value, Tensor)}


def _check_state(part: Component, before: Mapping[str, Tensor], what: str) -> None:
    """A component has the same tensors as before."""
    for name, value in before.items():
        same = torch.equal(getattr(part, name).nan_to_num(7.0), value.nan_to_num(7.0))
        require(same, f"{what} {type(part).__name__}.{name}")


def calls_are_pure(subject: Decoding) -> None:
    """A call returns finite scores or ``-inf`` of the same shape and dtype, and changes neither context nor state."""
    processors = _own(subject)
    for dtype in (torch.float64, torch.float32):
        subject.models = [model.to(dtype) for model in subject.models]
        try:
            probes = [Probe(processor) for processor in processors]
            for min_len in (0, 3):  # end-of-sentence is forbidden before
                without: dict[str, Any] = {**subject.without, "min_len": min_len}
                subject.decode(subject.batch(), objects={"processors": probes}, **without)
        finally:
            subject.models = [model.double() for model in subject.models]


def _own(subject: Decoding) -> Sequence[LogitsProcessor]:
    """The processors of the subject."""
    found = subject.parts(subject.generator().setup)
    return [part for part in found if isinstance(part, LogitsProcessor)]


class Replay(Search):
    """Generates given outputs, one for each sentence, and keeps their scores.

    Args:
        targets: ``(sentences, T)`` int64, padded with end-of-sentence.
    """

    sentence_state = ("targets",)

    def __init__(self, targets: Tensor):
        self.targets = targets

    def rows(self, beam: int) -> int:
        """One, whatever the beam of the configuration."""
        return 1

    def step(self, context: StepContext, lprobs: Tensor, scores: Tensor) -> Candidates:
        """See ``Search.step``; one candidate."""
        tokens = self.targets[:, context.step : context.step + 1]
        totals = scores + lprobs[:, 0].gather(1, tokens)
        return Candidates(totals, tokens, torch.zeros_like(tokens)).padded(2)


def scores_depend_on_the_hypothesis_alone(subject: Decoding) -> None:
    """Generating each hypothesis again, without other beams, gives the same scores."""
    adjusts = subject.generator().setup.search.adjusts_scores
    needs(not adjusts, "the search strategy changes scores on purpose: adjusts_scores is set")
    results = subject.decode(subject.batch())
    places = [(row, beam) for row, hypotheses in enumerate(results) for beam in range(len(hypotheses))]
    needs(places, "the processor allows no output")
    outputs = [results[row][beam].tokens for row, beam in places]
    targets = pad_columns(pad_rows(outputs, subject.ids.eos), (0, 1), value=subject.ids.eos)
    options: dict[str, Any] = {"search": "", "components": subject.keys_without("search.")}
    batch = subject.batch([row for row, _ in places])
    again = subject.decode(batch, objects={"search_strategy": Replay(targets)}, **options)
    what = "the scores of a hypothesis depend on the other beams, or not on its own tokens"
    for (row, beam), found in zip(places, again, strict=True):
        wanted = results[row][beam]
        with at(sentence=row, beam=beam):
            step = 0 if not found else min(len(found[0].tokens), len(wanted.tokens))
            same = found and torch.equal(found[0].tokens, wanted.tokens)
            require(same, f"{what}: alone it is forbidden", step)
            subject.same(wanted.positional_scores[None], found[0].positional_scores[None], what=what)


def forks_are_independent(subject: Decoding) -> None:
    """A fork has its own state: what happens to it does not change the original."""
    session = subject.session(subject.batch(), end_symbols=[], min_len=5)
    with torch.inference_mode():
        for _ in range(2):
            session.step()
    live, beam = len(session.live), session.beam
    parents = torch.zeros(live, beam, dtype=torch.int64)
    active = Candidates(torch.zeros(live, beam), parents + subject.ids.words[0] + 1, parents)
    for part in subject.parts(session):
        before = _tensors_of(part)
        part.fork().advance(active)
        _check_state(part, before, "a fork shares the state")


def other_vocabularies(subject: Decoding) -> None:
    """The processor works with a vocabulary of another size."""
    wide = subject.wide
    wide.decode(wide.batch(), beam=2, max_len=3)


def sampled_alone_equals_batched(subject: Decoding) -> None:
    """In sampling, whose beams are independent, a sentence alone gives the same result as in a batch."""
    options: dict[str, Any] = {"search": "sampling", "components": subject.keys_without("search.")}
    alone_equals_batched(subject, "sampling: the batch changes the result of a sentence", **options)


PROCESSOR: Invariants[Decoding] = {
    **SHARED,
    "calls change nothing else": calls_are_pure,
    "scores depend on the hypothesis": scores_depend_on_the_hypothesis_alone,
    "alone = in a batch, sampled": sampled_alone_equals_batched,
    "forks are independent": forks_are_independent,
    "vocabularies of other sizes": other_vocabularies,
}
"""The invariants of a logits processor."""
