"""Devices to compute on: the available ones, and the lookup of a device by name."""

from __future__ import annotations

import torch

from seqgen.errors import ConfigError


def present_devices() -> list[str]:
    """The types of the available devices, the fastest first; ``"cpu"`` is always among them."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    return [name for name, is_available in available.items() if is_available]


def find_device(device: torch.device | str, key: str = "device") -> torch.device:
    """Find a device, and check that a tensor can be created on it.

    Args:
        device: the device or its name, such as ``"cuda:1"``.
        key: the key or parameter by which the user chose it, for the message.

    Returns:
        The device.

    Raises:
        ConfigError: the device is not available.
    """
    try:
        found = torch.device(device)
        torch.empty(1, device=found)
    except Exception:  # its class depends on the device and on the build of PyTorch
        raise ConfigError(
            f"{key}={device} is not available; available devices: {', '.join(present_devices())}"
        ) from None
    return found
