"""Components with bugs that are usual in decoding components; the check finds each and names its cause."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import make_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import seqgen.models  # noqa: F401  # declares the built-in models
from seqgen.addons.checks.checking import ERROR, Outcome, causes, check
from seqgen.addons.checks.kinds import (
    KINDS,
    DecodingCheckConfig,
    ModelCheckConfig,
    component_subject,
    model_subject,
    small_transformer,
)
from seqgen.config import SINGLE_COMPONENTS, GenerationConfig
from seqgen.core.beam_search import BeamSearch
from seqgen.core.candidates import Candidates, best_continuations
from seqgen.core.combinations import Combination
from seqgen.core.component import ATTENTION, HIDDEN_STATES, MEMBER_LOGITS, Component
from seqgen.core.observers import Observer
from seqgen.core.processors import LogitsProcessor
from seqgen.core.rules import StoppingRule
from seqgen.core.scores import Scores, own_beams
from seqgen.core.search import Search
from seqgen.modules.kv_cache.growing import GrowingCache
from seqgen.modules.kv_cache.protocol import KeysAndValues
from seqgen.registry import DECODING_COMPONENTS, Entry

BUGS: dict[str, tuple[type[Component], str]] = {}
"""Components with a bug, and the beginning of the cause that the check should name."""


def bug(cause: str) -> Callable[[type[Any]], type[Any]]:
    def decorator(component: type[Any]) -> type[Any]:
        BUGS[component.__name__] = component, cause
        return component

    return decorator


# -- search strategies -------------------------------------------------------------------------------------------------


class Repeats(BeamSearch):
    """Beam search that counts how often each beam was continued; each bug is a subclass."""

    beam_state = ("counts",)
    counts: Tensor
    changes_scores = True

    def begin(self, batch: Any) -> Any:
        search = super().begin(batch)
        search.counts = torch.zeros(batch.num_sentences, batch.beam_size, device=batch.device)
        return search

    def step(self, context: Any, scores: Scores) -> Candidates:
        lprobs, so_far = scores.lprobs(), scores.beams
        return super().step(context, Scores(lprobs - 0.1 * self.counts.unsqueeze(-1), so_far))

    def advance(self, active: Candidates) -> None:
        super().advance(active)
        self.counts = self.counts + (active.tokens % 3)


@bug("a state keeps the rows of sentences that have left the batch")
class StateNotSelected(Repeats):
    def select_sentences(self, keep: Tensor) -> None:
        self.counts = self.counts[: len(keep)]


@bug("the component keeps values of a batch on the object that")
class StateOnTheStrategy(Repeats):
    def begin(self, batch: Any) -> Any:
        self.candidates_per_beam = batch.num_candidates // batch.beam_size
        self.counts = torch.zeros(batch.num_sentences, batch.beam_size)
        return self


@bug("the same hypothesis is kept twice")
class AllBeamsAtTheFirstStep(BeamSearch):
    def step(self, context: Any, scores: Scores) -> Candidates:
        lprobs, so_far = scores.lprobs(), scores.beams
        return best_continuations(lprobs, so_far, self.candidates_per_beam * lprobs.size(1))


@bug("tokens or beams of candidates are wrong")
class WrongIndices(BeamSearch):
    """The index of a candidate is divided by the beam size in place of the vocabulary size."""

    def step(self, context: Any, scores: Scores) -> Candidates:
        lprobs, so_far = scores.lprobs(), scores.beams
        beam = lprobs.size(1)
        found = super().step(context, Scores(lprobs, so_far))
        entries = found.beams * lprobs.size(2) + found.tokens
        return Candidates(found.scores, found.tokens, entries // beam)


@bug("the component draws from PyTorch's own random numbers")
class GlobalRandomNumbers(Search):
    continues_each_beam = True

    def step(self, context: Any, scores: Scores) -> Candidates:
        lprobs, so_far = scores.distribution(), scores.beams
        tokens = torch.multinomial(lprobs.flatten(0, 1).softmax(-1), 1).view_as(so_far)
        drawn = lprobs.gather(2, tokens.unsqueeze(2)).squeeze(2)
        return Candidates(so_far + drawn, tokens, own_beams(tokens))


@bug("continues_each_beam is true")
class NotIndependent(BeamSearch):
    continues_each_beam = True


@bug("the scores of candidates are not scores + lprobs")
class ScoresOfOneToken(BeamSearch):
    """The scores of candidates are not cumulative."""

    def step(self, context: Any, scores: Scores) -> Candidates:
        lprobs, so_far = scores.lprobs(), scores.beams
        return super().step(context, Scores(lprobs, so_far.clamp(max=0) * 0.5))


@bug("NaN scores are hidden by a replacement")
class HidesNaN(BeamSearch):
    def step(self, context: Any, scores: Scores) -> Candidates:
        lprobs, so_far = scores.lprobs(), scores.beams
        return super().step(context, Scores(lprobs.masked_fill(lprobs.isnan(), -9.0), so_far))


@bug("candidates with a score of -inf become possible")
class AllowsForbiddenTokens(BeamSearch):
    def step(self, context: Any, scores: Scores) -> Candidates:
        lprobs, so_far = scores.lprobs(), scores.beams
        return super().step(context, Scores(lprobs.clamp(min=-20), so_far.clamp(min=-500)))


# -- logits processors -------------------------------------------------------------------------------------------------


class Counting(LogitsProcessor):
    """Lowers the scores of tokens by how often the hypothesis has them; each bug is a subclass."""

    beam_state = ("counts",)
    counts: Tensor

    def begin(self, batch: Any) -> Any:
        processor = super().begin(batch)
        processor.counts = torch.zeros(batch.num_sentences, batch.beam_size, 700)
        return processor

    def __call__(self, lprobs: Tensor, context: Any) -> Tensor:
        return lprobs - (0.5 * self.counts.flatten(0, 1)[:, : lprobs.size(1)]).to(lprobs.dtype)

    def advance(self, active: Candidates) -> None:
        super().advance(active)
        self.count(active)

    def count(self, active: Candidates) -> None:
        ones = torch.ones_like(active.tokens, dtype=self.counts.dtype).unsqueeze(2)
        self.counts = self.counts.scatter_add(2, active.tokens.unsqueeze(2), ones)


@bug("a state does not follow the beams")
class CountsNotReordered(Counting):
    def advance(self, active: Candidates) -> None:
        self.count(active)


@bug("a call changes the component's own tensors")
class CountsInTheCall(Counting):
    def __call__(self, lprobs: Tensor, context: Any) -> Tensor:
        found = super().__call__(lprobs, context)
        self.counts = self.counts + 0.1 * self.counts.gt(0)
        return found


@bug("a fork shares a tensor that is changed in place")
class CountsInPlace(Counting):
    """The counts are in no list of state, are handled by the class itself, and a fork shares them."""

    beam_state = ()
    sentence_state = ()

    def begin(self, batch: Any) -> Any:
        processor = type(self)()
        processor.counts = torch.zeros(batch.num_sentences, batch.beam_size, 700)
        return processor

    def advance(self, active: Candidates) -> None:
        moved = self.counts.gather(1, active.beams.unsqueeze(-1).expand_as(self.counts))
        self.counts.copy_(moved)
        self.counts.scatter_add_(2, active.tokens.unsqueeze(2), torch.ones_like(self.counts[..., :1]))

    def select_sentences(self, keep: Tensor) -> None:
        self.counts = self.counts[keep]


@bug("the result of a sentence depends on the other sentences of the batch")
class MeanOverTheBatch(LogitsProcessor):
    def __call__(self, lprobs: Tensor, context: Any) -> Tensor:
        return lprobs - 0.2 * lprobs.exp().mean(0, keepdim=True)


@bug("the scores of a beam depend on the other beams of its sentence")
class ComparesBeams(LogitsProcessor):
    def __call__(self, lprobs: Tensor, context: Any) -> Tensor:
        grouped = context.by_sentence(lprobs)
        return (grouped - 0.5 * grouped.exp().mean(1, keepdim=True)).flatten(0, 1)


@bug("a score becomes NaN or infinite")
class MultipliesForbiddenScores(LogitsProcessor):
    def __call__(self, lprobs: Tensor, context: Any) -> Tensor:
        return lprobs * (torch.arange(lprobs.size(1)) > 1)


@bug("shift_invariant is true")
class ThresholdOfProbabilities(LogitsProcessor):
    shift_invariant = True

    def __call__(self, lprobs: Tensor, context: Any) -> Tensor:
        return torch.where(lprobs < -3.0, lprobs - 1.0, lprobs)


@bug("can_merge is true")
class DecaysWithTheStep(LogitsProcessor):
    can_merge = True

    def __call__(self, lprobs: Tensor, context: Any) -> Tensor:
        return lprobs - 0.3 * context.step * (torch.arange(lprobs.size(1)) % 2)


@bug("the component works for one size of the vocabulary only")
class OfOneVocabulary(LogitsProcessor):
    def __call__(self, lprobs: Tensor, context: Any) -> Tensor:
        return lprobs - 0.1 * (torch.arange(13) % 2)


@bug(ERROR)
class RaisesAnError(LogitsProcessor):
    def __call__(self, lprobs: Tensor, context: Any) -> Tensor:
        return lprobs + self.missing


# -- combinations, the cache -------------------------------------------------------------------------------------------


@bug("the component writes into a tensor that it was given")
class AddsInPlace(Combination):
    def __call__(self, lprobs: Any, context: Any) -> Tensor:
        total = lprobs[0]
        for scores in lprobs[1:]:
            total += scores
        return total


@bug("the result differs if nothing is cached")
class DependsOnTheCache(LogitsProcessor):
    """Reads how a step is computed; without a cache, the features of the newest position are a view."""

    needs = frozenset({ATTENTION, HIDDEN_STATES})

    def __call__(self, lprobs: Tensor, context: Any) -> Tensor:
        return lprobs - 0.3 * context.outputs.features.is_contiguous() * (torch.arange(lprobs.size(1)) % 2)


# -- further faults of each kind ---------------------------------------------------------------------------------------


@bug("a state does not follow the beams")
class StateNotDeclared(LogitsProcessor):
    """Counts the words of each beam, in a tensor that no list of states names."""

    counts: Tensor

    def begin(self, batch: Any) -> Any:
        processor = copy.copy(self)
        processor.counts = torch.zeros(batch.num_sentences, batch.beam_size)
        return processor

    def select_sentences(self, keep: Tensor) -> None:
        self.counts = self.counts[keep]

    def advance(self, active: Candidates) -> None:
        self.counts = self.counts + active.tokens % 3

    def __call__(self, lprobs: Tensor, context: Any) -> Tensor:
        return lprobs - 0.1 * self.counts.view(-1, 1) * (torch.arange(lprobs.size(1)) % 2)


@bug("the result of a sentence depends on the other sentences of the batch")
class StateOfTheWrongAxis(Repeats):
    """Subtracts the mean of the sentences in place of that of the beams."""

    def step(self, context: Any, scores: Scores) -> Candidates:
        lprobs, so_far = scores.lprobs(), scores.beams
        centred = self.counts - self.counts.mean(0, keepdim=True)
        return BeamSearch.step(self, context, Scores(lprobs - 0.1 * centred.unsqueeze(-1), so_far))


@bug("the result of a sentence depends on the other sentences of the batch")
class DividesByTheLargestOfTheBatch(LogitsProcessor):
    def __call__(self, lprobs: Tensor, context: Any) -> Tensor:
        finite = lprobs.masked_fill(lprobs == -torch.inf, 0.0)
        return lprobs / finite.abs().max()


@bug("can_merge is true")
class ReadsTheStepWhereBatchesJoin(BeamSearch):
    can_merge = True
    changes_scores = True

    def step(self, context: Any, scores: Scores) -> Candidates:
        lprobs, so_far = scores.lprobs(), scores.beams
        return super().step(context, Scores(lprobs * (1 + 0.2 * context.step), so_far))


@bug("the component writes into a tensor that it was given")
class ScalesTheLastMember(Combination):
    def __call__(self, lprobs: Any, context: Any) -> Tensor:
        return lprobs[0] + lprobs[-1].mul_(0.5)


@bug("the result of a sentence depends on the other sentences of the batch")
class RandomNumbersOfThePosition(LogitsProcessor):
    """The random numbers depend on the step and on the row of the batch, not on the sentence."""

    def __call__(self, lprobs: Tensor, context: Any) -> Tensor:
        generator = torch.Generator().manual_seed(context.step)
        return lprobs - torch.rand(lprobs.shape, generator=generator)


@bug("hypotheses do not end")
class ForgetsTheEnd(BeamSearch):
    """Replaces the score of end-of-sentence, also where all else is forbidden."""

    def step(self, context: Any, scores: Scores) -> Candidates:
        lprobs, so_far = scores.lprobs(), scores.beams
        lprobs = lprobs.clone()
        lprobs[..., context.eos] = -torch.inf
        return super().step(context, Scores(lprobs, so_far))


@bug("shift_invariant is true")
class LogitsByMistake(BeamSearch):
    changes_scores = True

    def step(self, context: Any, scores: Scores) -> Candidates:
        values = scores.values
        return super().step(context, Scores(torch.where(values < -3.0, values - 1.0, values), scores.offsets))


@bug("with several members")
class DisagreementOfTheBatch(LogitsProcessor):
    """Weights scores by the disagreement of the members, averaged over the batch as well."""

    needs = frozenset({MEMBER_LOGITS})

    def __call__(self, lprobs: Tensor, context: Any) -> Tensor:
        spread = torch.stack(context.outputs.member_logits).var(0, unbiased=False).mean()
        return lprobs - spread * (torch.arange(lprobs.size(1)) % 2)


@bug("the observer changes a tensor")
class EndsSentences(Observer):
    def observe(self, record: Any) -> None:
        record.now_done.fill_(True)


MISSED: dict[str, type[Component]] = {}
"""Components with a fault that no invariant shows: they compute the same in every batch and with every optimization."""


def missed(component: type[Any]) -> type[Any]:
    MISSED[component.__name__] = component
    return component


@missed
class SumsInHalfPrecision(LogitsProcessor):
    """The penalty of a beam is summed in float16: it is rounded, in the same way in every batch."""

    beam_state = ("penalty",)
    penalty: Tensor

    def begin(self, batch: Any) -> Any:
        processor = super().begin(batch)
        processor.penalty = torch.zeros(batch.num_sentences, batch.beam_size, dtype=torch.float16)
        return processor

    def advance(self, active: Candidates) -> None:
        super().advance(active)
        self.penalty = self.penalty + (0.0007 * active.tokens).half()

    def __call__(self, lprobs: Tensor, context: Any) -> Tensor:
        return lprobs - self.penalty.view(-1, 1) * (torch.arange(lprobs.size(1)) % 2)


@missed
class StopsOneTokenLate(StoppingRule):
    """Ends outputs of four tokens, and was meant to end those of three."""

    def __call__(self, tokens: Tensor, context: Any) -> Tensor:
        return torch.full(tokens.shape[:1], tokens.size(1) > 3)


BASES = {
    "search": Search,
    "processor": LogitsProcessor,
    "combination": Combination,
    "stopping": StoppingRule,
    "observer": Observer,
}
EACH = [name if name == "CountsNotReordered" else pytest.param(name, marks=pytest.mark.slow) for name in BUGS]


def outcomes_of(
    name: str, component: type[Component], monkeypatch: pytest.MonkeyPatch, only: str = ""
) -> tuple[Any, list[Outcome]]:
    group = next(group for group, base in BASES.items() if issubclass(component, base))
    registry, chooser = DECODING_COMPONENTS[group]
    entry = Entry(name, component, make_dataclass(f"{name}Config", []))
    monkeypatch.setitem(registry._entries, name, entry)
    generation = GenerationConfig(**{chooser: name if group in SINGLE_COMPONENTS else [name]})
    subject = component_subject(group, DecodingCheckConfig(generation=generation))
    invariants = KINDS[group].invariants
    return subject, list(check(subject, {only: invariants[only]} if only else invariants))


@pytest.mark.parametrize("best", [1, 2, 3])
def test_sentences_without_hypotheses_are_not_scored(best: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The combination is correct; where the members' best tokens differ, a sentence has no output."""

    class AgreesOnTheBest(Combination):
        ignores_context = True

        def __call__(self, lprobs: Any, context: Any) -> Tensor:
            least = torch.stack([scores.topk(best).values[..., -1:] for scores in lprobs])
            return lprobs[0].masked_fill((torch.stack(list(lprobs)) < least).any(0), -torch.inf)

    subject, (outcome,) = outcomes_of("AgreesOnTheBest", AgreesOnTheBest, monkeypatch, only="scorer = generator")
    found = [len(hypotheses) for hypotheses in subject.decode(subject.batch(), min_len=0, end_symbols=[])]
    assert 0 in found
    assert outcome.violation is None
    assert outcome.reason == ("" if any(found) else "no sentence has a hypothesis")


