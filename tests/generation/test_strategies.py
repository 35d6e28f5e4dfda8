"""Diverse and constrained search against plain loops, exhaustive search, and beam search."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
import torch

from seqgen.core.beam_search import BeamSearch
from seqgen.core.component import Phrase
from seqgen.core.errors import ConfigError
from seqgen.core.scores import Scores
from seqgen.core.search import Search
from seqgen.decoding.search.constrained import (
    NONE,
    ConstrainedSearch,
    LexicalConstraints,
    OneAtATime,
    allocate,
    alternatives,
)
from seqgen.decoding.search.diverse import DiverseBeamSearch, DiverseSiblingsSearch
from tests.generators import make_generator
from tests.hostile import work
from tests.hypotheses import Pairs, as_pairs, assert_same_pairs
from tests.reference_search import EOS, Settings, next_scores
from tests.scripted_model import Rule, ScriptedModel, batch_of, dictionary, random_rule, table_rule
from tests.step_contexts import step_context

A, B, C = 4, 5, 6
SOURCES = [(4, 5, 2), (6, 2), (4, 4, 4, 4, 6, 2), (2,)]


def decode(rule: Rule, words: int, search: Search, sources: Sequence[tuple[int, ...]] = SOURCES, **options: object):
    constraints = options.pop("constraints", None)
    prefix = options.pop("prefix_tokens", None)
    generator = make_generator([ScriptedModel(rule)], dictionary(words), search_strategy=search, **options)
    return generator.generate(batch_of(sources), prefix_tokens=prefix, constraints=constraints)


def plain_diverse_search(rule: Rule, source: tuple[int, ...], cfg: Settings, groups: int, strength: float) -> Pairs:
    """Diverse beam search as loops over one sentence."""
    beams: list[tuple[float, tuple[int, ...]]] = [(0.0, ())] * cfg.beam
    finished: Pairs = []
    size = cfg.beam // groups
    for step in range(cfg.max_len + 1):
        used: list[int] = []
        by_group = []
        for group in range(groups):
            members = beams[group::groups][: 1 if step == 0 else None]
            found = [
                (total + score - strength * used.count(token), (*history, token))
                for total, history in members
                for token, score in enumerate(next_scores(rule, source, history, cfg))
            ]
            found = sorted(found, key=lambda c: -c[0])[: 2 * size]
            used += [history[-1] for total, history in found if total > -math.inf]
            by_group.append(found)
        candidates = [c for rank in zip(*by_group, strict=True) for c in rank]
        for total, history in candidates[: cfg.beam]:
            if history[-1] == EOS and total > -math.inf and len(finished) < cfg.beam:
                finished.append((history, total / len(history)))
        beams = [c for c in candidates if c[1][-1] != EOS][: cfg.beam]
        if len(finished) == cfg.beam:
            break
    return sorted(finished, key=lambda f: -f[1])


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("beam", "groups", "strength"), [(4, 2, 0.5), (6, 3, 0.5), (6, 2, 2.0), (3, 3, 1.0)])
def test_diverse_beam_search_equals_plain_loops(beam: int, groups: int, strength: float, seed: int) -> None:
    rule, cfg = random_rule(vocab=25, seed=seed), Settings(beam=beam, max_len=6)
    results = decode(rule, 21, DiverseBeamSearch(groups, strength), beam_size=beam, max_len_b=6)
    for source, hypotheses in zip(SOURCES, results, strict=True):
        assert_same_pairs(as_pairs(hypotheses), plain_diverse_search(rule, source, cfg, groups, strength))


def test_one_group_or_no_rate_is_beam_search() -> None:
    rule = random_rule(vocab=9, seed=1)
    wanted = decode(rule, 5, BeamSearch(), beam_size=4, max_len_b=8)
    for search in (DiverseBeamSearch(groups=1), DiverseSiblingsSearch(rate=0.0), ConstrainedSearch()):
        for got, beam in zip(decode(rule, 5, search, beam_size=4, max_len_b=8), wanted, strict=True):
            assert_same_pairs(as_pairs(got), as_pairs(beam))


def test_groups_must_divide_the_beam() -> None:
    with pytest.raises(ConfigError, match="cannot be divided into"):
        decode(random_rule(9, 0), 5, DiverseBeamSearch(groups=3), beam_size=4)


def test_siblings_lose_by_rank() -> None:
    table = {
        (): {A: 0.6, B: 0.4},
        (A,): {A: 0.5, B: 0.4, EOS: 0.1},
        (B,): {A: 0.9, EOS: 0.1},
    }
    step = DiverseSiblingsSearch(rate=0.5).step
    rule = table_rule(table, 7)
    first = step(step_context(0), Scores(rule((), ()).log_softmax(-1).expand(1, 2, -1), torch.zeros(1, 2)))
    assert first.tokens[0, :2].tolist() == [A, B]
    lprobs = torch.stack([rule((), (token,)).log_softmax(-1) for token in (A, B)]).unsqueeze(0)
    second = step(step_context(1), Scores(lprobs, first.scores[:, :2]))
    # A A .3 and B A .36 lose .5 each, A B .24 loses 1
    got = list(zip(second.beams[0].tolist(), second.tokens[0].tolist(), strict=True))[:3]
    assert got == [(1, A), (0, A), (0, B)]
    wanted = [math.log(0.36) - 0.5, math.log(0.3) - 0.5, math.log(0.24) - 1.0]
    assert second.scores[0, :3].tolist() == pytest.approx(wanted)


# -- constraints ------------------------------------------------------------------------------------------------------


def occurrences(output: tuple[int, ...], phrase: Sequence[int]) -> int:
    """How often a phrase occurs without overlapping itself."""
    found, i = 0, 0
    while i + len(phrase) <= len(output):
        hit = output[i : i + len(phrase)] == tuple(phrase)
        found, i = found + hit, i + (len(phrase) if hit else 1)
    return found


def satisfies(output: tuple[int, ...], phrases: Sequence[Phrase], ordered: bool) -> bool:
    if not ordered:
        return all(
            any(occurrences(output, some) >= list(phrases).count(phrase) for some in alternatives(phrase))
            for phrase in phrases
        )
    start = 0
    for phrase in phrases:
        ends = [
            end
            for some in alternatives(phrase)
            for end in range(start + len(some), len(output) + 1)
            if output[end - len(some) : end] == some
        ]
        if not ends:
            return False
        start = min(ends)
    return True


PHRASES = [
    [[A]],
    [[A, A, B]],
    [[A, B], [B, A]],
    [[A], [A]],
    [[A, B], [A, C]],
    [[A, B], [A]],
    [[C], [B, A]],
    [[[A, B], [C]]],
    [[[A, A, B], [A, B, C], [C, C]], [B]],
    [[[A, B, C, A], [B, C], [B]], [[C, A], [A]]],
]


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("phrases", PHRASES, ids=str)
def test_wide_constrained_search_is_exhaustive(phrases: list[Phrase], ordered: bool) -> None:
    """A beam that covers all prefixes finds every output with the phrases, and no other, best first."""
    longest, vocab = 4, 7
    rule = random_rule(vocab, seed=9)
    tokens = [t for t in range(vocab) if t not in (1, EOS)]
    everything: Pairs = []
    for length in range(longest + 1):
        for history in itertools.product(tokens, repeat=length):
            if satisfies(history, phrases, ordered):
                output = (*history, EOS)
                score = sum(float(rule(SOURCES[0], history[:i]).log_softmax(-1)[t]) for i, t in enumerate(output))
                everything.append((output, score))
    everything.sort(key=lambda pair: -pair[1])
    search = ConstrainedSearch(ordered)
    options = {"beam_size": 800, "max_len_b": longest, "min_len": 0, "normalize_scores": False}
    found = decode(rule, 3, search, SOURCES[:1], constraints=[phrases], **options)[0]
    assert_same_pairs(as_pairs(found), everything)


@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
@pytest.mark.parametrize("ordered", [False, True])
def test_a_narrow_beam_keeps_the_constraints_of_each_sentence(ordered: bool, semantics: str) -> None:
    """Every output has its sentence's phrases, and is the same in a batch as alone."""
    rule = random_rule(vocab=40, seed=3, sharpness=3)
    constraints = [[[A, B, C], [20]], [], [[30], [30], [7, 8]], [[[9, 11], [12, 13, 14], [15]], [[16], [17]]]]
    options = {"beam_size": 6, "max_len": 30, "semantics": semantics}
    together = decode(rule, 36, ConstrainedSearch(ordered), constraints=constraints, **options)
    for source, phrases, hypotheses in zip(SOURCES, constraints, together, strict=True):
        assert hypotheses  # not always 6: a beam that lacks a phrase at the maximum length gives none
        assert all(satisfies(tuple(h.tokens.tolist()), phrases, ordered) for h in hypotheses)
        alone = decode(rule, 36, ConstrainedSearch(ordered), [source], constraints=[phrases], **options)
        assert_same_pairs(as_pairs(hypotheses), as_pairs(alone[0]))
    without = decode(rule, 36, BeamSearch(), [SOURCES[1]], **options)
    assert_same_pairs(as_pairs(together[1]), as_pairs(without[0]))


