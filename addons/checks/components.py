"""Invariants of every decoding component, and those of processors, combinations, stopping rules and observers.

Batching, optimizations and the component's state change nothing.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad as pad_columns

from seqgen.addons.checks import search
from seqgen.addons.checks.checking import Invariants, NotApplicableError, Violation, at, needs, require
from seqgen.addons.checks.search import same_hypotheses
from seqgen.addons.checks.subject import SOURCES, Decoding
from seqgen.config import FastConfig
from seqgen.extend import (
    Batch,
    Candidates,
    Combination,
    Component,
    Composite,
    DecodingError,
    Hypothesis,
    LogitsProcessor,
    Scores,
    Search,
    Session,
    StepContext,
    apply_all,
    combine,
    generate_continuously,
    pad_rows,
    rows_of_parents,
    rows_of_sentences,
)

WITHOUT_EFFECT = {"two_stage_candidates", "continuous_batching"}
"""Optimizations that the small decodes do not use: ``blocks_change_nothing`` and ``joining_changes_nothing`` do."""

SWITCHES = [field.name for field in fields(FastConfig) if field.name not in WITHOUT_EFFECT]
"""Each other optimization of decoding."""


def decodes_are_repeatable(subject: Decoding) -> None:
    """A second decode gives the same result, also after another batch was decoded with the same generator."""
    generator, batch = subject.generator(), subject.batch()
    phrases = subject.phrases(generator.setup, batch)
    first = generator.generate(batch, None, phrases)
    again = generator.generate(batch, None, phrases)
    same_hypotheses(subject, again, first, "a second decode of the same batch differs")
    other = subject.batch(lengths=[3, 6, 4], seed=2)
    generator.generate(other, None, subject.phrases(generator.setup, other))
    again = generator.generate(batch, None, phrases)
    same_hypotheses(subject, again, first, "a decode after that of another batch differs")


def alone_equals_batched(subject: Decoding) -> None:
    """A sentence alone gives the same result as in a batch, in any order of sentences and with a given prefix."""
    search.alone_equals_batched(subject)
    search.alone_equals_batched(subject, order=[3, 0, 4, 2, 1], prefix=True)


def blocks_change_nothing(subject: Decoding) -> None:
    """The component works with a vocabulary of another size, and searching it in blocks changes nothing."""
    wide = subject.wide
    options: dict[str, Any] = {"beam": min(2, subject.generation.beam), "max_len": 3}
    try:
        wide.decode(wide.batch(), **options)
    except DecodingError as error:
        raise NotApplicableError(f"the decode ends with an error: {error}") from None
    search.off_changes_nothing(wide, ["two_stage_candidates"], [options])


def joining_changes_nothing(subject: Decoding) -> None:
    """Sentences that join a running batch give the same result."""
    generator = subject.generator(max_len_a=0.75, max_len_b=1, max_len=9)  # sentences end at different steps
    needs(generator.can_merge, f"sentences cannot join a running batch (can_merge): {generator.setup.merge_obstacle}")
    lengths = [*SOURCES, *SOURCES, *SOURCES[:2]]
    waiting = list(range(len(lengths)))

    def take(running: int, width: int) -> Batch | None:
        taken, waiting[: 4 - running] = waiting[: 4 - running], []
        return subject.batch(taken, lengths) if taken else None

    usual = generator.generate(subject.batch(lengths=lengths))
    found: dict[int, list[Hypothesis]] = dict(generate_continuously(generator, take))
    joined = [found[row] for row in range(len(lengths))]
    same_hypotheses(subject, joined, usual, "joining a running batch changes the result of a sentence")


def two_decodes_at_a_time(subject: Decoding) -> None:
    """Two batches whose steps alternate give the same results as one after the other."""
    batches = [subject.batch(), subject.batch(lengths=[3, 6, 4], seed=2)]
    usual = [subject.decode(batch) for batch in batches]
    generator = subject.generator()
    sessions = [subject.session(batch, generator.setup) for batch in batches]
    with torch.inference_mode():
        running = list(sessions)
        while running:
            running = [session for session in running if session.step()]
    for session, wanted in zip(sessions, usual, strict=True):
        session.collect_all()
        same_hypotheses(subject, session.results, wanted, "another decode at the same time changes the result")


def holds_in_an_ensemble(subject: Decoding) -> None:
    """With an ensemble of two different models, neither the batch nor the optimizations change a result."""
    if subject.build is None:
        raise NotApplicableError("the models are trained; path=[RUN,RUN] decodes with an ensemble")
    subject.models = [subject.build(subject.dictionary, seed) for seed in (0, 1)]
    search.alone_equals_batched(subject)
    plain = subject.decode(subject.batch(), fast=FastConfig.off(*SWITCHES))
    what = "an ensemble of two models gives another result without optimizations"
    same_hypotheses(subject, subject.decode(subject.batch()), plain, what)
    with suppress(NotApplicableError):
        joining_changes_nothing(subject)


def state_follows_the_beams(subject: Decoding) -> None:
    """``advance`` reorders the rows that the component keeps, in tensors or in Python: reordering them before is equal.

    A row of a tensor ``(sentences, beam, ...)``, a list or a dict belongs to a beam.
    """
    found = False
    for part, (live, beam), shapes in _after_some_steps(subject):
        names = [name for name, sizes in shapes.items() if len(sizes) == 2 and name not in part.sentence_state]
        found |= bool(names)
        parents = (torch.arange(beam) + 1).remainder(beam).expand(live, -1).contiguous()
        parents = parents.where(torch.arange(live).unsqueeze(1) % 2 == 0, 0)  # others all continue one beam
        tokens = (subject.ids.words[0] + torch.arange(live * beam).view(live, beam) % 5).clamp(max=subject.ids.word(4))
        scores = -torch.arange(live * beam, dtype=torch.float64).view(live, beam)
        moved, wanted = copy.deepcopy(part), copy.deepcopy(part)
        rows = rows_of_parents(parents).tolist()
        for name in names:
            setattr(wanted, name, _select(getattr(wanted, name), rows, shapes[name]))
        moved.advance(Candidates(scores, tokens, parents))
        unmoved = torch.arange(beam).expand(live, -1).contiguous()
        wanted.advance(Candidates(scores, tokens, unmoved))
        _same_state(subject, moved, {name: getattr(wanted, name) for name in names}, "advance does not reorder")
    needs(found, "it keeps nothing for each beam")


def state_of_sentences_that_leave(subject: Decoding) -> None:
    """``select_sentences`` keeps the rows of the remaining sentences, in tensors and in Python."""
    for part, (live, beam), shapes in _after_some_steps(subject):
        keep = torch.tensor([live - 1, 0])
        rows = {1: keep.tolist(), 2: rows_of_sentences(keep, beam).tolist()}
        wanted = {name: _select(getattr(part, name), rows[len(sizes)], sizes) for name, sizes in shapes.items()}
        part.select_sentences(keep)
        _same_state(subject, part, wanted, "select_sentences does not drop the rows of")


def _after_some_steps(subject: Decoding) -> list[tuple[Component, tuple[int, int], dict[str, tuple[int, ...]]]]:
    """The parts of the component that keep rows of the batch after three steps.

    Returns:
        The part, the numbers of live sentences and beams, and by attribute these numbers, or that of the sentences.

    Raises:
        NotApplicableError: there are none.
    """
    session: Session = subject.session(subject.batch(), end_symbols=[], min_len=6)
    settings = [value for part in subject.parts(session.setup) for value in vars(part).values()]
    before = {id(value): isinstance(value, Tensor) or repr(value) for value in settings}
    with torch.inference_mode():
        continues = all(session.step() for _ in range(3))
    needs(continues, "all outputs end within three steps")
    sizes, found = (len(session.live), session.beam), list[Any]()
    for part in subject.parts(session):
        own = {name: value for name, value in vars(part).items() if before.get(id(value)) not in (True, repr(value))}
        shapes = {name: size for size in (sizes[:1], sizes) for name, value in own.items() if _has_rows(value, size)}
        found += [(part, sizes, shapes)] if shapes and sizes[0] > 1 else []
    needs(found, "it keeps nothing of the batch")
    return found


def _has_rows(value: Any, sizes: tuple[int, ...]) -> bool:
    """True if a tensor has these first dimensions, or a list or dict of Python an item for each of their rows."""
    if isinstance(value, Tensor):
        return value.shape[: len(sizes)] == sizes
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return set(keys) == set(range(math.prod(sizes))) and copy.deepcopy(value) == value


def _select(value: Any, rows: Sequence[int], sizes: tuple[int, ...]) -> Any:
    """Copies of some rows of a value of which ``_has_rows`` is true."""
    if isinstance(value, Tensor):
        return value.flatten(0, len(sizes) - 1)[rows].unflatten(0, (-1, *sizes[1:]))
    items = [copy.deepcopy(value[row]) for row in rows]
    return items if isinstance(value, list) else dict(enumerate(items))


def _same_state(subject: Decoding, part: Component, wanted: Mapping[str, Any], what: str) -> None:
    for name, value in wanted.items():
        got, described = getattr(part, name), f"{what} {type(part).__name__}.{name}"
        if not isinstance(value, Tensor):
            require(len(got) == len(value), f"{described}: it has {len(got)} items and should have {len(value)}")
            for row in range(len(value)):
                what = f"{described}: item {row} is {got[row]!r:.99} and should be {value[row]!r:.99}"
                require(got[row] == value[row], what)
        ours, theirs = (one.double().nan_to_num(7.0).reshape(len(one), -1) for one in (got, value))
        with at(step=None, beam=None):
            subject.same(ours, theirs, what=described)


SHARED: Invariants[Decoding] = {
    "decodes are repeatable": decodes_are_repeatable,
    "alone = in a batch": alone_equals_batched,
    "optimized = not optimized": partial(search.off_changes_nothing, names=SWITCHES),
    "blocks of the vocabulary": blocks_change_nothing,
    "joining = one batch": joining_changes_nothing,
    "two decodes at a time": two_decodes_at_a_time,
    "[m, m] = m": partial(search.ensemble_of_itself, what="an ensemble of a model with itself differs from the model"),
    "ensemble of two models": holds_in_an_ensemble,
    "state follows the beams": state_follows_the_beams,
    "state of sentences that leave": state_of_sentences_that_leave,
}
"""The invariants of every kind of decoding component; a stopping rule has no others."""


class CombinationProbe(Composite, Combination):
    """Calls a combination, and checks that it leaves the members' scores as they are.

    Args:
        combination: the combination.
    """

    def __init__(self, combination: Combination):
        self.parts = [combination]
        self.totals: list[Tensor] = []

    def __call__(self, lprobs: Sequence[Tensor], context: StepContext | None) -> Tensor:
        """See ``Combination``."""
        before = [scores.clone() for scores in lprobs]
        found = combine(self.parts[0], lprobs, context)
        for member, (scores, kept) in enumerate(zip(lprobs, before, strict=True)):
            what = f"the combination changes lprobs[{member}], the scores of a member, in place"
            require(torch.equal(scores, kept), what)
        self.totals.append(found.exp().sum(-1))
        return found

    def attention_weights(self, members: int) -> list[float]:
        """The weights of the combination."""
        weights: list[float] = self.parts[0].attention_weights(members)
        return weights


def calls_change_no_scores(subject: Decoding) -> CombinationProbe:
    """A call does not change the members' scores."""
    probe = CombinationProbe(subject.generator().setup.ensemble.combination)
    others = subject.keys_without("combination.")
    options: dict[str, Any] = {"combination": "", "components": others}
    subject.decode(subject.batch(), objects={"combination": probe}, **options)
    return probe


