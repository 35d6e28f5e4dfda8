"""The two graphs of a model in ONNX in a folder.

The folder has these files::

    encoder.onnx, step.onnx   the graphs, see ``graphs``
    export.json               names and shapes of their inputs and outputs, and the ids that decoding needs
    tokenizer/                the tokenizer; or source_tokenizer/ and target_tokenizer/

Before the folder is written, stepped decoding with its files is compared to the model's parallel pass.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from seqgen.addons.export.graphs import NEXT, ROWS, Graph, NamedTensor, export_graphs
from seqgen.extend import ConfigError, EncoderDecoderModel, LoadedModel, new_folder, write_atomically

Run: TypeAlias = Callable[[Sequence[Tensor]], list[Tensor]]
"""Runs a graph: maps its inputs to its outputs, both in order."""


@dataclass(frozen=True)
class Sentences:
    """Random sentences: sources of unequal length, and the targets that are given to the decoder.

    Attributes:
        src_tokens: ``(N, S)`` int64, padded.
        src_lengths: ``(N,)`` int64.
        prev_output_tokens: ``(N, T)`` int64.
    """

    src_tokens: Tensor
    src_lengths: Tensor
    prev_output_tokens: Tensor

    @classmethod
    def random(
        cls, lengths: Sequence[int], steps: int, *, pad: int, source_size: int, target_size: int, left: bool = False
    ) -> Sentences:
        """Draw sentences; the same arguments give the same sentences.

        Args:
            lengths: length of each source.
            steps: length of all targets.
            pad: id of padding in the source vocabulary.
            source_size: size of the source vocabulary.
            target_size: size of the target vocabulary.
            left: whether sources are padded on the left.
        """
        generator = torch.Generator().manual_seed(1)
        src_lengths = torch.tensor(lengths)
        words = torch.tensor([word for word in range(source_size) if word != pad])
        shape = len(lengths), max(lengths)
        src_tokens = words[torch.randint(len(words), shape, generator=generator)]
        padding = torch.arange(max(lengths)) >= src_lengths.unsqueeze(1)
        src_tokens[padding.flip(1) if left else padding] = pad
        targets = torch.randint(target_size, (len(lengths), steps), generator=generator)
        return cls(src_tokens, src_lengths, targets)


@torch.no_grad()
def largest_difference(
    model: EncoderDecoderModel, encoder: Run, step: Run, step_graph: Graph, sentences: Sentences
) -> float:
    """The largest difference of logits over all steps, relative to the largest logit if that is above 1.

    That of a logit of a larger magnitude, such as -1e4 of padding, is relative to it.

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
    scale, differences = max(1.0, float(expected.max())), list[Tensor]()
    for seen in range(steps):
        logits, *state = step([sentences.prev_output_tokens[:, : seen + 1], *source, *state])
        differences.append(((logits - expected[:, seen]) / expected[:, seen].abs().clamp(min=scale)).abs().max())
    return float(torch.stack(differences).max())


DTYPE = torch.float32
"""The dtype in which ``seqgen-convert`` loads the model."""
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
"""The packages that write and run ONNX files."""


def check(cfg: Any) -> None:
    """Check that the packages for ONNX are installed.

    Args:
        cfg: the configuration of ``seqgen-convert``.

    Raises:
        ConfigError: one is missing.
    """
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigError(f"format=export needs packages: pip install {' '.join(missing)}")


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
TOLERANCE = 1e-4
"""The limit of ``largest_difference``, above which nothing is written."""

_LENGTHS, _STEPS = [6, 1, 4], 5
"""The sentences that are decoded to check the files: lengths of sources, and number of steps."""


def write_export(loaded: LoadedModel, folder: Path, opset: int) -> float:
    """Export a model, check the files against it, and write a folder; it is not written if an error occurs.

    Args:
        loaded: the model, in float32 on the CPU.
        folder: the folder, which must not exist yet.
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
    sentences = Sentences.random(_LENGTHS, _STEPS, pad=pad, left=model.left_pad_source, **sizes)
    with new_folder(folder, exist_ok=False) as temporary:
        files = {name: temporary / f"{name}.onnx" for name in graphs}
        for name, graph in graphs.items():
            write_onnx(graph, files[name], opset)
        encoder, step = (load_onnx(files[name], graph) for name, graph in graphs.items())
        difference = largest_difference(model, encoder, step, graphs["step"], sentences)
        if not difference <= TOLERANCE:
            raise ConfigError(
                f"{type(model).__name__} cannot be exported: the logits of the files differ from the model's by "
                f"{difference:.1g}, more than {TOLERANCE:g}; its decoder may keep a state outside of "
                "MultiheadAttention"
            )
        loaded.save_tokenizers(temporary)
        content = json.dumps(_metadata(loaded, graphs, opset), indent=2)
        write_atomically(temporary / METADATA, content)
    return difference


def _metadata(loaded: LoadedModel, graphs: Mapping[str, Graph], opset: int) -> dict[str, Any]:
    model, task = loaded.model, loaded.task
    words, text = task.target_dictionary, "a"
    source = task.encode_source(text).tolist()
    begin = source[: len(source) - len(task.source_tokenizer.encode(text))] if model.continues_source else None
    source_max, target_max = model.max_positions()
    state = [tensor.name.removeprefix(NEXT) for tensor in graphs["step"].outputs[1:]]
    described = {
        name: {kind: list(map(_described, getattr(graph, kind))) for kind in ("inputs", "outputs")}
        for name, graph in graphs.items()
    }
    return {
        "model": type(model).__name__,
        "opset": opset,
        **described,
        "state": {name: f"{NEXT}{name}" for name in state},
        "prompt_begin": begin,
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


def write(cfg: Any, loaded: LoadedModel) -> None:
    """Write the model of ``seqgen-convert format=export``, and print the files.

    Args:
        cfg: the configuration of the command.
        loaded: the model.

    Raises:
        UserError: see ``write_export``.
    """
    folder = Path(cfg.output)
    difference = write_export(loaded, folder, cfg.opset)
    print(f"{folder}: {type(loaded.model).__name__}, from {cfg.path[0]}")
    for file in sorted(folder.iterdir()):
        if file.is_file():
            print(f"  {file.name:<13} {file.stat().st_size:>13,} bytes")
    print(f"logits differ by at most {difference:.1e} from those of the model")
