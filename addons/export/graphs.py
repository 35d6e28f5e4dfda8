"""A model as two graphs of PyTorch: the encoder (of a language model the prompt), and one step of the decoder.

The step takes and returns the decoding state as named tensors::

    layers.0.self_attn.keys     (rows, H, seen, D)    keys of the positions that the state has seen
    layers.0.self_attn.values   (rows, H, seen, D)
    layers.0.self_attn.cell     (rows, C)             of a recurrent unit, see ``StatefulModule.state_sizes``
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export

from seqgen.extend import (
    ConfigError,
    EncoderDecoderModel,
    EncoderOut,
    IncrementalDecoder,
    KeysAndValues,
    MergedAttention,
    MultiheadAttention,
    QueryPositions,
    StateDict,
    StatefulModule,
    StaticCache,
)
from seqgen.system.switches import INPUT_CHOICES, PREPACKED_WEIGHTS

ROWS, SOURCE, SEEN = "rows", "source", "seen"
"""Names of dimensions: rows of the batch, source positions, and target positions that the state has seen."""

KEYS, VALUES = "keys", "values"


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


class ConcatenatingCache(StaticCache):
    """Keys and values of self-attention, concatenated at each step into new tensors."""

    def append(self, new: KeysAndValues, rows: int) -> Self:
        """Append new keys and values; see ``KeyValueCache``."""
        pairs = zip(self.view()[:2], new[:2], strict=True)
        return replace(self, seen=KeysAndValues(*(torch.cat(pair, dim=2) for pair in pairs)))


class FlatState:
    """Converts the decoding state of a decoder to named tensors and back.

    Args:
        model: the model; the modules of its decoder that have a state are attention, or have a state of fixed size.

    Attributes:
        tensors: the tensors of the state before a step; in the state before the first step, they are zero, with no
            positions seen.
        cross_attentions: the modules of encoder-decoder attention by name, whose keys and values do not change.

    Raises:
        ConfigError: another module of the decoder has a state.
    """

    def __init__(self, model: EncoderDecoderModel):
        if not isinstance(decoder := model.decoder, IncrementalDecoder):
            raise ConfigError(f"{type(model).__name__} cannot be exported: only models with an incremental decoder can")
        self.decoder = decoder
        counters = (decoder, decoder.position_counter, getattr(decoder, "column_counter", None))
        self.tensors: list[NamedTensor] = []
        self.cross_attentions: dict[str, MultiheadAttention] = {}
        self._self_attentions: dict[str, MultiheadAttention] = {}
        self._others: dict[str, StatefulModule] = {}
        for name, module in decoder.named_modules():
            is_attention = isinstance(module, MultiheadAttention) and not isinstance(module, MergedAttention)
            if is_attention and module.encoder_decoder:
                self.cross_attentions[name] = module
            elif is_attention:
                self._self_attentions[name] = module
                shape = (ROWS, module.kv_heads, SEEN, module.head_dim)
                dtype = module.in_proj.weight.dtype
                self.tensors += [NamedTensor(f"{name}.{kind}", shape, dtype) for kind in (KEYS, VALUES)]
            elif isinstance(module, StatefulModule) and module.state_sizes:
                self._others[name], dtype = module, next(module.parameters()).dtype
                self.tensors += [NamedTensor(f"{name}.{k}", (ROWS, *n), dtype) for k, n in module.state_sizes.items()]
            elif isinstance(module, StatefulModule) and module not in counters:
                raise ConfigError(
                    f"the decoding state of {type(decoder).__name__} contains that of a {type(module).__name__} "
                    f"({name}), which cannot be exported; models with MultiheadAttention can"
                )
        if getattr(model.encoder, "inputs", ()):
            raise ConfigError(f"{type(model.encoder).__name__} reads columns, which a graph does not have")
        if not self.cross_attentions and not model.continues_source:
            raise ConfigError(
                f"{type(decoder).__name__} cannot be exported, as it does not read the source by MultiheadAttention"
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
            earlier = KeysAndValues(tensors[f"{name}.{KEYS}"], tensors[f"{name}.{VALUES}"])
            state[attention.state_key] = {"cache": ConcatenatingCache(earlier)}
        for name, module in self._others.items():
            state[module.state_key] = {kind: tensors[f"{name}.{kind}"] for kind in module.state_sizes}
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
        for name, module in self._others.items():
            found |= {f"{name}.{kind}": state[module.state_key][kind] for kind in module.state_sizes}
        return found


MASK, LAST, PROMPT = "encoder_padding_mask", "last_token", "prompt."
"""Names of a source's tensors; ``PROMPT`` is the prefix of the keys and values of a language model's prompt."""
NEXT = "next."
"""The prefix of the names of the new state: ``next.layers.0.self_attn.keys``."""

_AFTER = f"{SEEN} + 1"
_EXAMPLE = {ROWS: 2, SOURCE: 5, SEEN: 3, _AFTER: 4}
"""The sizes with which the graphs are traced. None is 0 or 1, since the tracer would take such a size as fixed."""


@dataclass(frozen=True)
class Graph:
    """An exported graph with the names of its inputs and outputs.

    Attributes:
        program: the graph.
        inputs: its inputs in order.
        outputs: its outputs in order.
    """

    program: ExportedProgram
    inputs: list[NamedTensor]
    outputs: list[NamedTensor]


class EncoderGraph(nn.Module):
    """Encodes sources and computes everything that decoder steps read of them.

    Args:
        model: the model.
        pad: id of padding in the source vocabulary.
    """

    def __init__(self, model: EncoderDecoderModel, pad: int):
        super().__init__()
        self.encoder = model.encoder
        self.pad = pad
        attentions = FlatState(model).cross_attentions
        self.names = list(attentions)
        self.attentions = nn.ModuleList(attentions.values())

    def forward(self, src_tokens: Tensor) -> dict[str, Tensor]:
        """Encode.

        Args:
            src_tokens: ``(N, S)`` int64 ids, padded.

        Returns:
            By name, the padding mask ``(N, S)`` and the keys and values ``(N, H, S, D)`` of each encoder-decoder
            attention.
        """
        encoder_out = self.encoder(src_tokens, src_tokens.ne(self.pad).sum(1))
        found = {MASK: encoder_out.encoder_padding_mask}
        for name, attention in zip(self.names, self.attentions, strict=True):
            keys, values, _ = attention.encoder_keys(encoder_out.encoder_out, None)  # type: ignore[operator]
            found |= {f"{name}.{KEYS}": keys, f"{name}.{VALUES}": values}
        return found


class StepGraph(nn.Module):
    """Computes the logits of the next token, and the new decoding state.

    Args:
        model: the model.
    """

    def __init__(self, model: EncoderDecoderModel):
        super().__init__()
        # Not the whole model: the tracer would wrap modules that encoder and decoder share, and a wrapped module does
        # not find its state.
        self.decoder = model.decoder
        self.adjust = model.adjust_logits_during_generation
        self.flat = FlatState(model)

    def forward(
        self, prev_output_tokens: Tensor, source: dict[str, Tensor], state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute one step.

        Args:
            prev_output_tokens: ``(N, T)`` int64 target tokens so far, after the start token; the state has seen all but
                the last.
            source: the output of ``EncoderGraph``, one row for each row of ``prev_output_tokens``.
            state: the decoding state.

        Returns:
            Logits ``(N, V)``, and the new state, whose tensors have the same names.
        """
        seen = prev_output_tokens.size(1) - 1
        mask = source[MASK]
        keys = {
            name: KeysAndValues(source[f"{name}.{KEYS}"], source[f"{name}.{VALUES}"], mask)
            for name in self.flat.cross_attentions
        }
        # Only keys and values are read. A decoder that also reads the features fails: they have no positions here.
        features = next(iter(keys.values())).keys.new_zeros(mask.size(0), 0, 0)
        incremental_state = self.flat.build(seen, state, keys)
        logits, _ = self.decoder(prev_output_tokens, EncoderOut(features, mask), incremental_state=incremental_state)
        return self.adjust(logits[:, -1], seen), self.flat.read(incremental_state)


