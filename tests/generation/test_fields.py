"""The components' own fields of hypotheses equal what follows from the tokens alone, in every way of decoding."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from seqgen.core.beam_search import BeamSearch
from seqgen.core.candidates import Candidates, gather_beams
from seqgen.core.combinations import ProbabilityMean
from seqgen.core.component import MEMBER_LPROBS
from seqgen.core.context import StepContext
from seqgen.core.errors import ConfigError, DecodingError
from seqgen.core.model import EncoderDecoderModel
from seqgen.core.observers import Observer
from seqgen.core.scores import Scores
from seqgen.core.structures import Hypothesis
from seqgen.decoding.search.diverse import DiverseBeamSearch
from seqgen.decoding.search.sampling import Sampling
from seqgen.decoding.speculative.drafters import PromptLookup
from seqgen.decoding.speculative.verification import SpeculativeSearch
from seqgen.text.output_formats import FORMATS
from seqgen.text.translator import Translator
from tests.generators import make_generator
from tests.hypotheses import assert_same
from tests.model_zoo import VOCAB, sharp
from tests.scripted_model import ScriptedModel, batch_of, dictionary, random_rule
from tests.strategy_zoo import STRATEGIES, Readable, decode
from tests.text_models import TEXTS, text_model
from tests.waiting_sentences import assert_continuous_equals_alone, sources

WORDS = 5
V = WORDS + 4
SOURCES = [(4, 5, 6, 2), (7, 2), (8, 4, 4, 5, 6, 7, 2)]


class Prefixes(Observer):
    """What follows from the tokens of a hypothesis alone: a hash of the prefix, the step, and the score so far."""

    can_merge = True

    def token_fields(self, candidates: Candidates, context: StepContext) -> Mapping[str, Tensor]:
        hashes = torch.zeros(len(context.steps), dtype=torch.int64)
        for row, (tokens, size) in enumerate(zip(context.tokens.tolist(), context.steps.tolist(), strict=True)):
            hashes[row] = hashed(tokens[len(tokens) - size :])
        steps, prefixes = (
            gather_beams(context.by_sentence(values), candidates.beams) for values in (context.steps, hashes)
        )
        newest = (prefixes * 31 + candidates.tokens) % 10007
        sums = candidates.scores.masked_fill(candidates.scores == -math.inf, math.nan)
        return {"prefix": newest, "of": torch.stack([steps, candidates.tokens], 2), "sum": sums}


def hashed(tokens: list[int]) -> int:
    found = 0
    for token in tokens:
        found = (found * 31 + token) % 10007
    return found


def assert_follow_from_tokens(results: list[list[Hypothesis]]) -> None:
    for hypothesis in (one for some in results for one in some):
        tokens = hypothesis.tokens.tolist()
        fields = hypothesis.fields
        assert fields["prefix"].tolist() == [hashed(tokens[: length + 1]) for length in range(len(tokens))]
        assert fields["of"].tolist() == [list(pair) for pair in enumerate(tokens)]
        sums = hypothesis.positional_scores.cumsum(0).to(fields["sum"].dtype)
        torch.testing.assert_close(fields["sum"], sums, atol=1e-5, rtol=0)


def models(count: int = 1) -> list[EncoderDecoderModel]:
    return [ScriptedModel(random_rule(V, seed)) for seed in range(count)]


def generated(observer: Observer, **options: Any) -> list[list[Hypothesis]]:
    values = {"beam_size": 4, "max_len": 6, "min_len": 0, "observers": [observer], **options}
    found: list[list[Hypothesis]] = make_generator(models(), dictionary(WORDS), **values).generate(batch_of(SOURCES))
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lazy_compaction": False, "normalize_scores": False},
        {"semantics": "huggingface", "early_stopping": "never", "len_penalty": 0.3},
        {"search_strategy": DiverseBeamSearch(2, 0.5)},
        {"search_strategy": SpeculativeSearch(PromptLookup(2), 3, Sampling(4))},
        {"search_strategy": SpeculativeSearch(PromptLookup(1), 3), "beam_size": 1},
    ],
    ids=" ".join,
)
def test_fields_follow_from_the_tokens(options: dict[str, Any]) -> None:
    """Beams cross, sentences leave the batch at different steps, hypotheses are finalized before others."""
    found = generated(Prefixes(), **options)
    assert_follow_from_tokens(found)
    assert len({len(one.tokens) for some in found for one in some}) > 1
    alone = make_generator(models(), dictionary(WORDS), **{"beam_size": 4, "max_len": 6, "min_len": 0, **options})
    assert_same(found, alone.generate(batch_of(SOURCES)))  # fields change nothing


@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "constrained"])
def test_every_strategy(name: str, semantics: str) -> None:
    keys = {"semantics": semantics, "observers": [Prefixes()]}
    found = decode(name, [Readable(random_rule(V, 1))], batch_of(SOURCES), WORDS, **keys)
    assert all(one.fields for some in found for one in some)
    for one in (one for some in found for one in some):
        tokens = one.tokens.tolist()
        assert one.fields["prefix"].tolist() == [hashed(tokens[: length + 1]) for length in range(len(tokens))]


@pytest.mark.parametrize("options", [{"beam_size": 3}, {"semantics": "huggingface", "beam_size": 2}], ids=str)
def test_continuous_batching(options: dict[str, Any]) -> None:
    """Sentences join at other steps, and their fields are moved with their beams."""
    observer = Prefixes()
    generator = make_generator(
        [sharp("transformer_tiny", seed=3)], dictionary(VOCAB - 4), max_len_a=1.0, max_len_b=3, observers=[observer],
        **options,
    )  # fmt: skip
    assert generator.can_merge
    rows = sources(17, seed=4)
    asked = assert_continuous_equals_alone(generator, rows, 4)
    assert len([running for running in asked if 0 < running < 4]) > 2
    assert_follow_from_tokens(generator.generate(batch_of(rows)))
    generator = make_generator([sharp("transformer_tiny")], dictionary(VOCAB - 4), observers=[Wrong(dict)])
    assert not generator.can_merge, "token_fields of a subclass may read the step"


class Voters(ProbabilityMean):
    """Which member gives each token the largest probability, and each member's log-probability."""

    needs = frozenset({MEMBER_LPROBS})

    def token_fields(self, candidates: Candidates, context: StepContext) -> Mapping[str, Tensor]:
        each = torch.stack(context.outputs.member_lprobs or [], dim=-1)
        by_sentence = gather_beams(context.by_sentence(each), candidates.beams)
        chosen = by_sentence.gather(
            2, candidates.tokens.view(*candidates.tokens.shape, 1, 1).expand(-1, -1, 1, each.size(-1))
        )
        return {"member_lprobs": chosen.squeeze(2), "voter": chosen.squeeze(2).argmax(-1)}


