"""State of components follows beams that cross, finished sentences and joining ones."""

from __future__ import annotations

from typing import Any, Self

import pytest
import torch
from torch import Tensor

from seqgen.core.candidates import Candidates
from seqgen.core.combinations import Combination
from seqgen.core.component import BatchInfo, Component
from seqgen.core.context import StepContext
from seqgen.core.observers import Observer, StepRecord
from seqgen.core.processors import LogitsProcessor
from seqgen.core.rules import StoppingRule
from seqgen.decoding.continuous_batching import generate_continuously
from tests.generators import make_generator
from tests.hypotheses import assert_same
from tests.model_zoo import VOCAB, sharp
from tests.scripted_model import batch_of, dictionary
from tests.strategy_zoo import ENDS, STRATEGIES, decode, lines
from tests.waiting_sentences import queue, sources

WEIGHT = 0.7


def counts_of(tokens: Tensor) -> Tensor:
    """How often each row has each token: ``(rows, V)``."""
    return torch.nn.functional.one_hot(tokens, VOCAB).sum(1)


def preferences(ids: Tensor) -> Tensor:
    """``(sentences, V)`` a bias that depends on the number of the line."""
    return torch.sin(torch.arange(VOCAB) * (1.0 + ids.unsqueeze(1))).double()


class Counting(Component):
    """Counts the tokens of each beam, and keeps a bias for each sentence."""

    sentence_state = ("bias",)
    beam_state = ("counts",)
    counts: Tensor
    bias: Tensor

    def begin(self, batch: BatchInfo) -> Self:
        begun = super().begin(batch)
        begun.counts = torch.zeros(batch.num_sentences, batch.beam_size, VOCAB, dtype=torch.int64)
        assert batch.ids is not None
        begun.bias = preferences(batch.ids)
        return begun

    def advance(self, active: Candidates) -> None:
        super().advance(active)
        rows = active.tokens.unsqueeze(2)
        self.counts.scatter_add_(2, rows, torch.ones_like(rows))


class CountingPenalty(Counting, LogitsProcessor):
    can_merge = True

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        return lprobs - WEIGHT * self.counts.flatten(0, 1) + context.by_row(self.bias)


class PlainPenalty(LogitsProcessor):
    """The same without any state."""

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        return lprobs - WEIGHT * counts_of(context.tokens) + preferences(context.sentence_ids)


class CountingProduct(Counting, Combination):
    def __call__(self, lprobs: Any, context: StepContext | None) -> Tensor:
        assert context is not None
        return sum(lprobs) - WEIGHT * self.counts.flatten(0, 1) + context.by_row(self.bias)


class PlainProduct(Combination):
    def __call__(self, lprobs: Any, context: StepContext | None) -> Tensor:
        assert context is not None
        return sum(lprobs) - WEIGHT * counts_of(context.tokens) + preferences(context.sentence_ids)


class CountingStop(Counting, StoppingRule):
    """An output ends where it has a token for the second time."""

    def __call__(self, tokens: Tensor, context: StepContext) -> Tensor:
        assert context.parents is not None
        counts = self.counts.gather(1, context.parents.unsqueeze(2).expand(-1, -1, VOCAB))
        return counts.flatten(0, 1).gather(1, tokens[:, -1:]).squeeze(1) > 0


class PlainStop(StoppingRule):
    def __call__(self, tokens: Tensor, context: StepContext) -> Tensor:
        return (tokens[:, :-1] == tokens[:, -1:]).any(1)


class CountingObserver(Counting, Observer):
    """Compares what it has counted with what each beam has written."""

    def __init__(self) -> None:
        self.crossed: list[bool] = []

    def observe(self, record: StepRecord) -> None:
        assert torch.equal(self.counts.flatten(0, 1), counts_of(record.context.tokens))
        assert torch.equal(self.bias, preferences(record.context.sentences.ids))
        beams = record.active.beams
        self.crossed.append(bool((beams != torch.arange(beams.size(1))).any()))


