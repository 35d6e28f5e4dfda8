"""A worker process that decodes with Hugging Face's ``generate``; it needs torch and transformers."""

from __future__ import annotations

import argparse

import torch
import transformers

from benchmarks.decoding.memory import CudaMemory
from benchmarks.decoding.worker import Request, Worker, serve

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class HuggingFace(Worker):
    """Decodes with a model that transformers loads from a folder.

    Args:
        arguments: the parsed arguments of ``worker.parser``.
    """

    version = f"transformers {transformers.__version__}"

    def __init__(self, arguments: argparse.Namespace):
        if arguments.format not in DTYPES:
            raise ValueError(f"this worker does not support {arguments.format}; choose one of: {', '.join(DTYPES)}")
        torch.set_num_threads(arguments.threads)
        transformers.logging.set_verbosity_error()
        self.device = arguments.device
        if self.device.startswith("cuda"):
            self.memory = CudaMemory(torch)
        is_prompted = not transformers.AutoConfig.from_pretrained(arguments.models[0]).is_encoder_decoder
        kind = transformers.AutoModelForCausalLM if is_prompted else transformers.AutoModelForSeq2SeqLM
        model = kind.from_pretrained(arguments.models[0])
        self.model = model.to(self.device, DTYPES[arguments.format]).eval()

    @torch.inference_mode()
    def decode(self, sources: list[list[int]], request: Request) -> list[list[int]]:
        """See ``Worker.decode``; all sources of a language model have the same length."""
        pad, is_prompted = self.model.config.pad_token_id, not self.model.config.is_encoder_decoder
        width = max(map(len, sources))
        tokens = torch.tensor([[*source, *[pad] * (width - len(source))] for source in sources], device=self.device)
        generated = self.model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens) if is_prompted else (tokens != pad).long(),
            num_beams=request["beam"],
            min_new_tokens=request["length"],
            max_new_tokens=request["length"],
            do_sample=False,
            length_penalty=1.0,
            early_stopping=False,
        )
        outputs: list[list[int]] = generated[:, width if is_prompted else 1 :].tolist()
        return outputs


if __name__ == "__main__":
    serve(HuggingFace)