def scores_sum_to_one(subject: Decoding) -> None:
    """The probabilities of a step sum to one. Others are allowed, and are told as a reason."""
    probe = calls_change_no_scores(subject)
    least, most = torch.cat(probe.totals).aminmax()
    what = f"{type(probe.parts[0]).__name__}.__call__ gives probabilities that sum to {least:.3g} to {most:.3g}; "
    what += "this is allowed, but above 1 a longer output gains, below 1 a shorter one"
    needs(1 - 1e-6 < least <= most < 1 + 1e-6, what)


def observing_changes_nothing(subject: Decoding) -> None:
    """A decode without the observer gives the same result."""
    observed, alone = (subject.decode(subject.batch(), **options) for options in ({}, subject.without))
    same_hypotheses(subject, observed, alone, "the observer changes the result")


OF_ONE_MODEL = {"[m, m] = m", "ensemble of two models"}
"""Invariants that begin with a single model."""

COMBINATION: Invariants[Decoding] = {
    **{name: invariant for name, invariant in SHARED.items() if name not in OF_ONE_MODEL},
    "scorer = generator": partial(search.scorer_equals_generator, min_len=0, end_symbols=[]),
    "calls change nothing else": calls_change_no_scores,
    "probabilities sum to one": scores_sum_to_one,
}
"""The invariants of a combination, with two models."""

