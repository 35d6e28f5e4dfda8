"""Sentences that join a running batch get what they would get alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from seqgen.core.component import FORBIDDEN, HIDDEN_STATES, LAYER_LOGITS, MEMBER_LOGITS
from seqgen.core.context import StepContext
from seqgen.core.observers import Observer, Outcome, StepRecord
from seqgen.core.processors import LogitsProcessor
from seqgen.core.setup import BatchStage
from seqgen.core.structures import EncoderOut, Hypothesis
from seqgen.decoding.continuous_batching import generate_continuously
from seqgen.decoding.search.contrastive import ContrastiveSearch
from seqgen.decoding.stopping import StopStrings, TimeLimit
from tests.covering import covering
from tests.generators import make_generator
from tests.hypotheses import assert_same
from tests.model_zoo import ARCHITECTURES, VOCAB, ZOO, registered, sharp
from tests.scripted_model import batch_of, dictionary
from tests.strategy_zoo import STRATEGIES, strategy
from tests.waiting_sentences import assert_continuous_equals_alone, queue, sources

JOINING = [name for name in ZOO if getattr(sharp(name).decoder, "can_merge", False)]


OPTIONS: list[dict[str, object]] = [
    {},
    {"semantics": "huggingface", "early_stopping": "never", "len_penalty": 0.5},
    {"semantics": "huggingface", "beam_size": 1},
    {"min_len": 3, "beam_size": 2, "max_len_a": 1.0, "max_len_b": 2, "top_tokens": 3},
    {"beam_indirection": "off", "tokens_to_suppress": ["w3"], "unk_penalty": 0.5},
]


@pytest.mark.parametrize(("name", "options"), covering(JOINING, OPTIONS), ids=str)
def test_joined_equals_alone(name: str, options: dict[str, object]) -> None:
    model = sharp(name, seed=3)
    rows = sources(17, seed=len(name))
    generator = make_generator(
        [model], dictionary(VOCAB - 4), **{"beam_size": 4, "max_len_a": 1.0, "max_len_b": 3, **options}
    )
    assert generator.can_merge
    asked = assert_continuous_equals_alone(generator, rows, 5, left=model.left_pad_source)
    assert len([running for running in asked if 0 < running < 5]) > 2  # some did join a batch that was running


def test_padding_of_merged_encoder_outputs() -> None:
    """Rows keep their padding on either side; the shorter batch is padded at the end."""
    left = torch.tensor([[True, True, False], [False, False, False]])
    longer = torch.tensor([[True, False, False, False, False]])
    for first, second in ((left, longer), (longer, left), (left, left)):
        one, two = (EncoderOut(torch.ones(*mask.shape, 4), mask) for mask in (first, second))
        width = max(first.size(1), second.size(1))
        wanted = torch.cat([F.pad(mask, (0, width - mask.size(1)), value=True) for mask in (first, second)])
        got = one.merge(two).encoder_padding_mask
        assert got is not None
        assert torch.equal(got, wanted)


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 2, "max_len_a": 0.3, "max_len_b": 0},
        {"beam_size": 1, "semantics": "huggingface", "max_len_a": 0.3, "max_len_b": 0},
    ],
    ids=str,
)
def test_who_is_done_at_the_first_step_is_not_lost(options: dict[str, object]) -> None:
    rows = sources(40, seed=5)
    generator = make_generator([sharp("transformer_tiny")], dictionary(VOCAB - 4), **options)
    asked = assert_continuous_equals_alone(generator, rows, 6)
    assert all(0 <= running <= 6 for running in asked)


def test_dead_weight_may_outlive_the_table_of_positions() -> None:
    model = registered("transformer_tiny", max_target_positions=12)().double().eval()
    generator = make_generator([model], dictionary(VOCAB - 4), beam_size=2, max_len_a=1.0, max_len_b=0)
    assert_continuous_equals_alone(generator, sources(60, seed=6), 24)


@pytest.mark.parametrize("language_models", [False, True])
def test_ensembles_are_joined_too(language_models: bool) -> None:
    models = [
        sharp(name) for name in ARCHITECTURES if name in JOINING and ZOO[name].is_language_model == language_models
    ]
    generator = make_generator(models, dictionary(VOCAB - 4), beam_size=3, max_len_b=8)
    assert_continuous_equals_alone(generator, sources(9, seed=1), 3, left=language_models)


MERGEABLE = [name for name in STRATEGIES if getattr(strategy(name), "can_merge", False)]


def test_which_strategies_can_merge() -> None:
    assert {*STRATEGIES} - {*MERGEABLE} == {"constrained", "contrastive"}


@pytest.mark.parametrize(
    ("search", "name", "semantics"),
    covering(MERGEABLE, ["transformer_tiny", "transformer_lm_tiny", "t5_tiny"], ["fairseq", "huggingface"]),
)
def test_every_strategy_that_can_merge(search: str, name: str, semantics: str) -> None:
    model = sharp(name, seed=3)
    if (search, semantics) == ("diverse_beam", "huggingface"):
        return  # which has another class
    options = {"beam_size": 4, "max_len_a": 1.0, "max_len_b": 3, "semantics": semantics}
    generator = make_generator([model], dictionary(VOCAB - 4), search_strategy=strategy(search), **options)
    assert not generator.setup.merge_obstacle
    asked = assert_continuous_equals_alone(generator, sources(17, seed=4), 5, left=model.left_pad_source)
    assert len([running for running in asked if 0 < running < 5]) > 2


class Outputs(LogitsProcessor):
    """Adds a function of the models' outputs to the scores."""

    can_merge = True
    needs = frozenset({HIDDEN_STATES, MEMBER_LOGITS})

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        features, logits = context.outputs.features, context.outputs.member_logits
        assert features is not None
        assert logits is not None
        return lprobs + features[:, :1].sin() * logits[-1].tanh()


