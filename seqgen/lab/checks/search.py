"""Invariants of decoding with a model: the cache, the batch and an ensemble of itself change nothing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from seqgen.config import DebugConfig
from seqgen.data.pair_dataset import pad_rows
from seqgen.generation.scorer import SequenceScorer
from seqgen.generation.sequence_generator import SequenceGenerator
from seqgen.lab.checks.checking import Compared, NotApplicableError, Violation
from seqgen.lab.checks.subject import Subject
from seqgen.structures import Batch, Hypothesis, Source

SOURCES = (5, 2, 8, 1, 4)
"""The length of each source, end-of-sentence included."""

Results = Sequence[Sequence[Hypothesis]]


def batch_for(subject: Subject, rows: Sequence[int] | None = None) -> Batch:
    """Random sources, or some of them without the padding of the others."""
    inputs = subject.inputs(SOURCES)
    chosen = range(len(SOURCES)) if rows is None else rows
    sources = [inputs.alone(row)[0][0] for row in chosen]
    lengths = torch.tensor([len(source) for source in sources])
    return Batch(torch.arange(len(sources)), Source(pad_rows(sources, subject.ids.pad, subject.ids.left), lengths))


def decode(subject: Subject, batch: Batch, members: int = 1, **options: Any) -> Results:
    """Beam search; the fields of ``DebugConfig`` among the options turn optimizations off."""
    debug = {key: options.pop(key) for key in ("use_cache", "beam_table") if key in options}
    options = {"beam_size": 4, "max_len_b": 12, **options}
    models = [subject.model] * members
    return SequenceGenerator(models, subject.dictionary, debug=DebugConfig(**debug), **options).generate(batch)


def same_hypotheses(subject: Compared, got: Results, wanted: Results, what: str, first: int = 0) -> None:
    """Compare tokens, scores and attention of n-best lists.

    Args:
        subject: records the largest difference.
        got: n-best lists.
        wanted: what they should be.
        what: what is wrong if they differ.
        first: number of the first sentence.

    Raises:
        Violation: they differ.
    """
    for sentence, (ours, theirs) in enumerate(zip(got, wanted, strict=True), first):
        if len(ours) != len(theirs):
            raise Violation(f"{what}: {len(ours)} hypotheses in place of {len(theirs)}", sentence=sentence)
        for beam, (one, two) in enumerate(zip(ours, theirs, strict=True)):
            tokens = one.tokens.tolist(), two.tokens.tolist()
            if tokens[0] != tokens[1]:
                step = next((i for i, (a, b) in enumerate(zip(*tokens, strict=False)) if a != b), min(map(len, tokens)))
                raise Violation(f"{what}: other tokens", abs(one.score - two.score), step, sentence, beam)
            try:
                subject.same(one.positional_scores[None], two.positional_scores[None], what=f"{what}: other scores")
                subject.same(torch.tensor([[one.score]]), torch.tensor([[two.score]]), what=f"{what}: other scores")
                if (one.attention is None) != (two.attention is None):
                    raise Violation(f"{what}: one decode has no attention")
                if one.attention is not None and two.attention is not None:
                    attention = _of_words(one.attention)[None], _of_words(two.attention)[None]
                    subject.same(*attention, what=f"{what}: other attention")
            except Violation as error:
                raise Violation(error.what, error.difference, error.step, sentence, beam) from None


def _of_words(attention: Tensor) -> Tensor:
    """Attention weights ``(T, S)`` without the columns of padding, all zero, on both sides."""
    columns = attention.any(0).nonzero()
    return attention[:, int(columns.min()) : int(columns.max()) + 1] if len(columns) else attention[:, :0]


def cached_equals_uncached(subject: Subject) -> None:
    """Decoding without a state, which computes all positions at each step, gives the same hypotheses."""
    batch, what = batch_for(subject), "search without a cache gives another result"
    for options in ({}, {"no_repeat_ngram_size": 2}, {"beam_size": 1}, {"min_len": 6}):
        wanted = decode(subject, batch, use_cache=False, **options)
        same_hypotheses(subject, decode(subject, batch, **options), wanted, what)


def indirection_equals_moving(subject: Subject) -> None:
    """The indirection table of self-attention gives the same hypotheses as moving rows."""
    batch, what = batch_for(subject), "debug.beam_table changes the result"
    for beam in (2, 5):
        options: dict[str, Any] = {"beam_size": beam, "min_len": 2, "no_repeat_ngram_size": 3}
        wanted = decode(subject, batch, beam_table="off", **options)
        same_hypotheses(subject, decode(subject, batch, **options), wanted, what)


def alone_decoded_equals_batched(subject: Subject) -> None:
    """A sentence decoded alone has the same hypotheses as in a batch."""
    limits: dict[str, Any] = {"max_len_a": 1.0, "max_len_b": 3}
    together = decode(subject, batch_for(subject), **limits)
    for row in range(len(SOURCES)):
        alone = decode(subject, batch_for(subject, [row]), **limits)
        same_hypotheses(subject, together[row : row + 1], alone, "the batch changes the result of a sentence", row)


def scorer_equals_generator(subject: Subject) -> None:
    """Scoring the best hypotheses by teacher forcing gives the scores that the search gave them."""
    batch = batch_for(subject)
    results = decode(subject, batch)
    wanted = [hypotheses[:1] for hypotheses in results]
    same_hypotheses(subject, score(subject, batch, results), wanted, "the scorer disagrees with the generator")


def score(subject: Subject, batch: Batch, results: Results) -> Results:
    """The scorer's scores of the best hypotheses of a decode."""
    pad, eos = subject.ids.pad, subject.ids.eos
    target = pad_rows([hypotheses[0].tokens for hypotheses in results], pad)
    shifted = torch.cat([torch.full((len(target), 1), eos), target[:, :-1]], dim=1)
    scored = replace(batch, target=target, prev_output_tokens=shifted)
    return SequenceScorer([subject.model], pad, eos).generate(scored)


