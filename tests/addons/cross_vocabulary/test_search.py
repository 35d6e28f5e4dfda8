"""Members with different target vocabularies: the search against plain searches; test_translator.py enumerates."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from seqgen.addons.cross_vocabulary.session import AgreementSearch
from seqgen.addons.cross_vocabulary.vocabulary_trie import END, Longest, MemberTexts, VocabularyTrie
from seqgen.core.combinations import Combination
from seqgen.core.sequence_generator import SequenceGenerator
from seqgen.core.structures import Hypothesis
from seqgen.data.tokenizers.base import Tokenizer
from seqgen.decoding.combinations import LogProbabilityMean
from tests.addons.cross_vocabulary import reference
from tests.addons.cross_vocabulary.reference import Found, texts_of
from tests.generators import make_generator
from tests.scripted_model import Rule, ScriptedModel, batch_of, random_rule
from tests.text_models import Pieces

SOURCES = [[4, 5, 2], [6, 2], [7, 4, 4, 6, 2]]
VOCABULARIES = [["a", "b", "ab"], ["a", "b"], ["a", "ba", "b", "bab"]]


def rules_of(tokenizers: Sequence[Tokenizer], seed: int = 0) -> list[Rule]:
    return [random_rule(len(one.dictionary), seed + number) for number, one in enumerate(tokenizers)]


def generator(
    tokenizers: Sequence[Tokenizer], rules: Sequence[Rule], weights: Sequence[float] = (), **options: Any
) -> SequenceGenerator:
    models = [ScriptedModel(rule) for rule in rules]
    plain = make_generator(models, tokenizers[0].dictionary, combination=LogProbabilityMean(weights), **options)
    search = AgreementSearch(MemberTexts(tokenizers), None, options.get("min_len", 1), 0)
    return SequenceGenerator(replace(plain.setup, search=search))


def outputs(hypotheses: Sequence[Hypothesis]) -> Found:
    return [(tuple(tuple(tokens.tolist()) for tokens in one.member_tokens or ()), one.score) for one in hypotheses]


def assert_same(found: Found, expected: Found) -> None:
    assert found == [(tokens, pytest.approx(score, rel=0, abs=1e-6)) for tokens, score in expected]


def random_vocabularies(seed: int) -> list[list[str]]:
    """A member with all letters, and one or two that often cannot generate the rest of a text."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abc", k=draw.choice([1, 2, 2, 3]))) for _ in range(6 * (1 + seed % 2))]
    return [["a", "b", "c", "ab", "bca"], *(words[begin : begin + 6] for begin in range(0, len(words), 6))]


GROUPS = [
    VOCABULARIES,
    [[" a", " ab", " c"], [" ", "a", "b", "c", "d"]],  # a member does not begin a word that it does not have
    [["é", "è", "e", "éé", "ß"], ["\udcc3", "\udca9", "\udca8", "\udc9f", "e"]],  # one stops inside a character
    *map(random_vocabularies, range(10)),
]


@pytest.mark.parametrize("beam", [1, 2, 5])
@pytest.mark.parametrize("seed", range(len(GROUPS)))
def test_each_step_has_the_best_joint_continuations(seed: int, beam: int) -> None:
    """The reference tries all combinations of all tokens of the members, also of tokens with equal texts."""
    tokenizers = [Pieces(pieces) for pieces in GROUPS[seed]]
    weights = (0.5, 0.25, 0.25) if len(tokenizers) == 3 else (0.75, 0.25)
    rules, tables = rules_of(tokenizers, 10 * seed), [texts_of(one) for one in tokenizers]
    found = generator(tokenizers, rules, weights, beam_size=beam, max_len_b=6).generate(batch_of(SOURCES))
    for source, own in zip(SOURCES, found, strict=True):
        members = [reference.log_probabilities(rule, tuple(source)) for rule in rules]
        expected = reference.beam_search(members, tables, weights, 6, beam)
        assert expected or own[0].tokens[-1] != 2, "if nothing can end, one output is cut off"
        if expected:
            assert_same(outputs(own), expected)
            for one in own:
                pairs = zip(tokenizers, one.member_tokens or (), strict=True)
                assert len({tokenizer.decode(tokens.tolist()) for tokenizer, tokens in pairs}) == 1


class WeightedSum(Combination):
    """The weighted sum of log-probabilities, not renormalized."""

    def __call__(self, lprobs: Any, context: Any) -> torch.Tensor:
        return 0.75 * lprobs[0] + 0.25 * lprobs[1]


@pytest.mark.parametrize("prefixes", [None, torch.tensor([[4, 7, 5], [1, 1, 1], [6, 1, 1]])])
def test_equal_vocabularies_give_the_plain_ensemble(prefixes: torch.Tensor | None) -> None:
    tokenizer = Pieces(["a", "bc", "bd", "e"])
    rules = [spoken(rule) for rule in rules_of([tokenizer] * 2, 7)]
    options: dict[str, Any] = {"beam_size": 3, "max_len_b": 7, "min_len": 2, "len_penalty": 0.7, "temperature": 1.3}
    agreement = generator([tokenizer] * 2, rules, (3.0, 1.0), **options)
    models = [ScriptedModel(rule) for rule in rules]
    plain = make_generator(models, tokenizer.dictionary, combination=WeightedSum(), **options)
    both = [one.generate(batch_of(SOURCES), prefixes) for one in (agreement, plain)]
    for own, expected in zip(*both, strict=True):
        assert_same(outputs(own), [((tuple(one.tokens.tolist()),) * 2, one.score) for one in expected])


def spoken(rule: Rule) -> Rule:
    """The rule without tokens that have no text, which agreement never generates."""
    return lambda source, history: rule(source, history).index_fill(0, torch.tensor([0, 1, 3]), -torch.inf)


def test_few_tokens_are_tried_as_the_longest_text() -> None:
    """Of 20 tokens that all agree only with themselves, the best pairs are among the five best of either member."""
    table = [END, *(f" {letter}" for letter in "abcdefghijklmnopqrs")]
    torch.manual_seed(1)
    first = torch.randn(3, 20, dtype=torch.float64).mul(3).log_softmax(1)
    similar = (first + 0.1 * torch.randn(3, 20, dtype=torch.float64)).log_softmax(1)
    reversed_ = similar.argsort(1).argsort(1).neg().double()  # members that agree on nothing

    def best(width: int, second: torch.Tensor) -> Longest:
        base, pending = torch.zeros(3, dtype=torch.float64), [("", "")] * 3
        return VocabularyTrie([table, table], width).best([first, second], base, pending, 1, 3)

    assert all(map(torch.equal, best(5, similar), best(20, similar)))
    assert bool((best(3, reversed_).values <= best(20, reversed_).values).all())