@pytest.mark.parametrize("name", EACH)
def test_bugs_are_found_and_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    component, cause = BUGS[name]
    subject, outcomes = outcomes_of(name, component, monkeypatch)
    violations = [f"{outcome.name}: {outcome.violation.what}" for outcome in outcomes if outcome.violation]
    assert violations, [(o.name, o.reason) for o in outcomes if o.reason]
    found = causes(outcomes, subject)
    assert found[-1].startswith(cause), "\n".join([*violations, *found])
    assert len(found) == 1 or found[0] == ERROR


@pytest.mark.slow
@pytest.mark.parametrize("name", MISSED)
def test_what_is_not_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check compares a component with itself; whoever finds such a fault moves it to the list above."""
    _, outcomes = outcomes_of(name, MISSED[name], monkeypatch)
    assert [outcome.name for outcome in outcomes if outcome.violation] == []


class NotReordered(GrowingCache):
    def reorder(self, new_order: Tensor) -> Any:
        return self if len(new_order) == len(self.view().keys) else super().reorder(new_order)


class DropsTheFirstOfAMerge(GrowingCache):
    can_merge = True

    def merge(self, other: Any) -> Any:
        kept = other.view()
        return super().merge(type(self)(KeysAndValues(kept.keys.flip(0), kept.values, kept.padding_mask)))


@pytest.mark.parametrize(
    ("cache", "failed"),
    [
        (NotReordered, {"steps after any order of rows", "steps after reordering beams"}),
        (DropsTheFirstOfAMerge, {"batches that join"}),
        (GrowingCache, set()),
    ],
)
def test_faults_of_caches(cache: type[GrowingCache], failed: set[str]) -> None:
    subject = model_subject(ModelCheckConfig(model=small_transformer(), cache=cache.__name__))
    outcomes = list(check(subject))
    wrong = {outcome.name for outcome in outcomes if outcome.violation}
    assert wrong >= failed
    assert bool(wrong) == bool(failed)
    if failed:
        (cause,) = causes(outcomes, subject)
        assert cause.startswith(f"{cache.__name__} does not return the keys and values")
