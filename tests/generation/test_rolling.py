"""Sentences that join a running batch get what they would get alone."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from torch import Tensor

from seqgen.addons.contrastive.search import ContrastiveSearch
from seqgen.core.setup import BatchStage
from seqgen.decoding.stopping import StopStrings, TimeLimit
from seqgen.extend import HIDDEN_STATES, LAYER_LOGITS, MEMBER_LOGITS, LogitsProcessor
from tests.covering import covering
from tests.generators import make_generator
from tests.hypotheses import assert_same
from tests.model_zoo import ARCHITECTURES, VOCAB, ZOO, registered, sharp
from tests.scripted_model import batch_of, dictionary
from tests.waiting_sentences import assert_continuous_equals_alone, sources

WORDS = dictionary(VOCAB - 4)
JOINING = [name for name in ZOO if not name.startswith(("lstm", "average", "transformer_ssru"))]


def reading(needs: set[str], change: Callable[[Any], Tensor]) -> LogitsProcessor:
    """A processor that adds a function of the models' outputs to the scores."""
    call = lambda self, lprobs, context: lprobs + change(context.outputs)  # noqa: E731
    return type("Reading", (LogitsProcessor,), {"can_merge": True, "needs": frozenset(needs), "__call__": call})()


OUTPUTS = reading(
    {HIDDEN_STATES, MEMBER_LOGITS}, lambda outputs: outputs.features[:, :1].sin() * outputs.member_logits[-1].tanh()
)
FIRST_LAYER = reading({LAYER_LOGITS}, lambda outputs: 0.3 * outputs.layer_logits[0].tanh())
OPTIONS: list[dict[str, object]] = [
    {},
    {"semantics": "huggingface", "early_stopping": "never", "len_penalty": 0.5},
    {"semantics": "huggingface", "beam_size": 1},
    {"min_len": 3, "beam_size": 2, "max_len_a": 1.0, "max_len_b": 2, "top_tokens": 3},
    {"beam_indirection": "off", "tokens_to_suppress": ["w3"], "unk_penalty": 0.5},
]


def joins(name: str, members: int = 1, **options: object) -> None:
    """Eleven sentences that join a batch of four."""
    models = [sharp(name, seed=3 + number) for number in range(members)]
    values = {"beam_size": 4, "max_len_a": 1.0, "max_len_b": 3, **options}
    generator = make_generator(models, WORDS, **values)
    assert not generator.setup.merge_obstacle
    asked = assert_continuous_equals_alone(generator, sources(11, len(name)), 4, left=models[0].left_pad_source)
    assert len([running for running in asked if 0 < running < 4]) > 2, "some join a batch that is running"


@pytest.mark.parametrize(("name", "options"), covering(JOINING, OPTIONS), ids=str)
def test_joined_equals_alone(name: str, options: dict[str, object]) -> None:
    joins(name, **options)


def test_what_reads_more_than_the_scores() -> None:
    """Processors that need outputs of the models, guidance, and texts, of which a sentence has its own tokens alone."""
    texts = [f"w{token} w{other}" for token in range(0, VOCAB - 4, 2) for other in range(0, VOCAB - 4, 3)]
    stop = StopStrings(texts, lambda ids: " ".join(WORDS.symbol(token) for token in ids))
    asked: list[tuple[str, dict[str, Any]]] = [
        *((name, {"processors": [OUTPUTS], "members": 2}) for name in ("transformer_tiny", "transformer_lm_tiny")),
        *((name, {"processors": [FIRST_LAYER]}) for name in ("transformer_lm_tiny", "llama_sliding")),
        ("transformer_tiny", {"guidance_scale": 1.5}),
        ("transformer_lm_tiny", {"stopping": [stop]}),
    ]
    for name, options in asked:
        joins(name, **options)
        batch = batch_of(sources(11, len(name)), left=ZOO[name].padded_left)
        models = [sharp(name, seed=3 + number) for number in range(options.pop("members", 1))]
        values = {"beam_size": 4, "max_len_a": 1.0, "max_len_b": 3}
        with pytest.raises(AssertionError):  # it changes the outputs
            assert_same(
                make_generator(models, WORDS, **values, **options).generate(batch),
                make_generator(models, WORDS, **values).generate(batch),
            )


@pytest.mark.parametrize(
    "options", [{"beam_size": 2, "max_len_a": 0.3}, {"semantics": "huggingface", "max_len_a": 0.3}], ids=str
)
def test_who_is_done_at_the_first_step_is_not_lost(options: dict[str, object]) -> None:
    generator = make_generator([sharp("transformer_tiny")], WORDS, max_len_b=0, **options)
    asked = assert_continuous_equals_alone(generator, sources(20, seed=5), 6)
    assert all(0 <= running <= 6 for running in asked)


def test_dead_weight_may_outlive_the_table_of_positions() -> None:
    model = registered("transformer_tiny", max_target_positions=12)().double().eval()
    generator = make_generator([model], WORDS, beam_size=2, max_len_a=1.0, max_len_b=0)
    assert_continuous_equals_alone(generator, sources(60, seed=6), 24)
    assert assert_continuous_equals_alone(generator, [], 24) == [0], "nobody waits"


@pytest.mark.parametrize("language_models", [False, True])
def test_ensembles_are_joined_too(language_models: bool) -> None:
    names = [name for name in ARCHITECTURES if name in JOINING and ZOO[name].is_language_model == language_models]
    models = [sharp(name) for name in names]
    generator = make_generator(models, WORDS, beam_size=3, max_len_b=8)
    assert_continuous_equals_alone(generator, sources(9, seed=1), 3, left=language_models)


def test_obstacles() -> None:
    """Each is named; then each batch is decoded by itself."""
    lacking: list[tuple[str, dict[str, Any], str]] = [
        ("lstm_tiny", {"no_repeat_ngram_size": 2}, "NoRepeatNgram, LSTMDecoder does not support it"),
        ("transformer_tiny", {"stopping": [TimeLimit(100)]}, "TimeLimit does not support it"),
        ("transformer_tiny", {"search_strategy": ContrastiveSearch()}, "has a decoding loop of its own"),
    ]
    for name, options, reason in lacking:
        generator = make_generator([sharp(name)], WORDS, max_len_b=8, **options)
        assert reason in str(generator.setup.merge_obstacle)
        assert not generator.can_merge
        assert set(assert_continuous_equals_alone(generator, sources(7, seed=2), 3)) == {0}
    needing = make_generator([sharp("transformer_tiny")], WORDS, need_attention=True)  # it has other columns alone
    assert needing.setup.merge_obstacle == "a component or the output needs attention"
    setup = replace(make_generator([sharp("fconv_tiny")], WORDS).setup, stages=[mock.Mock(spec=BatchStage)])
    assert setup.merge_obstacle == "a stage changes batches before they are decoded"
