"""Lexical constraints with strategies other than beam search, against plain loops and the strategies alone."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from seqgen.addons.marian.search import MarianBeam
from seqgen.core.beam_search import BeamSearch, Greedy
from seqgen.core.candidates import Candidates
from seqgen.core.component import Phrase, Phrases
from seqgen.core.context import StepContext
from seqgen.core.errors import ConfigError
from seqgen.core.rules import StoppingRule
from seqgen.core.scores import Scores
from seqgen.core.search import Search
from seqgen.core.structures import Hypothesis
from seqgen.decoding.search.constrained import ConstrainedSearch
from seqgen.decoding.search.contrastive import ContrastiveSearch
from seqgen.decoding.search.diverse import DiverseBeamSearch, DiverseSiblingsSearch
from seqgen.decoding.search.huggingface import HuggingFaceDiverseBeam
from seqgen.decoding.search.sampling import BeamSampling, Sampling
from seqgen.decoding.speculative.drafters import PromptLookup
from seqgen.decoding.speculative.verification import SpeculativeSearch
from seqgen.text.translator import Translator
from tests.generators import make_generator
from tests.hypotheses import Pairs, as_pairs, assert_same_pairs
from tests.reference_search import EOS
from tests.scripted_model import Rule, ScriptedModel, batch_of, dictionary, random_rule
from tests.text_models import text_model

SOURCES = [(4, 5, 2), (6, 2), (4, 4, 4, 4, 6, 2), (2,)]
PHRASES: list[list[Phrase]] = [
    [[4, 5, 6], [20]],
    [],
    [[30], [30], [7, 8]],
    [[[9, 11], [12, 13, 14], [15]], [[16], [17]]],
]


class Pruning(BeamSearch):
    """Drops candidates that are much worse than the best one."""

    def step(self, context: StepContext, scores: Scores) -> Candidates:
        found = super().step(context, scores)
        return found.without(found.scores < found.scores[:, :1] - 1.0)


STRATEGIES: dict[str, Callable[[], Search]] = {
    "diverse": lambda: DiverseBeamSearch(groups=3, strength=0.5),
    "siblings": lambda: DiverseSiblingsSearch(rate=0.5),
    "pruning": Pruning,
    "sampling": lambda: Sampling(seed=3),
    "beam sampling": lambda: BeamSampling(seed=3),
}


def decode(
    rule: Rule, words: int, search: Search, rows: Sequence[int], phrases: Any = None, **options: Any
) -> list[list[Hypothesis]]:
    generator = make_generator([ScriptedModel(rule)], dictionary(words), search_strategy=search, **options)
    batch = replace(batch_of([SOURCES[row] for row in rows]), ids=torch.tensor(rows))
    return generator.generate(batch, constraints=phrases)


def contains(output: list[int], phrases: Phrases) -> bool:
    """Whether an output has each phrase, or one of its alternatives, as often as it is listed."""
    for phrase in phrases:
        some: Any = phrase if isinstance(phrase[0], Sequence) else [phrase]
        counts = [sum(output[i : i + len(one)] == list(one) for i in range(len(output))) for one in some]
        if max(counts) < list(phrases).count(phrase):
            return False
    return True


@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_output_has_the_phrases_of_its_sentence(name: str, ordered: bool, semantics: str) -> None:
    """It is the same in a batch as alone; a sentence without phrases has the outputs of the strategy."""
    rule, strategy, rows = random_rule(vocab=40, seed=3, sharpness=3), STRATEGIES[name], range(4)
    options: dict[str, Any] = {"beam_size": 12, "max_len": 30, "semantics": semantics}
    if (name, semantics) == ("diverse", "huggingface"):
        with pytest.raises(ConfigError, match="HuggingFaceDiverseBeam applies the logits processors itself"):
            decode(rule, 36, ConstrainedSearch(ordered, strategy()), rows, PHRASES, **options)
        return
    together = decode(rule, 36, ConstrainedSearch(ordered, strategy()), rows, PHRASES, **options)
    plain = decode(rule, 36, strategy(), rows, **options)
    for row, (phrases, hypotheses) in enumerate(zip(PHRASES, together, strict=True)):
        outputs = [hypothesis.tokens.tolist() for hypothesis in hypotheses]
        assert outputs
        assert all(contains(output, phrases) for output in outputs)
        if ordered and row == 0:
            assert all(20 in output[output.index(6) :] for output in outputs)
        (alone,) = decode(rule, 36, ConstrainedSearch(ordered, strategy()), [row], [phrases], **options)
        assert_same_pairs(as_pairs(hypotheses), as_pairs(alone))
        if not phrases:
            assert_same_pairs(as_pairs(hypotheses), as_pairs(plain[row]))


def constrained_groups(rule: Rule, source: tuple[int, ...], phrases: set[int], groups: int, strength: float) -> Pairs:
    """Diverse beam search with phrases of one token each, four beams and four tokens, as loops over one sentence."""
    beams: list[tuple[float, tuple[int, ...]] | None] = [(0.0, ())] * 4
    finished: Pairs = []
    for step in range(5):
        used: dict[int, int] = defaultdict(int)
        allocated = []
        for group in range(groups):
            parents = [each for each in (beams[group::groups] if step else [(0.0, ())]) if each is not None]
            everything = []
            for place, (score, history) in enumerate(parents):
                for token, lprob in enumerate(rule(source, history).log_softmax(-1).tolist()):
                    if token != 1 and (token == EOS or step < 4) and (token != EOS or phrases <= {*history}):
                        everything.append((score + lprob - strength * used[token], score + lprob, place, token))
            chosen = sorted(everything, reverse=True)[: 8 // groups]
            for *_, token in chosen:
                used[token] += 1
            others = []
            for place in range(len(parents)):
                own = [each for each in everything if each[2] == place]
                best = max(own, key=lambda each: each[1], default=None)
                others += [each for each in own if (each == best or each[3] in phrases) and each not in chosen]
            others.sort(key=lambda each: -each[1])
            banks: dict[int, list[Any]] = defaultdict(list)
            listed = [(each[0], *each[2:]) for each in chosen] + [each[1:] for each in others]
            for score, place, token in listed:
                history = (*parents[place][1], token)
                banks[len(phrases & {*history})].append((score, history))
            rounds = itertools.zip_longest(*(banks[bank] for bank in sorted(banks, reverse=True)))
            in_turn = [each for some in rounds for each in some if each is not None][: 8 // groups]
            allocated.append(in_turn + [None] * (8 // groups - len(in_turn)))
        order = [each for rank in zip(*allocated, strict=True) for each in rank]
        ends = [each for each in order[:4] if each is not None and each[1][-1] == EOS]
        finished += [(history, score) for score, history in ends][: 4 - len(finished)]
        beams = [each for each in order if each is None or each[1][-1] != EOS][:4]
        if len(finished) == 4:
            break
    return sorted(finished, key=lambda pair: -pair[1])


@pytest.mark.parametrize("groups", [1, 2])
def test_each_group_is_constrained_by_itself(groups: int) -> None:
    for seed in range(4):
        rule = random_rule(vocab=14, seed=seed, sharpness=2)
        search = ConstrainedSearch(inner=DiverseBeamSearch(groups, 0.7))
        options = {"beam_size": 4, "max_len_b": 4, "min_len": 0, "normalize_scores": False}
        found = decode(rule, 10, search, range(4), [[[9], [12]]] * 4, **options)
        for source, hypotheses in zip(SOURCES, found, strict=True):
            assert_same_pairs(as_pairs(hypotheses), constrained_groups(rule, source, {9, 12}, groups, 0.7))


def test_samples_still_vary() -> None:
    rule = random_rule(vocab=40, seed=3, sharpness=3)
    options = {"beam_size": 8, "max_len": 20}
    found = [
        {tuple(h.tokens.tolist()) for h in decode(rule, 36, search, [0], [[[4, 5]]], **options)[0]}
        for search in (ConstrainedSearch(inner=Sampling(seed)) for seed in (1, 2, 1))
    ]
    assert found[0] == found[2]
    assert found[0].isdisjoint(found[1])


@pytest.mark.parametrize(
    ("inner", "words"),
    [
        (Greedy(), "Greedy keeps one hypothesis of a sentence, so it does not support constraints; remove"),
        (ContrastiveSearch(), "ContrastiveSearch keeps one hypothesis"),
        (MarianBeam(), "MarianBeam has its own rule for which hypotheses finish"),
        (HuggingFaceDiverseBeam(2, 0.5), "HuggingFaceDiverseBeam applies the logits processors itself"),
        (SpeculativeSearch(PromptLookup()), "SpeculativeSearch has a decoding loop of its own"),
    ],
)
def test_strategies_that_cannot_take_constraints_are_refused(inner: Search, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ConstrainedSearch(inner=inner)


def test_a_group_of_one_beam_is_refused() -> None:
    search = ConstrainedSearch(inner=DiverseBeamSearch(groups=4))
    with pytest.raises(ConfigError, match=r"generation\.beam=4 gives each of 4 groups one beam"):
        decode(random_rule(vocab=12, seed=3), 8, search, [0], [[[4]]], beam_size=4)


@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
def test_a_stopping_rule_ends_no_output_that_lacks_a_phrase(semantics: str) -> None:
    class Stop(StoppingRule):
        def __call__(self, tokens: Tensor, context: StepContext) -> Tensor:
            return tokens[:, -1] == 4

    options = {"beam_size": 4, "max_len_b": 6, "min_len": 0, "semantics": semantics}
    for inner in (None, DiverseSiblingsSearch()):
        search = ConstrainedSearch(inner=inner)
        rule = random_rule(vocab=12, seed=3)
        found = decode(rule, 8, search, range(4), [[[6]]] * 4, stopping=[Stop()], **options)
        outputs = [hypothesis.tokens.tolist() for hypotheses in found for hypothesis in hypotheses]
        assert all(6 in output for output in outputs)
        assert any(output[-1] == 4 for output in outputs)


@pytest.mark.parametrize(
    "settings",
    [
        {"search": "diverse_beam", "search.groups": 2},
        {"search": "diverse_siblings"},
        {"sampling": True, "temperature": 0.8},
        {"search": "sampling"},
        {"search": "beam_sampling"},
        {"search": "beam"},
    ],
    ids=str,
)
def test_by_keys(settings: dict[str, Any]) -> None:
    found = Translator(text_model()).translate(
        ["w1 w5\tw3", "w2\tw9 w8\tw3"], beam=6, constraints="ordered", max_len_b=9, **settings
    )
    assert "w3" in found[0].text.split()
    assert "w9 w8" in found[1].text
    assert "w3" in found[1].text.split("w9 w8")[1].split()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"search": "greedy"}, "Greedy keeps one hypothesis .* or choose a strategy that does, such as beam search"),
        ({"search": "contrastive"}, "ContrastiveSearch keeps one hypothesis"),
        ({"search": "marian"}, "MarianBeam has its own rule .* remove generation.constraints"),
        (
            {"sampling": True, "top_p": 0.9},
            "keys that truncate the distribution forbid improbable tokens; remove these",
        ),
        ({"sampling": True, "beam": 1}, "set generation.beam to 2 or more"),
    ],
    ids=str,
)
def test_what_constraints_exclude_is_said_once(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Translator(text_model()).translate(["w1 w5\tw3"], constraints="ordered", **settings)
