"""A component that does not return what its base class says ends a decode with a sentence that names its file."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from seqgen.core.beam_search import BeamSearch
from seqgen.core.combinations import Combination
from seqgen.core.component import NEEDS, Component
from seqgen.core.contract import ContractError
from seqgen.core.errors import ConfigError, DecodingError
from seqgen.core.observers import Observer
from seqgen.core.processors import LogitsProcessor
from seqgen.core.rules import StoppingRule
from seqgen.decoding.building import Resources, build_component
from seqgen.modules.kv_cache.protocol import KeysAndValues, KeyValueCache
from seqgen.modules.multihead_attention import MultiheadAttention
from seqgen.registry import LOGITS_PROCESSORS, Entry
from seqgen.text.reranking import Reranker, Utility, call_reranker, compare_texts, expected_utilities
from seqgen.text.sources import MemberSource, source_text
from seqgen.text.translator import Translator
from seqgen.training.criteria import CriterionOut, check_out
from tests.generators import make_generator
from tests.model_zoo import VOCAB, sharp
from tests.scripted_model import batch_of, dictionary
from tests.text_models import TEXTS, text_model


def component(base: type[Any], **methods: Any) -> Any:
    """An object of a user's class with some methods."""
    return type("Mine", (base,), {"__module__": __name__, **methods})()


def narrowed(name: str) -> Callable[..., Any]:
    """Beam search of which one tensor of the candidates has 32 bits."""

    def step(self: Any, context: Any, scores: Any) -> Any:
        found = BeamSearch.step(self, context, scores)
        own = getattr(found, name)
        return replace(found, **{name: own.float() if own.is_floating_point() else own.int()})

    return step


ROWS, V = 8, VOCAB
WRONG: dict[str, tuple[str, Any, str]] = {
    "a part of the vocabulary": (
        "processors",
        component(LogitsProcessor, __call__=lambda self, lprobs, context: lprobs[:, :5]),
        rf"must return \({ROWS}, {V}\) of torch.float64 on cpu but returns \({ROWS}, 5\) of torch.float64 on cpu",
    ),
    "another dtype": (
        "processors",
        component(LogitsProcessor, __call__=lambda self, lprobs, context: lprobs.float()),
        "but returns .* of torch.float32",
    ),
    "nothing": (
        "processors",
        component(LogitsProcessor, __call__=lambda self, lprobs, context: None),
        "must return a Tensor but returns None; is a return statement missing",
    ),
    "a combination": (
        "combination",
        component(Combination, __call__=lambda self, lprobs, context: lprobs[0].mean(1)),
        rf"but returns \({ROWS},\)",
    ),
    "too few weights": (
        "combination",
        component(Combination, attention_weights=lambda self, members: [1.0]),
        "must return a weight for each of 2 members",
    ),
    "no candidates": ("search_strategy", component(BeamSearch, step=lambda self, *given: given[1]), "a Candidates"),
    "beams": ("search_strategy", component(BeamSearch, step=narrowed("beams")), "must return beams .*int64"),
    "scores": ("search_strategy", component(BeamSearch, step=narrowed("scores")), "must return scores .*float64"),
    "few candidates": (
        "search_strategy",
        component(BeamSearch, step=lambda self, *given: BeamSearch.step(self, *given).gather(torch.zeros(2, 1).long())),
        "must return at least 4 candidates of each sentence, not 1",
    ),
    "a stopping rule": (
        "stopping",
        component(StoppingRule, __call__=lambda self, tokens, context: tokens[:, -1]),
        r"must return \(16,\) of torch.bool",
    ),
    "begin": (
        "processors",
        component(LogitsProcessor, begin=lambda self, batch: None),
        "must return a Component",
    ),
    "a missing state": (
        "observers",
        component(Observer, beam_state=("counts",)),
        r"must set the state 'counts' to a tensor \(2, 4, ...\), not NoneType",
    ),
    "the state of one sentence": (
        "processors",
        component(LogitsProcessor, sentence_state=("kept",), kept=torch.zeros(1)),
        r"to a tensor \(2, ...\), not \(1,\)",
    ),
}
"""What a component does wrong: the argument of the generator, the component, and what is said."""


