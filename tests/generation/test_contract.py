"""A component that does not return what its base class says ends a decode with a sentence that names its file."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy
import pytest
import torch

from seqgen.extend import BeamSearch, Combination, ConfigError, ContractError, LogitsProcessor, Observer, StoppingRule
from seqgen.modules.kv_cache.protocol import KeysAndValues, KeyValueCache
from seqgen.modules.multihead_attention import MultiheadAttention
from seqgen.text.input_line import MemberSource, source_text
from seqgen.text.reranking import Reranker, Utility, UtilityLine, call_reranker, compare_texts, expected_utilities
from seqgen.text.translator import Translator
from seqgen.training.criteria import CriterionOut, check_out
from tests.generators import make_generator
from tests.model_zoo import VOCAB, sharp
from tests.refusals import Row, refusals
from tests.scripted_model import batch_of, dictionary
from tests.text_models import TEXTS, text_model


def component(base: type[Any], **methods: Any) -> Any:
    """An object of a user's class with some methods."""
    return type("Mine", (base,), {"__module__": __name__, **methods})()


def calling(base: type[Any], function: Callable[..., Any]) -> Any:
    """An object of a user's class that is called."""
    return component(base, __call__=function)


def process(change: Callable[[Any], Any]) -> list[Any]:
    """A processor that changes scores so."""
    return [calling(LogitsProcessor, lambda self, lprobs, context: change(lprobs))]


def narrowed(self: Any, context: Any, scores: Any) -> Any:
    """The step of beam search, with scores of 32 bits."""
    found = BeamSearch.step(self, context, scores)
    return replace(found, scores=found.scores.float())


def decode(*words: str, members: int = 1, **options: Any) -> Row:
    """Decode two sentences with four beams; the sentence begins with the name of the class and its file."""

    def run() -> None:
        generator = make_generator([sharp("transformer_tiny")] * members, dictionary(V - 4), beam_size=4, **options)
        generator.generate(batch_of([(5, 2), (6, 7, 2)]))

    return run, "Mine", f"({__name__}", *words


def fields(words: str, function: Callable[[Any, Any], Any]) -> Row:
    mine = component(Observer, token_fields=lambda self, candidates, context: function(candidates, context))
    return decode("Mine.token_fields", words, observers=[mine])


def few(self: Any, context: Any, scores: Any) -> Any:
    return BeamSearch.step(self, context, scores).gather(torch.zeros(2, 1).long())


ROWS, V = 8, VOCAB

test_decoding = refusals(
    decode(f"must return ({ROWS}, {V}) of torch.float64 on cpu but returns ({ROWS}, 5) of torch.float64 on cpu",
           processors=process(lambda lprobs: lprobs[:, :5])),
    decode("of torch.float32", processors=process(lambda lprobs: lprobs.float())),
    decode("must return a Tensor but returns None; is a return statement missing", processors=process(lambda _: None)),
    decode(f"but returns ({ROWS},)", members=2, combination=calling(Combination, lambda self, x, _: x[0].mean(1))),
    decode("must return a weight for each of 2 members", members=2,
           combination=component(Combination, attention_weights=lambda self, members: [1.0])),
    decode("a Candidates", search_strategy=component(BeamSearch, step=lambda self, *given: given[1])),
    decode("must return scores", "float64", search_strategy=component(BeamSearch, step=narrowed)),
    decode("at least 4 candidates of each sentence, not 1", search_strategy=component(BeamSearch, step=few)),
    *(decode(f"Mine.{name}", "but returns a tuple", search_strategy=component(BeamSearch, **{name: lambda *_: (1,)}))
      for name in ("rows", "finished")),
    decode("(16,) of torch.bool", stopping=[calling(StoppingRule, lambda self, tokens, context: tokens[:, -1])]),
    decode("must return a Component", processors=[component(LogitsProcessor, begin=lambda self, batch: None)]),
    decode("must set the state 'counts' to a tensor (2, 4, ...), not NoneType",
           observers=[component(Observer, beam_state=("counts",))]),
    decode("to a tensor (2, ...), not (1,)",
           processors=[component(LogitsProcessor, sentence_state=("kept",), kept=torch.zeros(1))]),
    fields("must return a Mapping but returns a Tensor", lambda c, _: c.scores),
    fields("must return a Tensor but returns a float", lambda c, _: {"a": 1.0}),
    fields("(2, 8) of torch.float64 on cpu but returns (2, 1)", lambda c, _: {"a": c.scores[:, :1]}),
    fields("of torch.int64 on cpu but returns", lambda c, x: {"a": c.scores if x.step else c.tokens}),
    fields("a (2, 8, 1) of", lambda c, x: {"a": torch.zeros(*c.tokens.shape, 1 + x.step)}),
    error=ContractError,
)  # fmt: skip


def test_the_file_and_line_of_a_class_are_named() -> None:
    class OfThisFile(Observer):
        def summary(self) -> Any:
            return {"lines": 1}

    generator = make_generator([sharp("transformer_tiny")], dictionary(V - 4), observers=[OfThisFile()])
    with pytest.raises(ContractError, match=r"^OfThisFile.summary \(.*test_contract.py:\d+\) must return a str"):
        generator.summary()


def utilities(result: Any) -> list[Row]:
    mine, lines = calling(Utility, lambda self, line: result), [UtilityLine("", ["a"], ["c"])] * 2
    other = component(Utility, of_lines=lambda self, lines: [numpy.ones((1, 1)), result])
    few = component(Utility, of_lines=lambda self, lines: [numpy.ones((1, 1))])
    return [
        (lambda: expected_utilities([("", ["a", "b"])], mine), "Mine (", "must return"),
        (lambda: compare_texts(other, lines), "Mine (", "must return"),
        (lambda: compare_texts(few, lines), "Mine.of_lines (", "must return 2 results but returns 1"),
    ]


