"""The folder that an export writes.

::

    encoder.onnx, step.onnx   the graphs for ONNX
    encoder.pt2, step.pt2     the graphs for torch.export.load
    export.json               names and shapes of their inputs and outputs, and the ids that decoding needs
    tokenizer/                the tokenizer; or source_tokenizer/ and target_tokenizer/
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from seqgen.checkpoints.loading import LoadedModel
from seqgen.errors import ConfigError
from seqgen.export.comparison import Sentences, largest_difference
from seqgen.export.graphs import NEXT, Graph, Run, export_graphs
from seqgen.export.onnx_file import load_onnx, write_onnx
from seqgen.export.state import NamedTensor
from seqgen.system.files import new_folder, write_atomically

METADATA = "export.json"
FORMATS = {"onnx": "onnx", "torch": "pt2"}
"""The formats and the endings of their files."""

TOLERANCE = 1e-4
"""The limit of ``largest_difference``, above which nothing is written."""

_LENGTHS, _STEPS = [6, 1, 4], 5
"""The sentences that are decoded to check the files: lengths of sources, and number of steps."""


def write_export(loaded: LoadedModel, folder: Path, formats: Sequence[str], opset: int) -> float:
    """Export a model, check the files against it, and write a folder; it is not written if an error occurs.

    Args:
        loaded: the model, in float32 on the CPU; its parametrized weights are replaced by their values.
        folder: the folder, which must not exist yet.
        formats: some of ``FORMATS``.
        opset: version of ONNX's operator set.

    Returns:
        The largest difference of logits between files and model, see ``largest_difference``.

    Raises:
        ConfigError: the model cannot be exported.
    """
    model, task = loaded.model, loaded.task
    pad = task.source_dictionary.pad()
    graphs = dict(zip(("encoder", "step"), export_graphs(model, pad), strict=True))
    vocab = graphs["step"].outputs[0].shape[1]
    assert isinstance(vocab, int)
    sizes = {"source_size": len(task.source_dictionary), "target_size": min(vocab, len(task.target_dictionary))}
    sentences = Sentences.random(_LENGTHS, _STEPS, pad=pad, **sizes)
    difference = 0.0
    with new_folder(folder) as temporary:
        for kind in formats:
            runs = {name: _write(graph, temporary / f"{name}.{FORMATS[kind]}", opset) for name, graph in graphs.items()}
            found = largest_difference(model, runs["encoder"], runs["step"], graphs["step"], sentences)
            if not found <= TOLERANCE:
                raise ConfigError(
                    f"{type(model).__name__} cannot be exported: the logits of the {kind} files differ from the "
                    f"model's by {found:.1g}, more than {TOLERANCE:g}; its decoder may keep a state outside of "
                    "MultiheadAttention and LinearizedConvolution"
                )
            difference = max(difference, found)
        loaded.save_tokenizers(temporary)
        content = json.dumps(_metadata(loaded, graphs, formats, opset), indent=2)
        write_atomically(temporary / METADATA, content)
    return difference


def _write(graph: Graph, path: Path, opset: int) -> Run:
    """Write a file, and return a function that runs it."""
    if path.suffix == ".onnx":
        write_onnx(graph, path, opset)
        return load_onnx(path, graph)
    torch.export.save(graph.program, path)
    return load_program(path)


def load_program(path: Path) -> Run:
    """Load a file of ``torch.export`` to run it.

    Args:
        path: the file.

    Returns:
        A function that runs it.
    """
    program = torch.export.load(path)
    module, inputs_spec = program.module(), program.call_spec.in_spec

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        args, kwargs = pytree.tree_unflatten(list(inputs), inputs_spec)
        outputs: list[Tensor] = pytree.tree_leaves(module(*args, **kwargs))
        return outputs

    return run


def _metadata(loaded: LoadedModel, graphs: Mapping[str, Graph], formats: Sequence[str], opset: int) -> dict[str, Any]:
    model, task = loaded.model, loaded.task
    words = task.target_dictionary
    source_max, target_max = model.max_positions()
    state = [tensor.name.removeprefix(NEXT) for tensor in graphs["step"].outputs[1:]]
    described = {
        name: {
            "files": {kind: f"{name}.{FORMATS[kind]}" for kind in formats},
            "inputs": [_described(tensor) for tensor in graph.inputs],
            "outputs": [_described(tensor) for tensor in graph.outputs],
        }
        for name, graph in graphs.items()
    }
    return {
        "model": type(model).__name__,
        "opset": opset if "onnx" in formats else None,
        **described,
        "state": {name: f"{NEXT}{name}" for name in state},
        "source_pad": task.source_dictionary.pad(),
        "padding_side": "left" if model.left_pad_source else "right",
        "start": model.start_token(words.eos()),
        "eos": words.eos(),
        "pad": words.pad(),
        "max_source_length": source_max,
        "max_target_length": target_max,
        "generation": loaded.generation,
    }


def _described(tensor: NamedTensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
    }