class Layers(LogitsProcessor):
    """Adds the scores of the first layer."""

    can_merge = True
    needs = frozenset({LAYER_LOGITS})

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        assert context.outputs.layer_logits is not None
        return lprobs + 0.3 * context.outputs.layer_logits[0].tanh()


@pytest.mark.parametrize("kind", [Outputs, Layers])
@pytest.mark.parametrize("name", ["transformer_tiny", "transformer_lm_tiny"])
def test_components_that_need_outputs_of_the_models(kind: type[LogitsProcessor], name: str) -> None:
    models = [sharp(name, seed=3), sharp(name, seed=4)][: 1 if kind is Layers else 2]
    options: dict[str, Any] = {"beam_size": 3, "max_len_a": 1.0, "max_len_b": 3}
    generator = make_generator(models, dictionary(VOCAB - 4), processors=[kind()], **options)
    rows, left = sources(17, seed=3), models[0].left_pad_source
    asked = assert_continuous_equals_alone(generator, rows, 5, left=left)
    assert len([running for running in asked if 0 < running < 5]) > 2
    plain = make_generator(models, dictionary(VOCAB - 4), **options)
    with pytest.raises(AssertionError):  # the processor changes the outputs
        assert_same(generator.generate(batch_of(rows)), plain.generate(batch_of(rows)))


@pytest.mark.parametrize("name", ["transformer_tiny", "transformer_lm_tiny"])
def test_guidance(name: str) -> None:
    model = sharp(name, seed=3)
    options: dict[str, Any] = {"beam_size": 3, "max_len_a": 1.0, "max_len_b": 3, "guidance_scale": 1.5}
    generator = make_generator([model], dictionary(VOCAB - 4), **options)
    asked = assert_continuous_equals_alone(generator, sources(17, seed=3), 5, left=model.left_pad_source)
    assert len([running for running in asked if 0 < running < 5]) > 2


@pytest.mark.parametrize("name", ["transformer_tiny", "transformer_lm_tiny"])
def test_stop_texts_are_searched_in_the_tokens_of_the_sentence_alone(name: str) -> None:
    words, model = dictionary(VOCAB - 4), sharp(name, seed=3)
    texts = [f"w{token} w{other}" for token in range(0, VOCAB - 4, 2) for other in range(0, VOCAB - 4, 3)]
    rule = StopStrings(texts, lambda ids: " ".join(words.symbol(token) for token in ids))
    options: dict[str, Any] = {"beam_size": 3, "max_len_a": 1.0, "max_len_b": 6}
    generator = make_generator([model], words, stopping=[rule], **options)
    rows, left = sources(17, seed=3), model.left_pad_source
    assert_continuous_equals_alone(generator, rows, 5, left=left)
    found = generator.generate(batch_of(rows))
    assert any(hypothesis.tokens[-1] != 2 for hypotheses in found for hypothesis in hypotheses)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"stopping": [TimeLimit(100)]}, "TimeLimit does not support it"),
        ({"need_attention": True}, "a component or the output needs attention"),
        ({"search_strategy": ContrastiveSearch(), "beam_size": 1}, "ContrastiveSearch has a decoding loop of its own"),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(value),
)
def test_obstacles(options: dict[str, Any], reason: str) -> None:
    generator = make_generator([sharp("transformer_tiny")], dictionary(VOCAB - 4), **options)
    assert generator.setup.merge_obstacle == reason