@pytest.mark.parametrize("wrong", WRONG)
def test_a_component_that_breaks_its_contract(wrong: str) -> None:
    argument, mine, message = WRONG[wrong]
    options = {argument: [mine] if argument in ("processors", "stopping", "observers") else mine}
    models = [sharp("transformer_tiny")] * (2 if argument == "combination" else 1)
    with pytest.raises(ContractError, match=rf"^Mine(\.\w+)? \(.*\) .*{message}"):
        make_generator(models, dictionary(V - 4), beam_size=4, **options).generate(batch_of([(5, 2), (6, 7, 2)]))


def test_the_file_and_line_of_a_class_are_named() -> None:
    class OfThisFile(Observer):
        def summary(self) -> Any:
            return {"lines": 1}

    generator = make_generator([sharp("transformer_tiny")], dictionary(V - 4), observers=[OfThisFile()])
    with pytest.raises(ContractError, match=r"^OfThisFile.summary \(.*test_contract.py:\d+\) must return a str"):
        generator.summary()


def test_a_build_method_that_returns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = type("Made", (LogitsProcessor,), {"build": classmethod(lambda cls, cfg, resources: None)})
    monkeypatch.setitem(LOGITS_PROCESSORS._entries, "made", Entry("made", made, type("Cfg", (), {})))
    monkeypatch.setattr("seqgen.decoding.building.component_config", lambda *given: None)
    with pytest.raises(ContractError, match=r"Made.build .* must return a LogitsProcessor but returns None"):
        build_component(LOGITS_PROCESSORS, "made", LogitsProcessor, None, Resources(dictionary(1)))  # type: ignore[arg-type]


@pytest.mark.parametrize("result", [None, [[1.0]], numpy.zeros((1, 2)), numpy.full((2, 2), numpy.nan)], ids=str)
def test_utilities(result: Any) -> None:
    mine = component(Utility, __call__=lambda self, texts: result)
    with pytest.raises(ContractError, match=r"^Mine .* must return "):
        expected_utilities(["a", "b"], mine)
    mine = component(Utility, compare=lambda self, texts, references: result)
    with pytest.raises(ContractError, match=r"^Mine.compare .* must return "):
        compare_texts(mine, ["a", "b"], ["c"])


@pytest.mark.parametrize("result", [None, [1.0], [1.0, "?"], [1.0, float("nan")], "12", {1: 2, 3: 4}], ids=str)
def test_rerankers(result: Any) -> None:
    mine: Any = component(Reranker, __call__=lambda self, translation, hypotheses: result)
    hypotheses: Any = ["one", "two"]
    with pytest.raises(ContractError, match=r"^Mine .* must return a number for each of 2 hypotheses"):
        call_reranker(mine, None, hypotheses)  # type: ignore[arg-type]


WRONG_TENSORS: dict[str, Callable[[Any], Any]] = {
    "None": lambda tensor: None,
    "5 columns": lambda tensor: tensor[..., :5],
    "int64": lambda tensor: tensor.bool() if tensor.dtype == torch.int64 else tensor.long(),
    "rows": lambda tensor: torch.cat([tensor, tensor]),
    "transposed": lambda tensor: tensor.transpose(0, -1),
    "numpy": lambda tensor: tensor.numpy(),
    "tuple": lambda tensor: (tensor,),
}
"""What a method returns in place of a tensor."""


def with_method(part: str, method: str, change: Callable[[Any], Any]) -> Any:
    """A model of which a method of the encoder, of the decoder or its own returns something else."""
    loaded = text_model()
    module: Any = getattr(loaded.model, part) if part else loaded.model
    base = type(module)
    body = {
        "__module__": __name__,
        method: lambda self, *args, **keys: change(getattr(base, method)(self, *args, **keys)),
    }
    module.__class__ = type("Mine", (base,), body)
    return loaded


