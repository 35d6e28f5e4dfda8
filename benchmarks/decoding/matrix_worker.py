"""A lower limit of the time of decoding with T5, as a worker: only the necessary matrix products."""

from __future__ import annotations

import argparse
import json
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.decoding.memory import CudaMemory
from benchmarks.decoding.worker import Answer, Request, Worker, serve
from seqgen.modules.kernel_choice import MatrixProduct
from seqgen.modules.kernels import PLAIN, kernels_for

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "int8": torch.float32}


class MatrixProducts(Worker):
    """The matrix products of the linear layers of a folder's model; see ``decode``.

    Args:
        arguments: the parsed arguments of ``worker.parser``.
    """

    version = f"torch {torch.__version__}"

    def __init__(self, arguments: argparse.Namespace):
        self.int8 = arguments.format == "int8"
        torch.set_num_threads(arguments.threads)
        self.device, self.dtype = arguments.device, DTYPES[arguments.format]
        if self.device != "cpu":
            self.memory = CudaMemory(torch)
        cfg = json.loads((Path(arguments.models[0]) / "config.json").read_text())
        model, ffn, self.heads, self.head = cfg["d_model"], cfg["d_ff"], cfg["num_heads"], cfg["d_kv"]
        inner = self.heads * self.head
        wide = ffn * (2 if cfg["feed_forward_proj"].startswith("gated-") else 1)
        # (outputs, inputs), as few products as possible: queries, keys and values in one, a gate with what it gates
        self_attention, feed_forward = [(3 * inner, model), (model, inner)], [(wide, model), (model, ffn)]
        self.layers = cfg["num_decoder_layers"]
        self.encoder = self.weights([*self_attention, *feed_forward], cfg["num_layers"])
        self.memory_keys = self.weights([(2 * inner, model)], self.layers)
        self.step = self.weights([*self_attention, (inner, model), (model, inner), *feed_forward], self.layers)
        self.step += self.weights([(cfg["vocab_size"], model)], 1)

    def weights(self, shapes: list[tuple[int, int]], layers: int) -> list[tuple[int, MatrixProduct]]:
        """Random weights, different ones for each layer, so that they are read from memory as in a model.

        Args:
            shapes: (outputs, inputs) of the linear layers.
            layers: number of layers.

        Returns:
            For each weight, the number of inputs and its product in the form that is fastest on this device.
        """
        weights = [self.random(*shape) for _ in range(layers) for shape in shapes]
        kernels = kernels_for(self.dtype, self.int8) if self.device == "cpu" else (PLAIN,)
        return [(weight.size(1), MatrixProduct(weight, kernels)) for weight in weights]

    def random(self, *shape: int) -> Tensor:
        """Small random values."""
        return torch.randn(*shape, device=self.device).mul_(0.01).to(self.dtype)

    def answer(self, request: Request) -> Answer:
        """See ``Worker.answer``; a first step creates the inputs before the time is measured."""
        self.decode(request["sources"][: request["batch"]], request, steps=1)
        return super().answer(request)

    @torch.inference_mode()
    def decode(self, sources: list[list[int]], request: Request, steps: int = 0) -> list[list[int]]:
        """Compute the products of the encoder and of the keys of its output once, those of the decoder at each step.

        With ``attention`` in the request, also the products of attention, with keys and values of each row.
        """
        sentences, positions = len(sources), sum(map(len, sources))
        self.multiply(self.encoder + self.memory_keys, positions)
        for step in range(steps or request["length"]):
            self.multiply(self.step, sentences * request["beam"])
            if request.get("attention"):
                self.attend(sentences, request["beam"], step + 1, request["length"], positions // sentences)
        if self.device != "cpu":
            torch.cuda.synchronize()
        return [[0] * request["length"]] * sentences

    def multiply(self, weights: list[tuple[int, MatrixProduct]], rows: int) -> None:
        """Multiply ``(rows, width)`` inputs with each of the weights."""
        for width, product in weights:
            x = self.inputs(rows, width)
            product.bound(x, None)(x)

    @lru_cache(maxsize=64)  # noqa: B019  # the worker lives as long as its process
    def inputs(self, rows: int, width: int) -> Tensor:
        """Inputs ``(rows, width)``, made once."""
        return self.random(rows, width)

    def attend(self, sentences: int, beam: int, seen: int, length: int, source: int) -> None:
        """The products of attention in one step: over the ``seen`` positions, and over those of the source."""
        rows = sentences * beam * self.heads
        for layer in range(self.layers):
            own = self.keys(layer, rows, length)[:, :seen]
            memory = self.keys(layer, sentences * self.heads, source)
            for keys, queries in ((own, self.queries(rows, 1)), (memory, self.queries(sentences * self.heads, beam))):
                torch.bmm(torch.bmm(queries, keys.transpose(1, 2)), keys)

    @lru_cache(maxsize=64)  # noqa: B019
    def keys(self, layer: int, rows: int, length: int) -> Tensor:
        """Keys of a layer, used as values too."""
        return self.random(rows, length, self.head)

    @lru_cache(maxsize=64)  # noqa: B019
    def queries(self, rows: int, count: int) -> Tensor:
        """Queries of one step."""
        return self.random(rows, count, self.head)


if __name__ == "__main__":
    serve(MatrixProducts)
