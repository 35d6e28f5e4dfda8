"""Members with different target vocabularies: the search is compared with plain searches and with enumeration."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from seqgen.addons.cross_vocabulary.session import AgreementSearch
from seqgen.addons.cross_vocabulary.vocabulary_trie import END, MemberTexts, VocabularyTrie
from seqgen.core.combinations import Combination
from seqgen.core.sequence_generator import SequenceGenerator
from seqgen.core.structures import Hypothesis
from seqgen.data.tokenizers.base import Tokenizer
from seqgen.data.tokenizers.pretrained import byte_files
from seqgen.data.tokenizers.slow import ByteTokenizer
from seqgen.decoding.combinations import LogProbabilityMean
from seqgen.decoding.processors.length import ForceFirst
from tests.addons.cross_vocabulary.reference import (
    Found,
    Pieces,
    all_joint_outputs,
    beam_search,
    log_probabilities,
    texts_of,
)
from tests.generators import make_generator
from tests.scripted_model import Rule, ScriptedModel, batch_of, random_rule

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
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
    torch.testing.assert_close(
        torch.tensor([score for _, score in found]), torch.tensor([score for _, score in expected]), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("weights", [(1.0, 1.0), (3.0, 1.0)])
def test_a_wide_beam_finds_what_enumeration_finds(weights: tuple[float, float]) -> None:
    tokenizers = [Pieces(pieces) for pieces in VOCABULARIES[:2]]
    rules, tables = rules_of(tokenizers), [texts_of(one) for one in tokenizers]
    found = generator(tokenizers, rules, weights, beam_size=60, max_len_b=3).generate(batch_of(SOURCES))
    scaled = [weight / sum(weights) for weight in weights]
    for source, own in zip(SOURCES, found, strict=True):
        members = [log_probabilities(rule, tuple(source)) for rule in rules]
        expected = all_joint_outputs(members, tables, scaled, 3)
        # texts of 1 to 3 letters: 2 + 4 + 8, and one more for each way of joining the letters a and b
        assert len(expected) == 14 + 1 + 4
        assert_same(outputs(own), expected)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("beam", [1, 2, 5])
def test_each_step_has_the_best_joint_continuations(beam: int, seed: int) -> None:
    """The reference tries all combinations of all tokens, with three members of three vocabularies."""
    tokenizers = [Pieces(pieces) for pieces in VOCABULARIES]
    rules, tables, weights = rules_of(tokenizers, 10 * seed), [texts_of(one) for one in tokenizers], (2.0, 1.0, 1.0)
    found = generator(tokenizers, rules, weights, beam_size=beam, max_len_b=6).generate(batch_of(SOURCES))
    for source, own in zip(SOURCES, found, strict=True):
        members = [log_probabilities(rule, tuple(source)) for rule in rules]
        expected = beam_search(members, tables, (0.5, 0.25, 0.25), 6, beam)
        assert expected or own[0].tokens[-1] != 2, "if nothing can end, one output is cut off"
        if expected:
            assert_same(outputs(own), expected)


def test_a_member_that_cannot_generate_the_rest_excludes_a_token() -> None:
    """A member of words does not begin a word that another member continues to a word that it does not have."""
    tokenizers = [Pieces([" a", " ab", " c"]), Pieces([" ", "a", "b", "c", "d"])]
    rules, tables = rules_of(tokenizers, 3), [texts_of(one) for one in tokenizers]
    found = generator(tokenizers, rules, beam_size=2, max_len_b=9).generate(batch_of(SOURCES))
    for source, own in zip(SOURCES, found, strict=True):
        members = [log_probabilities(rule, tuple(source)) for rule in rules]
        assert_same(outputs(own), beam_search(members, tables, (0.5, 0.5), 9, 2))
        for one in own:
            first, second = (
                tokenizer.decode(t.tolist()) for tokenizer, t in zip(tokenizers, one.member_tokens or (), strict=True)
            )
            assert first == second


class WeightedSum(Combination):
    """The weighted sum of log-probabilities, not renormalized."""

    def __call__(self, lprobs: Any, context: Any) -> torch.Tensor:
        return 0.75 * lprobs[0] + 0.25 * lprobs[1]


def test_equal_vocabularies_without_prefixes_give_the_plain_ensemble() -> None:
    tokenizer = Pieces(["a", "bc", "bd", "e"])
    rules = [spoken(rule) for rule in rules_of([tokenizer] * 2, 7)]
    options: dict[str, Any] = {"beam_size": 3, "max_len_b": 7, "min_len": 2, "len_penalty": 0.7, "temperature": 1.3}
    agreement = generator([tokenizer] * 2, rules, (3.0, 1.0), **options)
    models = [ScriptedModel(rule) for rule in rules]
    plain = make_generator(models, tokenizer.dictionary, combination=WeightedSum(), **options)
    for own, expected in zip(agreement.generate(batch_of(SOURCES)), plain.generate(batch_of(SOURCES)), strict=True):
        assert_same(outputs(own), [((tuple(one.tokens.tolist()),) * 2, one.score) for one in expected])


def test_a_first_token_without_text_is_forced() -> None:
    tokenizer, unk = Pieces(VOCABULARIES[2]), 3
    [free] = rules_of([tokenizer], 6)
    rule = spoken(free)
    model = ScriptedModel(lambda source, history: rule(source, history) if history else free(source, history))
    settings: dict[str, Any] = {"beam_size": 4, "max_len_b": 9}
    plain = make_generator([model], tokenizer.dictionary, processors=[ForceFirst(unk, True)], **settings)
    setup = make_generator([model], tokenizer.dictionary, combination=LogProbabilityMean(), **settings).setup
    forced = SequenceGenerator(replace(setup, search=AgreementSearch(MemberTexts([tokenizer]), [unk])))
    for own, expected in zip(forced.generate(batch_of(SOURCES)), plain.generate(batch_of(SOURCES)), strict=True):
        assert own[0].tokens[0] == unk
        assert_same(outputs(own), [((tuple(one.tokens.tolist()),), one.score) for one in expected])


def spoken(rule: Rule) -> Rule:
    """The rule without tokens that have no text, which agreement never generates."""

    def without(source: tuple[int, ...], history: tuple[int, ...]) -> torch.Tensor:
        return rule(source, history).index_fill(0, torch.tensor([0, 1, 3]), -torch.inf)

    return without


def test_the_order_of_the_members_does_not_matter() -> None:
    tokenizers = [Pieces(pieces) for pieces in VOCABULARIES]
    rules = rules_of(tokenizers, 21)
    expected = generator(tokenizers, rules, beam_size=3, max_len_b=8).generate(batch_of(SOURCES))
    for order in itertools.permutations(range(3)):
        shuffled = generator([tokenizers[i] for i in order], [rules[i] for i in order], beam_size=3, max_len_b=8)
        for own, other in zip(shuffled.generate(batch_of(SOURCES)), expected, strict=True):
            in_order = [(tuple(tokens[i] for i in order), score) for tokens, score in outputs(other)]
            assert_same(outputs(own), in_order)


def test_characters_of_several_bytes() -> None:
    """A member of bytes stops inside a character that another member generates at once."""
    byte = ByteTokenizer(byte_files())
    pieces = Pieces(["é", "è", "e", "éé", "ß"])
    letters = {3 + value: 0.0 for character in "éèß" for value in character.encode()} | {1: -1.0, 3 + ord("e"): -0.5}

    def rule(source: tuple[int, ...], history: tuple[int, ...]) -> torch.Tensor:
        logits = torch.full((len(byte.dictionary),), -torch.inf, dtype=torch.float64)
        noise = random_rule(len(byte.dictionary), 5)(source, history)
        for token, value in letters.items():
            logits[token] = value + noise[token]
        return logits

    rules = [rule, *rules_of([pieces], 6)]
    found = generator([byte, pieces], rules, beam_size=3, max_len_b=12).generate(batch_of(SOURCES))
    texts = set()
    for own, source in zip(found, SOURCES, strict=True):
        members = [log_probabilities(one, tuple(source)) for one in rules]
        assert_same(outputs(own), beam_search(members, [texts_of(byte), texts_of(pieces)], (0.5, 0.5), 12, 3))
        for one in own:
            first, second = one.member_tokens or ()
            assert byte.decode(first.tolist()) == pieces.decode(second.tolist())
            texts.add(pieces.decode(second.tolist()))
    assert any(not text.isascii() for text in texts)


@pytest.mark.parametrize("seed", range(25))
def test_the_best_longest_texts_are_those_of_all_combinations(seed: int) -> None:
    """Random vocabularies with tokens of equal texts, and members that wait."""
    draw, beam, size, count = random.Random(seed), 2, 20, 3
    torch.manual_seed(seed)
    tables = [
        [END, *("".join(draw.choices("abc", k=draw.choice([1, 1, 2, 3]))) for _ in range(size - 1))]
        for _ in range(2 + seed % 2)
    ]
    trie = VocabularyTrie(tables)
    gains = [torch.randn(2 * beam, size, dtype=torch.float64) * draw.choice([0.3, 3.0]) for _ in tables]
    base = torch.randn(2 * beam, dtype=torch.float64)
    drawn = [("", *draw.choices(["", "a", "ab", "cab", "b" + END], k=1), *[""] * (seed % 2)) for _ in base]
    pending = [texts if trie.possible(texts) else ("",) * len(texts) for texts in drawn]
    found = trie.best(gains, base, pending, beam, count)
    for sentence in range(2):
        expected: dict[tuple[int, str], float] = {}
        for row in range(sentence * beam, (sentence + 1) * beam):
            options = [
                [(text, 0.0)] if text else list(zip(table, gain[row].tolist(), strict=True))
                for text, table, gain in zip(pending[row], tables, gains, strict=True)
            ]
            for chosen in itertools.product(*options):
                texts = tuple(text for text, _ in chosen)
                longest = max(texts, key=len)
                if all(longest.startswith(text) for text in texts) and trie.possible(texts):
                    key = row, "" if longest in pending[row] else longest
                    value = float(base[row]) + sum(gain for _, gain in chosen)
                    expected[key] = max(value, expected.get(key, -torch.inf))
        best = sorted(expected.items(), key=lambda item: -item[1])[:count]
        exist = found.values[sentence] > -torch.inf
        rows, nodes = found.rows[sentence][exist].tolist(), found.nodes[sentence][exist].tolist()
        keys = [(row, "" if node == trie.root else trie.texts[node]) for row, node in zip(rows, nodes, strict=True)]
        assert keys == [key for key, _ in best]
        values = torch.tensor([value for _, value in best], dtype=torch.float64)
        torch.testing.assert_close(found.values[sentence][exist], values)


def test_few_tokens_are_tried_as_the_longest_text() -> None:
    """Of 20 tokens that all agree only with themselves, the best pairs are among the five best of either member."""
    texts = [f" {letter}" for letter in "abcdefghijklmnopqrs"]
    table = [END, *texts]
    torch.manual_seed(1)
    first = torch.randn(3, 20, dtype=torch.float64).mul(3).log_softmax(1)
    second = (first + 0.1 * torch.randn(3, 20, dtype=torch.float64)).log_softmax(1)
    base, pending = torch.zeros(3, dtype=torch.float64), [("", "")] * 3
    exact = VocabularyTrie([table, table], width=20).best([first, second], base, pending, 1, 3)
    for found, wanted in zip(
        VocabularyTrie([table, table], width=5).best([first, second], base, pending, 1, 3), exact, strict=True
    ):
        assert torch.equal(found, wanted)
    reversed_ = second.argsort(1).argsort(1).neg().double()  # members that agree on nothing
    few = VocabularyTrie([table, table], width=3).best([first, reversed_], base, pending, 1, 3).values
    assert bool(
        (few <= VocabularyTrie([table, table], width=20).best([first, reversed_], base, pending, 1, 3).values).all()
    )
