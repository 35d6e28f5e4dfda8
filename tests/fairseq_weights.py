"""Weights of the fairseq checkpoints in the shared folder, under seqgen's names."""

from __future__ import annotations

import argparse
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import seqgen.models  # noqa: F401  # declares the built-in models
from seqgen.model import EncoderDecoderModel
from seqgen.registry import MODELS

SHARED = Path(os.environ.get("SEQGEN_SHARED", Path(__file__).resolve().parents[2] / "shared"))
ORACLES = SHARED / "oracles" / "fairseq"


class FairseqTask:
    """Gives a dictionary with as many ids as the checkpoint has, joint for both sides."""

    class _Dictionary:
        def __init__(self, size: int):
            self.size = size

        def __len__(self) -> int:
            return self.size

        def pad(self) -> int:
            return 1

        def eos(self) -> int:
            return 2

    def __init__(self, size: int):
        self.source_dictionary = self.target_dictionary = self._Dictionary(size)


def load(name: str) -> EncoderDecoderModel:
    """The model of one checkpoint, in evaluation mode.

    Args:
        name: ``"fconv"`` or ``"transformer"``.
    """
    with torch.serialization.safe_globals([argparse.Namespace]):
        checkpoint = torch.load(ORACLES / f"{name}.pt", weights_only=True)
    weights: dict[str, Tensor] = checkpoint["model"]
    entry = MODELS.entry(name)
    saved = vars(checkpoint["cfg"]["model"])
    values: dict[str, Any] = {field.name: saved[field.name] for field in fields(entry.config) if field.name in saved}
    model: EncoderDecoderModel = entry.component.build_model(  # type: ignore[attr-defined]
        entry.config(**values), FairseqTask(weights["decoder.embed_tokens.weight"].size(0))
    )
    model.load_state_dict(renamed(weights))
    return model.eval()


def renamed(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Fuse separate query, key and value projections, and leave out what is no weight.

    ``weight_g`` and ``weight_v`` of normalized weights are renamed by PyTorch itself.
    """
    result = {name: tensor for name, tensor in weights.items() if not name.endswith(".version")}
    for name in list(result):
        for kind in ("weight", "bias"):
            suffix = f"q_proj.{kind}"
            if not name.endswith(suffix):
                continue
            prefix = name.removesuffix(suffix)
            q, k, v = (result.pop(f"{prefix}{letter}_proj.{kind}") for letter in "qkv")
            if prefix.endswith("encoder_attn."):
                result[name] = q
                result[f"{prefix}kv_proj.{kind}"] = torch.cat([k, v])
            else:
                result[f"{prefix}in_proj.{kind}"] = torch.cat([q, k, v])
    return result