def reranker(result: Any) -> Row:
    mine, two = calling(Reranker, lambda self, translation, hypotheses: result), (cast("Any", None), cast("Any", "ab"))
    return lambda: list(call_reranker(mine, [two])), "Mine (", "must return a number for each of 2 hypotheses"


def criterion(words: str, out: Any) -> Row:
    return lambda: check_out("mine", out), words


LOSS = torch.ones(2, requires_grad=True).sum()
SOURCE = calling(MemberSource, lambda self, line, number: None)

test_others = refusals(
    *(row for wrong in (None, [[1.0]], numpy.zeros((1, 2)), numpy.full((2, 2), numpy.nan)) for row in utilities(wrong)),
    *map(reranker, (None, [1.0], [1.0, "?"], [1.0, float("nan")])),
    (lambda: source_text(SOURCE, "a line", 0), "Mine (", "must return a str but returns None"),
    criterion("must return a CriterionOut but returns a Tensor", LOSS),
    criterion("one number as 'loss', not (2,)", CriterionOut(LOSS.expand(2), 2)),
    criterion("a loss with a gradient", CriterionOut(LOSS.detach(), 2)),
    criterion("must return a dict but returns None", CriterionOut(LOSS, 2, None)),  # type: ignore[arg-type]
    criterion("one number as 'own', not (3,)", CriterionOut(LOSS, 2, {"own": numpy.zeros(3)})),  # type: ignore[dict-item]
    error=ContractError,
)


def declared(words: str, **body: Any) -> Row:
    return lambda: type("Mine", (LogitsProcessor,), body), f"Mine.{words}"


test_what_a_class_declares = refusals(
    (*declared("needs has 'member_logit'", needs=frozenset({"member_logit"})), "(did you mean 'member_logits'?)"),
    declared("needs is the string 'features'; write ['features']", needs="features"),
    declared("beam_state is the string 'counts'; write ['counts']", beam_state=("counts")),
    error=ConfigError,
)


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
    changed = lambda self, *args, **keys: change(getattr(base, method)(self, *args, **keys))  # noqa: E731
    module.__class__ = type("Mine", (base,), {"__module__": __name__, method: changed})
    return loaded


Change = Callable[[Callable[[Any], Any]], Callable[[Any], Any]]
WHOLE: Change = lambda wrong: wrong  # noqa: E731


def part(name: str) -> Change:
    """A change of one tensor of an output."""

    def change(wrong: Callable[[Any], Any], out: Any) -> Any:
        changed = {name: wrong(getattr(out, name))}
        return out._replace(**changed) if isinstance(out, tuple) else replace(out, **changed)

    return lambda wrong: partial(change, wrong)


OF_MODELS: list[tuple[str, str, Change, tuple[str, ...]]] = [
    ("decoder", "forward", part("logits"), ()),
    ("decoder", "forward", lambda wrong: lambda out: wrong(out.logits), ()),
    ("decoder", "output_layer", WHOLE, ()),
    ("decoder", "forward", part("attention"), ("None", "5 columns")),
    ("encoder", "forward", lambda wrong: lambda out: wrong(out.encoder_out), ()),
    ("encoder", "forward", part("encoder_out"), ("5 columns", "int64")),
    ("encoder", "forward", part("encoder_padding_mask"), ("None",)),
    ("", "adjust_logits_during_generation", WHOLE, ()),
    ("", "get_normalized_probs", WHOLE, ()),
]
"""The part of a model, the method, what it returns, and what is no violation: it may be, or fails in the decoder."""


def of_model(place: str, method: str, change: Callable[[Any], Any]) -> Row:
    def run() -> None:
        options = {"coverage_penalty": 0.2, "repetition_penalty": 1.1}  # which need attention and log-probabilities
        Translator(with_method(place, method, change), beam=3, max_len_b=2, **options).translate(TEXTS)

    return run, "Mine.", "must return"


test_what_models_return = refusals(
    *(
        of_model(place, method, change(wrong))
        for place, method, change, allowed in OF_MODELS
        for name, wrong in WRONG_TENSORS.items()
        if name not in allowed
    ),
    error=ContractError,
)


class ThreeMethods(KeyValueCache):
    """A cache that implements what the documentation asks for."""

    both: Any = None
    """Keys and values of all positions, (2, N, H, K, D)."""

    def append(self, new: KeysAndValues, rows: int) -> KeyValueCache:
        added = torch.stack(new[:2])
        self.both = added if self.both is None else torch.cat([self.both, added], dim=3)
        return self

    def view(self) -> KeysAndValues:
        return KeysAndValues(*self.both)

    def reorder(self, new_order: Any) -> KeyValueCache:
        self.both = self.both.index_select(1, new_order)
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


def of_cache(words: str, method: str, returned: Callable[[Any], Any]) -> Row:
    mine = type("Mine", (ThreeMethods,), {method: lambda self, *given: returned(self)})
    run = lambda: Translator(with_cache(mine), beam=3, max_len_a=1, max_len_b=1).translate(TEXTS)  # noqa: E731
    return run, f"Mine.{method} (", words


test_what_a_cache_returns = refusals(
    *(
        of_cache("must return a Key", method, lambda self: None)
        for method in ("append", "view", "reorder", "reorder_beams", "select")
    ),
    *(
        of_cache("must return", "view", lambda self, wrong=wrong: KeysAndValues(*map(wrong, self.both)))
        for name, wrong in WRONG_TENSORS.items()
        if name != "rows"  # a cache may return rows of sentences
    ),
    error=ContractError,
)