OBSERVER: Invariants[Decoding] = {**SHARED, "observed = not observed": observing_changes_nothing}
"""The invariants of an observer."""


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
        before = {name: tensor.clone() for name, tensor in seen.items()}
        with at(step=context.step):
            found = apply_all([processor], lprobs.clone(), context)
            self._check_values(found, lprobs, context)
            for name, tensor in before.items():
                require(torch.equal(tensor, seen[name]), f"the processor changes context.{name} in place")
            kept: Tensor = found.clone()
            found.fill_(5.0)  # as a later processor may do
            again = apply_all([processor], lprobs.clone(), context)
            same = torch.equal(again.nan_to_num(), kept.nan_to_num())
            require(same, "a second call with the same scores and context gives another result")
        return kept

    def _check_values(self, found: Tensor, lprobs: Tensor, context: StepContext) -> None:
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


def calls_are_pure(subject: Decoding) -> None:
    """A call returns finite scores or ``-inf`` of the same shape and dtype, and changes neither context nor state."""
    parts = subject.parts(subject.generator().setup)
    processors = [part for part in parts if isinstance(part, LogitsProcessor)]
    for dtype in (torch.float64, torch.float32):
        subject.models = [model.to(dtype) for model in subject.models]
        try:
            probes = [Probe(processor) for processor in processors]
            for min_len in (0, 3):  # end-of-sentence is forbidden before
                without: dict[str, Any] = {**subject.without, "min_len": min_len}
                subject.decode(subject.batch(), objects={"processors": probes}, **without)
        finally:
            subject.models = [model.double() for model in subject.models]


