"""The dtypes that a model can be converted to for decoding, and which of them are slow on this processor."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn
from torch.nn.utils import parametrize

from seqgen.core.errors import ConfigError
from seqgen.modules.linear import Projection

M = TypeVar("M", bound=nn.Module)

DTYPES = ("float32", "bfloat16", "float16", "int8")


def to_dtype(model: M, name: str) -> M:
    """Convert a model for decoding, in place.

    With ``bfloat16`` and ``float16``, weights and features have that dtype. Norms, softmax and log-probabilities are
    computed in float32. On a CPU the parameters of layer norms stay float32. So do parameters from which a weight is
    computed, such as the direction and length of weight normalization; only the computed weight is rounded. With
    ``int8`` the model stays float32, and products with large weight matrices are computed in 8-bit integers.

    Args:
        model: the model; it cannot be trained afterwards.
        name: one of ``DTYPES``.

    Returns:
        The model, in evaluation mode.

    Raises:
        ConfigError: there is no such dtype, or the device does not support it.
    """
    if name not in DTYPES:
        raise ConfigError(f"generation.dtype: there is no dtype {name!r}; choose one of: {', '.join(DTYPES)}")
    integers = name == "int8"
    on_cpu = all(parameter.device.type == "cpu" for parameter in model.parameters())
    if integers and not (on_cpu and _has_int8_instructions()):
        raise ConfigError(
            "generation.dtype=int8 needs a CPU with instructions for it (VNNI); use float32, or bfloat16 on a GPU"
        )
    dtype = torch.float32 if integers else getattr(torch, name)
    for module in model.modules():
        # Only on a CPU, the parameters of a layer norm may have another dtype than its input.
        wide = isinstance(module, parametrize.ParametrizationList) or (on_cpu and isinstance(module, nn.LayerNorm))
        target = torch.float32 if wide else dtype
        # the parameters and buffers of this module alone; tied parameters stay tied
        module._apply(lambda one, to=target: one.to(to) if one.is_floating_point() else one, recurse=False)  # type: ignore[no-untyped-call]
        if isinstance(module, Projection):
            module.int8 = integers
    return model.eval()


def dtype_to_load(name: str) -> torch.dtype | None:
    """The dtype in which a model that ``to_dtype`` converts to ``name`` is loaded; ``None`` for the one in its files.

    Weights that have 16 bits in their file can then stay in it.
    """
    return None if name in ("bfloat16", "float16") else torch.float32


def note_on(name: str, device: torch.device) -> str | None:
    """Warn about a dtype that is slow on a device.

    Args:
        name: one of ``DTYPES``.
        device: where the model is.

    Returns:
        One sentence for the user; ``None`` if the dtype is not known to be slow.
    """
    if device.type != "cpu":
        return None
    if name == "float16":
        return "generation.dtype=float16 is slower than float32 on a CPU; use bfloat16 or int8"
    if name == "bfloat16" and not (_supports("_is_amx_tile_supported") or _supports("_is_avx512_bf16_supported")):
        return "generation.dtype=bfloat16 is slow on this CPU, which has no instructions for it (AMX or AVX-512 BF16)"
    return None


def _has_int8_instructions() -> bool:
    kernels = torch.backends.mkldnn.is_available() and hasattr(torch.ops.onednn, "qlinear_pointwise")  # type: ignore[no-untyped-call]
    return bool(kernels) and (_supports("_is_amx_tile_supported") or _supports("_is_vnni_supported"))


def _supports(question: str) -> bool:
    """True if the CPU has an instruction set; false where PyTorch has no function of this name."""
    ask = getattr(torch.cpu, question, None)
    return ask is not None and bool(ask())
