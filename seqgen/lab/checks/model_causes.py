"""Causes of violated invariants of models, and the first module with equal inputs and different outputs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from seqgen.incremental_state import StatefulModule, rows_of_parents
from seqgen.lab.checks.checking import Advice, Diagnosis, Wrong, hooked
from seqgen.lab.checks.models import WEIGHTS
from seqgen.lab.checks.subject import BEAM, LENGTHS, Inputs, Subject, expand
from seqgen.structures import EncoderOut, tensors_in

Cut = Callable[[Tensor], "Tensor | None"]
"""Cuts a tensor to the part that is compared; ``None`` if it has no such part."""


class Event(NamedTuple):
    """A module is entered, with its inputs, or left, with its outputs."""

    name: str
    left: bool
    tensors: list[Tensor]


def record(model: nn.Module, call: Callable[[], Any]) -> list[Event]:
    """Run a pass and record the inputs and outputs of all modules.

    Args:
        model: the module whose submodules are recorded.
        call: runs the pass.
    """
    events: list[Event] = []
    handles: list[RemovableHandle] = []
    for name, module in model.named_modules():

        def entered(module: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
            events.append(Event(name, False, [tensor.detach().clone() for tensor in tensors_in((args, kwargs))]))

        def left(module: nn.Module, args: Any, output: Any, name: str = name) -> None:
            events.append(Event(name, True, [tensor.detach().clone() for tensor in tensors_in(output)]))

        handles.append(module.register_forward_pre_hook(entered, with_kwargs=True))
        handles.append(module.register_forward_hook(left))
    with hooked(handles):
        call()
    return events


def first_divergence(one: list[Event], two: list[Event], cut_one: Cut, cut_two: Cut) -> str | None:
    """Find the first module in which two passes differ.

    Args:
        one: the events of one pass.
        two: those of the other.
        cut_one: cuts the tensors of the first pass to the part that the passes share.
        cut_two: cuts those of the other.

    Returns:
        The name of the module; ``None`` if all tensors that can be compared are equal, or if the modules run in another
        order.
    """
    # A step does not run all modules: encoder-decoder attention projects the keys of the source only once.
    names = {event.name for event in one} & {event.name for event in two}
    one, two = ([event for event in events if event.name in names] for events in (one, two))
    if [(event.name, event.left) for event in one] != [(event.name, event.left) for event in two]:
        return None
    input_differs: list[bool] = []
    for (name, left, ours), (_, _, theirs) in zip(one, two, strict=True):
        differs = _differ(ours, theirs, cut_one, cut_two)
        if not left:
            input_differs.append(differs)
        elif not input_differs.pop() and differs:
            return name
    return None


def _differ(one: list[Tensor], two: list[Tensor], cut_one: Cut, cut_two: Cut) -> bool:
    if len(one) != len(two):
        return False
    for ours, theirs in zip(map(cut_one, one), map(cut_two, two), strict=True):
        if ours is None or theirs is None or ours.shape != theirs.shape or not ours.is_floating_point():
            continue
        if not torch.allclose(ours, theirs, rtol=0, atol=1e-9, equal_nan=True):
            return True
    return False


NOT_REORDERED = (
    "a state is not reordered with the rows; the first dimension of each tensor in it must be the row, or the module "
    "overrides reorder_state for another layout"
)
_STEPS = (
    "a step does not compute what the parallel pass computes; count positions from "
    "self.positions_seen(incremental_state) and compute all columns from there on, store everything that later steps "
    "need, derive neither masks nor positions from padding among the target tokens, and set shares_encoder_output only "
    "if the decoder reads one row of the encoder's output for several beams"
)


def _rounding(subject: Subject, wrong: Wrong) -> Diagnosis | None:
    if not all(0 < violation.difference < 1e-5 for violation in wrong.values()):
        return None
    return Diagnosis(
        "the differences have the size of rounding: a part of the model computes in float32 or lower; compute in the "
        "dtype of the weights, or give a larger tolerance"
    )


def _padding(subject: Subject, wrong: Wrong) -> Diagnosis:
    batch, row = subject.inputs(), wrong["alone = in a batch"].sentence or 0
    source, length, target = batch.alone(row)
    width, alone = batch.src_tokens.size(1), source.size(1)
    begin = width - alone if batch.padded_left else 0

    def of_row(tensor: Tensor) -> Tensor | None:
        if tensor.dim() < 2 or tensor.size(0) != len(LENGTHS):
            return None
        tensor = _positions_first(tensor, width)[row : row + 1]
        return tensor[:, begin : begin + alone] if tensor.size(1) == width else tensor

    together = record(subject.model, lambda: subject.logits(batch))
    single = record(subject.model, lambda: subject.model(source, length, target))
    name = first_divergence(together, single, of_row, lambda tensor: _positions_first(tensor, alone))
    if name is None or name.startswith("decoder"):
        cause = "the decoder reads padding of the source; use encoder_padding_mask in encoder-decoder attention"
    else:
        cause = (
            "the encoder's features depend on padding or on other sentences; mask padding in self-attention, set "
            "features at padding to zero before each convolution, pack the sequences of a recurrent layer, and do not "
            "normalize over the batch"
        )
    return Diagnosis(cause, name or "")


def _positions_first(tensor: Tensor, width: int) -> Tensor:
    """``(N, C, S)``, the layout of PyTorch's convolutions, as ``(N, S, C)``; other tensors are returned unchanged."""
    channels_first = tensor.dim() == 3 and tensor.size(1) != width and tensor.size(2) == width
    return tensor.transpose(1, 2) if channels_first else tensor