class Pruned(BeamSearch):
    """Returns fewer candidates at odd steps, and says at which step each was chosen."""

    def step(self, context: StepContext, scores: Scores) -> Candidates:
        found = super().step(context, scores)
        kept = scores.beams.size(1) + 1 if context.step % 2 else found.scores.size(1)
        return found.gather(torch.arange(kept).expand(len(scores.beams), -1))

    def token_fields(self, candidates: Candidates, context: StepContext) -> Mapping[str, Tensor]:
        return {"step": torch.full_like(candidates.tokens, context.step)}


def test_fields_of_several_components_and_numbers_of_candidates() -> None:
    generator = make_generator(
        models(2), dictionary(WORDS), beam_size=3, max_len=6, min_len=0, search_strategy=Pruned(),
        combination=Voters([0.6, 0.4]), observers=[Prefixes()],
    )  # fmt: skip
    found = generator.generate(batch_of(SOURCES))
    assert_follow_from_tokens(found)
    for source, hypotheses in zip(SOURCES, found, strict=True):
        for one in hypotheses:
            tokens = one.tokens.tolist()
            assert one.fields["step"].tolist() == [*range(len(tokens))]
            for t, token in enumerate(tokens):
                wanted = [random_rule(V, seed)(source, tuple(tokens[:t])).log_softmax(0)[token] for seed in range(2)]
                torch.testing.assert_close(one.fields["member_lprobs"][t].double(), torch.stack(wanted).double())
                assert one.fields["voter"][t] == int(wanted[1] > wanted[0])
    voters = {int(each) for hypotheses in found for one in hypotheses for each in one.fields["voter"]}
    assert voters == {0, 1}
    for row, source in enumerate(SOURCES):
        assert_same(generator.generate(batch_of([source])), found[row : row + 1])


class Wrong(Prefixes):
    def __init__(self, fields: Any):
        self.given = fields

    def token_fields(self, candidates: Candidates, context: StepContext) -> Any:
        return self.given(candidates, context)


