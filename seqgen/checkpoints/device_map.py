"""Placing the layers of one model on several devices.

The layers of encoder and decoder are placed; all other modules, such as embeddings and the output projection, stay on
the model's main device, where the search runs. Hooks move the input of a layer to the layer's device, and its output to
the device of the next layer.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from seqgen.errors import ConfigError, nearest
from seqgen.incremental_state import StatefulModule
from seqgen.modules.inspection import memory_footprint
from seqgen.system.devices import find_device

AUTO = "auto"
_USED = 0.8
"""The fraction of a device's free memory that ``auto`` fills with weights; decoding needs the rest."""

_UNKNOWN = 1 << 62
"""The free bytes of a device that does not report them."""


def layers_of(model: nn.Module) -> dict[str, nn.Module]:
    """The layers of encoder and decoder by name, in the order of execution: the children of each ``layers``."""
    return {
        f"{side}.layers.{name}": layer
        for side in ("encoder", "decoder")
        for name, layer in getattr(getattr(model, side), "layers", nn.ModuleList()).named_children()
    }


def free_memory(main: torch.device) -> dict[torch.device, int]:
    """The free bytes of the devices that ``auto`` may use: the main device, further GPUs, and the CPU as the last.

    Args:
        main: the main device.
    """
    devices = [main]
    if main.type == "cuda":
        main = torch.device("cuda", torch.cuda.current_device() if main.index is None else main.index)
        others = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
        devices = [main, *(device for device in others if device != main)]
    found = {device: torch.cuda.mem_get_info(device)[0] for device in devices if device.type == "cuda"}
    if main.type in ("cuda", "cpu"):
        known = "SC_AVPHYS_PAGES" in os.sysconf_names  # on Linux
        found[torch.device("cpu")] = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if known else _UNKNOWN
    return found or {main: _UNKNOWN}


def plan(model: nn.Module, free: Mapping[torch.device, int]) -> dict[str, torch.device]:
    """Distribute layers over devices: each device gets layers until its memory is used, in the order of execution.

    With layers of 3 GB, 2 GB of other modules, and devices with room for 6 and 10 GB, the first device gets one layer
    and the second one three.

    Args:
        model: the model; it may be on the ``meta`` device.
        free: free bytes of each device; the first one is the main device.

    Returns:
        The device of each layer by its name.

    Raises:
        ConfigError: the devices have too little memory, or the model has no layers to distribute.
    """
    layers = _checked_layers(model)
    devices = list(free)
    room = [int(_USED * free[device]) for device in devices]
    room[0] -= memory_footprint(model) - sum(memory_footprint(layer) for layer in layers.values())
    current, placed = 0, {}
    for name, layer in layers.items():
        while current < len(devices) and room[current] < memory_footprint(layer):
            current += 1
        if current == len(devices) or room[0] < 0:
            raise ConfigError(
                f"common.device_map=auto: the weights need {memory_footprint(model) / 1e9:.1f} GB, more than fits on "
                f"{', '.join(map(str, devices))}; choose a smaller dtype or model"
            )
        room[current] -= memory_footprint(layer)
        placed[name] = devices[current]
    return placed


def parse(text: str, model: nn.Module) -> dict[str, torch.device]:
    """Read an explicit map, such as ``encoder.layers=cuda:0,decoder.layers.3=cuda:1``.

    Args:
        text: names of layers, or beginnings of such names, with their devices; a later entry overrides earlier ones.
        model: the model.

    Returns:
        The device of each named layer by its name.

    Raises:
        ConfigError: an entry has another form, no layer has such a name, or a device is not available.
    """
    layers = _checked_layers(model)
    placed: dict[str, torch.device] = {}
    for entry in text.split(","):
        name, sign, device = (part.strip() for part in entry.partition("="))
        if not (name and sign and device):
            raise ConfigError(f"common.device_map={text}: {entry!r} does not have the form LAYERS=DEVICE; or give auto")
        named = [layer for layer in layers if f"{layer}.".startswith(f"{name}.")]
        if not named:
            raise ConfigError(
                f"common.device_map={text}: the model has no layers {name}{nearest(name, _names(layers))}"
            )
        found = find_device(device, "common.device_map")
        if found.type == "meta":
            raise ConfigError(f"common.device_map={text}: the device meta stores no values; choose another one")
        placed |= dict.fromkeys(named, found)
    return placed


def place(model: nn.Module, main: torch.device, device_map: str) -> None:
    """Move a model to its devices, layer by layer, and install the hooks that move the inputs of layers.

    Args:
        model: the model.
        main: the main device.
        device_map: ``auto``, or an explicit map; see ``parse``.

    Raises:
        ConfigError: the map is wrong, or the devices have too little memory.
    """
    placed = plan(model, free_memory(main)) if device_map == AUTO else parse(device_map, model)
    layers = layers_of(model)
    devices = {name: placed.get(name, main) for name in layers}
    transfers = {device: Transfer(device) for device in {main, *devices.values()}}
    for name, following in pairwise([*layers, ""]):
        layer, device = layers[name], devices[name]
        layer.to(device)
        is_last = following.partition(".")[0] != name.partition(".")[0]
        _hook(layer, transfers[device], transfers[main if is_last else devices[following]])
        for module in layer.modules():
            if isinstance(module, StatefulModule) and device != main:
                module.state_device = device
    inside = {id(tensor) for layer in layers.values() for tensor in (*layer.parameters(), *layer.buffers())}
    for module in model.modules():
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if any(id(tensor) not in inside for tensor in own):
            module._apply(lambda tensor: tensor.to(main), recurse=False)


class Transfer:
    """Moves tensors to a device. A tensor that is moved repeatedly, such as the encoder's output, is moved once.

    Args:
        device: the device.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self._moved: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}

    def __call__(self, value: Any) -> Any:
        """Move a tensor, or each tensor of a tuple; other values are returned unchanged."""
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            return tuple(self(item) for item in value)
        if not isinstance(value, Tensor) or value.device == self.device:
            return value
        known = self._moved.get(id(value))
        if known is None or known[0]() is not value:
            self._moved = {key: pair for key, pair in self._moved.items() if pair[0]() is not None}
            known = self._moved[id(value)] = weakref.ref(value), move(value, self.device)
        return known[1]


def move(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to another device."""
    return tensor.to(device)


def _hook(layer: nn.Module, inputs: Transfer, outputs: Transfer) -> None:
    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return tuple(inputs(value) for value in args), {name: inputs(value) for name, value in kwargs.items()}

    layer.register_forward_pre_hook(before, with_kwargs=True)
    layer.register_forward_hook(lambda _, __, output: outputs(output))


def _names(layers: Iterable[str]) -> list[str]:
    """``encoder.layers``, ``encoder.layers.0``, ..."""
    return [name for layer in layers for name in (layer.rpartition(".")[0], layer)]


def _checked_layers(model: nn.Module) -> Mapping[str, nn.Module]:
    layers = layers_of(model)
    if not layers:
        raise ConfigError(
            f"common.device_map: {type(model).__name__} cannot be distributed: its encoder and decoder have no list of "
            "layers named layers; choose one device"
        )
    return layers
