"""Hugging Face's ``generate`` as a worker; needs torch and transformers."""

from __future__ import annotations

import argparse

import torch
import transformers

from benchmarks.decoding.memory import CudaMemory
from benchmarks.decoding.worker import Request, Worker, serve

FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class HuggingFace(Worker):
    """transformers with a model from a folder.

    Args:
        arguments: those of ``worker.parser``.
    """

    version = f"transformers {transformers.__version__}"

    def __init__(self, arguments: argparse.Namespace):
        if arguments.format not in FORMATS:
            raise ValueError(f"transformers does not compute in {arguments.format}")
        torch.set_num_threads(arguments.threads)
        transformers.logging.set_verbosity_error()
        self.device = arguments.device
        if self.device != "cpu":
            self.memory = CudaMemory(torch)
        model = transformers.T5ForConditionalGeneration.from_pretrained(arguments.models[0])
        self.model = model.to(self.device, FORMATS[arguments.format]).eval()

    @torch.inference_mode()
    def decode(self, sources: list[list[int]], request: Request) -> list[list[int]]:
        """See ``Worker.decode``."""
        pad = self.model.config.pad_token_id
        width = max(map(len, sources))
        tokens = torch.tensor([[*source, *[pad] * (width - len(source))] for source in sources], device=self.device)
        written = self.model.generate(
            tokens,
            attention_mask=(tokens != pad).long(),
            num_beams=request["beam"],
            min_new_tokens=request["length"],
            max_new_tokens=request["length"],
            do_sample=False,
            length_penalty=1.0,
            early_stopping=False,
        )
        outputs: list[list[int]] = written[:, 1:].tolist()
        return outputs


if __name__ == "__main__":
    serve(HuggingFace)
