"""Conversion of the names and layouts of fairseq's weights to seqgen's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from seqgen.errors import CheckpointError

# Not weights: version numbers, a buffer that marks the device, and sinusoids that old versions saved.
_NO_WEIGHTS = re.compile(r"(.*\.)?(version|_float_tensor|embed_positions\.weights)")

_RENAMED = [
    # before they had names, the norms of a layer were numbered: two in the encoder, three in the decoder
    (r"encoder\.layers\.(\d+)\.layer_norms\.0\.", r"encoder.layers.\1.self_attn_layer_norm."),
    (r"encoder\.layers\.(\d+)\.layer_norms\.1\.", r"encoder.layers.\1.final_layer_norm."),
    (r"decoder\.layers\.(\d+)\.layer_norms\.0\.", r"decoder.layers.\1.self_attn_layer_norm."),
    (r"decoder\.layers\.(\d+)\.layer_norms\.1\.", r"decoder.layers.\1.encoder_attn_layer_norm."),
    (r"decoder\.layers\.(\d+)\.layer_norms\.2\.", r"decoder.layers.\1.final_layer_norm."),
    (r"decoder\.embed_out$", "decoder.output_projection.weight"),
    # weight normalization before PyTorch had parametrizations
    (r"\.weight_g$", ".parametrizations.weight.original0"),
    (r"\.weight_v$", ".parametrizations.weight.original1"),
]


def convert_weights(weights: Mapping[str, Tensor], path: Path, ties: Mapping[str, str]) -> dict[str, Tensor]:
    """Rename a model's weights to seqgen's names.

    Args:
        weights: the checkpoint's ``model``.
        path: the file, for messages.
        ties: seqgen's names of weights that are tied to others, which old versions saved only once.

    Returns:
        Weights by seqgen's names, in float32.

    Raises:
        CheckpointError: a value is not a tensor, or tied weights differ.
    """
    result: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise CheckpointError(f"{path} is damaged: its weight {name} is not a tensor")
        if not _NO_WEIGHTS.fullmatch(name):
            for pattern, replacement in _RENAMED:
                name = re.sub(pattern, replacement, name)
            result[name] = tensor.float()
    _fuse_projections(result)
    _normalize_over_outputs(result)
    for name, original in ties.items():
        if original in result and not torch.equal(result.setdefault(name, result[original]), result[original]):
            raise CheckpointError(f"{path} ties {name} to {original}, but contains two different tensors")
    return result


def _fuse_projections(weights: dict[str, Tensor]) -> None:
    """Concatenate the matrices of queries, keys and values, which newer versions of fairseq save separately.

    Self-attention has one matrix for all three; encoder-decoder attention has one for queries and one for keys and
    values.
    """
    for name in [name for name in weights if re.search(r"\.k_proj\.(weight|bias)$", name)]:
        prefix, _, kind = name.rpartition("k_proj.")
        whole, letters = ("kv_proj", "kv") if prefix.endswith("encoder_attn.") else ("in_proj", "qkv")
        parts = [f"{prefix}{letter}_proj.{kind}" for letter in letters]
        # otherwise a later check reports what is missing, or of another shape
        if all(part in weights for part in parts) and len({weights[part].shape[1:] for part in parts}) == 1:
            weights[f"{prefix}{whole}.{kind}"] = torch.cat([weights.pop(part) for part in parts])
    for name in [name for name in weights if name.endswith((".in_proj_weight", ".in_proj_bias"))]:
        prefix, _, kind = name.rpartition("in_proj_")
        fused = weights.pop(name)
        if prefix.endswith("encoder_attn."):
            size = fused.size(0) // 3
            weights[f"{prefix}q_proj.{kind}"], weights[f"{prefix}kv_proj.{kind}"] = fused[:size], fused[size:]
        else:
            weights[f"{prefix}in_proj.{kind}"] = fused


def _normalize_over_outputs(weights: dict[str, Tensor]) -> None:
    """Convert convolutions that an old version weight-normalized over time to norms of each output dimension.

    There ``weight_g`` is ``(k, 1, 1)``; here it is ``(1, 1, out)``, the norm over time and input dimension.
    """
    for name in [name for name in weights if ".convolutions." in name and name.endswith("weight.original0")]:
        direction = name.removesuffix("0") + "1"
        scale, other = weights[name], weights.get(direction)
        if other is None or other.dim() != 3 or scale.shape != (other.size(0), 1, 1):
            continue
        weight = other * (scale / other.norm(dim=(1, 2), keepdim=True))
        weights[name], weights[direction] = weight.norm(dim=(0, 1), keepdim=True), weight
