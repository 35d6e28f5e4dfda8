"""Invariants of decoding with a model, some also with a component: cache, batch and other members change nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from seqgen.addons.checks.checking import Compared, Violation, at, needs, require
from seqgen.addons.checks.subject import SOURCES, Decoding, Results, Subject
from seqgen.config import FastConfig
from seqgen.extend import SequenceScorer, pad_rows


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
        count = f"{len(ours)} hypotheses in place of {len(theirs)}"
        require(len(ours) == len(theirs), f"{what}: {count}", sentence=sentence)
        for beam, (one, two) in enumerate(zip(ours, theirs, strict=True)):
            near = subject.tolerance * max(1.0, abs(one.score))
            ties = (tie for tie in theirs if abs(tie.score - one.score) <= near and torch.equal(tie.tokens, one.tokens))
            two = next(ties, two)  # rounding may order ties in any way
            tokens = one.tokens.tolist(), two.tokens.tolist()
            if tokens[0] != tokens[1]:
                step = next((i for i, (a, b) in enumerate(zip(*tokens, strict=False)) if a != b), min(map(len, tokens)))
                raise Violation(f"{what}: tokens differ", abs(one.score - two.score), step, sentence, beam)
            with at(sentence=sentence, beam=beam):
                subject.same(one.positional_scores[None], two.positional_scores[None], what=f"{what}: scores differ")
                subject.same(torch.tensor([[one.score]]), torch.tensor([[two.score]]), what=f"{what}: scores differ")
                require((one.attention is None) == (two.attention is None), f"{what}: one decode has no attention")
                if one.attention is not None and two.attention is not None:
                    attention = _of_words(one.attention)[None], _of_words(two.attention)[None]
                    subject.same(*attention, what=f"{what}: attention differs")


def _of_words(attention: Tensor) -> Tensor:
    """Attention weights ``(T, S)`` without the columns of padding, all zero, on both sides."""
    columns = attention.any(0).nonzero()
    return attention[:, int(columns.min()) : int(columns.max()) + 1] if len(columns) else attention[:, :0]


def alone_equals_batched(
    subject: Subject | Decoding,
    what: str = "the batch changes the result of a sentence",
    lengths: Sequence[int] = SOURCES,
    order: Sequence[int] = range(len(SOURCES)),
    **options: Any,
) -> None:
    """A sentence alone gives the same result as in a batch.

    Args:
        subject: what decodes.
        what: what is wrong otherwise.
        lengths: length of each source.
        order: the sentences in the order of the batch.
        options: those of the decodes.
    """
    together = subject.decode(subject.batch(order, lengths), **options)
    for place, row in enumerate(order):
        alone = subject.decode(subject.batch([row], lengths), **options)
        same_hypotheses(subject, together[place : place + 1], alone, what, row)
        for one, two in zip(together[place], alone[0], strict=True):
            for name, value in one.fields.items():
                if value.shape == two.fields[name].shape:  # not so if it depends on the longest source
                    subject.same_value(value, two.fields[name], f"{what}: other values of the field {name!r}")


def ensemble_of_itself(subject: Subject | Decoding, what: str) -> None:
    """An ensemble of the model with itself gives the hypotheses of the model."""
    batch = subject.batch()
    same_hypotheses(subject, subject.decode(batch, members=2), subject.decode(batch), what)


def scorer_equals_generator(subject: Subject | Decoding, **options: Any) -> None:
    """Scoring the best hypotheses as given targets gives the scores that the search gave them."""
    ids, ensemble = subject.ids, subject.generator().setup.ensemble
    wanted = [hypotheses[:1] for hypotheses in subject.decode(subject.batch(), **options)]
    outputs = {row: hypotheses[0].tokens for row, hypotheses in enumerate(wanted) if hypotheses}
    needs(outputs, "no sentence has a hypothesis")
    batch, lengths = subject.batch(list(outputs)), [len(one) for one in outputs.values()]
    target = pad_rows(list(outputs.values()), ids.pad)
    previous = torch.cat([torch.full((len(target), 1), ids.start), target[:, :-1]], dim=1)
    scorer = SequenceScorer(ensemble.members, ids.pad, ids.eos, combination=ensemble.combination)
    scored = iter(scorer.score(replace(batch, target=target, prev_output_tokens=previous), lengths))
    got = [[next(scored).hypothesis] if hypotheses else [] for hypotheses in wanted]
    same_hypotheses(subject, got, wanted, "the scorer disagrees with the generator")


def off_changes_nothing(
    subject: Subject | Decoding, names: Iterable[str], cases: Sequence[dict[str, Any]] = ({},), what: str = ""
) -> None:
    """Turning off an optimization gives the same hypotheses.

    Args:
        subject: what decodes.
        names: the switches, each turned off by itself.
        cases: the options of the decodes.
        what: what is wrong otherwise.
    """
    batch = subject.batch()
    for options in cases:
        usual = subject.decode(batch, **options)
        for name in names:
            plain = subject.decode(batch, fast=FastConfig.off(name), **options)
            same_hypotheses(subject, usual, plain, what or f"fast.{name} changes the result")


def cached_equals_uncached(subject: Subject) -> None:
    """Decoding without a state, which computes all positions at each step, gives the same hypotheses."""
    cases: list[dict[str, Any]] = [{}, {"no_repeat_ngram_size": 2}, {"beam": 1}, {"min_len": 6}]
    off_changes_nothing(subject, ["use_cache"], cases, "search without a cache gives another result")


def indirection_equals_moving(subject: Subject) -> None:
    """The indirection table of self-attention gives the same hypotheses as moving rows."""
    cases = [{"beam": beam, "min_len": 2, "no_repeat_ngram_size": 3} for beam in (2, 5)]
    off_changes_nothing(subject, ["beam_indirection"], cases)


def beam_of_one_is_greedy(subject: Subject) -> None:
    """A beam of one chooses the most probable token at each step."""
    longest = 8
    for row, hypotheses in enumerate(subject.decode(subject.batch(), beam=1, max_len=longest, min_len=0)):
        source, tokens = subject.batch([row]).source, [subject.ids.start]
        for step in range(longest):
            logits = subject.model(source.src_tokens, source.src_lengths, torch.tensor([tokens])).logits[0, -1]
            logits[subject.ids.pad] = -torch.inf
            tokens.append(subject.ids.eos if step == longest - 1 else int(logits.argmax()))
            got = [one.tokens.tolist()[step] for one in hypotheses if step < len(one.tokens)]
            require(got == tokens[-1:], "a beam of one is not greedy search", step, row)
            if tokens[-1] == subject.ids.eos:
                break


def beam_equals_exhaustive(subject: Subject) -> None:
    """A beam that covers all prefixes finds all outputs, with the scores of the parallel pass."""
    ids, longest = subject.ids, 2
    needs(ids.vocab <= 32, f"{ids.vocab} tokens have too many outputs for exhaustive search; at most 32")
    tokens = [token for token in range(ids.vocab) if token not in (ids.pad, ids.eos)]
    prefixes = torch.tensor([[ids.start, *words] for words in itertools.product(tokens, repeat=longest)])
    batch = subject.batch([0])
    source = batch.source
    rows = source.src_tokens.expand(len(prefixes), -1), source.src_lengths.expand(len(prefixes))
    lprobs = subject.model.get_normalized_probs(subject.model(*rows, prefixes).logits)
    wanted: dict[tuple[int, ...], float] = {}
    for row, (_, *words) in enumerate(prefixes.tolist()):
        for length in range(longest + 1):
            output = (*words[:length], ids.eos)
            if output not in wanted:
                wanted[output] = float(sum(lprobs[row, step, token] for step, token in enumerate(output)))
    limits: dict[str, Any] = {"max_len": longest + 1, "min_len": 0, "normalize_scores": False}
    found = subject.decode(batch, beam=len(wanted), **limits)[0]
    outputs = [tuple(hypothesis.tokens.tolist()) for hypothesis in found]
    complete = set(outputs) >= set(wanted) and len(found) == len(wanted)
    require(complete, f"a beam of {len(wanted)} finds {len(found)} outputs in place of {len(wanted)}", sentence=0)
    got = torch.tensor([[hypothesis.score] for hypothesis in found], dtype=torch.float64)
    expected = torch.tensor([[wanted[output]] for output in outputs], dtype=torch.float64)
    subject.same(got, expected, beam=len(found), what="beam search gives another score than exhaustive search")