class Replay(Search):
    """Generates given outputs, one for each sentence, and keeps their scores.

    Args:
        targets: ``(sentences, T)`` int64, padded with end-of-sentence.
        continues_each_beam: whether scores are computed as for strategies whose beams are independent.
    """

    sentence_state = ("targets",)

    def __init__(self, targets: Tensor, continues_each_beam: bool = False):
        self.targets, self.continues_each_beam = targets, continues_each_beam

    def rows(self, beam: int) -> int:
        """One, whatever the beam of the configuration."""
        return 1

    def step(self, context: StepContext, scores: Scores) -> Candidates:
        """See ``Search.step``; one candidate."""
        tokens = self.targets[:, context.step : context.step + 1]
        lprobs = scores.distribution() if self.continues_each_beam else scores.lprobs()
        totals = scores.beams + lprobs[:, 0].gather(1, tokens)
        return Candidates(totals, tokens, torch.zeros_like(tokens)).padded(1 if self.continues_each_beam else 2)


def scores_depend_on_the_hypothesis_alone(subject: Decoding) -> None:
    """Generating each hypothesis again, without other beams, gives the same scores."""
    strategy = subject.generator().setup.search
    needs(not strategy.changes_scores, "the search strategy changes scores on purpose: changes_scores is set")
    results = subject.decode(subject.batch())
    places = [(row, beam) for row, hypotheses in enumerate(results) for beam in range(len(hypotheses))]
    needs(places, "the processor allows no output")
    outputs = [results[row][beam].tokens for row, beam in places]
    targets = pad_columns(pad_rows(outputs, subject.ids.eos), (0, 1), value=subject.ids.eos)
    options: dict[str, Any] = {"search": "", "components": subject.keys_without("search.")}
    batch = subject.batch([row for row, _ in places])
    again = subject.decode(batch, objects={"search_strategy": Replay(targets, strategy.continues_each_beam)}, **options)
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
    for part, sizes, shapes in _after_some_steps(subject):
        parents = torch.zeros(sizes, dtype=torch.int64)
        before = {name: copy.deepcopy(getattr(part, name)) for name in shapes}
        part.fork().advance(Candidates(torch.zeros(sizes), parents + subject.ids.word(1), parents))
        _same_state(subject, part, before, "a fork shares the state")


def sampled_alone_equals_batched(subject: Decoding) -> None:
    """In sampling, whose beams are independent, a sentence alone gives the same result as in a batch."""
    options: dict[str, Any] = {"search": "sampling", "components": subject.keys_without("search.")}
    search.alone_equals_batched(subject, "sampling: the batch changes the result of a sentence", **options)


PROCESSOR: Invariants[Decoding] = {
    **SHARED,
    "calls change nothing else": calls_are_pure,
    "scores depend on the hypothesis": scores_depend_on_the_hypothesis_alone,
    "alone = in a batch, sampled": sampled_alone_equals_batched,
    "forks are independent": forks_are_independent,
}
"""The invariants of a logits processor."""
