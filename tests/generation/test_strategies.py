"""Diverse and constrained search against plain loops, exhaustive search, and beam search."""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from seqgen.core.component import Phrase
from seqgen.decoding.search.constrained import ConstrainedSearch, LexicalConstraints, alternatives
from seqgen.decoding.search.diverse import DiverseBeamSearch, DiverseSiblingsSearch
from seqgen.decoding.search.sampling import BeamSampling, Sampling
from seqgen.extend import BeamSearch, Candidates, Scores, Search, StepContext, StoppingRule
from tests.covering import covering
from tests.generators import make_generator
from tests.hostile import work
from tests.hypotheses import Pairs, as_pairs, assert_same_pairs
from tests.reference_search import EOS, Settings, next_scores
from tests.scripted_model import Rule, ScriptedModel, batch_of, dictionary, random_rule, table_rule
from tests.step_contexts import step_context

A, B, C = 4, 5, 6
SOURCES = [(4, 5, 2), (6, 2), (4, 4, 4, 4, 6, 2), (2,)]


def decode(rule: Rule, words: int, search: Search, sources: Sequence[tuple[int, ...]] = SOURCES, **options: Any) -> Any:
    constraints, prefix = options.pop("constraints", None), options.pop("prefix_tokens", None)
    generator = make_generator([ScriptedModel(rule)], dictionary(words), search_strategy=search, **options)
    return generator.generate(batch_of(sources), prefix_tokens=prefix, constraints=constraints)


def plain_groups(
    rule: Rule, source: tuple[int, ...], cfg: Settings, groups: int, strength: float, phrases: frozenset[int]
) -> Pairs:
    """Diverse beam search as loops over one sentence, with phrases of one token each."""
    beams: list[tuple[float, tuple[int, ...]] | None] = [(0.0, ())] * groups
    finished: Pairs = []
    size = 2 * cfg.beam // groups
    for _ in range(cfg.max_len + 1):
        used: Counter[int] = Counter()
        allocated = []
        for group in range(groups):
            parents = [each for each in beams[group::groups] if each is not None]
            everything = [
                (total + score - strength * used[token], total + score, place, token)
                for place, (total, history) in enumerate(parents)
                for token, score in enumerate(next_scores(rule, source, history, cfg))
                if total + score > -math.inf and (token != EOS or phrases <= {*history})
            ]
            chosen = sorted(everything, reverse=True)[:size]
            used.update(token for *_, token in chosen)
            others = []
            for place in range(len(parents)):
                own = [each for each in everything if each[2] == place]
                best = max(own, key=lambda each: each[1], default=None)
                others += [each for each in own if (each == best or each[3] in phrases) and each not in chosen]
            others.sort(key=lambda each: -each[1])
            banks: dict[int, list[Any]] = defaultdict(list)
            for score, place, token in [(each[0], *each[2:]) for each in chosen] + [each[1:] for each in others]:
                history = (*parents[place][1], token)
                banks[len(phrases & {*history})].append((score, history))
            rounds = itertools.zip_longest(*(banks[bank] for bank in sorted(banks, reverse=True)))
            in_turn = [each for some in rounds for each in some if each is not None][:size]
            allocated.append(in_turn + [None] * (size - len(in_turn)))
        order = [each for rank in zip(*allocated, strict=True) for each in rank]
        ends = [each for each in order[: cfg.beam] if each is not None and each[1][-1] == EOS]
        scored = [(history, score / len(history) if cfg.normalize else score) for score, history in ends]
        finished += scored[: cfg.beam - len(finished)]
        beams = [each for each in order if each is None or each[1][-1] != EOS][: cfg.beam]
        if len(finished) == cfg.beam:
            break
    return sorted(finished, key=lambda pair: -pair[1])


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("beam", "groups", "strength"), [(4, 2, 0.5), (6, 3, 0.5), (6, 2, 2.0), (3, 3, 1.0), (4, 1, 0.7)]
)
def test_diverse_beam_search_equals_plain_loops(beam: int, groups: int, strength: float, seed: int) -> None:
    """With phrases, each group is constrained by itself, which needs two beams in each."""
    rule, cfg = random_rule(vocab=25, seed=seed), Settings(beam=beam, max_len=6)
    search = DiverseBeamSearch(groups, strength)
    results = decode(rule, 21, search, beam_size=beam, max_len_b=6)
    for source, hypotheses in zip(SOURCES, results, strict=True):
        assert_same_pairs(as_pairs(hypotheses), plain_groups(rule, source, cfg, groups, strength, frozenset()))
    rule, cfg = random_rule(vocab=14, seed=seed, sharpness=2), Settings(beam, 4, 0, normalize=False)
    options = {"beam_size": beam, "max_len_b": 4, "min_len": 0, "normalize_scores": False}
    if beam == groups:
        return
    found = decode(rule, 10, ConstrainedSearch(inner=search), constraints=[[[9], [12]]] * 4, **options)
    for source, hypotheses in zip(SOURCES, found, strict=True):
        wanted = plain_groups(rule, source, cfg, groups, strength, frozenset({9, 12}))
        assert_same_pairs(as_pairs(hypotheses), wanted)