OF_MODELS: dict[str, tuple[str, str, Callable[[Any, Any], Any], tuple[str, ...]]] = {
    "logits": ("decoder", "forward", lambda wrong, out: out._replace(logits=wrong(out.logits)), ()),
    "output of the decoder": ("decoder", "forward", lambda wrong, out: wrong(out.logits), ()),
    "output layer": ("decoder", "output_layer", lambda wrong, logits: wrong(logits), ()),
    "attention": (
        "decoder",
        "forward",
        lambda wrong, out: out._replace(attention=wrong(out.attention)),
        ("None", "5 columns"),
    ),
    "output of the encoder": ("encoder", "forward", lambda wrong, out: wrong(out.encoder_out), ()),
    "features of the encoder": (
        "encoder",
        "forward",
        lambda wrong, out: replace(out, encoder_out=wrong(out.encoder_out)),
        ("5 columns", "int64"),
    ),
    "mask": (
        "encoder",
        "forward",
        lambda wrong, out: replace(out, encoder_padding_mask=wrong(out.encoder_padding_mask)),
        ("None",),
    ),
    "adjusted logits": ("", "adjust_logits_during_generation", lambda wrong, logits: wrong(logits), ()),
    "log-probabilities": ("", "get_normalized_probs", lambda wrong, lprobs: wrong(lprobs), ()),
}
"""The part of a model, the method, what it returns, and what is no violation: it may be, or fails in the decoder."""


@pytest.mark.parametrize("case", OF_MODELS)
def test_what_models_return(case: str) -> None:
    part, method, change, allowed = OF_MODELS[case]
    options = {"coverage_penalty": 0.2} if case == "attention" else {"repetition_penalty": 1.1}
    for name in WRONG_TENSORS.keys() - set(allowed):
        loaded = with_method(part, method, lambda out, name=name: change(WRONG_TENSORS[name], out))
        with pytest.raises(ContractError, match=r"^Mine\.\w+ \(.*\) must return"):
            Translator(loaded, beam=3, max_len_b=2, **options).translate(TEXTS)


@pytest.mark.parametrize("name", WRONG_TENSORS)
def test_what_the_view_of_a_cache_returns(name: str) -> None:
    def view(self: Any) -> KeysAndValues:
        return KeysAndValues(*map(WRONG_TENSORS[name], ThreeMethods.view(self)[:2]))

    mine = type("Mine", (ThreeMethods,), {"view": view})
    if name != "rows":  # a cache may return rows of sentences
        with pytest.raises(ContractError, match=r"^Mine\.view \(.*\) must return "):
            Translator(with_cache(mine), beam=3, max_len_b=2).translate(TEXTS)


def test_other_results_of_a_strategy() -> None:
    models, batch = [sharp("transformer_tiny")], batch_of([(5, 2)])
    for method in ("rows", "finished"):
        mine = component(BeamSearch, **{method: lambda self, *given: (1,)})
        with pytest.raises(ContractError, match=rf"^Mine\.{method} .* must return an? \w+ but returns a tuple"):
            make_generator(models, dictionary(V - 4), search_strategy=mine).generate(batch)


def test_member_sources() -> None:
    with pytest.raises(ContractError, match=r"^Mine .* must return a str but returns None"):
        source_text(component(MemberSource, __call__=lambda self, line, number: None), "a line", 0)


def test_criteria() -> None:
    weight = torch.ones(2, requires_grad=True)
    assert check_out("mine", CriterionOut(weight.sum(), 2, {"ntokens": 2.0})).sample_size == 2
    for out, message in (
        (weight.sum(), "must return a CriterionOut but returns a Tensor"),
        (CriterionOut(weight, 2), r"one number as 'loss', not \(2,\)"),
        (CriterionOut(weight.sum(), 2, {"own": weight}), r"one number as 'own', not \(2,\)"),
        (CriterionOut(weight.sum().detach(), 2), "a loss with a gradient"),
        (CriterionOut(weight.sum(), (2,)), r"one number as 'sample_size', not \(2,\)"),  # type: ignore[arg-type]
        (CriterionOut(weight.sum(), 2, None), "must return a dict but returns None"),  # type: ignore[arg-type]
        (CriterionOut(weight.sum(), 2, {"own": numpy.zeros(3)}), r"one number as 'own', not \(3,\)"),  # type: ignore[dict-item]
    ):
        with pytest.raises(ContractError, match=message):
            check_out("mine", out)
    with torch.no_grad():
        check_out("mine", CriterionOut(weight.sum(), 2))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"needs": frozenset({"member_logit"})}, r"needs has 'member_logit', .* \(did you mean 'member_logits'\?\)"),
        ({"needs": "features"}, r"needs is the string 'features'; write \['features'\]"),
        ({"beam_state": ("counts")}, r"beam_state is the string 'counts'; write \['counts'\]"),
    ],
    ids=["unknown", "a text", "no tuple"],
)
def test_what_a_class_declares(body: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"Mine\.{message}"):
        type("Mine", (LogitsProcessor,), body)
    type("Mine", (Component,), {"needs": frozenset(NEEDS), "beam_state": ("counts",)})


