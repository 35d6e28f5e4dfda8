"""Devices to compute on: the available ones, and the lookup of a device by name."""

from __future__ import annotations

import torch

from seqgen.errors import ConfigError


def present_devices() -> list[str]:
    """The devices that there are, the fastest first."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    return [name for name, present in there.items() if present]


def find_device(device: torch.device | str, key: str = "device") -> torch.device:
    """Find a device, and check that a tensor can be created on it.

    Args:
        device: its name, such as ``"cuda:1"``.
        key: what the user calls it, for the message.

    Raises:
        ConfigError: it is not available.
    """
    try:
        found = torch.device(device)
        torch.empty(1, device=found)
    except Exception:  # which one depends on the device and on how PyTorch was built
        raise ConfigError(
            f"{key}={device} is not available; available devices: {', '.join(present_devices())}"
        ) from None
    return found
