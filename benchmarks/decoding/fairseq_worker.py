"""fairseq as a worker; needs fairseq, and checkpoints of ``fairseq_models``."""

from __future__ import annotations

import argparse
from pathlib import Path

import fairseq
import torch
from fairseq.data import data_utils
from fairseq.sequence_generator import SequenceGenerator

from benchmarks.decoding.fairseq_models import load
from benchmarks.decoding.worker import Request, Worker, serve


class Fairseq(Worker):
    """fairseq's generator with one model, or an ensemble.

    Args:
        arguments: the parsed arguments of ``worker.parser``; the models are checkpoints.
    """

    version = f"fairseq {fairseq.__version__}"

    def __init__(self, arguments: argparse.Namespace):
        if arguments.format != "float32" or arguments.device != "cpu":
            raise ValueError("this worker runs fairseq in float32 on the CPU")
        torch.set_num_threads(arguments.threads)
        loaded = [load(Path(file)) for file in arguments.models]
        self.models, self.words = [model for model, _ in loaded], loaded[0][1]

    @torch.inference_mode()
    def decode(self, sources: list[list[int]], request: Request) -> list[list[int]]:
        """See ``Worker.decode``."""
        steps = request["length"] - 1  # without end-of-sentence
        generator = SequenceGenerator(
            self.models, self.words, beam_size=request["beam"], min_len=steps, max_len_a=0, max_len_b=steps
        )
        rows = [torch.tensor(source) for source in sources]
        net_input = {
            "src_tokens": data_utils.collate_tokens(rows, self.words.pad(), left_pad=True),
            "src_lengths": torch.tensor([len(row) for row in rows]),
        }
        return [best["tokens"].tolist() for best, *_ in generator.generate(self.models, {"net_input": net_input})]


if __name__ == "__main__":
    serve(Fairseq)