def ensemble_of_itself(subject: Subject) -> None:
    """An ensemble of the model with itself gives the hypotheses of the model."""
    batch = batch_for(subject)
    wanted = decode(subject, batch)
    same_hypotheses(subject, decode(subject, batch, members=2), wanted, "an ensemble with itself differs")


def beam_of_one_is_greedy(subject: Subject) -> None:
    """A beam of one chooses the most probable token at each step."""
    batch, longest = batch_for(subject), 8
    found = decode(subject, batch, beam_size=1, max_len=longest, min_len=0)
    for row, hypotheses in enumerate(found):
        source, tokens = batch_for(subject, [row]).source, [subject.ids.start]
        for step in range(longest):
            logits = subject.model(source.src_tokens, source.src_lengths, torch.tensor([tokens])).logits[0, -1]
            logits[subject.ids.pad] = -torch.inf
            tokens.append(subject.ids.eos if step == longest - 1 else int(logits.argmax()))
            got = hypotheses[0].tokens.tolist()[step : step + 1]
            if got != tokens[-1:]:
                raise Violation("a beam of one is not greedy search", step=step, sentence=row)
            if tokens[-1] == subject.ids.eos:
                break


def beam_equals_exhaustive(subject: Subject) -> None:
    """A beam that covers all prefixes finds all outputs, with the scores of the parallel pass."""
    ids, longest = subject.ids, 2
    if ids.vocab > 32:
        raise NotApplicableError(f"{ids.vocab} tokens have too many outputs for exhaustive search; at most 32")
    tokens = [token for token in range(ids.vocab) if token not in (ids.pad, ids.eos)]
    prefixes = torch.tensor([[ids.start, *words] for words in itertools.product(tokens, repeat=longest)])
    source = batch_for(subject, [0]).source
    rows = source.src_tokens.expand(len(prefixes), -1), source.src_lengths.expand(len(prefixes))
    lprobs = subject.model.get_normalized_probs(subject.model(*rows, prefixes).logits)
    wanted: dict[tuple[int, ...], float] = {}
    for row, (_, *words) in enumerate(prefixes.tolist()):
        for length in range(longest + 1):
            output = (*words[:length], ids.eos)
            if output not in wanted:
                wanted[output] = float(sum(lprobs[row, step, token] for step, token in enumerate(output)))
    found = decode(
        subject,
        batch_for(subject, [0]),
        beam_size=len(wanted),
        max_len=longest + 1,
        min_len=0,
        normalize_scores=False,
    )[0]
    missing = set(wanted) - {tuple(h.tokens.tolist()) for h in found}
    if missing or len(found) != len(wanted):
        raise Violation(f"a beam of {len(wanted)} finds {len(found)} outputs in place of {len(wanted)}", sentence=0)
    got = torch.tensor([[h.score] for h in found], dtype=torch.float64)
    expected = torch.tensor([[wanted[tuple(h.tokens.tolist())]] for h in found], dtype=torch.float64)
    subject.same(got, expected, beam=len(found), what="beam search gives another score than exhaustive search")
