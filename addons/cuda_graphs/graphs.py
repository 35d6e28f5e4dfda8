"""Graphs: operators of a device that are recorded once and replayed without Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch


class _CUDAGraph:
    """A recording of operators, which read and write the same memory at every replay; see ``torch.cuda.CUDAGraph``.

    Each graph has a memory pool of its own: in a pool of several, a replay may overwrite the output of another graph,
    which an ensemble still reads. Random operators are not recorded, so that replays leave the generator alone.

    Args:
        device: the device, which need not be the current one: without it, operators would not be recorded but run.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._graph = torch.cuda.CUDAGraph()

    @contextmanager
    def warm_up(self) -> Iterator[None]:
        """In the ``with`` block, operators run as they will be recorded; libraries allocate what they need."""
        # A library that first runs while operators are recorded, such as cuBLAS with its handle and its workspace of
        # this stream, would allocate memory outside of the pool, which is an error, or compare its kernels.
        with torch.cuda.device(self._device):
            stream, current = _side_stream(self._device), torch.cuda.current_stream()
            stream.wait_stream(current)
            try:
                with torch.cuda.stream(stream):
                    yield
            finally:
                current.wait_stream(stream)

    @contextmanager
    def capture(self) -> Iterator[None]:
        """In the ``with`` block, operators are recorded; their outputs are valid after a replay only."""
        # If the recording fails, torch.cuda.graph stays on its stream; the context around it returns to the old one.
        # Other threads may allocate memory meanwhile, hence thread_local.
        recording = torch.cuda.graph(self._graph, stream=_side_stream(self._device), capture_error_mode="thread_local")
        with self.warm_up(), recording:
            yield

    def replay(self) -> None:
        """Run the recorded operators."""
        self._graph.replay()


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream on which all graphs of a device are recorded; each further one needs a workspace of cuBLAS."""
    return torch.cuda.Stream(device)


GRAPHS: dict[str, Callable[[torch.device], Any]] = {"cuda": _CUDAGraph}
"""Makes an empty recording for a device, by the type of the device."""
