"""The folder that an export writes.

::

    encoder.onnx, step.onnx   the graphs for ONNX
    encoder.pt2, step.pt2     the graphs for torch.export.load
    export.json               names and shapes of their inputs and outputs, and the ids that decoding needs
    tokenizer/                the tokenizer; or source_tokenizer/ and target_tokenizer/

Before the folder is written, stepped decoding with its files is compared to the model's parallel pass.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from seqgen.checkpoints.loaders import LoadedModel
from seqgen.errors import ConfigError
from seqgen.export.graphs import NEXT, ROWS, Graph, NamedTensor, Run, export_graphs
from seqgen.model import EncoderDecoderModel
from seqgen.system.files import new_folder, write_atomically


@dataclass(frozen=True)
class Sentences:
    """Random sentences: sources of unequal length, and the targets that are given to the decoder.

    Attributes:
        src_tokens: ``(N, S)`` int64, padded on the right.
        src_lengths: ``(N,)`` int64.
        prev_output_tokens: ``(N, T)`` int64.
    """

    src_tokens: Tensor
    src_lengths: Tensor
    prev_output_tokens: Tensor

    @classmethod
    def random(cls, lengths: Sequence[int], steps: int, *, pad: int, source_size: int, target_size: int) -> Sentences:
        """Draw sentences; the same arguments give the same sentences.

        Args:
            lengths: length of each source.
            steps: length of all targets.
            pad: id of padding in the source vocabulary.
            source_size: size of the source vocabulary.
            target_size: size of the target vocabulary.
        """
        generator = torch.Generator().manual_seed(1)
        src_lengths = torch.tensor(lengths)
        words = torch.tensor([word for word in range(source_size) if word != pad])
        shape = len(lengths), max(lengths)
        src_tokens = words[torch.randint(len(words), shape, generator=generator)]
        src_tokens[torch.arange(max(lengths)) >= src_lengths.unsqueeze(1)] = pad
        targets = torch.randint(target_size, (len(lengths), steps), generator=generator)
        return cls(src_tokens, src_lengths, targets)


@torch.no_grad()
def largest_difference(
    model: EncoderDecoderModel, encoder: Run, step: Run, step_graph: Graph, sentences: Sentences
) -> float:
    """The largest difference of logits over all steps, relative to the largest logit if that is above 1.

    Args:
        model: the model.
        encoder: runs the graph of the encoder.
        step: runs the graph of a step.
        step_graph: the graph of a step.
        sentences: the sentences to decode.
    """
    rows, steps = sentences.prev_output_tokens.shape
    expected, _ = model(sentences.src_tokens, sentences.src_lengths, sentences.prev_output_tokens)
    expected = torch.stack([model.adjust_logits_during_generation(expected[:, n], n) for n in range(steps)], dim=1)
    source = list(encoder([sentences.src_tokens]))
    state = [
        torch.zeros([rows if n == ROWS else n if isinstance(n, int) else 0 for n in tensor.shape], dtype=tensor.dtype)
        for tensor in step_graph.inputs[1 + len(source) :]
    ]
    scale, largest = max(1.0, float(expected.abs().max())), 0.0
    for seen in range(steps):
        logits, *state = step([sentences.prev_output_tokens[:, : seen + 1], *source, *state])
        largest = max(largest, float((logits - expected[:, seen]).abs().max()))
    return largest / scale


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
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns about packages that are not needed
    with warnings.catch_warnings(action="ignore"):
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
    return {**vars(tensor), "dtype": str(tensor.dtype).removeprefix("torch.")}
