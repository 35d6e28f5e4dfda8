"""Configurations with which a run may and may not be continued."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import seqgen.models
import seqgen.tasks  # noqa: F401  # declare the built-in components
from seqgen.checkpoints.run_config import check_resumable
from seqgen.config import TrainConfig
from seqgen.config.compose import compose
from seqgen.config.keys import known_keys
from seqgen.config.values import to_dict
from seqgen.core.errors import ConfigError


def plain(*overrides: str) -> dict[str, Any]:
    return to_dict(compose(TrainConfig, overrides))


@pytest.fixture(scope="module")
def old() -> dict[str, Any]:
    return plain()


def changed(old: dict[str, Any], **values: Any) -> dict[str, Any]:
    """The configuration with dotted keys (``__`` for the dot) changed."""
    new = copy.deepcopy(old)
    for key, value in values.items():
        group, _, name = key.partition("__")
        new[group][name] = value
    return new


def test_the_same_configuration(old: dict[str, Any]) -> None:
    check_resumable(old, copy.deepcopy(old))


def test_how_long_where_and_how_often_to_save_may_change(old: dict[str, Any]) -> None:
    new = changed(
        old,
        optimization__max_update=7,
        common__device="cpu",
        common__log_format="lines",
        checkpoint__save_interval_updates=3,
        generation__beam=2,
    )
    check_resumable(old, {**new, "run_dir": "elsewhere"})


def test_every_difference_is_listed_with_both_values(old: dict[str, Any]) -> None:
    new = changed(old, common__seed=5, optimization__clip_norm=0.25, optimization__max_update=9)
    with pytest.raises(ConfigError) as error:
        check_resumable(old, new)
    text = str(error.value)
    assert "common.seed: 1 -> 5" in text
    assert "optimization.clip_norm: 1.0 -> 0.25" in text
    assert "max_update" not in text
    assert "choose another run_dir" in text


def test_another_component(old: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"model\._name: fconv -> transformer"):
        check_resumable(old, plain("model=transformer_tiny"))


def test_the_length_of_a_schedule_is_no_free_choice() -> None:
    old = plain("lr_scheduler=polynomial", "optimization.max_update=100")
    with pytest.raises(ConfigError, match="the length of this run's learning-rate schedule"):
        check_resumable(old, plain("lr_scheduler=polynomial", "optimization.max_update=200"))
    given = plain("lr_scheduler=polynomial", "lr_scheduler.total_num_update=50", "optimization.max_update=100")
    check_resumable(given, changed(given, optimization__max_update=200))


def test_the_keys_that_may_change_exist() -> None:
    from seqgen.checkpoints import run_config as resume

    known = {key for key, _, _ in known_keys(compose(TrainConfig, ["task=translation"]))}
    assert known >= resume.MAY_CHANGE - {"model.base"}  # a key of models with a `BaseConfig` alone


def test_the_number_of_processes_may_change(old: dict[str, Any]) -> None:
    """``update_freq`` may change with it, if the number of batches per update stays the same."""
    two = changed(old, distributed_training__distributed_world_size=2, optimization__update_freq=[1, 2])
    check_resumable(two, changed(two, distributed_training__distributed_world_size=1))
    check_resumable(two, changed(old, optimization__update_freq=[2, 4]))
    check_resumable(changed(old, optimization__update_freq=[2, 4]), two)
    with pytest.raises(ConfigError, match=r"update_freq: \[1, 2\] -> \[2, 2\](.|\n)*their product stays the same"):
        check_resumable(two, changed(old, optimization__update_freq=[2, 2]))
    with pytest.raises(ConfigError, match=r"update_freq: \[1\] -> \[2\]"):
        check_resumable(old, changed(old, optimization__update_freq=[2]))