class ThreeMethods(KeyValueCache):
    """A cache that implements what the documentation asks for."""

    def __init__(self) -> None:
        self.kept: KeysAndValues | None = None

    def append(self, new: KeysAndValues, rows: int) -> KeyValueCache:
        old = self.kept
        pairs = [] if old is None else [(old.keys, new.keys), (old.values, new.values)]
        self.kept = new if old is None else KeysAndValues(*(torch.cat(pair, dim=2) for pair in pairs))
        return self

    def view(self) -> KeysAndValues:
        assert self.kept is not None
        return self.kept

    def reorder(self, new_order: Any) -> KeyValueCache:
        assert self.kept is not None
        self.kept = KeysAndValues(*(values.index_select(0, new_order) for values in self.kept[:2]))
        return self


def with_cache(cache: Any) -> Any:
    loaded = text_model()
    for layer in loaded.model.decoder.modules():
        if isinstance(layer, MultiheadAttention) and not layer.encoder_decoder:
            layer.cache = cache
    return loaded


def test_a_cache_without_merge_turns_continuous_batching_off() -> None:
    """Sentences would join the batch, as they do with the built-in cache; the results are the same."""
    settings: dict[str, Any] = {"beam": 3, "batch_size": 2, "max_len_b": 8}
    usual = Translator(text_model(), **settings)
    assert usual.prepare().generator.can_merge
    for cache in (ThreeMethods, lambda: component(ThreeMethods)):
        decoding = Translator(with_cache(cache), **settings).prepare()
        decoded = list(decoding.translate(TEXTS))
        (note,) = [note for note in decoding.notes if "continuous batching" in note]
        assert re.search("slower: the key/value cache (ThreeMethods|Mine) does not support it", note)
        assert [one.text for one in decoded] == [one.text for one in usual.translate(TEXTS)]


def test_scores_that_are_no_numbers_name_the_users_component() -> None:
    processor = component(LogitsProcessor, __call__=lambda self, lprobs, context: lprobs * torch.nan)
    with pytest.raises(DecodingError, match=r"NaN or infinite at step 0.* or Mine returns such scores"):
        Translator(text_model(), beam=2).translate(TEXTS, processors=[processor])


@pytest.mark.parametrize("method", ["append", "view", "reorder", "reorder_beams", "select"])
def test_a_method_of_a_cache_that_returns_nothing(method: str) -> None:
    mine = type("Mine", (ThreeMethods,), {method: lambda self, *given: None})
    with pytest.raises(ContractError, match=rf"^Mine\.{method} .* must return a Key\w+ but returns None"):
        Translator(with_cache(mine), beam=3, max_len_a=1, max_len_b=1).translate(TEXTS)


def test_a_module_that_returns_no_state() -> None:
    class Layer(MultiheadAttention):
        def reorder_state_beams(self, module_state: Any, parents: Any) -> Any:
            module_state.clear()

    loaded = text_model()
    layers: nn.ModuleList = loaded.model.decoder.layers  # type: ignore[assignment]
    layers[0].self_attn.__class__ = Layer
    with pytest.raises(ContractError, match=r"^Layer.reorder_state_beams \(.*_contract.py:\d+\) must return a dict"):
        Translator(loaded, beam=3, max_len_b=8).translate(TEXTS)
