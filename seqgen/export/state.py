"""The decoding state as named tensors, the form in which an exported decoder step takes and returns it.

::

    layers.0.self_attn.keys     (rows, H, seen, D)    keys of the positions that the state has seen
    layers.0.self_attn.values   (rows, H, seen, D)
    convolutions.0.inputs       (rows, K - 1, C)      the last inputs of a convolution of width K
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from seqgen.decoder import IncrementalDecoder
from seqgen.errors import ConfigError
from seqgen.incremental_state import StateDict, StatefulModule
from seqgen.modules.convolution import LinearizedConvolution
from seqgen.modules.kv_cache.growing import StaticCache
from seqgen.modules.kv_cache.protocol import KeysAndValues, KeyValueCache
from seqgen.modules.multihead_attention import MultiheadAttention

ROWS, SOURCE, SEEN = "rows", "source", "seen"
"""Names of dimensions: rows of the batch, source positions, and target positions that the state has seen."""

KEYS, VALUES, INPUTS = "keys", "values", "inputs"


@dataclass(frozen=True)
class NamedTensor:
    """An input or output of a graph.

    Attributes:
        name: its name.
        shape: its size in each dimension; a dimension whose size depends on the call has a name.
        dtype: its dtype.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: torch.dtype

    @property
    def dynamic(self) -> dict[int, str]:
        """The names of dimensions by their index."""
        return {index: size for index, size in enumerate(self.shape) if isinstance(size, str)}


class ConcatenatingCache(KeyValueCache):
    """Keys and values of self-attention, concatenated at each step into new tensors.

    Args:
        keys: ``(N, H, K, D)``.
        values: likewise.
    """

    def __init__(self, keys: Tensor, values: Tensor):
        self.seen = KeysAndValues(keys, values)

    def append(self, new: KeysAndValues, rows: int) -> Self:
        """Append new keys and values; see ``KeyValueCache``."""
        pairs = zip(self.seen[:2], new[:2], strict=True)
        self.seen = KeysAndValues(*(torch.cat(pair, dim=2) for pair in pairs))
        return self

    def view(self) -> KeysAndValues:
        """All positions; see ``KeyValueCache``."""
        return self.seen

    def reorder(self, new_order: Tensor) -> Self:
        """Select rows; see ``KeyValueCache``."""
        keys, values, _ = self.seen
        self.seen = KeysAndValues(keys.index_select(0, new_order), values.index_select(0, new_order))
        return self


class FlatState:
    """Converts the decoding state of a decoder to named tensors and back.

    Args:
        decoder: the decoder; the modules in it that have a state are attention and linearized convolutions.

    Attributes:
        tensors: the tensors of the state before a step; in the state before the first step, they are zero, with no
            positions seen.
        cross_attentions: the modules of encoder-decoder attention by name, whose keys and values do not change.

    Raises:
        ConfigError: another module of the decoder has a state.
    """

    def __init__(self, decoder: IncrementalDecoder):
        self.decoder = decoder
        self.tensors: list[NamedTensor] = []
        self.cross_attentions: dict[str, MultiheadAttention] = {}
        self._self_attentions: dict[str, MultiheadAttention] = {}
        self._convolutions: dict[str, LinearizedConvolution] = {}
        for name, module in decoder.named_modules():
            if isinstance(module, MultiheadAttention) and module.encoder_decoder:
                self.cross_attentions[name] = module
            elif isinstance(module, MultiheadAttention):
                self._self_attentions[name] = module
                shape = (ROWS, module.num_heads, SEEN, module.head_dim)
                dtype = module.in_proj.weight.dtype
                self.tensors += [NamedTensor(f"{name}.{kind}", shape, dtype) for kind in (KEYS, VALUES)]
            elif isinstance(module, LinearizedConvolution):
                if module.kernel_width > 1:
                    self._convolutions[name] = module
                    size = (ROWS, module.kernel_width - 1, module.in_channels)
                    self.tensors.append(NamedTensor(f"{name}.{INPUTS}", size, module.bias.dtype))
            elif isinstance(module, StatefulModule) and module not in (decoder, decoder.position_counter):
                raise ConfigError(
                    f"the decoding state of {type(decoder).__name__} contains that of a {type(module).__name__} "
                    f"({name}), which cannot be exported; models with MultiheadAttention and LinearizedConvolution can"
                )

    def build(self, seen: int, tensors: dict[str, Tensor], source: dict[str, KeysAndValues]) -> StateDict:
        """Make a decoding state.

        Args:
            seen: number of target positions that it has seen.
            tensors: its tensors by name.
            source: keys and values of the source by the name of the encoder-decoder attention.

        Returns:
            A state for the decoder.
        """
        state: StateDict = {self.decoder.position_counter.state_key: {"positions": seen}}
        for name, attention in self.cross_attentions.items():
            state[attention.state_key] = {"cache": StaticCache(source[name])}
        for name, attention in self._self_attentions.items():
            cache = ConcatenatingCache(tensors[f"{name}.{KEYS}"], tensors[f"{name}.{VALUES}"])
            state[attention.state_key] = {"cache": cache}
        for name, convolution in self._convolutions.items():
            state[convolution.state_key] = {"input_buffer": tensors[f"{name}.{INPUTS}"]}
        return state

    def read(self, state: StateDict) -> dict[str, Tensor]:
        """The tensors of a decoding state by name.

        Args:
            state: a state that ``build`` has made and the decoder has continued.
        """
        found: dict[str, Tensor] = {}
        for name, attention in self._self_attentions.items():
            keys, values, _ = state[attention.state_key]["cache"].view()
            found |= {f"{name}.{KEYS}": keys, f"{name}.{VALUES}": values}
        for name, convolution in self._convolutions.items():
            found[f"{name}.{INPUTS}"] = state[convolution.state_key]["input_buffer"]
        return found
