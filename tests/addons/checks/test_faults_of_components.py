"""Components with bugs that are usual in decoding components; the check finds each and names its cause."""

from collections.abc import Callable
from dataclasses import make_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from seqgen.addons.checks import kinds
from seqgen.addons.checks.checking import ERROR, causes, check
from seqgen.config import SINGLE_COMPONENTS, GenerationConfig
from seqgen.core.candidates import Candidates, best_continuations
from seqgen.core.component import ATTENTION, HIDDEN_STATES, MEMBER_LOGITS, Component
from seqgen.core.scores import Scores, own_beams
from seqgen.extend import BeamSearch, Combination, GrowingCache, KeysAndValues, LogitsProcessor, Observer, Search
from seqgen.registry import DECODING_COMPONENTS, Entry
from tests.covering import mostly_slow

BUGS: dict[str, tuple[type[Component], str]] = {}
"""Components with a bug, and the beginning of the cause that the check should name."""


def bug(cause: str) -> Callable[[type[Any]], None]:
    return lambda component: BUGS.update({component.__name__: (component, cause)})


def bug_of_a_call(cause: str, **declared: Any) -> Callable[[Callable[..., Tensor]], None]:
    """A logits processor that has the function as its call."""
    return lambda call: bug(cause)(type(call.__name__, (LogitsProcessor,), {"__call__": call, **declared}))


# -- search strategies -------------------------------------------------------------------------------------------------


class Rescored(BeamSearch):
    """Beam search with other scores; each bug is a subclass that defines ``scores``."""

    def step(self, context: Any, scores: Scores) -> Candidates:
        return super().step(context, Scores(*self.scores(scores.lprobs(), scores.beams, context)))


@bug("the same hypothesis is kept twice")
class AllBeamsAtTheFirstStep(BeamSearch):
    def step(self, context: Any, scores: Scores) -> Candidates:
        lprobs, so_far = scores.lprobs(), scores.beams
        return best_continuations(lprobs, so_far, self.candidates_per_beam * lprobs.size(1))


