"""The usual causes of violated invariants of models, and the first layer that differs."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from seqgen.incremental_state import StatefulModule, rows_of_parents
from seqgen.lab.checks.checking import Advice, Diagnosis, Wrong, holds
from seqgen.lab.checks.models import WEIGHTS
from seqgen.lab.checks.parting import Parting, first_parting, record
from seqgen.lab.checks.stepping import Decode
from seqgen.lab.checks.subject import BEAM, LENGTHS, Inputs, Subject, expand
from seqgen.structures import EncoderOut


class Cause(Enum):
    """The usual causes of violated invariants of a model; the value says what to do."""

    NOT_REPEATABLE = (
        "dropout or another source of randomness is active in evaluation (use nn.Dropout, or give self.training to "
        "F.dropout), or a module keeps values of a pass on itself (use set_state and get_state)"
    )
    KEPT_ON_MODULE = (
        "a module keeps values of a pass on itself; store them with set_state in the incremental_state, and read them "
        "with get_state"
    )
    ROUNDING = (
        "the differences have the size of rounding: a part of the model computes in float32 or lower; compute in the "
        "dtype of the weights, or give a larger tolerance"
    )
    START_HIDDEN = (
        "a mask hides the start token, probably because it is masked like padding; do not derive the target's mask "
        "from padding tokens"
    )
    TARGET_PADDING = (
        "padding among the target tokens changes masks or positions; derive neither from the target's padding"
    )
    LATER_TOKENS = "a position sees later target tokens; self-attention needs a causal mask, a convolution left padding"
    ENCODER_PADDING = (
        "the encoder's features depend on padding or on other sentences; mask padding in self-attention, set features "
        "at padding to zero before each convolution, pack the sequences of a recurrent layer, and do not normalize "
        "over the batch"
    )
    DECODER_PADDING = "the decoder reads padding of the source; use encoder_padding_mask in encoder-decoder attention"
    POSITION_OFFSET = (
        "the positions of a step are not those of the parallel pass; count them from "
        "self.positions_seen(incremental_state)"
    )
    STATE = (
        "what a step reads from the state is not what the parallel pass computes; store everything that later steps "
        "need, and append to it at each step"
    )
    SEVERAL_POSITIONS = "a step of several positions is wrong; a step computes all columns from positions_seen on"
    SHARED_ROWS = (
        "shares_encoder_output is true, but the decoder does not read one row of the encoder's output for several "
        "beams; remove the attribute"
    )
    NOT_REORDERED = (
        "a state is not reordered with the rows; the first dimension of each tensor in it must be the row, or the "
        "module overrides reorder_state for another layout"
    )
    ENCODER_NOT_REORDERED = (
        "the encoder's output is not reordered with the rows; the first dimension of each tensor must be the row, and "
        "an overridden reorder_encoder_out must return all of them"
    )
    SHARED_BY_COPIES = (
        "copies of a module share a state; use get_state and set_state rather than keys of your own, which a copy keeps"
    )
    STALE_WEIGHT = (
        "something computed from a weight is used after the weight has changed; compute it at each use, or derive the "
        "module from CachedWeight of seqgen.extend"
    )
    NOT_TRAINED = "a parameter does not reach the loss; use it, remove it, or set requires_grad to false"
    NOT_SAVED = "something that the logits depend on is not saved; make it an nn.Parameter or a buffer"
    ROLL_BACK = "a module does not roll back its state (roll_back_state); correct it, or set can_roll_back to false"
    JOINING = (
        "a module does not merge its state (merge_states, crop_state) or ignores start offsets in masks and positions; "
        "correct it, or set can_merge to false"
    )
    ATTENTION = "the attention that is returned is not a distribution over the words of the source, or not per step"


def _rounding(subject: Subject, wrong: Wrong) -> Diagnosis | None:
    return Diagnosis(Cause.ROUNDING) if all(0 < violation.difference < 1e-5 for violation in wrong.values()) else None


def _padding(subject: Subject, wrong: Wrong) -> Diagnosis:
    batch, row = subject.inputs(), wrong["alone = in a batch"].sentence or 0
    source, length, target = batch.alone(row)
    width, own = batch.src_tokens.size(1), source.size(1)
    begin = width - own if batch.padded_left else 0

    def of_row(tensor: Tensor) -> Tensor | None:
        if tensor.dim() < 2 or tensor.size(0) != len(LENGTHS):
            return None
        tensor = _positions_first(tensor, width)[row : row + 1]
        return tensor[:, begin : begin + own] if tensor.size(1) == width else tensor

    together = record(subject.model, lambda: subject.logits(batch))
    single = record(subject.model, lambda: subject.model(source, length, target))
    parting = first_parting(together, single, of_row, lambda tensor: _positions_first(tensor, own))
    if parting is None:
        return Diagnosis(Cause.DECODER_PADDING)
    in_decoder = parting.name.startswith("decoder")
    return Diagnosis(Cause.DECODER_PADDING if in_decoder else Cause.ENCODER_PADDING, parting.name)


def _positions_first(tensor: Tensor, width: int) -> Tensor:
    """``(N, C, S)``, the layout of PyTorch's convolutions, as ``(N, S, C)``; other tensors are returned unchanged."""
    channels_first = tensor.dim() == 3 and tensor.size(1) != width and tensor.size(2) == width
    return tensor.transpose(1, 2) if channels_first else tensor


