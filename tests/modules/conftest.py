"""Memories of key/value caches, with which the laws of attention and of decoders are tried."""

from collections.abc import Iterator

import pytest
import torch

from seqgen.modules import attention
from seqgen.modules.kv_cache import growing, indirection

MEMORIES = ["roomy", "tight", "rounded"]


@pytest.fixture(name="memory", params=MEMORIES)
def _memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With much room; with so little that slots are collected, memories grow and tables are left; with rounded numbers.

    With rounded numbers of keys, which are usual in bfloat16 only, what is not initialized is NaN.
    """
    if request.param == "tight":
        monkeypatch.setattr(indirection, "_BLOCK", 2)
        monkeypatch.setattr(indirection, "_MOST_SLOTS", 1)
        monkeypatch.setattr(growing, "_BLOCK", 1)
    if request.param == "rounded":
        monkeypatch.setattr(attention, "_COMPILED", (torch.float64,))
        monkeypatch.setattr(attention, "_ROUNDED", 4)
        torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