class PromptGraph(nn.Module):
    """Computes the keys and values of prompts of a language model, without the last token, which the first step reads.

    Column ``i`` is that of token ``i - 1``, and column 0 is hidden.

    Args:
        model: the model.
        pad: id of padding in the vocabulary.
    """

    def __init__(self, model: EncoderDecoderModel, pad: int):
        super().__init__()
        self.decoder, self.pad, self.flat = model.decoder, pad, FlatState(model)

    def forward(self, src_tokens: Tensor) -> dict[str, Tensor]:
        """Compute.

        Args:
            src_tokens: ``(N, P)`` int64 ids, padded on the left.

        Returns:
            By name, which columns are hidden ``(N, P)``, the last tokens ``(N, 1)``, and keys and values ``(N, H, P,
            D)``.
        """
        rows, width = src_tokens.shape
        # the last token is never padding: it may be an end-of-sentence with the same id
        padding = (src_tokens.ne(self.pad).cumsum(1) == 0).sum(1).clamp(max=width - 1)
        sizes = [(t, (rows, t.shape[1], 0, t.shape[3])) for t in self.flat.tensors]
        empty = {t.name: src_tokens.new_zeros(size, dtype=t.dtype) for t, size in sizes}  # type: ignore[arg-type]
        state = self.flat.build(0, empty, {})
        queries = QueryPositions(0, width, src_tokens.device, True, padding + 1)
        columns = torch.arange(width, device=src_tokens.device)
        self.decoder.transform(src_tokens[:, (columns - 1).clamp(min=0)], queries, state)  # type: ignore[operator]
        found = {PROMPT + name: tensor for name, tensor in self.flat.read(state).items()}
        return {MASK: columns <= padding.unsqueeze(1), LAST: src_tokens[:, -1:], **found}


