"""Invariants of search strategies: their candidates and their hypotheses."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from seqgen.addons.checks.checking import Invariants, Violation, at, holds, needs, require
from seqgen.addons.checks.components import SHARED, scores_depend_on_the_hypothesis_alone
from seqgen.addons.checks.search import same_hypotheses
from seqgen.addons.checks.subject import LONGEST, Decoding
from seqgen.extend import (
    Batch,
    Candidates,
    DecodingError,
    DecodingSetup,
    Hypothesis,
    LogitsProcessor,
    Scores,
    Session,
    StepContext,
    choose_candidates,
)


class _CheckedSession(Session):
    """A session that checks the candidates of each step before it uses them."""

    def choose(self, context: StepContext, scores: Scores) -> Candidates:
        """See ``Session.choose``."""
        found = choose_candidates(self.search, context, scores)
        _check_candidates(found, scores, self, context.step)
        return replace(found, scores=found.scores.masked_fill(self.sentences.done.unsqueeze(1), -torch.inf))


def candidates_are_continuations(subject: Decoding) -> None:
    """Each candidate continues an existing beam of its own sentence with a token of the vocabulary, once."""
    session = subject.session(subject.batch(), kind=_CheckedSession)
    with torch.inference_mode():
        session.run()


def _check_candidates(found: Candidates, scores: Scores, session: Session, step: int) -> None:
    beams = scores.beams.size(1)
    count, independent = found.tokens.size(1), session.search.continues_each_beam
    what = f"continues_each_beam is true, but {beams} beams have {count} candidates"
    require(count == beams or not independent, what, step)
    possible = found.scores > -torch.inf
    for name, values, size in (("token", found.tokens, session.setup.vocab_size), ("beam", found.beams, beams)):
        wrong = possible & ((values < 0) | (values >= size))
        _refuse(wrong, f"the {name} of a candidate is not in the range from 0 to {size - 1}", step)
    totals = scores.totals().gather(2, found.tokens.unsqueeze(1).expand(-1, beams, -1))
    # (live, beam, K): which beams have this score; strategies may add its summands in another order
    rounding = torch.finfo(totals.dtype).eps ** 0.75
    of_beams = (totals == found.scores.unsqueeze(1)) | ((totals - found.scores.unsqueeze(1)).abs() < rounding)
    wrong = possible & of_beams.any(1) & ~of_beams.gather(1, found.beams.unsqueeze(1)).squeeze(1)
    _refuse(wrong, "the score of a candidate is that of another beam", step)
    wrong = possible & (scores.beams == -torch.inf).gather(1, found.beams.clamp(0, beams - 1))
    _refuse(wrong, "a candidate continues a beam that does not exist (its score is -inf)", step)
    if independent:
        wrong = possible & (found.beams != torch.arange(beams).expand_as(found.beams))
        _refuse(wrong, "continues_each_beam is true, but candidate i does not continue beam i", step)


def _refuse(wrong: Tensor, what: str, step: int) -> None:
    if wrong.any():
        sentence, place = wrong.nonzero()[0].tolist()
        raise Violation(f"{what} (candidate {place})", step=step, sentence=sentence)


def scores_are_the_models(subject: Decoding) -> None:
    """The score of each token is its log-probability by teacher forcing, over the tokens that are allowed."""
    search = subject.generator().setup.search
    needs(not search.changes_scores, "the strategy changes scores on purpose: changes_scores is set")
    needs(len(subject.models) == 1, "an ensemble has no parallel pass")
    try:
        _compare_with_model(subject)
    except Violation:
        if holds(lambda: scores_depend_on_the_hypothesis_alone(subject)):  # other components and keys change the scores
            return
        holds_in_beam_search = holds(lambda: _compare_with_model(subject, **subject.without))
        needs(holds_in_beam_search, "other components or keys change the scores, also those of beam search")
        raise


def _compare_with_model(subject: Decoding, **options: Any) -> None:
    setup = subject.generator(end_symbols=[], **options).setup
    for row, hypotheses in enumerate(subject.decode(subject.batch(), end_symbols=[], **options)):
        source = subject.batch([row]).source
        for beam, hypothesis in enumerate(hypotheses):
            tokens, model = hypothesis.tokens, subject.models[0]
            history = torch.cat([torch.tensor([subject.ids.start]), tokens[:-1]])[None]
            logits = model(source.src_tokens, source.src_lengths, history).logits
            lprobs = model.get_normalized_probs(logits / setup.temperature)[0]
            renormalized = _allowed(lprobs, setup, source.src_lengths).log_softmax(-1)
            readings = {"": lprobs, ", renormalized over the tokens that the rules allow": renormalized}
            found = {how: values.gather(1, tokens[:, None]).T for how, values in readings.items()}
            # a strategy may take either: the search asks ``Scores.lprobs`` or ``Scores.distribution``
            how, wanted = min(found.items(), key=lambda one: float((one[1] - hypothesis.positional_scores).abs().sum()))
            what = f"the scores are not those of the model for these tokens{how}"
            score = torch.tensor([[hypothesis.score]], dtype=torch.float64)
            ranked = setup.ranking.score(wanted.sum(1, keepdim=True), wanted.size(1))
            with at(sentence=row, beam=beam):
                subject.same(hypothesis.positional_scores[None], wanted, what=what)
                if not setup.ranking.coverage:
                    subject.same(score, ranked, what="the score is not that of the length penalty")


def _allowed(lprobs: Tensor, setup: DecodingSetup, src_lengths: Tensor) -> Tensor:
    """The log-probabilities ``(T, V)``, with ``-inf`` where the rules forbid a token."""
    if not setup.rules.forces_end:
        return lprobs
    lprobs = lprobs.clone()
    lprobs[:, setup.pad] = -torch.inf
    last = int(setup.limits.last_steps(src_lengths))
    lprobs[last:, torch.arange(lprobs.size(1)) != setup.eos] = -torch.inf
    return lprobs


def hypotheses_are_outputs(subject: Decoding) -> None:
    """Each hypothesis ends, is not too long, and has no end within it; there are at most ``beam``, best first."""
    cases: Any = {}, {"end_symbols": []}, {"max_len": 1}, {"max_len": 4, "max_len_a": 0.5, "max_len_b": 1}
    found = sum(_check_outputs(subject, subject.batch(), **options) for options in cases)
    require(found, f"a beam of {subject.generation.beam} finds no hypothesis for any sentence")


def _check_outputs(subject: Decoding, batch: Batch, **options: Any) -> int:
    """Check the hypotheses of each sentence, and return how many there are."""
    generator = subject.generator(**options)
    results = generator.generate(batch, None, subject.phrases(generator.setup, batch))
    limits = generator.setup.limits.last_steps(batch.source.src_lengths).tolist()
    for row, hypotheses in enumerate(results):
        what = f"there are {len(hypotheses)} hypotheses, more than the beam of {generator.setup.beam_size}"
        require(len(hypotheses) <= generator.setup.beam_size, what, sentence=row)
        for beam, hypothesis in enumerate(hypotheses):
            _check_output(hypothesis, generator.setup, limits[row] + 1, row, beam)
        for beam, (one, two) in enumerate(pairwise(hypotheses)):
            require(two.score <= one.score, "the hypotheses are not sorted by score", sentence=row, beam=beam)
    return sum(map(len, results))


def _check_output(hypothesis: Hypothesis, setup: DecodingSetup, longest: int, row: int, beam: int) -> None:
    tokens, ends = hypothesis.tokens.tolist(), set(setup.end_tokens)
    what = f"an output has {len(tokens)} tokens and should have 1 to {longest}"
    require(1 <= len(tokens) <= longest, what, sentence=row, beam=beam)
    inside = next((step for step, token in enumerate(tokens[:-1]) if token in ends), None)
    require(inside is None, "an output continues after an end token", inside, row, beam)
    ended = tokens[-1] in ends or setup.stopping or (len(tokens) == longest and not setup.rules.forces_end)
    require(ended, "an output does not end with an end token", len(tokens), row, beam)
    require(hypothesis.positional_scores.isfinite().all(), "a score is not finite", sentence=row, beam=beam)


def hypotheses_differ(subject: Decoding) -> None:
    """No hypothesis occurs twice with the same score."""
    needs(not subject.generator().setup.search.continues_each_beam, "the beams are independent of each other")
    for row, hypotheses in enumerate(subject.decode(subject.batch())):
        entries = [(*hypothesis.tokens.tolist(), round(hypothesis.score, 9)) for hypothesis in hypotheses]
        twice = [beam for beam, entry in enumerate(entries) if entry in entries[:beam]]
        require(not twice, "a hypothesis occurs twice with the same score", sentence=row, beam=max(twice, default=0))


def forbidden_tokens_are_not_generated(subject: Decoding) -> None:
    """Tokens with a score of ``-inf`` are not generated, also where few tokens remain."""
    banned = subject.ids.word(1)
    options: dict[str, Any] = {"suppress": [subject.dictionary.symbol(banned)], "min_len": 3, "no_repeat_ngram_size": 1}
    setup = subject.generator(**options).setup
    for row, hypotheses in enumerate(subject.decode(subject.batch(), **options)):
        for beam, hypothesis in enumerate(hypotheses):
            tokens = hypothesis.tokens.tolist()
            with at(sentence=row, beam=beam):
                if banned in tokens and not setup.search.enforces_constraints:
                    raise Violation("a token that is forbidden is generated", step=tokens.index(banned))
                long_enough = len(tokens) >= min(4, LONGEST) or setup.stopping
                require(long_enough, "an output ends before its minimum length", len(tokens) - 1)
                what = "a token that is forbidden after its first occurrence is generated again"
                require(len(set(tokens)) == len(tokens), what)


class _Change(LogitsProcessor):
    """Replaces the scores of one sentence from a step on.

    Args:
        step: the step.
        sentence: its line number.
        value: the new scores.
    """

    def __init__(self, step: int, sentence: int, value: float):
        self.step, self.sentence, self.value = step, sentence, value

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        if context.step < self.step:
            return lprobs
        return lprobs.masked_fill((context.sentence_ids == self.sentence).unsqueeze(1), self.value)


def nothing_is_possible(subject: Decoding) -> None:
    """A sentence whose tokens are all forbidden has no longer outputs, and the other sentences do not change."""
    usual = subject.decode(subject.batch(), objects={"processors": [_Change(99, 2, 0.0)]})
    found = subject.decode(subject.batch(), objects={"processors": [_Change(2, 2, -torch.inf)]})
    for row in (0, 1, 3, 4):
        what = "a sentence without possible outputs changes the result of another sentence"
        same_hypotheses(subject, found[row : row + 1], usual[row : row + 1], what, row)
    for beam, hypothesis in enumerate(found[2]):
        allowed = len(hypothesis.tokens) <= 2 and hypothesis.positional_scores.isfinite().all()
        require(allowed, "an output has a forbidden token", 2, 2, beam)


def nan_is_an_error(subject: Decoding) -> None:
    """Scores that are NaN end the decode with an error, and are not chosen or hidden."""
    try:
        damage = {"processors": [_Change(1, 2, torch.nan)]}
        subject.decode(subject.batch(), objects=damage, min_len=4, end_symbols=[])
    except DecodingError:
        return
    raise Violation("scores that are NaN are hidden: the decode has no error", step=1, sentence=2)


def a_wide_beam(subject: Decoding) -> None:
    """A beam that is wider than the vocabulary gives valid, different hypotheses."""
    size = len(subject.dictionary)
    needs(subject.generation.beam > 1, "the beam is one")
    needs(size <= 100, f"the vocabulary has {size} tokens; at most 100")
    beam = subject.generation.beam * (1 + size // subject.generation.beam)
    _check_outputs(subject, subject.batch([0, 1]), beam=beam, max_len=3)


STRATEGY: Invariants[Decoding] = {
    **SHARED,
    "candidates are continuations": candidates_are_continuations,
    "scores are the model's": scores_are_the_models,
    "hypotheses end, are sorted": hypotheses_are_outputs,
    "hypotheses differ": hypotheses_differ,
    "forbidden tokens": forbidden_tokens_are_not_generated,
    "a sentence without outputs": nothing_is_possible,
    "NaN is an error": nan_is_an_error,
    "a beam wider than the vocabulary": a_wide_beam,
}
"""The invariants of a search strategy."""
