"""Dtypes to decode in: what a model is converted to, and whether that pays on this processor."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn
from torch.nn.utils import parametrize

from seqgen.errors import ConfigError
from seqgen.modules.linear import Projection

M = TypeVar("M", bound=nn.Module)

NUMBER_FORMATS = ("float32", "bfloat16", "float16", "int8")


def to_number_format(model: M, number_format: str) -> M:
    """Convert a model for decoding, in place.

    In ``bfloat16`` and ``float16`` weights and features have that format, while the parameters of layer norms stay
    float32, and so does what norms, softmax and log-probabilities compute inside. What other weights are computed from,
    such as direction and length, stays float32 as well, so that only the result is rounded. ``int8`` leaves the model
    float32 and multiplies by large matrices in 8-bit integers.

    Args:
        model: the model, no longer to be trained.
        number_format: one of ``NUMBER_FORMATS``.

    Returns:
        The model.

    Raises:
        ConfigError: there is no such format, or this processor lacks what it needs.
    """
    if number_format not in NUMBER_FORMATS:
        raise ConfigError(
            f"generation.dtype: there is no dtype {number_format!r}; there are: {', '.join(NUMBER_FORMATS)}"
        )
    integers = number_format == "int8"
    on_cpu = all(parameter.device.type == "cpu" for parameter in model.parameters())
    if integers and not (on_cpu and _has_int8_units()):
        raise ConfigError(
            "generation.dtype=int8 needs a CPU with instructions for it (VNNI); take float32, or bfloat16 on a GPU"
        )
    dtype = torch.float32 if integers else getattr(torch, number_format)
    for module in model.modules():
        # Only a CPU takes features of one format and a norm's parameters of another.
        wide = isinstance(module, parametrize.ParametrizationList) or (on_cpu and isinstance(module, nn.LayerNorm))
        _convert(module, torch.float32 if wide else dtype)
        if isinstance(module, Projection):
            module.int8 = integers
    return model.eval()


def note_on(number_format: str, device: torch.device) -> str | None:
    """What a user should know before decoding in a dtype on a device; ``None`` where it pays.

    Args:
        number_format: one of ``NUMBER_FORMATS``.
        device: where the model is.
    """
    if device.type != "cpu":
        return None
    if number_format == "float16":
        return "generation.dtype=float16 is slower than float32 on a CPU; take bfloat16 or int8"
    if number_format == "bfloat16" and not _has_bfloat16_units():
        return "generation.dtype=bfloat16 will not pay: this processor has no units for it (AMX or AVX-512 BF16)"
    return None


def _convert(module: nn.Module, dtype: torch.dtype) -> None:
    """Convert what belongs to a module itself; tied parameters stay tied."""
    module._apply(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, recurse=False)  # type: ignore[no-untyped-call]


def _has_bfloat16_units() -> bool:
    return _supports("_is_amx_tile_supported") or _supports("_is_avx512_bf16_supported")


def _has_int8_units() -> bool:
    kernels = torch.backends.mkldnn.is_available() and hasattr(torch.ops.onednn, "qlinear_pointwise")  # type: ignore[no-untyped-call]
    return bool(kernels) and (_supports("_is_amx_tile_supported") or _supports("_is_vnni_supported"))


def _supports(question: str) -> bool:
    """Ask PyTorch about the processor; what it does not know to answer is a no."""
    ask = getattr(torch.cpu, question, None)
    return ask is not None and bool(ask())
