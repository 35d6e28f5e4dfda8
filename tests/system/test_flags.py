"""A flag describes certain methods: a class that overrides one of them gets the flag's safe default."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Self

import pytest
import torch
from torch import Tensor

import seqgen.models  # noqa: F401  # declares the built-in models
from seqgen.core.beam_search import BeamSearch, Greedy
from seqgen.core.candidates import Candidates
from seqgen.core.component import BatchInfo
from seqgen.core.context import StepContext
from seqgen.core.contract import Flagged
from seqgen.core.scores import Scores
from seqgen.core.structures import DecoderOut, Hypothesis
from seqgen.decoding.continuous_batching import generate_continuously
from seqgen.decoding.processors.length import MinimumLength
from seqgen.decoding.processors.tokens import BadWords, SequenceBias
from seqgen.decoding.search.sampling import Sampling
from seqgen.decoding.speculative.drafters import ModelDrafter
from seqgen.decoding.speculative.verification import SpeculativeSearch
from seqgen.modules.kv_cache.growing import GrowingCache
from seqgen.modules.kv_cache.protocol import KeysAndValues
from seqgen.registry import MODELS, SEARCHES
from seqgen.training.criteria import has_default_forward
from tests.generators import make_generator
from tests.model_zoo import build
from tests.scripted_model import ScriptedModel, batch_of, dictionary, random_rule
from tests.waiting_sentences import queue

SEARCHES.names()
MODELS.names()
SOURCES = [(4, 5, 2), (6, 2), (4, 4, 6, 2)]


def built_in(base: type[Flagged] = Flagged) -> Iterator[type[Flagged]]:
    for cls in base.__subclasses__():
        if cls.__module__.startswith("seqgen."):
            yield cls
            yield from built_in(cls)


def safe(cls: type[Flagged], flag: str) -> object:
    if flag in cls.safe_values:
        return cls.safe_values[flag]
    return next(vars(ancestor)[flag] for ancestor in reversed(cls.__mro__) if flag in vars(ancestor))


def promises() -> list[tuple[type[Flagged], str, str]]:
    """All built-in classes, their flags that are not at the safe value, and each method that such a flag describes."""
    return [
        (cls, flag, method)
        for cls in dict.fromkeys(built_in())
        for flag, methods in cls.flags.items()
        if getattr(cls, flag) is not safe(cls, flag)
        for method in methods
    ]


def test_who_overrides_a_method_inherits_no_promise_about_it() -> None:
    found = promises()
    assert {flag for _, flag, _ in found} == {
        *("can_merge", "ignores_context", "continues_each_beam", "keeps_single", "session_class"),
        *("shift_invariant", "takes_columns", "token_attributes", "output_columns"),
        *("shares_encoder_output", "reads_history", "reads_finished", "can_roll_back"),
        "supports_packing",
        "certifiable",
        *("reorder_state_beams", "select_state"),
        *("is_composed", "normalizes_by_softmax", "adjusts_logits", "moves_rows_by_modules", "samples_tokens"),
        *("attended", "step_memory", "steps_by_head", "planned"),
        *("joins_batches", "reads_plain_lines", "encodes_by_tokenizer", "metric_signatures"),
    }
    for cls, flag, method in found:
        assert hasattr(cls, method)
        own = {method: lambda *_: None}
        assert getattr(type("Own", (cls,), own), flag) is safe(cls, flag), (cls, flag, method)
        mixed = type("Mixed", (type("Mixin", (), own), cls), {})
        assert getattr(mixed, flag) is safe(cls, flag), (cls, flag, method)
        stated = type("Stated", (cls,), {**own, flag: "stated"})
        assert getattr(stated, flag) == "stated"
        assert getattr(type("Again", (stated,), {}), flag) == "stated"
        assert getattr(type("Further", (stated,), own), flag) is safe(cls, flag)
        assert getattr(type("Other", (cls,), {"__init__": lambda *_: None, "other": 1}), flag) is getattr(cls, flag)


def test_a_value_of_the_instance_counts_for_its_own_class() -> None:
    class Own(SequenceBias):
        def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
            return lprobs

    assert SequenceBias({(5,): 1.0}).shift_invariant
    assert BadWords([(5, 6)], [2]).shift_invariant
    assert not Own({(5,): 1.0}).shift_invariant


def pairs(found: list[list[Hypothesis]]) -> list[list[tuple[list[int], float]]]:
    return [[(h.tokens.tolist(), pytest.approx(h.score, abs=1e-10)) for h in hypotheses] for hypotheses in found]


class Sure(BeamSearch):
    """Selects only tokens with a probability above 1/12, so that it needs normalized scores."""

    def step(self, context: StepContext, scores: Scores) -> Candidates:
        lprobs, so_far = scores.lprobs(), scores.beams
        assert bool((lprobs.logsumexp(-1) <= 1e-9).all())
        return super().step(context, Scores(lprobs.masked_fill(lprobs.exp() < 1 / 12, -torch.inf), so_far))


def test_a_beam_search_of_ones_own_gets_log_probabilities_and_writes_nothing_forbidden() -> None:
    for seed in range(5):
        rule = random_rule(9, seed)
        generator = make_generator(
            [ScriptedModel(rule)], dictionary(5), beam_size=3, max_len_b=4, min_len=0, search_strategy=Sure()
        )
        batch = batch_of(SOURCES)
        for source, hypotheses in zip(SOURCES, generator.generate(batch), strict=True):
            assert hypotheses
            for tokens in (h.tokens.tolist() for h in hypotheses):
                for step, token in enumerate(tokens[:-1]):
                    assert rule(source, tuple(tokens[:step])).softmax(-1)[token] >= 1 / 12


def test_a_beam_search_of_ones_own_is_asked_where_sentences_wait() -> None:
    class Counting(BeamSearch):
        def begin(self, batch: BatchInfo) -> Self:
            calls.append(batch)
            return super().begin(batch)

    calls: list[BatchInfo] = []
    generator = make_generator(
        [build("transformer_tiny")], dictionary(19), beam_size=2, max_len_b=4, search_strategy=Counting()
    )
    take, _ = queue([(4, 5, 2), (6, 2), (7, 2)], 2)
    assert len(list(generate_continuously(generator, take))) == 3
    assert len(calls) == 2


def test_a_processor_of_ones_own_is_given_what_it_reads() -> None:
    class NoEcho(MinimumLength):
        """Forbids the newest token, which its base class does not read."""

        def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
            if context.step:
                lprobs.scatter_(1, context.tokens[:, -1:], -torch.inf)
            return super().__call__(lprobs, context)

    for semantics in ("fairseq", "huggingface"):
        generator = make_generator(
            *([ScriptedModel(random_rule(9, 2))], dictionary(5)),
            **{"beam_size": 3, "max_len_b": 6, "processors": [NoEcho(0)], "semantics": semantics},
        )
        for hypotheses in generator.generate(batch_of(SOURCES)):
            for tokens in (h.tokens.tolist() for h in hypotheses):
                assert all(a != b for a, b in itertools.pairwise(tokens))


@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
def test_rows_that_are_not_known_to_be_independent_are_decoded_all_the_same(semantics: str) -> None:
    class Own(Greedy):
        def step(self, context: StepContext, scores: Scores) -> Candidates:
            return super().step(context, scores)

    def decode(search: Greedy) -> list[list[Hypothesis]]:
        return make_generator(
            *([ScriptedModel(random_rule(9, 2))], dictionary(5)),
            **{"search_strategy": search, "max_len_b": 6, "semantics": semantics},
        ).generate(batch_of(SOURCES))

    found, wanted = ([[h.tokens.tolist() for h in one] for one in decode(search)] for search in (Own(), Greedy()))
    assert found == wanted


def test_sampling_of_ones_own_is_not_replaced_by_that_of_a_draft() -> None:
    class Surest(Sampling):
        """Draws nothing at all."""

        continues_each_beam = True

        def step(self, context: StepContext, scores: Scores) -> Candidates:
            lprobs, so_far = scores.distribution(), scores.beams
            return Greedy().step(context, Scores(lprobs, so_far))

    options = {"beam_size": 3, "max_len_b": 6, "search_strategy": Surest()}
    model, draft = (ScriptedModel(random_rule(9, seed)) for seed in (1, 2))
    alone = make_generator([model], dictionary(5), **options)
    drafted = make_generator(
        [model], dictionary(5), **{**options, "search_strategy": SpeculativeSearch(ModelDrafter(draft), 3, Surest())}
    )
    found = drafted.generate(batch_of(SOURCES))
    assert pairs(found) == [[(h.tokens.tolist(), h.score) for h in one] for one in alone.generate(batch_of(SOURCES))]


@pytest.mark.parametrize("part", ["model", "decoder"])
def test_probabilities_of_ones_own_are_those_that_are_searched(part: str) -> None:
    """A model that says nothing about its normalization is not searched by its logits."""

    def sharper(self: object, logits: Tensor, log_probs: bool = True) -> Tensor:
        values = (3 * logits).log_softmax(-1)
        return values if log_probs else values.exp()

    def decode(model: ScriptedModel) -> list[list[tuple[list[int], float]]]:
        generator = make_generator([model], dictionary(5), beam_size=3, max_len_b=6)
        softmax = model.normalizes_by_softmax and model.decoder.normalizes_by_softmax
        assert generator.setup.ensemble.normalizes_by_softmax == softmax
        return pairs(generator.generate(batch_of(SOURCES)))

    rule = random_rule(9, 3)
    own, wanted = ScriptedModel(rule), ScriptedModel(lambda source, history: 3 * rule(source, history))
    changed = own if part == "model" else own.decoder
    changed.__class__ = type("Sharper", (type(changed),), {"get_normalized_probs": sharper})
    assert not changed.normalizes_by_softmax
    assert decode(own) == decode(wanted)


def test_a_forward_of_ones_own_is_that_of_the_loss() -> None:
    class Warm(ScriptedModel):
        def forward(self, *args: Any, **kwargs: Any) -> DecoderOut:
            out = super().forward(*args, **kwargs)
            return out._replace(logits=out.logits / 2)

    assert not has_default_forward(Warm(random_rule(9, 1)))
    model = build("transformer_tiny")
    assert has_default_forward(model)
    model.decoder.__class__ = type("Own", (type(model.decoder),), {"forward": lambda *_, **__: None})
    assert not has_default_forward(model)


def test_a_view_of_ones_own_is_what_attention_reads() -> None:
    """The memory of a ``GrowingCache`` is read directly only while its view is that memory."""

    class Halved(GrowingCache):
        def view(self) -> KeysAndValues:
            seen = super().view()
            return seen._replace(values=seen.values / 2)

    new = KeysAndValues(*torch.ones(2, 1, 1, 3, 4, dtype=torch.bfloat16))
    for kind, value in ((GrowingCache, 1.0), (Halved, 0.5)):
        cache = kind().append(new, 1)
        values = cache.attended(None, False, 1, torch.bfloat16).values[:, :, :3]
        assert values.unique().tolist() == [value]
        assert cache.can_merge == (kind is GrowingCache)