def _steps(subject: Subject, wrong: Wrong) -> Diagnosis | None:
    batch = subject.inputs(target_length=6)
    one = slice(1)
    rows = Inputs(batch.src_tokens[one], batch.src_lengths[one], batch.prev_output_tokens[one])
    failing = _failing_step(subject, rows, [1] * 6)
    if failing is not None:
        encoder_out = subject.encode(rows)
        parting = _parting_of_step(subject, rows.prev_output_tokens[:, : failing + 1], encoder_out)
        if parting is None:
            return Diagnosis(Cause.STATE)
        cause = Cause.POSITION_OFFSET if parting.from_positions else Cause.STATE
        return Diagnosis(cause, _joined("decoder", parting.name))
    if "two decodes at a time" in wrong:
        return Diagnosis(Cause.KEPT_ON_MODULE)
    if _failing_step(subject, rows, [1, 2, 3]) is not None:
        return Diagnosis(Cause.SEVERAL_POSITIONS)
    padded = rows.prev_output_tokens.clone()
    padded[:, 2] = subject.ids.pad
    if _failing_step(subject, dataclasses.replace(rows, prev_output_tokens=padded), [1] * 6) is not None:
        return Diagnosis(Cause.TARGET_PADDING)
    if "steps = parallel pass" not in wrong:
        return None
    shares = subject.decoder.shares_encoder_output and holds(lambda: _expanded_steps(subject))
    return Diagnosis(Cause.SHARED_ROWS if shares else Cause.STATE)


def _expanded_steps(subject: Subject) -> None:
    decode = Decode(subject, shared=False)
    for new in (1, 2, 1):
        decode.step(new)


def _failing_step(subject: Subject, batch: Inputs, chunks: Sequence[int]) -> int | None:
    """The first position whose logits differ from the parallel pass, each computed by a copy of its own."""
    stepped, parallel = copy.deepcopy(subject.model), copy.deepcopy(subject.model)
    wanted = parallel(batch.src_tokens, batch.src_lengths, batch.prev_output_tokens).logits
    encoder_out: Any = stepped.encoder(batch.src_tokens, batch.src_lengths)
    state: Any = {}
    upto = 0
    for chunk in chunks:
        upto += chunk
        got = stepped.decoder(batch.prev_output_tokens[:, :upto], encoder_out, state).logits
        if got.shape != wanted[:, upto - chunk : upto].shape:
            return upto - chunk
        if not torch.allclose(got, wanted[:, upto - chunk : upto], rtol=0, atol=subject.tolerance):
            return upto - chunk
    return None


def _parting_of_step(
    subject: Subject,
    tokens: Tensor,
    encoder_out: EncoderOut,
    order: Tensor | None = None,
    move: tuple[str, Tensor] | None = None,
) -> Parting | None:
    """The first layer of the decoder in which the last of several steps differs from the parallel pass.

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
    return first_parting(stepped, parallel, _last(1), _last(width))


def _last(width: int) -> Callable[[Tensor], Tensor | None]:
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
            parting = _parting_of_step(subject, tokens, encoder_out, rows, (verb, argument))
            if parting is not None:
                return Diagnosis(Cause.NOT_REORDERED, _joined("decoder", _owner_of_state(subject, parting.name)))
    state: Any = subject.decoder.new_incremental_state(2, BEAM)
    subject.decoder(tokens, encoder_out, state)
    names = {module: _joined("decoder", name) for name, module in subject.decoder.named_modules()}
    for key, values in state.items():
        if any(isinstance(value, Tensor) and len(value) != len(tokens) for value in values.values()):
            return Diagnosis(Cause.NOT_REORDERED, names.get(key.owner, ""))
    return Diagnosis(Cause.NOT_REORDERED)


def _owner_of_state(subject: Subject, name: str) -> str:
    """The innermost module with a state that contains a module of the decoder."""
    while name and not isinstance(subject.decoder.get_submodule(name), StatefulModule):
        name = name.rpartition(".")[0]
    return name


def _joined(side: str, name: str) -> str:
    return f"{side}.{name}" if name else side


MODEL_ADVICE: Advice[Subject] = [
    ("evaluation is deterministic", "", Cause.NOT_REPEATABLE),
    ("", "", _rounding),
    ("the start token is read", "", Cause.START_HIDDEN),
    ("every token is read, later ones are not", "an earlier position", Cause.LATER_TOKENS),
    ("alone = in a batch", "", _padding),
    ("steps = parallel pass", "", _steps),
    ("two decodes at a time", "", _steps),
    ("search: cached = uncached", "", _steps),
    ("encoder output is reordered", "", Cause.ENCODER_NOT_REORDERED),
    ("steps after any order of rows", "", _reordering),
    ("steps after reordering beams", "", _reordering),
    ("search: cached = uncached", "", Cause.STATE),
    ("saved weights are the model", "", Cause.NOT_SAVED),
    ("copies share no state", "", Cause.SHARED_BY_COPIES),
    *((name, "", Cause.STALE_WEIGHT) for name in WEIGHTS if "stale" in name or name == "inference mode"),
    ("every parameter is trained", "", Cause.NOT_TRAINED),
    ("steps after rolling back", "", Cause.ROLL_BACK),
    ("start offsets", "", Cause.JOINING),
    ("batches that join", "", Cause.JOINING),
    ("attention is a distribution", "", Cause.ATTENTION),
    ("attention in steps", "", Cause.ATTENTION),
]
"""What to say about the violations of a model. The causes that violate almost all invariants come first."""
