"""With random options, cached search equals uncached search, and a sentence alone equals one in a batch."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from seqgen.generation.ensemble.combinations import Fusion, LogProbabilityMean, ProbabilityMean, Product
from seqgen.generation.processors.bias import SequenceBias
from seqgen.generation.processors.length import ExponentialDecay
from seqgen.generation.processors.tokens import (
    EncoderNoRepeatNgram,
    EncoderRepetitionPenalty,
    NoRepeatNgram,
    RepetitionPenalty,
)
from seqgen.model import EncoderDecoderModel
from tests.hypotheses import assert_same
from tests.model_zoo import VOCAB, sharp
from tests.strategy_zoo import ENDS, PHRASES, SOURCES, STRATEGIES, decode, lines

COMBINATIONS = [ProbabilityMean([1.0, 3.0]), LogProbabilityMean(), Product(), Fusion(0.4)]
PENALTIES = [
    NoRepeatNgram(2),
    EncoderNoRepeatNgram(2),
    SequenceBias({(5,): -2.0, (7, 8): -3.0}),
    RepetitionPenalty(1.3),
]
REWARDS = [EncoderRepetitionPenalty(1.2), ExponentialDecay(2, 1.4, []), SequenceBias({(9,): 2.0})]
MODELS = ["transformer_tiny", "fconv_tiny", "t5_tiny", "lstm_tiny"]


@cache
def model(name: str) -> EncoderDecoderModel:
    return sharp(name, seed=1, factor=1.6)


@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=4, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_cached_equals_uncached_and_alone_equals_batched(name: str, semantics: str, data: st.DataObject) -> None:
    exact, readable = name == "exact", STRATEGIES[name].reads_features
    models = [model(one) for one in data.draw(st.permutations(MODELS[: 3 if readable else 4]))]
    models = models[: 1 if readable else data.draw(st.integers(1, 2))]
    options: dict[str, Any] = {
        "semantics": semantics,
        "beam_size": 2 if exact else 2 * data.draw(st.integers(1, 2)),
        "end_tokens": data.draw(st.sampled_from([ENDS, ENDS[:1]])),
        "min_len": data.draw(st.integers(0, 3)),
        "max_len": 3 if exact else 6,
        "len_penalty": data.draw(st.sampled_from([0.0, 1.0, 2.0])),
        "temperature": data.draw(st.sampled_from([0.7, 1.0])),
        "processors": data.draw(
            st.lists(st.sampled_from(PENALTIES + ([] if exact else REWARDS)), min_size=1, max_size=3, unique_by=id)
        ),
        "lazy_compaction": data.draw(st.booleans()),
        "skip_log_softmax": data.draw(st.booleans()),
    }
    if semantics == "huggingface":
        options["early_stopping"] = data.draw(st.sampled_from(["true", "false", "never"]))
    if len(models) == 2:
        options["combination"] = data.draw(st.sampled_from(COMBINATIONS))
    phrases = PHRASES if STRATEGIES[name].phrases else None
    together = decode(name, models, lines(), VOCAB - 4, phrases, **options)
    assert_same(decode(name, models, lines(), VOCAB - 4, phrases, **options, use_cache=False), together)
    for row in range(len(SOURCES)):
        own = None if phrases is None else [phrases[row]]
        assert_same(decode(name, models, lines([row]), VOCAB - 4, own, **options), [together[row]])