def test_groups_differ_only_from_tokens_that_were_possible() -> None:
    """The first group has one possible token; the others, of score -inf, only fill its list of candidates."""
    lprobs = torch.full((1, 2, 3), -1.0)
    lprobs[0, 0, :2] = -torch.inf
    found = DiverseBeamSearch(2, strength=0.5).step(step_context(1), Scores(lprobs, torch.zeros(1, 2)))
    second = zip(found.tokens[0, 1::2].tolist(), found.scores[0, 1::2].tolist(), strict=True)
    assert sorted(second) == [(0, -1.0), (1, -1.0)], "the first group has chosen token 2"


def test_siblings_lose_by_rank() -> None:
    table = {(): {A: 0.6, B: 0.4}, (A,): {A: 0.5, B: 0.4, EOS: 0.1}, (B,): {A: 0.9, EOS: 0.1}}
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


def occurrences(output: tuple[int, ...], phrase: Phrase) -> int:
    """How often one of the alternatives of a phrase occurs, without overlaps: each as early as it ends."""
    found = start = 0
    for end in range(1, len(output) + 1):
        if any(output[start:end][-len(some) :] == some for some in alternatives(phrase)):
            found, start = found + 1, end
    return found


def satisfies(output: tuple[int, ...], phrases: Sequence[Phrase], ordered: bool) -> bool:
    if not ordered:
        return all(occurrences(output, phrase) >= list(phrases).count(phrase) for phrase in phrases)
    start = 0
    for phrase in phrases:
        sizes = [(len(some), some) for some in alternatives(phrase)]
        ends = [end for end in range(len(output) + 1) for n, some in sizes if output[max(start, end - n) : end] == some]
        if not ends:
            return False
        start = min(ends)
    return True


MEETINGS = [[[A]], [[A, A, B]], [[A, B], [B, A]], [[A], [A]], [[A, B], [A, C]], [[A, B], [A]], [[C], [B, A]]]
MEETINGS += [[[[A, B], [C]]], [[[A, A, B], [A, B, C], [C, C]], [B]], [[[A, B, C, A], [B, C], [B]], [[C, A], [A]]]]
MEETINGS += [[[[A], [A, B], [C]]] * 2, [[[A, B], [C]]] * 2, [[[A, B], [A, C]]] * 2]


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("phrases", MEETINGS, ids=str)
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


class Pruning(BeamSearch):
    """Drops candidates that are much worse than the best one."""

    def step(self, context: StepContext, scores: Scores) -> Candidates:
        found = super().step(context, scores)
        return found.without(found.scores < found.scores[:, :1] - 1.0)


INNER: dict[str, Callable[[], Search]] = {
    "beam": BeamSearch,
    "diverse": lambda: DiverseBeamSearch(groups=3, strength=0.5),
    "siblings": lambda: DiverseSiblingsSearch(rate=0.5),
    "pruning": Pruning,
    "sampling": lambda: Sampling(seed=3),
    "beam sampling": lambda: BeamSampling(seed=3),
}


RULES_AND_ORDER = [("fairseq", True), ("huggingface", False), ("fairseq", False), ("huggingface", True)]


