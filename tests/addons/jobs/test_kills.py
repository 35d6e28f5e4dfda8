"""A job whose processes are killed at random moments writes what an undisturbed process writes; see ``soak``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.addons.jobs.soak.kills import Soak

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc")


@pytest.mark.slow
def test_twenty_kills(tmp_path: Path) -> None:
    soak = Soak(tmp_path, lines=4000, seed=1, window=6.0)
    soak.run(20)
    assert soak.kills.total() >= 20
    assert soak.kills.keys() == {"driver", "worker", "writing", "merging"}
    assert soak.outcomes >= 1
