"""Combinations against their formulas, with every search strategy, in the scorer and from the configuration."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from seqgen.core.combinations import Combination, ProbabilityMean
from seqgen.registry import COMBINATIONS
from tests.covering import covering
from tests.generators import resources
from tests.hypotheses import assert_same
from tests.scripted_model import ScriptedModel, dictionary, random_rule
from tests.strategy_zoo import STRATEGIES, Readable, decode, lines

FORMULAS: dict[str, tuple[dict[str, Any], Callable[[Tensor, Tensor, Tensor], Tensor]]] = {
    "probability": ({"weights": [1.0, 2.0, 5.0]}, lambda p, q, r: (p / 8 + q / 4 + 5 * r / 8).log()),
    "log": (
        {"weights": [1.0, 2.0, 5.0]},
        lambda p, q, r: ((g := p ** (1 / 8) * q ** (1 / 4) * r ** (5 / 8)) / g.sum(-1, keepdim=True)).log(),
    ),
    "fusion": ({"weight": -0.4}, lambda p, q, r: p.log() - 0.4 * (q.log() + r.log())),
}
names = pytest.mark.parametrize("name", list(FORMULAS))


def combination(name: str, **values: Any) -> Combination:
    entry = COMBINATIONS.entry(name)
    built: Combination = entry.component.build(entry.config(**values), resources(dictionary(5)))  # type: ignore[attr-defined]
    return built


def distributions(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(4, 9, generator=generator, dtype=torch.float64).log_softmax(-1) for _ in range(count)]


def test_no_registered_combination_is_forgotten() -> None:
    packages = ("seqgen.core.", "seqgen.decoding.")
    own = {entry.name for entry in COMBINATIONS.entries() if entry.component.__module__.startswith(packages)}
    assert own == set(FORMULAS)


@names
def test_formulas(name: str) -> None:
    values, formula = FORMULAS[name]
    lprobs = distributions(3)
    before = [own.clone() for own in lprobs]
    torch.testing.assert_close(combination(name, **values)(lprobs, None), formula(*(own.exp() for own in lprobs)))
    torch.testing.assert_close(lprobs, before, rtol=0, atol=0)
    assert torch.equal(combination(name)(lprobs[:1], None), lprobs[0])


class Sharper(Combination):
    def __call__(self, lprobs: Any, context: Any) -> Tensor:
        return (3.0 * lprobs[0]).log_softmax(-1)


SEARCHES = [name for name, strategy in STRATEGIES.items() if not strategy.reads_features]


@pytest.mark.parametrize(
    ("search", "semantics", "name"), covering(SEARCHES, ["fairseq", "huggingface"], list(FORMULAS), times=2)
)
def test_with_every_search(search: str, semantics: str, name: str) -> None:
    """An ensemble decodes as one model does whose logits are what the combination gives."""
    values, _ = FORMULAS[name]
    rules = [random_rule(9, seed) for seed in (1, 2, 3)]
    own = combination(name, **values)

    class Combined(Readable):
        def get_normalized_probs(self, logits: Tensor, log_probs: bool = True) -> Tensor:
            return logits if log_probs else logits.exp()

    def rule(source: tuple[int, ...], history: tuple[int, ...]) -> Tensor:
        return own([one(source, history).log_softmax(-1) for one in rules], None)

    options: dict[str, Any] = {"semantics": semantics, "max_len": 5}
    both = decode(search, [Readable(one) for one in rules], lines(), 5, combination=own, **options)
    assert_same(both, decode(search, [Combined(rule)], lines(), 5, **options))


def test_a_combination_that_changes_a_single_model_is_not_skipped() -> None:
    class Mine(ProbabilityMean):
        """Inherits no promise about a method that it replaces."""

        __call__ = Sharper.__call__

    rule = random_rule(9, 4)
    sharper = ScriptedModel(lambda source, history: 3.0 * rule(source, history))
    for search in ("beam", "greedy", "sampling"):
        for semantics in ("fairseq", "huggingface"):
            for own in (Sharper(), Mine()):
                found = decode(search, [ScriptedModel(rule)], lines(), 5, combination=own, semantics=semantics)
                assert_same(found, decode(search, [sharper], lines(), 5, semantics=semantics))