def test_a_stage_of_batches_is_an_obstacle() -> None:
    generator = make_generator([sharp("transformer_tiny")], dictionary(VOCAB - 4))
    setup = replace(generator.setup, stages=[mock.Mock(spec=BatchStage)])
    assert setup.merge_obstacle == "a stage changes batches before they are decoded"


@pytest.mark.parametrize("name", ["lstm_tiny", "transformer_tiny"])
def test_where_nobody_can_join_each_batch_is_decoded_by_itself(name: str) -> None:
    """A decoder that does not know how, and a processor that looks at what was written."""
    generator = make_generator([sharp(name)], dictionary(VOCAB - 4), beam_size=3, max_len_b=8, no_repeat_ngram_size=2)
    assert not generator.can_merge
    lacking = "NoRepeatNgram" + (", LSTMDecoder" if name == "lstm_tiny" else "")
    assert generator.setup.merge_obstacle == f"{lacking} does not support it"
    assert set(assert_continuous_equals_alone(generator, sources(7, seed=2), 3)) == {0}


def test_nobody_waits() -> None:
    generator = make_generator([sharp("transformer_tiny")], dictionary(VOCAB - 4))
    assert list(generate_continuously(generator, lambda running, width: None)) == []


class Journal(Observer):
    """What becomes of the candidates of each sentence, by its own steps."""

    can_merge = True

    def __init__(self, needs: frozenset[str] = frozenset()) -> None:
        self.needs = needs  # type: ignore[misc]
        self.steps: dict[int, list[tuple[int, list[Any]]]] = defaultdict(list)
        self.ended: dict[int, Sequence[Hypothesis]] = {}

    def observe(self, record: StepRecord) -> None:
        context, c = record.context, record.candidates
        rows = zip(context.sentences.ids.tolist(), context.by_sentence(context.steps).tolist(), strict=True)
        for row, (sentence, steps) in enumerate(rows):
            if record.was_done[row]:
                continue
            histories = context.by_sentence(context.tokens)[row]
            histories = histories[:, histories.size(1) - steps[0] :].tolist()
            found = [
                (*histories[beam], token, Outcome(outcome).name)
                for beam, token, outcome in zip(
                    c.beams[row].tolist(), c.tokens[row].tolist(), record.outcomes[row].tolist(), strict=True
                )
                if outcome != Outcome.IMPOSSIBLE
            ]
            if record.forbidden is not None:
                found.append(context.by_sentence(record.forbidden.by)[row].tolist())
            self.steps[sentence].append((steps[0], found))

    def end(self, sentence: int, hypotheses: Sequence[Hypothesis]) -> None:
        assert sentence not in self.ended
        self.ended[sentence] = hypotheses


@pytest.mark.parametrize("needs", [frozenset(), frozenset({FORBIDDEN})], ids=["", "forbidden"])
@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
def test_observers_see_the_same_as_without_continuous_batching(semantics: str, needs: frozenset[str]) -> None:
    rows, model = sources(17, seed=3), sharp("transformer_tiny", seed=3)
    options = {"beam_size": 3, "max_len_a": 1.0, "max_len_b": 3, "min_len": 2, "semantics": semantics}
    together, alone = Journal(needs), Journal(needs)
    generator = make_generator([model], dictionary(VOCAB - 4), observers=[together], **options)
    assert generator.can_merge
    take, asked = queue(rows, 5)
    found = dict(generate_continuously(generator, take))
    assert len([running for running in asked if 0 < running < 5]) > 2
    plain = make_generator([model], dictionary(VOCAB - 4), observers=[alone], **options)
    for number, row in enumerate(rows):
        plain.generate(replace(batch_of([row]), ids=torch.tensor([number])))
    assert together.steps == alone.steps
    assert together.ended.keys() == alone.ended.keys() == set(range(17))
    for number in found:
        assert_same([together.ended[number]], [alone.ended[number]])


def test_an_observer_that_cannot_follow_joining_sentences_is_still_called() -> None:
    class Plain(Journal):
        can_merge = False

    observer, rows = Plain(), sources(7, seed=2)
    generator = make_generator([sharp("transformer_tiny")], dictionary(VOCAB - 4), observers=[observer], max_len_b=5)
    assert not generator.can_merge
    take, asked = queue(rows, 3)
    assert len(dict(generate_continuously(generator, take))) == 7
    assert set(asked) == {0}
    assert observer.steps.keys() == observer.ended.keys() == set(range(7))
