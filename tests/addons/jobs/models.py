"""A very small trained run and its lines of text, for jobs of the command line."""

from __future__ import annotations

from pathlib import Path

from tests.commands import command, corpus, sentences, training_arguments

TINY = (
    "model=transformer",
    *(
        f"model.{side}_{key}"
        for side in ("encoder", "decoder")
        for key in ("embed_dim=8", "ffn_embed_dim=8", "layers=1", "attention_heads=1")
    ),
    "optimization.max_update=3",
)
FAST = ("generation.beam=1", "generation.max_len_b=3", "common.threads=1")
"""Keys with which the model decodes some thousand lines per second."""

COMPONENT = """
import os
import signal

import torch

from seqgen.core.processors import LogitsProcessor
from seqgen.registry import register_logits_processor


@register_logits_processor("faults")
class Faults(LogitsProcessor):
    def __call__(self, lprobs, context):
        texts = context.source_texts or []
        if any("boat" in text for text in texts) and len(texts) > 1:
            raise RuntimeError("CUDA out of memory")
        if any("ball" in text for text in texts):
            os.kill(os.getpid(), signal.SIGKILL)
        rows = [row for row, text in enumerate(texts) if "tree" in text]
        if rows:
            beams = len(lprobs) // len(texts)
            for row in rows:
                lprobs[row * beams : (row + 1) * beams] = torch.nan
        return lprobs
"""
"""A processor that stands for faults, which depend on the text of the lines in a batch."""


def train(folder: Path) -> Path:
    """Train a model for three updates; its run folder."""
    corpus(folder / "data")
    outcome = command("train", *training_arguments(folder / "data", folder / "run"), *TINY)
    assert outcome.code == 0, outcome.err
    return folder / "run"


def texts(count: int) -> list[str]:
    """Lines that the model can read, no two of them equal where ``count`` is not too large."""
    return [f"{english} {number}" for number, (english, _) in enumerate(sentences(0, count))]
