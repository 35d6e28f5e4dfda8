"""Checkpoint loaders of one's own, and which paths they are asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from seqgen.checkpoints import loaders
from seqgen.checkpoints.loaders import (
    DecodingConfig,
    DecodingTask,
    LoadedModel,
    Placement,
    checkpoint_loader_of,
    register_checkpoint_loader,
)
from seqgen.checkpoints.loading import load_model, load_models
from seqgen.config import ReadingConfig, TrainConfig
from seqgen.core.errors import CheckpointError, ConfigError, DataError
from seqgen.data.tokenizers.base import WhitespaceTokenizer
from tests.fairseq_checkpoints import FCONV, dictionary, random_model


@pytest.fixture(autouse=True)
def _forget_loaders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders, "_LOADERS", dict(loaders._LOADERS))
    monkeypatch.setattr(loaders, "_DECLARED", dict(loaders._DECLARED))


def register_toy() -> None:
    @register_checkpoint_loader("toy", recognizes=lambda path: path.suffix == ".toy")
    def read(path: Path, reading: ReadingConfig, placement: Placement) -> LoadedModel:
        tokenizer = WhitespaceTokenizer(dictionary())
        task = DecodingTask(DecodingConfig(), tokenizer, tokenizer)
        return LoadedModel(
            random_model(FCONV).train(), task, TrainConfig(model=FCONV), path, notes=[reading.dictionary]
        )


def test_a_loader_of_ones_own() -> None:
    register_toy()
    (loaded,) = load_models(["x.toy"], reading=ReadingConfig(dictionary="given"))
    assert loaded.notes == ["given"]
    assert not loaded.model.training
    assert loaded.task.encode_source("w1 w2").tolist() == [5, 6, 2]
    with pytest.raises(DataError, match="set input=FILE"):
        loaded.task.source_lines("test")


def test_other_paths_are_runs(tmp_path: Path) -> None:
    register_toy()
    assert checkpoint_loader_of(tmp_path) is None
    with pytest.raises(CheckpointError, match="neither a run folder nor a checkpoint"):
        load_model(tmp_path)
    with pytest.raises(ConfigError, match="applies only to checkpoints of other toolkits"):
        load_models([str(tmp_path)], reading=ReadingConfig(dictionary="x"))
