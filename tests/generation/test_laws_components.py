"""What a component computes from its state, records and is shown follows the beams, in every way of decoding.

A component with state is compared with one that computes the same from the tokens of each row.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self
from unittest import mock

import pytest
import torch
from torch import Tensor

from seqgen.addons.contrastive.search import ContrastiveSearch
from seqgen.core.candidates import Candidates, gather_beams
from seqgen.core.component import FORBIDDEN, BatchInfo, Component
from seqgen.core.observers import Observer, Outcome, StepRecord
from seqgen.decoding.continuous_batching import generate_continuously
from seqgen.decoding.search.constrained import ConstrainedSearch
from seqgen.decoding.search.huggingface import HuggingFaceDiverseBeam
from seqgen.extend import Batch, Combination, Hypothesis, LogitsProcessor, Session, StepContext, StoppingRule
from tests.covering import covering
from tests.generation.test_fork import branching
from tests.generators import make_generator
from tests.hypotheses import assert_same
from tests.model_zoo import EOS, VOCAB, sharp
from tests.scripted_model import batch_of, dictionary
from tests.strategy_zoo import PHRASES, STRATEGIES, strategy
from tests.waiting_sentences import queue, sources

Results = list[list[Hypothesis]]
WEIGHT = 0.7
ROWS = sources(6, seed=1)


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
    can_merge = True
    counts: Tensor
    bias: Tensor

    def begin(self, batch: BatchInfo) -> Self:
        begun = super().begin(batch)
        begun.counts = torch.zeros(batch.num_sentences, batch.beam_size, VOCAB, dtype=torch.int64)
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
    can_merge = True

    def __call__(self, lprobs: Any, context: StepContext | None) -> Tensor:
        return sum(lprobs) - WEIGHT * self.counts.flatten(0, 1) + context.by_row(self.bias)


class PlainProduct(Combination):
    def __call__(self, lprobs: Any, context: StepContext | None) -> Tensor:
        return sum(lprobs) - WEIGHT * counts_of(context.tokens) + preferences(context.sentence_ids)


class CountingStop(Counting, StoppingRule):
    """An output ends where it has a token for the second time."""

    can_merge = True

    def __call__(self, tokens: Tensor, context: StepContext) -> Tensor:
        counts = self.counts.gather(1, context.parents.unsqueeze(2).expand(-1, -1, VOCAB))
        return counts.flatten(0, 1).gather(1, tokens[:, -1:]).squeeze(1) > 0


class PlainStop(StoppingRule):
    def __call__(self, tokens: Tensor, context: StepContext) -> Tensor:
        return (tokens[:, :-1] == tokens[:, -1:]).any(1)


class Watching(Counting, Observer):
    """Compares its counts with what each beam has written, and writes down what it is shown.

    Its fields follow from the tokens of a hypothesis alone: a hash of the prefix, the step, and the score so far.
    """

    needs = frozenset({FORBIDDEN})
    can_merge = True

    def __init__(self) -> None:
        self.crossed: list[bool] = []
        self.steps: dict[int, list[tuple[int, list[Any]]]] = defaultdict(list)
        self.replaced: Counter[int] = Counter()
        self.results: dict[int, list[list[Hypothesis]]] = defaultdict(list)

    def observe(self, record: StepRecord) -> None:
        context, shown = record.context, record.candidates
        self.crossed.append(bool((record.active.beams != torch.arange(record.active.beams.size(1))).any()))
        assert torch.equal(self.bias, preferences(context.sentences.ids))
        forbidden = context.by_sentence(record.forbidden.by).tolist()
        written, counts = own_tokens(context), self.counts.flatten(0, 1)
        beams = len(written) // len(self.bias)
        for row, sentence in enumerate(context.sentences.ids.tolist()):
            if record.was_done[row]:
                continue
            own = written[row * beams : (row + 1) * beams]
            for beam, tokens in enumerate(own):
                assert torch.equal(counts[row * beams + beam], counts_of(torch.tensor([tokens], dtype=torch.int64))[0])
            became = [Outcome(outcome).name for outcome in record.outcomes[row].tolist()]
            each = zip(shown.beams[row].tolist(), shown.tokens[row].tolist(), became, strict=True)
            found = [(*own[beam], token, outcome) for beam, token, outcome in each if outcome != "IMPOSSIBLE"]
            self.steps[sentence].append((len(own[0]), [*found, forbidden[row]]))
            self.replaced[sentence] += int(record.replaced[row].sum())
        record.candidates.tokens.zero_()  # changes of what is shown change no result
        record.active.scores.fill_(-math.inf)

    def token_fields(self, candidates: Candidates, context: StepContext) -> Mapping[str, Tensor]:
        hashes = context.by_sentence(torch.tensor([hashed(tokens) for tokens in own_tokens(context)]))
        steps = gather_beams(context.by_sentence(context.steps), candidates.beams)
        prefixes = gather_beams(hashes, candidates.beams)
        newest = (prefixes * 31 + candidates.tokens) % 10007
        sums = candidates.scores.masked_fill(candidates.scores == -math.inf, math.nan)
        fields = {"prefix": newest, "of": torch.stack([steps, candidates.tokens], 2), "sum": sums}
        candidates.tokens.zero_()
        candidates.scores.exp_()
        return fields

    def end(self, sentence: int, hypotheses: Sequence[Hypothesis]) -> None:
        self.results[sentence].append(list(hypotheses))


def own_tokens(context: StepContext) -> list[list[int]]:
    """What each row has written, without the columns before its sentence joined the batch."""
    rows = zip(context.tokens.tolist(), context.steps.tolist(), strict=True)
    return [tokens[len(tokens) - steps :] for tokens, steps in rows]


def hashed(tokens: list[int]) -> int:
    found = 0
    for token in tokens:
        found = (found * 31 + token) % 10007
    return found


def assert_fields_follow(results: Results) -> None:
    """The fields of ``Watching`` are those of the tokens."""
    for hypothesis in (one for some in results for one in some):
        tokens, fields = hypothesis.tokens.tolist(), hypothesis.fields
        assert fields["prefix"].tolist() == [hashed(tokens[: length + 1]) for length in range(len(tokens))]
        assert fields["of"].tolist() == [list(pair) for pair in enumerate(tokens)]
        sums = hypothesis.positional_scores.cumsum(0).to(fields["sum"].dtype)
        torch.testing.assert_close(fields["sum"], sums, atol=1e-5, rtol=0)


def assert_outcomes_follow(watching: Watching, results: Results, name: str, semantics: str) -> None:
    """Prefixes are what continued; what finished, and was not replaced, is a hypothesis."""
    for row, hypotheses in enumerate(results):
        prefixes: set[tuple[int, ...]] = {()}
        finished: Counter[tuple[int, ...]] = Counter()
        for _, (*candidates, _) in watching.steps[row]:
            continued = [tokens for *tokens, outcome in candidates if outcome == "CONTINUES"]
            for *prefix, token, outcome in candidates:
                assert tuple(prefix) in prefixes
                if outcome in ("CONTINUES", "BELOW_BEAM"):
                    assert token != EOS
                    assert outcome == "CONTINUES" or len(continued) == 4 or name != "beam"
                else:
                    assert outcome in ("FINISHED", "ENDED_TOO_LOW")
                    assert semantics == "huggingface" or token == EOS or token in prefix
                    finished[(*prefix, token)] += outcome == "FINISHED"
            prefixes = {tuple(tokens) for tokens in continued}
        written = Counter(tuple(one.tokens.tolist()) for one in hypotheses)
        if (name, semantics) == ("marian", "fairseq"):
            continue  # what is cut at the maximum is a hypothesis too
        assert written <= finished
        assert (finished - written).total() == watching.replaced[row]


def lines(rows: Sequence[int] = range(len(ROWS))) -> tuple[Batch, list[Any]]:
    """Some of the sentences with the numbers of their lines, and the phrases of each."""
    batch = replace(batch_of([ROWS[row] for row in rows]), ids=torch.tensor(list(rows)))
    return batch, [PHRASES[row % len(PHRASES)] for row in rows]


Make = Callable[..., Any]
"""Makes a generator, and whether its sentences have phrases."""


def in_one_batch(make: Make, watching: Sequence[Observer] = (), **options: Any) -> Results:
    """Decode all lines; ``watching`` are observers of this call alone."""
    generator, phrases = make(**options)
    batch, own = lines()
    found: Results = generator.generate(batch, None, own if phrases else None, observers=watching)
    return found


def alone(make: Make) -> Results:
    generator, phrases = make()
    batches = [lines([row]) for row in range(len(ROWS))]
    return [generator.generate(batch, None, own if phrases else None)[0] for batch, own in batches]


def forked(make: Make) -> Results:
    wanted, found = list[Results](), list[Results]()
    with mock.patch.object(Session, "run", branching(wanted, found, None)):
        results = in_one_batch(make)
    assert len(wanted) == 4
    for one, two in zip(found, wanted, strict=True):
        assert_same(one, two)
    return results


def joined(make: Make) -> Results | None:
    generator, _ = make()
    unable = (ConstrainedSearch, ContrastiveSearch, HuggingFaceDiverseBeam)
    assert generator.can_merge != isinstance(generator.setup.search, unable)
    if not generator.can_merge:
        return None
    take, asked = queue(ROWS, 3)
    found = dict(generate_continuously(generator, take))
    assert any(0 < running < 3 for running in asked), "some join a batch that is running"
    return [found[row] for row in range(len(ROWS))]


WAYS: dict[str, Callable[[Make], Results | None]] = {
    "compaction at once": partial(in_one_batch, lazy_compaction=False),
    **{"alone": alone, "forked": forked, "joined": joined},
}
BOTH = [(CountingPenalty, CountingStop, CountingProduct), (PlainPenalty, PlainStop, PlainProduct)]
COMPONENTS: dict[str, list[dict[str, Any]]] = {
    "processor and stopping rule": [{"processors": [change()], "stopping": [stop()]} for change, stop, _ in BOTH],
    "combination": [{"combination": product()} for *_, product in BOTH],
    "combination in guidance": [{"combination": product(), "guidance_scale": 1.5} for *_, product in BOTH],
}
"""Components with state, and what computes the same from the tokens."""


@pytest.mark.parametrize(
    ("name", "semantics", "component"),
    [
        *covering(list(STRATEGIES), ["fairseq", "huggingface"], list(COMPONENTS)),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in covering(list(STRATEGIES), ["huggingface", "fairseq"], list(COMPONENTS)[::-1])
        ),
    ],
)
def test_components_follow_the_beams(name: str, semantics: str, component: str) -> None:
    members = 2 if component == "combination" and not STRATEGIES[name].reads_features else 1
    models = [sharp("transformer_tiny", seed=3), sharp("fconv_tiny", factor=1.6)][:members]
    stateful, plain = COMPONENTS[component]
    top = {} if STRATEGIES[name].reads_features else {"top_tokens": VOCAB}
    common = {"semantics": semantics, "beam_size": 4, "min_len": 0, "max_len_a": 0.6, "max_len_b": 2, **top}

    def make(own: dict[str, Any] = stateful, **options: Any) -> Any:
        keys = {**common, **own, **options, "search_strategy": strategy(name)}
        return make_generator(models, dictionary(VOCAB - 4), **keys), STRATEGIES[name].phrases

    wanted = in_one_batch(make, own=plain)
    assert len({len(one.tokens) for some in wanted for one in some}) > 1
    usual = Watching()
    found = in_one_batch(make, [usual])
    assert_same(found, wanted)
    assert_fields_follow(found)
    assert_outcomes_follow(usual, found, name, semantics)
    assert any(usual.crossed) == (name not in ("greedy", "sampling", "contrastive"))
    for way, decode in WAYS.items():
        watching = Watching()
        found = decode(partial(make, observers=[watching]))
        if found is None:
            continue
        assert_same(found, wanted)
        assert_fields_follow(found)
        assert_top_tokens(found, name)
        if way != "forked":  # whose observers write into one journal
            assert watching.steps == usual.steps
            assert {len(told) for told in watching.results.values()} == {1}
            assert_same([watching.results[row][0] for row in range(len(ROWS))], found, tolerance=0)


def assert_top_tokens(results: Results, name: str) -> None:
    """Of all tokens, the chosen one has its score, unless the strategy changes scores."""
    for one in (one for some in results for one in some):
        if one.top_tokens is not None and one.top_scores is not None:
            places = (one.top_tokens == one.tokens.unsqueeze(1)).int().argmax(1, keepdim=True)
            assert torch.equal(one.top_tokens.gather(1, places).squeeze(1), one.tokens)
            if STRATEGIES[name].scores_are_the_models:
                chosen = one.top_scores.gather(1, places).squeeze(1)
                torch.testing.assert_close(chosen, one.positional_scores, atol=1e-6, rtol=0, check_dtype=False)