@bug("tokens or beams of candidates are wrong")
class WrongIndices(BeamSearch):
    """The index of a candidate is divided by the beam size in place of the vocabulary size."""

    def step(self, context: Any, scores: Scores) -> Candidates:
        lprobs, found = scores.lprobs(), super().step(context, scores)
        entries = found.beams * lprobs.size(2) + found.tokens
        return Candidates(found.scores, found.tokens, entries // lprobs.size(1))


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


@bug("NaN scores are hidden by a replacement")
class HidesNaN(Rescored):
    def scores(self, lprobs: Tensor, so_far: Tensor, context: Any) -> tuple[Tensor, Tensor]:
        return lprobs.masked_fill(lprobs.isnan(), -9.0), so_far


@bug("candidates with a score of -inf become possible")
class AllowsForbiddenTokens(Rescored):
    def scores(self, lprobs: Tensor, so_far: Tensor, context: Any) -> tuple[Tensor, Tensor]:
        return lprobs.clamp(min=-20), so_far.clamp(min=-500)


@bug("hypotheses do not end")
class ForgetsTheEnd(Rescored):
    """Replaces the score of end-of-sentence, also where all else is forbidden."""

    def scores(self, lprobs: Tensor, so_far: Tensor, context: Any) -> tuple[Tensor, Tensor]:
        return lprobs.index_fill(-1, torch.tensor([context.eos]), -torch.inf), so_far


# -- logits processors -------------------------------------------------------------------------------------------------


class Counting(LogitsProcessor):
    """Lowers the scores of tokens by how often the hypothesis has them; each bug is a subclass."""

    beam_state = ("counts",)

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


@bug("a state keeps the rows of sentences that have left the batch")
class StateNotSelected(Counting):
    def select_sentences(self, keep: Tensor) -> None:
        self.counts = self.counts[: len(keep)]


@bug("the component keeps values of a batch on the object that")
class StateOnTheProcessor(Counting):
    def begin(self, batch: Any) -> Any:
        self.counts = super().begin(batch).counts
        return self


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

    def advance(self, active: Candidates) -> None:
        moved = self.counts.gather(1, active.beams.unsqueeze(-1).expand_as(self.counts))
        self.counts.copy_(moved)
        self.counts.scatter_add_(2, active.tokens.unsqueeze(2), torch.ones_like(self.counts[..., :1]))

    def select_sentences(self, keep: Tensor) -> None:
        self.counts = self.counts[keep]


@bug_of_a_call("the result of a sentence depends on the other sentences of the batch")
def mean_over_the_batch(self: Any, lprobs: Tensor, context: Any) -> Tensor:
    return lprobs - 0.2 * lprobs.exp().mean(0, keepdim=True)


@bug_of_a_call("the scores of a beam depend on the other beams of its sentence")
def compares_beams(self: Any, lprobs: Tensor, context: Any) -> Tensor:
    grouped = context.by_sentence(lprobs)
    return (grouped - 0.5 * grouped.exp().mean(1, keepdim=True)).flatten(0, 1)


@bug_of_a_call("a score becomes NaN or infinite")
def multiplies_forbidden_scores(self: Any, lprobs: Tensor, context: Any) -> Tensor:
    return lprobs * (torch.arange(lprobs.size(1)) > 1)


@bug_of_a_call("shift_invariant is true", shift_invariant=True)
def threshold_of_probabilities(self: Any, lprobs: Tensor, context: Any) -> Tensor:
    return torch.where(lprobs < -3.0, lprobs - 1.0, lprobs)


@bug_of_a_call("can_merge is true", can_merge=True)
def decays_with_the_step(self: Any, lprobs: Tensor, context: Any) -> Tensor:
    return lprobs - 0.3 * context.step * (torch.arange(lprobs.size(1)) % 2)


@bug_of_a_call("the component works for one size of the vocabulary only")
def of_one_vocabulary(self: Any, lprobs: Tensor, context: Any) -> Tensor:
    return lprobs - 0.1 * (torch.arange(13) % 2)


# -- combinations, the cache -------------------------------------------------------------------------------------------


@bug("the component writes into a tensor that it was given")
class AddsInPlace(Combination):
    def __call__(self, lprobs: Any, context: Any) -> Tensor:
        total = lprobs[0]
        for scores in lprobs[1:]:
            total += scores
        return total


@bug_of_a_call("the result differs if nothing is cached", needs=frozenset({ATTENTION, HIDDEN_STATES}))
def depends_on_the_cache(self: Any, lprobs: Tensor, context: Any) -> Tensor:
    """Reads how a step is computed; without a cache, the features of the newest position are a view."""
    return lprobs - 0.3 * context.outputs.features.is_contiguous() * (torch.arange(lprobs.size(1)) % 2)


@bug_of_a_call("with several members", needs=frozenset({MEMBER_LOGITS}))
def disagreement_of_the_batch(self: Any, lprobs: Tensor, context: Any) -> Tensor:
    """Weights scores by the disagreement of the members, averaged over the batch as well."""
    spread = torch.stack(context.outputs.member_logits).var(0, unbiased=False).mean()
    return lprobs - spread * (torch.arange(lprobs.size(1)) % 2)


@bug("the observer changes a tensor")
class EndsSentences(Observer):
    def observe(self, record: Any) -> None:
        record.now_done.fill_(True)


BASES = {"search": Search, "processor": LogitsProcessor, "combination": Combination, "observer": Observer}


@pytest.mark.parametrize("name", mostly_slow(BUGS, "CountsNotReordered"))
def test_bugs_are_found_and_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    component, cause = BUGS[name]
    group = next(group for group, base in BASES.items() if issubclass(component, base))
    registry, chooser = DECODING_COMPONENTS[group]
    monkeypatch.setitem(registry._entries, name, Entry(name, component, make_dataclass(f"{name}Config", [])))
    generation = GenerationConfig(**{chooser: name if group in SINGLE_COMPONENTS else [name]})
    subject = kinds.component_subject(group, kinds.DecodingCheckConfig(generation=generation))
    outcomes = list(check(subject, kinds.KINDS[group].invariants))
    violations = [f"{outcome.name}: {outcome.violation.what}" for outcome in outcomes if outcome.violation]
    assert violations, [(o.name, o.reason) for o in outcomes if o.reason]
    found = causes(outcomes, subject)
    assert found[-1].startswith(cause), "\n".join([*violations, *found])
    assert f"; see {name}" in found[-1]
    assert len(found) == 1 or found[0] == ERROR


class NotReordered(GrowingCache):
    def reorder(self, new_order: Tensor) -> Any:
        return self if len(new_order) == len(self.view().keys) else super().reorder(new_order)


class DropsTheFirstOfAMerge(GrowingCache):
    can_merge = True

    def merge(self, other: Any) -> Any:
        kept = other.view()
        return super().merge(type(self)(KeysAndValues(kept.keys.flip(0), kept.values, kept.padding_mask)))


@pytest.mark.parametrize(
    ("cache", "failed"), [(NotReordered, "steps after any order of rows"), (DropsTheFirstOfAMerge, "batches that join")]
)
def test_faults_of_caches(cache: type[GrowingCache], failed: str) -> None:
    subject = kinds.model_subject(kinds.ModelCheckConfig(model=kinds.small_transformer(), cache=cache.__name__))
    outcomes = list(check(subject))
    assert failed in {outcome.name for outcome in outcomes if outcome.violation}
    (cause,) = causes(outcomes, subject)
    assert cause.startswith(f"{cache.__name__} does not return the keys and values")