def settings(semantics: str) -> dict[str, Any]:
    return {"semantics": semantics, "end_tokens": ENDS, "beam_size": 4}


def assert_state_follows(name: str, stateful: dict[str, Any], plain: dict[str, Any], members: int = 1) -> None:
    """What a component computes from its state is what one computes from the tokens of each row."""
    models = [sharp("transformer_tiny", factor=1.6), sharp("fconv_tiny", factor=1.6)][:members]
    for semantics in ("fairseq", "huggingface"):
        common = settings(semantics)
        wanted = decode(name, models, lines(), VOCAB - 4, **common, **plain)
        if name == "beam":
            assert len({len(h.tokens) for hypotheses in wanted for h in hypotheses}) > 1
        for lazy in (True, False):
            found = decode(name, models, lines(), VOCAB - 4, **common, **stateful, lazy_compaction=lazy)
            assert_same(found, wanted)
        for row in range(4):
            alone = decode(name, models, lines([row]), VOCAB - 4, **common, **stateful)
            assert_same(alone, wanted[row : row + 1])


@pytest.mark.parametrize("name", list(STRATEGIES))
def test_processors(name: str) -> None:
    stateful, plain = ({"processors": [own]} for own in (CountingPenalty(), PlainPenalty()))
    assert_state_follows(name, stateful, plain)


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("name", ["beam", "greedy", "sampling", "diverse_beam"])
def test_combinations(name: str, members: int) -> None:
    stateful, plain = ({"combination": own} for own in (CountingProduct(), PlainProduct()))
    assert_state_follows(name, stateful, plain, members)


def test_combinations_inside_guidance() -> None:
    stateful, plain = ({"combination": own, "guidance_scale": 1.5} for own in (CountingProduct(), PlainProduct()))
    assert_state_follows("beam", stateful, plain)


@pytest.mark.parametrize("name", ["beam", "sampling", "diverse_siblings", "contrastive"])
def test_stopping_rules(name: str) -> None:
    assert_state_follows(name, {"stopping": [CountingStop()]}, {"stopping": [PlainStop()]})


@pytest.mark.parametrize("name", list(STRATEGIES))
@pytest.mark.parametrize("lazy", [True, False])
def test_observers(name: str, lazy: bool) -> None:
    observer = CountingObserver()
    models = [sharp("transformer_tiny", factor=1.6)]
    decode(name, models, lines(), VOCAB - 4, **settings("fairseq"), observers=[observer], lazy_compaction=lazy)
    assert any(observer.crossed) == (name not in ("greedy", "sampling", "contrastive"))


@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
def test_a_processor_that_joins(semantics: str) -> None:
    rows = sources(17, seed=1)
    options = {"beam_size": 4, "max_len_a": 1.0, "max_len_b": 3, "semantics": semantics}
    models, words = [sharp("transformer_tiny", seed=3)], dictionary(VOCAB - 4)
    generator = make_generator(models, words, **options, processors=[CountingPenalty()])
    plain = make_generator(models, words, **options, processors=[PlainPenalty()])
    assert generator.can_merge
    assert not plain.can_merge
    take, asked = queue(rows, 5)
    found = dict(generate_continuously(generator, take))
    assert len([running for running in asked if 0 < running < 5]) > 2
    wanted = plain.generate(batch_of(rows))
    assert_same([found[number] for number in range(17)], wanted)


@pytest.mark.parametrize("declared", [True, False])
def test_a_combination_declares_whether_sentences_may_join(declared: bool) -> None:
    class Own(CountingProduct):
        can_merge = declared

    rows = sources(9, seed=1)
    generator = make_generator(
        [sharp("transformer_tiny", seed=3)], dictionary(VOCAB - 4), beam_size=3, max_len_b=5, combination=Own()
    )
    assert generator.can_merge == declared
    found = dict(generate_continuously(generator, queue(rows, 3)[0]))
    assert_same([found[number] for number in range(9)], generator.generate(batch_of(rows)))
