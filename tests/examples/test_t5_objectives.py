"""The objectives of examples/papers/t5_objectives.py: what is hidden, and that nothing is lost."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from examples.papers.t5_objectives import OBJECTIVES, Mass, T5ObjectivesConfig, T5ObjectivesTask
from seqgen.addons.mixtures import NoiseTokens
from tests.addons.mixtures.test_noising import EOS, NOISE, SENTINELS, WORDS, restore, text


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), st.floats(0, 1), st.integers(0, 10**6))
def test_hidden_tokens_restore_the_text(length: int, density: float, seed: int) -> None:
    tokens = text(length, seed)
    objective = OBJECTIVES["iid_spans"](density, 3.0)
    found = objective(tokens, NOISE, np.random.default_rng(seed))
    assert restore(*found) == tokens.tolist()
    assert all(len(side) <= longest for side, longest in zip(found, objective.lengths(length), strict=True))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["span_drop", "iid_drop"]), st.integers(1, 200), st.integers(0, 10**6))
@example("span_drop", 1, 0)
def test_dropped_tokens_are_the_target(name: str, length: int, seed: int) -> None:
    tokens = np.arange(3, 3 + length)  # each once, so that the two parts can be merged again
    objective = OBJECTIVES[name](0.3, 3.0)
    source, target = (side.tolist() for side in objective(tokens, NOISE, np.random.default_rng(seed)))
    assert sorted([*source[:-1], *target[:-1]]) == tokens.tolist()
    assert sorted(target[:-1]) == target[:-1], "in order"
    lengths = objective.lengths(length)
    assert (
        (len(source) <= lengths[0] and len(target) <= lengths[1])
        if name == "iid_drop"
        else (len(source), len(target)) == lengths
    )


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["mass", "deshuffling", "prefix_lm"]), st.integers(1, 200), st.integers(0, 10**6))
def test_objectives_whose_target_is_text(name: str, length: int, seed: int) -> None:
    tokens = text(length, seed)
    source, target = OBJECTIVES[name](0.15, 3.0)(tokens, NOISE, np.random.default_rng(seed))
    assert source[-1] == target[-1] == EOS
    if name == "prefix_lm":
        assert [*source[:-1], *target[:-1]] == tokens.tolist()
        assert len(target) > 1
        return
    assert target[:-1].tolist() == tokens.tolist()
    assert len(source) == length + 1
    assert name == "mass" or sorted(source[:-1].tolist()) == sorted(tokens.tolist())
    assert name == "deshuffling" or {*source[:-1][source[:-1] != tokens].tolist()} <= {SENTINELS[0]}


def test_bert_masks_nine_of_ten_and_hides_the_density() -> None:
    tokens = text(100_000)
    objective = Mass(0.15, 3.0)
    objective.words = WORDS
    source, _ = objective(tokens, NOISE, np.random.default_rng(3))
    changed = source[:-1] != tokens
    assert changed.mean() == pytest.approx(0.15, abs=0.004)
    assert (source[:-1][changed] == SENTINELS[0]).mean() == pytest.approx(0.9, abs=0.01)
    others = source[:-1][changed & (source[:-1] != SENTINELS[0])]
    assert np.isin(others, WORDS).all()
    assert len(set(others.tolist())) > 300


def test_spans_beyond_the_sentinels_stay_visible() -> None:
    few = NoiseTokens(EOS, SENTINELS[:3])
    source, target = OBJECTIVES["iid_spans"](0.5, 3.0)(text(568), few, np.random.default_rng(0))
    assert np.isin(source, SENTINELS).sum() == 2, "spans beyond the budget stay visible; the task asks before"
    assert target[-2] == SENTINELS[2]


def test_random_words_are_words(tmp_path: Path) -> None:
    raw = tmp_path / "text"
    raw.write_text("the dog sees a man\n" * 20)
    keys: dict[str, Any] = {"train": [str(raw)], "vocab_size": 60, "hard_vocab_limit": False, "extra_ids": 40}
    task = T5ObjectivesTask.setup_task(T5ObjectivesConfig(**keys, tokenizer="t5", objective="bert"), tmp_path / "run")
    objective, sentinels = task.objective(), task.noise_tokens().sentinels
    words = objective.words.tolist()
    assert len(set(words)) == len(words) > 5
    assert not {*task.source_dictionary.special_ids.values(), *sentinels} & set(words)
