"""A flag describes certain methods: a class that overrides one gets the flag's safe default; misspelt hooks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from seqgen.addons.speculative.drafters import ModelDrafter
from seqgen.addons.speculative.verification import SpeculativeSearch
from seqgen.core.beam_search import BeamSearch, Greedy
from seqgen.core.contract import Flagged, Hooked, find_misspelt
from seqgen.core.structures import DecoderOut, Hypothesis
from seqgen.decoding.processors.tokens import BadWords, SequenceBias
from seqgen.extend import Candidates, GrowingCache, KeysAndValues, MinimumLength, Sampling, Scores, StepContext
from seqgen.registry import MODELS, SEARCHES
from seqgen.training.criteria import has_default_forward
from tests.commands import command, refused
from tests.generators import make_generator
from tests.hypotheses import assert_same
from tests.model_zoo import build
from tests.scripted_model import ScriptedModel, batch_of, dictionary, random_rule

SEARCHES.names()
MODELS.names()
SOURCES = [(4, 5, 2), (6, 2), (4, 4, 6, 2)]


def built_in(base: Any = Flagged) -> Iterator[Any]:
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
    assert len({flag for _, flag, _ in found}) >= 30
    for cls, flag, method in found:
        assert hasattr(cls, method)
        own = {method: lambda *_: None}
        for kind in (type("Own", (cls,), own), type("Mixed", (type("Mixin", (), own), cls), {})):
            assert getattr(kind, flag) is safe(cls, flag), (cls, flag, method)
    for cls, flag, method in {one[1]: one for one in found}.values():  # a class for each flag
        own = {method: lambda *_: None}
        stated = type("Stated", (cls,), {**own, flag: "stated"})
        assert getattr(stated, flag) == getattr(type("Again", (stated,), {}), flag) == "stated"
        assert getattr(type("Further", (stated,), own), flag) is safe(cls, flag)
        assert getattr(type("Other", (cls,), {"__init__": lambda *_: None, "other": 1}), flag) is getattr(cls, flag)


def test_a_value_of_the_instance_counts_for_its_own_class() -> None:
    class Own(SequenceBias):
        def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
            return lprobs

    assert SequenceBias({(5,): 1.0}).shift_invariant
    assert BadWords([(5, 6)], [2]).shift_invariant
    assert not Own({(5,): 1.0}).shift_invariant


def decode(model: ScriptedModel, **options: Any) -> list[list[Hypothesis]]:
    generator = make_generator([model], dictionary(5), **{"beam_size": 3, "max_len_b": 6, **options})
    return generator.generate(batch_of(SOURCES))


class Sure(BeamSearch):
    """Selects only tokens with a probability above 1/12, so that it needs normalized scores."""

    def step(self, context: StepContext, scores: Scores) -> Candidates:
        lprobs = scores.lprobs()
        assert bool((lprobs.logsumexp(-1) <= 1e-9).all())
        return super().step(context, Scores(lprobs.masked_fill(lprobs.exp() < 1 / 12, -torch.inf), scores.beams))


def test_a_beam_search_of_ones_own_gets_log_probabilities_and_writes_nothing_forbidden() -> None:
    for rule in (random_rule(9, seed) for seed in range(5)):
        found = decode(ScriptedModel(rule), max_len_b=4, min_len=0, search_strategy=Sure())
        for source, hypotheses in zip(SOURCES, found, strict=True):
            assert hypotheses
            for tokens in (h.tokens.tolist() for h in hypotheses):
                for step, token in enumerate(tokens[:-1]):
                    assert rule(source, tuple(tokens[:step])).softmax(-1)[token] >= 1 / 12


class NoEcho(MinimumLength):
    """Forbids the newest token, which its base class does not read."""

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        if context.step:
            lprobs.scatter_(1, context.tokens[:, -1:], -torch.inf)
        return super().__call__(lprobs, context)


@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
def test_a_processor_of_ones_own_is_given_what_it_reads(semantics: str) -> None:
    echoes = []
    for processors in ([], [NoEcho(0)]):
        found = decode(ScriptedModel(random_rule(9, 2)), processors=processors, semantics=semantics)
        echoes.append(any((h.tokens[1:] == h.tokens[:-1]).any() for hypotheses in found for h in hypotheses))
    assert echoes == [True, False]


def test_sampling_of_ones_own_is_not_replaced_by_that_of_a_draft() -> None:
    class Surest(Sampling):
        """Draws nothing at all."""

        continues_each_beam = True

        def step(self, context: StepContext, scores: Scores) -> Candidates:
            return Greedy().step(context, Scores(scores.distribution(), scores.beams))

    model, draft = (ScriptedModel(random_rule(9, seed)) for seed in (1, 2))
    drafted = SpeculativeSearch(ModelDrafter(draft), 3, Surest())
    assert_same(decode(model, search_strategy=drafted), decode(model, search_strategy=Surest()))


@pytest.mark.parametrize("part", ["model", "decoder"])
def test_probabilities_of_ones_own_are_those_that_are_searched(part: str) -> None:
    """A model that says nothing about its normalization is not searched by its logits."""

    def sharper(self: object, logits: Tensor, log_probs: bool = True) -> Tensor:
        values = (3 * logits).log_softmax(-1)
        return values if log_probs else values.exp()

    rule = random_rule(9, 3)
    own, wanted = ScriptedModel(rule), ScriptedModel(lambda source, history: 3 * rule(source, history))
    changed = own if part == "model" else own.decoder
    changed.__class__ = type("Sharper", (type(changed),), {"get_normalized_probs": sharper})
    assert not changed.normalizes_by_softmax
    assert_same(decode(own), decode(wanted))
    assert decode(own)[0][0].score != decode(ScriptedModel(rule))[0][0].score


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
            return KeysAndValues(super().view().keys, super().view().values / 2)

    new = KeysAndValues(*torch.ones(2, 1, 1, 3, 4, dtype=torch.bfloat16))
    for kind, value in ((GrowingCache, 1.0), (Halved, 0.5)):
        cache = kind().append(new, 1)
        values = cache.attended(None, False, 1, torch.bfloat16).values[:, :, :3]
        assert values.unique().tolist() == [value]
        assert cache.can_merge == (kind is GrowingCache)


def test_names_that_are_not_misspelt() -> None:
    """Helpers, what begins with an underscore, what a base class of the user's own has; and all built-in names."""
    own = type("Own", (BeamSearch,), {"_begins": True, "can_prune": True, "threshold": 1.0, "step": BeamSearch.step})
    type("Further", (own,), {"can_prune": False, "can_prunes": True})
    assert not {cls: found for cls in built_in(Hooked) if (found := list(find_misspelt(cls)))}


def test_a_command_names_file_and_line_of_a_misspelt_hook(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("from seqgen.core.beam_search import BeamSearch\n\nclass Own(BeamSearch):\n    begins = 1\n")
    refused(command("check", f"common.user_dir={file}", "search=own"), f"seqgen-check: {file}:3: Own defines 'begins'")
