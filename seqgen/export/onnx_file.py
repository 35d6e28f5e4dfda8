"""Writing graphs as ONNX files, and running them with onnxruntime."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from contextlib import contextmanager, redirect_stdout
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqgen.errors import ConfigError
from seqgen.export.graphs import Graph

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
"""The packages of the extra ``export``."""


def check_installed() -> None:
    """Check that the packages for ONNX are installed.

    Raises:
        ConfigError: one is missing.
    """
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"ONNX files need the package {missing[0]}, which is not installed; run pip install 'seqgen[export]', or "
            "choose formats=[torch]"
        )


def write_onnx(graph: Graph, path: Path, opset: int) -> None:
    """Write a graph as an ONNX file; weights of more than 2 GB are in a second file, named ``path`` with ``.data``.

    Args:
        graph: the graph.
        path: the file.
        opset: version of ONNX's operator set.

    Raises:
        ConfigError: the graph has an operator that ONNX does not have.
    """
    with _quiet():
        try:
            program = torch.onnx.export(
                graph.program,
                input_names=[tensor.name for tensor in graph.inputs],
                output_names=[tensor.name for tensor in graph.outputs],
                opset_version=opset,
                dynamic_shapes=[dict(tensor.dynamic) for tensor in graph.inputs],
                dynamo=True,
                verbose=False,
            )
        except Exception as error:  # its class depends on the exporter
            reason = str(error).strip().partition("\n")[0][:200]
            raise ConfigError(f"the model cannot be written as ONNX with opset={opset}: {reason}") from error
        assert program is not None
        program.save(path)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the exporter's warnings, which are about packages and functions that the user has not chosen."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
