"""Jobs without models, and the input of commands."""

from pathlib import Path

import pytest

from tests.addons.jobs.decoders import Bench, numbered
from tests.addons.jobs.models import texts, write_lines


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A job of 47 lines."""
    bench = Bench(tmp_path)
    bench.write(numbered(47))
    return bench


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """``in.txt`` with 60 lines, without a model: for what is refused before a model is read."""
    write_lines(tmp_path / "in.txt", texts(60))
    return tmp_path
