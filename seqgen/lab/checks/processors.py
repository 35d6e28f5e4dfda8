"""Invariants of logits processors: what a call reads and changes, and that scores depend on the hypothesis alone."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from seqgen.generation.candidates import Candidates
from seqgen.generation.component import Component, Composite
from seqgen.generation.context import StepContext
from seqgen.generation.processors.base import LogitsProcessor
from seqgen.generation.search.base import Search
from seqgen.lab.checks.checking import Invariants, NotApplicableError, Violation
from seqgen.lab.checks.components import SHARED
from seqgen.lab.checks.decoding import LENGTHS, Decoding
from seqgen.lab.checks.search import same_hypotheses
from seqgen.structures import Hypothesis


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
        seen = _read(context)
        before = {name: tensor.clone() for name, tensor in seen.items()}
        state = {name: copy.deepcopy(value) for name, value in vars(processor).items() if isinstance(value, Tensor)}
        found = processor(lprobs.clone(), context)
        self._check_values(found, lprobs, context)
        for name, tensor in before.items():
            if not torch.equal(tensor, seen[name]):
                raise Violation(f"the processor changes context.{name} in place", step=context.step)
        for name, value in state.items():
            now = getattr(processor, name)
            if now.shape != value.shape or not torch.equal(now.nan_to_num(7.0), value.nan_to_num(7.0)):
                raise Violation(f"the call changes the state {type(processor).__name__}.{name}", step=context.step)
        kept: Tensor = found.clone()
        found.fill_(5.0)  # as a later processor may do
        again = processor(lprobs.clone(), context)
        if not torch.equal(again.nan_to_num(), kept.nan_to_num()):
            raise Violation("a second call with the same scores and context gives another result", step=context.step)
        return kept

    def _check_values(self, found: Tensor, lprobs: Tensor, context: StepContext) -> None:
        if not isinstance(found, Tensor) or found.shape != lprobs.shape:
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise Violation(f"the processor returns {shape} for scores {tuple(lprobs.shape)}", step=context.step)
        if found.dtype != lprobs.dtype:
            raise Violation(f"the processor returns {found.dtype} for scores in {lprobs.dtype}", step=context.step)
        wrong = (found.isnan() & ~lprobs.isnan()) | ((found == torch.inf) & (lprobs != torch.inf))
        if wrong.any():
            row, token = wrong.nonzero()[0].tolist()
            what = f"the score of token {token} becomes {found[row, token]}; before it was {lprobs[row, token]}"
            sentence, beam = divmod(row, context.rows_per_sentence)
            raise Violation(what, step=context.step, sentence=sentence, beam=beam)


def _read(context: StepContext) -> dict[str, Tensor]:
    """The tensors of a context that a processor may read."""
    sentences = context.sentences
    values = {
        "tokens": context.tokens,
        "scores": context.scores,
        "max_lengths": sentences.max_lengths,
        "sentence_ids": sentences.ids,
        "src_tokens": context.src_tokens,
        "src_padding": context.src_padding,
        "sentences.src_tokens": sentences.src_tokens,
        "sentences.src_padding": sentences.src_padding,
        "prefix_tokens": context.prefix_tokens,
    }
    return {name: value for name, value in values.items() if value is not None}


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
    if subject.generator().setup.search.adjusts_scores:
        raise NotApplicableError("the search strategy changes scores on purpose: adjusts_scores is set")
    results = subject.decode(subject.batch())
    pairs = [(row, hypothesis) for row, hypotheses in enumerate(results) for hypothesis in hypotheses]
    if not pairs:
        raise NotApplicableError("the processor allows no output")
    rows = [row for row, _ in pairs]
    longest = max(len(hypothesis.tokens) for _, hypothesis in pairs)
    targets = torch.full((len(pairs), longest + 1), subject.ids.eos)
    for place, (_, hypothesis) in enumerate(pairs):
        targets[place, : len(hypothesis.tokens)] = hypothesis.tokens
    options: dict[str, Any] = {"search": "", "components": subject.keys_without("search.")}
    again = subject.decode(subject.batch(rows), objects={"search_strategy": Replay(targets)}, **options)
    beams = [beam for hypotheses in results for beam in range(len(hypotheses))]
    for (row, wanted), found, beam in zip(pairs, again, beams, strict=True):
        _same_hypothesis(subject, found, wanted, row, beam)


def _same_hypothesis(subject: Decoding, found: Sequence[Hypothesis], wanted: Hypothesis, row: int, beam: int) -> None:
    what = "the scores of a hypothesis depend on the other beams, or not on its own tokens"
    if not found or not torch.equal(found[0].tokens, wanted.tokens):
        step = 0 if not found else min(len(found[0].tokens), len(wanted.tokens))
        raise Violation(f"{what}: alone it is forbidden", step=step, sentence=row, beam=beam)
    try:
        subject.same(wanted.positional_scores[None], found[0].positional_scores[None], what=what)
    except Violation as error:
        raise Violation(error.what, error.difference, error.step, row, beam) from None


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
        for name, value in _tensors_of(part).items():
            if not torch.equal(value, before[name]):
                raise Violation(f"a fork shares the state {type(part).__name__}.{name}")


def _tensors_of(part: Component) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in vars(part).items() if isinstance(value, Tensor)}


def other_vocabularies(subject: Decoding) -> None:
    """The processor works with a vocabulary of another size."""
    wide = subject.wide
    wide.decode(wide.batch(), beam=2, max_len=3)


def sampled_alone_equals_batched(subject: Decoding) -> None:
    """In sampling, whose beams are independent, a sentence alone gives the same result as in a batch."""
    options: dict[str, Any] = {"search": "sampling", "components": subject.keys_without("search.")}
    together = subject.decode(subject.batch(), **options)
    for row in range(len(LENGTHS)):
        alone = subject.decode(subject.batch([row]), **options)
        what = "sampling: the batch changes the result of a sentence"
        same_hypotheses(subject, together[row : row + 1], alone, what, row)


PROCESSOR: Invariants[Decoding] = {
    **SHARED,
    "calls change nothing else": calls_are_pure,
    "scores depend on the hypothesis": scores_depend_on_the_hypothesis_alone,
    "alone = in a batch, sampled": sampled_alone_equals_batched,
    "forks are independent": forks_are_independent,
    "vocabularies of other sizes": other_vocabularies,
}
"""The invariants of a logits processor."""
