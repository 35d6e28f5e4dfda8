"""A corpus and trained runs for the tests of the commands, made once."""

from pathlib import Path

import pytest

from tests.commands import SMALL_FCONV, SMALL_TRANSFORMER, corpus, done, training_arguments


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def runs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trained runs, ``fconv`` and ``transformer``, over one vocabulary."""
    folder = tmp_path_factory.mktemp("runs")
    further = ("optimization.max_update=30", "optimization.lr=[5e-3]", "checkpoint.keep_last_epochs=3")
    further += ("generation.max_len_b=12",)  # so little trained, they would often write 200 tokens
    for name, model in (("fconv", SMALL_FCONV), ("transformer", SMALL_TRANSFORMER)):
        done("train", *training_arguments(data, folder / name), *model, *further)
    return folder
