"""Writing graphs as ONNX files, and running them with onnxruntime."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from seqgen.errors import ConfigError
from seqgen.export.graphs import Graph, Run

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
"""The packages that write and run ONNX files."""


def check_installed() -> None:
    """Check that the packages for ONNX are installed.

    Raises:
        ConfigError: one is missing.
    """
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigError(f"formats=[onnx] needs packages: pip install {' '.join(missing)}; or choose formats=[torch]")


def write_onnx(graph: Graph, path: Path, opset: int) -> None:
    """Write a graph as an ONNX file; if the weights have more than 2 GB, they are written to a second file.

    Args:
        graph: the graph.
        path: the file.
        opset: version of ONNX's operator set.

    Raises:
        ConfigError: ONNX has no operator for a part of the graph.
    """
    with _without_warnings():
        try:
            program = torch.onnx.export(
                graph.program,
                input_names=[tensor.name for tensor in graph.inputs],
                output_names=[tensor.name for tensor in graph.outputs],
                dynamic_shapes=[tensor.dynamic for tensor in graph.inputs],
                opset_version=opset,
                dynamo=True,
                verbose=False,
            )
        except Exception as error:  # its class depends on the part that cannot be converted
            reason = str(error).strip().partition("\n")[0][:200]
            raise ConfigError(f"the model cannot be written as ONNX with opset={opset}: {reason}") from error
        assert program is not None
        program.save(path)


def load_onnx(path: Path, graph: Graph) -> Run:
    """Load an ONNX file to run it on the CPU.

    Args:
        path: the file.
        graph: the graph that the file contains.

    Returns:
        A function that runs it.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [tensor.name for tensor in graph.inputs]

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        arrays = [tensor.numpy() for tensor in inputs]
        return [torch.from_numpy(output) for output in session.run(None, dict(zip(names, arrays, strict=True)))]

    return run


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Hide the exporter's warnings, for example about packages that are not needed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