def test_a_prefix_counts_towards_the_constraints() -> None:
    rule = random_rule(vocab=12, seed=3)
    prefix = torch.tensor([[A, B]])
    found = decode(
        rule, 8, ConstrainedSearch(), [(4, 2)], beam_size=3, max_len_b=6, constraints=[[[B, C]]], prefix_tokens=prefix
    )[0]
    assert found
    for h in found:
        assert h.tokens[:2].tolist() == [A, B]
        assert satisfies(tuple(h.tokens.tolist()), [[B, C]], False)


@pytest.mark.parametrize(
    ("phrases", "words"),
    [
        ([[[A]]], "constraints for 1 sentences, but the batch has 4"),
        ([[[A]], [], [[B, 12]], []], "sentence 2 has 12, not an id"),
        ([["word"], [], [], []], "sentence 0 has 'w'"),
    ],
)
def test_constraints_that_do_not_fit_are_refused(phrases: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        decode(random_rule(vocab=12, seed=3), 8, ConstrainedSearch(), constraints=phrases)


def test_banks_take_turns() -> None:
    banks = torch.tensor([[2, 2, 2, 1, 1, 0]])
    assert allocate(banks).tolist() == [[0, 3, 5, 1, 4, 2]]
    dead = banks.index_fill(1, torch.tensor([0, 3]), NONE)
    assert allocate(dead).tolist() == [[1, 4, 5, 2, 0, 3]]


def test_a_phrase_costs_in_proportion_to_its_length() -> None:
    """A cubic one cost seconds for 800 tokens."""

    def tree(length: int) -> LexicalConstraints:
        some = [[i % 3 for i in range(length)], *([3, i % 2, *[4] * i] for i in range(length // 10))]
        return LexicalConstraints([[some]], ordered=False, device=torch.device("cpu"))

    def equal(length: int) -> LexicalConstraints:
        return LexicalConstraints([[[7]] * length], ordered=False, device=torch.device("cpu"))

    assert equal(5).predecessors.tolist() == [[-1, 0, 1, 2, 3]]
    for phrases in (tree, equal):
        assert work(lambda make=phrases: make(100)) < 2.5 * work(lambda make=phrases: make(50))


def test_progress_with_alternatives() -> None:
    """How near the end is counts: after a b, one token is missing of a b c, as of the other alternative d."""
    constraints = LexicalConstraints([[[[A, B, C], [7, 8]]]], ordered=False, device=torch.device("cpu"))
    progress = constraints.start(1)
    banks = []
    for token in (A, B, 7, A, B, C):
        assert not progress.met.all()
        progress = constraints.advance(progress, torch.tensor([[token]]))
        banks.append(int(constraints.bank(progress)))
    assert banks == [0, 1, 1, 0, 1, 2]
    assert progress.met.all()
    begins = constraints.next_tokens(constraints.start(1)).flatten().tolist()
    assert {token for token in begins if token >= 0} == {A, 7}


def test_one_phrase_at_a_time() -> None:
    """By Hugging Face's rules c breaks a b off and begins nothing, although another phrase begins with it."""
    constraints = OneAtATime([[[A, B], [C, 7, 7]]], ordered=False, device=torch.device("cpu"))
    progress = constraints.start(1)
    banks = []
    for token in (A, C, C, 7, 7, A, B):
        progress = constraints.advance(progress, torch.tensor([[token]]))
        banks.append(int(constraints.bank(progress)))
    # a phrase counts 3 when it is met, and one that is begun counts from there: 3 - 1 after a
    assert banks == [2, 0, 1, 2, 3, 5, 6]
    assert progress.met.all()