ERRORS: list[tuple[Any, str]] = [
    (lambda c, _: c.scores, "Wrong.token_fields .*test_fields.*must return a Mapping but returns a Tensor"),
    (lambda c, _: {"a": 1.0}, "must return a Tensor but returns a float"),
    (lambda c, _: {"a": c.scores[:, :1]}, r"must return a \(3, 8\) of torch.float64 on cpu but returns \(3, 1\)"),
    (lambda c, _: {"a": torch.tensor(1.0)}, r"must return a \(3, 8\)"),
    (lambda c, x: {"a": c.scores if x.step else c.tokens}, r"of torch.int64 on cpu but returns .* of torch.float64"),
    (lambda c, x: {"a": torch.zeros(*c.tokens.shape, 1 + x.step)}, r"a \(3, 8, 1\) of .* returns \(3, 8, 2\)"),
    (lambda c, x: {"a": c.scores, **({"b": c.scores} if x.step else {})}, "field 'b' is missing at some steps"),
    (lambda c, x: {"a": c.scores, **({} if x.step else {"b": c.scores})}, "field 'b' is missing at some steps"),
    (
        lambda c, _: {"sum": c.scores},
        "Prefixes and another component both return the field 'sum'; remove one of the two",
    ),
]


@pytest.mark.parametrize(("fields", "message"), ERRORS)
def test_wrong_fields_are_errors(fields: Any, message: str) -> None:
    with pytest.raises((DecodingError, ConfigError), match=message):
        generated(Prefixes(), observers=[Wrong(fields), *([Prefixes()] if "another" in message else [])])


class OwnLoop(BeamSearch):
    session_class = object  # any class without the steps of `Session`


def test_a_loop_without_steps_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="Prefixes records values at each step, but OwnLoop does not decode step by step"
    ):
        generated(Prefixes(), search_strategy=OwnLoop())


class Spoiling(Prefixes):
    def token_fields(self, candidates: Candidates, context: StepContext) -> Mapping[str, Tensor]:
        candidates.tokens.zero_()
        return {"a": candidates.scores.exp_()}


def test_changes_in_place_change_no_result() -> None:
    wanted = generated(Prefixes(), observers=[])
    found = generated(Spoiling())
    assert_same(found, wanted)
    assert not any(one.fields for some in wanted for one in some)
    for one in (one for some in found for one in some):
        assert one.fields["a"].tolist() == pytest.approx(one.positional_scores.cumsum(0).exp().tolist(), rel=1e-5)


def test_in_texts_json_and_parts_of_a_line() -> None:
    translator = Translator(text_model(seed=3, sharpness=1.0), beam=3, nbest=2)
    decoding = translator.prepare(observers=[Prefixes()])
    lines = [json.loads(FORMATS["json"](decoding, None)(one)) for one in decoding.translate(TEXTS)]
    for line in lines:
        for item in line["hypotheses"]:
            tokens = item["tokens"]
            assert item["fields"]["prefix"] == [hashed(tokens[: t + 1]) for t in range(len(tokens))]
            assert item["fields"]["of"] == [list(pair) for pair in enumerate(tokens)]
    nothing = Wrong(lambda c, _: {"nan": torch.full_like(c.scores, math.nan)})
    decoding = translator.prepare(observers=[nothing])
    line = json.loads(FORMATS["json"](decoding, None)(next(iter(decoding.translate(TEXTS)))))
    assert {*line["hypotheses"][0]["fields"]["nan"]} == {None}


def test_sentences_of_a_line_are_joined() -> None:
    translator = Translator(text_model(seed=3, sharpness=1.0), beam=2)

    def of_width(candidates: Candidates, context: StepContext) -> Mapping[str, Tensor]:
        return {"source": torch.zeros(*candidates.tokens.shape, int(context.sentences.ids[0]) % 7 + 1)}

    split: dict[str, Any] = {"input_split": "sentences", "input_split_lang": "en", "batch_size": 1}
    line = translator.translate(["W1 w5. W2 w3! W4 w4 w6."], observers=[Prefixes(), Wrong(of_width)], **split)[0]
    parts = [part.hypotheses[0] for part in line.sentences]
    assert len(parts) > 1
    joined = line.hypotheses[0].fields
    assert {*joined} == {"prefix", "of", "sum"}
    assert joined["of"].tolist() == [row for part in parts for row in part.fields["of"].tolist()]