class ContinuationGraph(StepGraph):
    """A step of a language model, whose source is the output of ``PromptGraph``."""

    def forward(
        self, prev_output_tokens: Tensor, source: dict[str, Tensor], state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute one step; see ``StepGraph``. The end of the prompt takes the place of the start token."""
        seen, width = prev_output_tokens.size(1) - 1, source[MASK].size(1)
        whole = {name: torch.cat([source[PROMPT + name], tensor], dim=2) for name, tensor in state.items()}
        incremental_state = self.flat.build(seen, whole, {})
        device = prev_output_tokens.device
        is_first = torch.arange(seen + 1, device=device)[-1:] == 0
        tokens = torch.where(is_first, source[LAST], prev_output_tokens[:, -1:])
        queries = QueryPositions(width + seen, 1, device, True, source[MASK].sum(1))
        features = self.decoder.transform(tokens, queries, incremental_state)  # type: ignore[operator]
        new = {name: tensor[:, :, width:] for name, tensor in self.flat.read(incremental_state).items()}
        return self.adjust(self.decoder.output_layer(features)[:, -1], seen), new


def export_graphs(model: EncoderDecoderModel, pad: int) -> tuple[Graph, Graph]:
    """Export a model's encoder, or for a language model its pass over prompts, and one step of its decoder.

    Args:
        model: the model, in evaluation mode.
        pad: id of padding in the source vocabulary.

    Returns:
        The graphs of ``EncoderGraph`` and of ``StepGraph``; of a language model ``PromptGraph`` and
        ``ContinuationGraph``.

    Raises:
        ConfigError: the model cannot be exported.
    """
    dims = _dims(model)
    with torch.no_grad(), INPUT_CHOICES.off(), PREPACKED_WEIGHTS.off():
        encoder = (PromptGraph if model.continues_source else EncoderGraph)(model, pad)
        src_tokens = NamedTensor("src_tokens", (ROWS, SOURCE), torch.int64)
        source = [_of_source(name, tensor) for name, tensor in encoder(_example(src_tokens)).items()]
        encoder_program = _export(encoder, dims, src_tokens)
        step = (ContinuationGraph if model.continues_source else StepGraph)(model)
        tokens = NamedTensor("prev_output_tokens", (ROWS, _AFTER), torch.int64)
        state = step.flat.tensors
        step_program = _export(step, dims, tokens, source, state)
    vocab = _output_size(step_program)
    logits = NamedTensor("logits", (ROWS, vocab), torch.float32)
    new_state = [
        replace(tensor, name=NEXT + tensor.name, shape=tuple(_AFTER if n == SEEN else n for n in tensor.shape))
        for tensor in state
    ]
    of_step = Graph(step_program, [tokens, *source, *state], [logits, *new_state])
    return Graph(encoder_program, [src_tokens], source), of_step


def _dims(model: EncoderDecoderModel) -> dict[str, Any]:
    source, target = model.max_positions()
    seen = Dim(SEEN, min=0, max=target - 1)
    return {ROWS: Dim(ROWS, min=1), SOURCE: Dim(SOURCE, min=1, max=source), SEEN: seen, _AFTER: seen + 1}


def _of_source(name: str, tensor: Tensor) -> NamedTensor:
    """The encoder's output of ``_example``, with names for the dimensions whose size depends on the call."""
    position = 1 if name == MASK or tensor.dim() == 3 else 2
    shape = tuple(SOURCE if index == position else size for index, size in enumerate(tensor.shape))
    return NamedTensor(name, (ROWS, *shape[1:]), tensor.dtype)


def _example(tensor: NamedTensor) -> Tensor:
    """Zeros in the sizes of ``_EXAMPLE``."""
    return torch.zeros([n if isinstance(n, int) else _EXAMPLE[n] for n in tensor.shape], dtype=tensor.dtype)


def _export(graph: nn.Module, dims: Mapping[str, Any], *inputs: NamedTensor | list[NamedTensor]) -> ExportedProgram:
    """Trace a graph; a list of inputs is one argument, a dict."""

    def convert(convert_one: Any) -> tuple[Any, ...]:
        return tuple(
            {tensor.name: convert_one(tensor) for tensor in given} if isinstance(given, list) else convert_one(given)
            for given in inputs
        )

    shapes = convert(lambda tensor: {i: dims[n] for i, n in enumerate(tensor.shape) if isinstance(n, str)})
    try:
        with warnings.catch_warnings(action="ignore"):  # what the tracer warns about is an error later, or harmless
            return export(graph, convert(_example), dynamic_shapes=shapes, strict=False)
    except Exception as error:  # its class depends on what in the model cannot be exported
        reason = str(error).strip().partition("\n")[0][:200]
        what = "encoder" if isinstance(graph, EncoderGraph) else "decoder"
        raise ConfigError(f"torch.export cannot export the {what} of this model: {reason}") from error


def _output_size(step: ExportedProgram) -> int:
    (logits, *_) = step.graph_signature.user_outputs
    node = next(node for node in step.graph.nodes if node.name == logits)
    return int(node.meta["val"].size(-1))
