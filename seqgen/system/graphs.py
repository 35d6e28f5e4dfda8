"""Graphs: operators of a device that are recorded once and replayed without Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch


class Graph(Protocol):
    """A recording of operators, which read and write the same memory at every replay."""

    def capture(self) -> AbstractContextManager[None]:
        """In the ``with`` block, operators are recorded; their outputs are valid after a replay only."""

    def replay(self) -> None:
        """Run the recorded operators."""


class _CUDAGraph:
    """See ``torch.cuda.CUDAGraph``."""

    def __init__(self) -> None:
        self._graph = torch.cuda.CUDAGraph()

    @contextmanager
    def capture(self) -> Iterator[None]:
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):  # other threads may allocate memory
            yield

    def replay(self) -> None:
        self._graph.replay()


GRAPHS: dict[str, Callable[[], Graph]] = {"cuda": _CUDAGraph}
"""Makes an empty recording, by the type of the device."""