def _steps(subject: Subject, wrong: Wrong) -> Diagnosis:
    """The module is the first one in which a step of one sentence differs from the parallel pass."""
    batch = subject.inputs(target_length=6)
    row = Inputs(batch.src_tokens[:1], batch.src_lengths[:1], batch.prev_output_tokens[:1])
    encoder_out = subject.encode(row)
    for width in range(1, 7):
        name = _divergence_of_step(subject, row.prev_output_tokens[:, :width], encoder_out)
        if name is not None:
            return Diagnosis(_STEPS, _of_decoder(name))
    return Diagnosis(_STEPS)


def _divergence_of_step(
    subject: Subject,
    tokens: Tensor,
    encoder_out: EncoderOut,
    order: Tensor | None = None,
    move: tuple[str, Tensor] | None = None,
) -> str | None:
    """The first module of the decoder in which the last of several steps differs from the parallel pass.

    Args:
        subject: the model.
        tokens: ``(N, T)`` target tokens.
        encoder_out: the encoder's output.
        order: the rows of the last step; by default all.
        move: the method of the decoder that moves the rows of the state accordingly, and its argument.
    """
    decoder, width = copy.deepcopy(subject.decoder), tokens.size(1)
    state: Any = decoder.new_incremental_state(len(tokens) // BEAM, BEAM) if move else {}
    for upto in range(1, width):
        decoder(tokens[:, :upto], encoder_out, state)
    if move is not None and order is not None:
        verb, argument = move
        getattr(decoder, verb)(state, argument)
        tokens, encoder_out = tokens[order], encoder_out.index_select(order)
    stepped = record(decoder, lambda: decoder(tokens, encoder_out, state))
    parallel = record(decoder, lambda: decoder(tokens, encoder_out))
    return first_divergence(stepped, parallel, _last(1), _last(width))


def _last(width: int) -> Cut:
    """Cuts ``(N, T, ...)`` to its last column, and ``(1, H, T, K)`` of a position bias to its last query."""

    def cut(tensor: Tensor) -> Tensor | None:
        if tensor.dim() == 4 and tensor.size(2) == width:
            return tensor[:, :, -1:]
        if tensor.dim() >= 2 and tensor.size(-2 if tensor.dim() == 2 else 1) == width:
            return tensor[-1:] if tensor.dim() == 2 else tensor[:, -1:]
        return None

    return cut


def _reordering(subject: Subject, wrong: Wrong) -> Diagnosis:
    """The module is the first one with a state whose rows are not those of the decoder."""
    batch = subject.inputs([4, 4], target_length=4, rows_per_sentence=BEAM)
    encoder_out, tokens = expand(subject.encode(batch), BEAM), batch.prev_output_tokens
    parents, keep, order = torch.tensor([[2, 0, 0], [1, 1, 0]]), torch.tensor([1]), torch.tensor([5, 0, 3, 1, 1, 2])
    orders = {
        "reorder_incremental_state": (order, order),
        "reorder_beams": (parents, rows_of_parents(parents)),
        "select_sentences": (keep, torch.arange(BEAM, 2 * BEAM)),
    }
    for verb, (argument, rows) in orders.items():
        with suppress(Exception):  # a method that reorders may fail for the same cause
            name = _divergence_of_step(subject, tokens, encoder_out, rows, (verb, argument))
            while name and not isinstance(subject.decoder.get_submodule(name), StatefulModule):
                name = name.rpartition(".")[0]
            if name is not None:
                return Diagnosis(NOT_REORDERED, _of_decoder(name))
    return Diagnosis(NOT_REORDERED)


def _of_decoder(name: str) -> str:
    return f"decoder.{name}" if name else "decoder"


_STALE_WEIGHT = (
    "something computed from a weight is used after the weight has changed; compute it at each use, or derive the "
    "module from CachedWeight of seqgen.extend"
)
_JOINING = (
    "a module does not merge its state (merge_states, crop_state) or ignores start offsets in masks and positions; "
    "correct it, or set can_merge to false"
)
_ATTENTION = "the attention that is returned is not a distribution over the words of the source, or not per step"

MODEL_ADVICE: Advice[Subject] = {
    "evaluation is deterministic": (
        "dropout or another source of randomness is active in evaluation (use nn.Dropout, or give self.training to "
        "F.dropout), or a module keeps values of a pass on itself (use set_state and get_state)"
    ),
    "": _rounding,
    "the start token is read": (
        "a mask hides the start token, probably because it is masked like padding; do not derive the target's mask "
        "from padding tokens"
    ),
    "every token is read, later ones are not | an earlier position": (
        "a position sees later target tokens; self-attention needs a causal mask, a convolution left padding"
    ),
    "alone = in a batch": _padding,
    "steps = parallel pass": _steps,
    "two decodes at a time": (
        "a module keeps values of a pass on itself; store them with set_state in the incremental_state, and read them "
        "with get_state"
    ),
    "encoder output is reordered": (
        "the encoder's output is not reordered with the rows; the first dimension of each tensor must be the row, and "
        "an overridden reorder_encoder_out must return all of them"
    ),
    "steps after any order of rows": _reordering,
    "steps after reordering beams": _reordering,
    "search: cached = uncached": _steps,
    "saved weights are the model": (
        "something that the logits depend on is not saved; make it an nn.Parameter or a buffer"
    ),
    "copies share no state": (
        "copies of a module share a state; use get_state and set_state rather than keys of your own, which a copy keeps"
    ),
    **{name: _STALE_WEIGHT for name in WEIGHTS if "stale" in name or name == "inference mode"},
    "every parameter is trained": (
        "a parameter does not reach the loss; use it, remove it, or set requires_grad to false"
    ),
    "steps after rolling back": (
        "a module does not roll back its state (roll_back_state); correct it, or set can_roll_back to false"
    ),
    "start offsets": _JOINING,
    "batches that join": _JOINING,
    "attention is a distribution": _ATTENTION,
    "attention in steps": _ATTENTION,
}
"""Causes of violations of a model. The causes that violate almost all invariants come first."""