@pytest.mark.parametrize(("name", "rules_and_order"), covering(list(INNER), RULES_AND_ORDER, times=2))
def test_every_output_has_the_phrases_of_its_sentence(name: str, rules_and_order: tuple[str, bool]) -> None:
    """In a narrow beam, alone as in a batch; a sentence without phrases has the outputs of the strategy."""
    semantics, ordered = rules_and_order
    if (name, semantics) == ("diverse", "huggingface"):
        return  # which has another class, which is refused
    rule = random_rule(vocab=40, seed=3, sharpness=3)
    phrases = [[[A, B, C], [20]], [], [[30], [30], [7, 8]], [[[9, 11], [12, 13, 14], [15]], [[16], [17]]]]
    options = {"beam_size": 12, "max_len": 30, "semantics": semantics}
    found = decode(rule, 36, ConstrainedSearch(ordered, INNER[name]()), constraints=phrases, **options)
    for own, hypotheses in zip(phrases, found, strict=True):
        assert hypotheses  # not always 12: a beam that lacks a phrase at the maximum length gives none
        assert all(satisfies(tuple(h.tokens.tolist()), own, ordered) for h in hypotheses)
    assert_same_pairs(as_pairs(found[1]), as_pairs(decode(rule, 36, INNER[name](), **options)[1]))
    alone = decode(rule, 36, ConstrainedSearch(ordered, INNER[name]()), SOURCES[:1], constraints=phrases[:1], **options)
    assert_same_pairs(as_pairs(found[0]), as_pairs(alone[0]))
    if "sampling" in name:
        other = decode(rule, 36, ConstrainedSearch(ordered, type(INNER[name]())(4)), constraints=phrases, **options)
        assert as_pairs(other[0]) != as_pairs(found[0]), "samples still vary"


def test_a_prefix_counts_towards_the_constraints() -> None:
    rule = random_rule(vocab=12, seed=3)
    prefix = torch.tensor([[A, B]])
    options = {"beam_size": 3, "max_len_b": 6, "constraints": [[[B, C]]], "prefix_tokens": prefix}
    found = decode(rule, 8, ConstrainedSearch(), [(4, 2)], **options)[0]
    assert found
    for h in found:
        assert h.tokens[:2].tolist() == [A, B]
        assert satisfies(tuple(h.tokens.tolist()), [[B, C]], False)


@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
def test_a_stopping_rule_ends_no_output_that_lacks_a_phrase(semantics: str) -> None:
    class Stop(StoppingRule):
        def __call__(self, tokens: Tensor, context: StepContext) -> Tensor:
            return tokens[:, -1] == 4

    options = {"beam_size": 4, "max_len_b": 6, "min_len": 0, "semantics": semantics}
    for inner in (None, DiverseSiblingsSearch()):
        search = ConstrainedSearch(inner=inner)
        rule = random_rule(vocab=12, seed=3)
        found = decode(rule, 8, search, constraints=[[[6]]] * 4, stopping=[Stop()], **options)
        outputs = [hypothesis.tokens.tolist() for hypotheses in found for hypothesis in hypotheses]
        assert all(6 in output for output in outputs)
        assert any(output[-1] == 4 for output in outputs)


def test_a_phrase_costs_in_proportion_to_its_length() -> None:
    """A cubic one cost seconds for 800 tokens."""

    def constraints(phrases: list[Any]) -> LexicalConstraints:
        return LexicalConstraints(phrases, ordered=False, device=torch.device("cpu"))

    def tree(length: int) -> LexicalConstraints:
        some = [[i % 3 for i in range(length)], *([3, i % 2, *[4] * i] for i in range(length // 10))]
        return constraints([[some]])

    def equal(length: int) -> LexicalConstraints:
        return constraints([[[7]] * length])

    assert equal(5).predecessors.tolist() == [[-1, 0, 1, 2, 3]]
    for phrases in (tree, equal):
        assert work(lambda make=phrases: make(100)) < 2.5 * work(lambda make=phrases: make(50))


@pytest.mark.parametrize("within", [[B], [B, C], [C]])
def test_an_alternative_may_occur_inside_a_longer_one(within: list[int]) -> None:
    constraints = LexicalConstraints([[[[A, B, C, A], within]]], ordered=False, device=torch.device("cpu"))
    progress, met = constraints.start(1), []
    for token in (A, B, C):
        progress = constraints.advance(progress, torch.tensor([[token]]))
        met.append(bool(progress.met.all()))
    assert met == [False, within == [B], True]
