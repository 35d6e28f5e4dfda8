"""A simulated GPU on which steps can be recorded."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from seqgen.addons.cuda_graphs.graphs import GRAPHS
from tests.simulated_gpu import Counts, Graph, simulated_gpu


@contextmanager
def recording_gpu() -> Iterator[Counts]:
    """See ``simulated_gpu``; in the ``with`` block, steps can also be recorded."""
    with simulated_gpu() as counts, mock.patch.dict(GRAPHS, {"gpu": Graph}):
        yield counts
