"""The usual cause of a violated invariant, found by small experiments with the model."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import Tensor

from seqgen.incremental_state import rows_of_parents
from seqgen.lab.checks import catalog
from seqgen.lab.checks.checking import Diagnosis, Outcome, Violation
from seqgen.lab.checks.decode import Decode
from seqgen.lab.checks.layers import Parting, first_parting, record
from seqgen.lab.checks.subject import BEAM, LENGTHS, Inputs, Subject, expand
from seqgen.lab.checks.weights import without_cached_weights
from seqgen.model import EncoderDecoderModel
from seqgen.modules.kv_cache.protocol import KeyValueCache


class Cause(Enum):
    """The usual causes; the value says what to do."""

    RANDOMNESS = (
        "dropout, or another source of randomness, is active in evaluation; use nn.Dropout, or give self.training to "
        "F.dropout"
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
    CONVOLUTION_PADDING = (
        "a convolution of the encoder reads padding; set features at padding to zero before each convolution"
    )
    ENCODER_PADDING = (
        "the encoder's features depend on padding or on other sentences; mask padding in self-attention, pack the "
        "sequences of a recurrent layer, and do not normalize over the batch"
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
        "module from seqgen.modules.cached_weight.CachedWeight"
    )
    NOT_TRAINED = "a parameter does not reach the loss; use it, remove it, or set requires_grad to false"
    NOT_SAVED = "something that the logits depend on is not saved; make it an nn.Parameter or a buffer"
    ROLL_BACK = "a module does not roll back its state (roll_back_state); correct it, or set can_roll_back to false"
    JOINING = (
        "a module does not merge its state (merge_states, crop_state) or ignores start offsets in masks and positions; "
        "correct it, or set can_merge to false"
    )
    ATTENTION = "the attention that is returned is not a distribution over the words of the source, or not per step"
    UNKNOWN = "no experiment names the cause; see the first failure"


def diagnose(subject: Subject, outcomes: Sequence[Outcome]) -> Diagnosis:
    """Find the usual cause that explains the violations.

    The experiments go from causes that violate almost all invariants to those that violate few.

    Args:
        subject: the model.
        outcomes: what the checks found; at least one violation.
    """
    wrong = {outcome.name: outcome.violation for outcome in outcomes if outcome.violation is not None}
    subject = dataclasses.replace(subject)
    with torch.no_grad():
        for experiment in (_randomness, _rounding, _target, _padding, _steps, _reordering, _by_name):
            try:
                found = experiment(subject, wrong)
            except Exception:  # the model may raise anything; the next experiment may still work
                continue
            if found is not None:
                return found
    return Diagnosis(Cause.UNKNOWN)


Wrong = Mapping[str, Violation]


def _randomness(subject: Subject, wrong: Wrong) -> Diagnosis | None:
    if "evaluation is deterministic" not in wrong:
        return None
    batch = subject.inputs()

    def seeded() -> Tensor:
        torch.manual_seed(0)
        return subject.logits(batch)

    cause = Cause.RANDOMNESS if torch.equal(seeded(), seeded()) else Cause.KEPT_ON_MODULE
    one, two = (record(subject.model, partial(subject.logits, batch)) for _ in range(2))
    return Diagnosis(cause, _name(first_parting(one, two, _whole, _whole)))


def _rounding(subject: Subject, wrong: Wrong) -> Diagnosis | None:
    return Diagnosis(Cause.ROUNDING) if all(0 < violation.difference < 1e-5 for violation in wrong.values()) else None


def _target(subject: Subject, wrong: Wrong) -> Diagnosis | None:
    if "the start token is read" in wrong:
        return Diagnosis(Cause.START_HIDDEN)
    tokens = wrong.get("every token is read, later ones are not")
    if tokens is not None and tokens.what.startswith("an earlier position"):
        return Diagnosis(Cause.LATER_TOKENS, _layer_that_sees_later_tokens(subject))
    return None


def _layer_that_sees_later_tokens(subject: Subject) -> str:
    """The first layer whose other columns change with the last target token."""
    batch = subject.inputs(target_length=5)
    changed = dataclasses.replace(batch, prev_output_tokens=batch.prev_output_tokens.clone())
    changed.prev_output_tokens[:, -1] = subject.ids.eos

    def earlier(tensor: Tensor) -> Tensor | None:
        return tensor[:, :-1] if tensor.dim() == 3 and tensor.size(1) == 5 else None

    one, two = (record(subject.model, partial(subject.logits, inputs)) for inputs in (batch, changed))
    return _name(first_parting(one, two, earlier, earlier))


def _padding(subject: Subject, wrong: Wrong) -> Diagnosis | None:
    violation = wrong.get("alone = in a batch")
    if violation is None:
        return None
    batch, row = subject.inputs(), violation.sentence or 0
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
    if parting is None or parting.name.startswith("decoder"):
        return Diagnosis(Cause.DECODER_PADDING, _name(parting))
    is_convolution = "conv" in type(parting.module).__name__.lower()
    return Diagnosis(Cause.CONVOLUTION_PADDING if is_convolution else Cause.ENCODER_PADDING, parting.name)


def _positions_first(tensor: Tensor, width: int) -> Tensor:
    """``(N, C, S)``, the layout of PyTorch's convolutions, as ``(N, S, C)``; other tensors are returned unchanged."""
    channels_first = tensor.dim() == 3 and tensor.size(1) != width and tensor.size(2) == width
    return tensor.transpose(1, 2) if channels_first else tensor


def _steps(subject: Subject, wrong: Wrong) -> Diagnosis | None:
    if not wrong.keys() & {"steps = parallel pass", "two decodes at a time", "search: cached = uncached"}:
        return None
    batch = subject.inputs(target_length=6)
    rows = dataclasses.replace(batch, src_tokens=batch.src_tokens[:1], src_lengths=batch.src_lengths[:1])
    rows = dataclasses.replace(rows, prev_output_tokens=batch.prev_output_tokens[:1])
    failing = _failing_step(subject, rows, [1] * 6)
    if failing is None and "two decodes at a time" in wrong:
        return Diagnosis(Cause.KEPT_ON_MODULE)
    if failing is not None:
        parting = _parting_of_step(subject, rows, failing)
        if parting is None:
            return Diagnosis(Cause.STATE)
        cause = Cause.POSITION_OFFSET if parting.from_positions else Cause.STATE
        return Diagnosis(cause, _joined("decoder", parting.name))
    if _failing_step(subject, rows, [1, 2, 3]) is not None:
        return Diagnosis(Cause.SEVERAL_POSITIONS)
    padded = rows.prev_output_tokens.clone()
    padded[:, 2] = subject.ids.pad
    if _failing_step(subject, dataclasses.replace(rows, prev_output_tokens=padded), [1] * 6) is not None:
        return Diagnosis(Cause.TARGET_PADDING)
    if (
        "steps = parallel pass" in wrong
        and subject.decoder.shares_encoder_output
        and not _raises(lambda: _expanded_steps(subject))
    ):
        return Diagnosis(Cause.SHARED_ROWS)
    return Diagnosis(Cause.STATE) if "steps = parallel pass" in wrong else None


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


def _parting_of_step(subject: Subject, batch: Inputs, step: int) -> Parting | None:
    decoder = copy.deepcopy(subject.decoder)
    encoder_out = subject.encode(batch)
    tokens = batch.prev_output_tokens[:, : step + 1]
    state: Any = {}
    for upto in range(1, step + 1):
        decoder(tokens[:, :upto], encoder_out, state)
    stepped = record(decoder, lambda: decoder(tokens, encoder_out, state))
    parallel = record(decoder, lambda: decoder(tokens, encoder_out))
    return first_parting(stepped, parallel, _last(1), _last(step + 1))


def _last(width: int) -> Callable[[Tensor], Tensor | None]:
    """Cuts ``(N, T, ...)`` to its last column, and ``(1, H, T, K)`` of a position bias to its last query."""

    def cut(tensor: Tensor) -> Tensor | None:
        if tensor.dim() == 4 and tensor.size(2) == width:
            return tensor[:, :, -1:]
        if tensor.dim() >= 2 and tensor.size(-2 if tensor.dim() == 2 else 1) == width:
            return tensor[-1:] if tensor.dim() == 2 else tensor[:, -1:]
        return None

    return cut


def _reordering(subject: Subject, wrong: Wrong) -> Diagnosis | None:
    if not wrong.keys() & {"steps after any order of rows", "steps after reordering beams"}:
        return None
    if "encoder output is reordered" in wrong:
        return Diagnosis(Cause.ENCODER_NOT_REORDERED)
    module = ""
    with suppress(Exception):  # a method that reorders may fail for the same cause
        module = next(_states_not_reordered(subject), "")
    return Diagnosis(Cause.NOT_REORDERED, module)


def _states_not_reordered(subject: Subject) -> Iterator[str]:
    """The names of the modules whose states are not reordered with the rows."""
    decoder = subject.decoder
    batch = subject.inputs([4, 4], target_length=3, rows_per_sentence=BEAM)
    encoder_out = expand(subject.encode(batch), BEAM)
    names = {module: _joined("decoder", name) for name, module in decoder.named_modules()}
    parents, keep = torch.tensor([[2, 0, 0], [1, 1, 0]]), torch.tensor([1])
    orders: list[tuple[str, Tensor, Tensor]] = [
        ("reorder_incremental_state", torch.tensor([5, 0, 3, 1, 1, 2]), torch.tensor([5, 0, 3, 1, 1, 2])),
        ("reorder_beams", parents, rows_of_parents(parents)),
        ("select_sentences", keep, torch.arange(BEAM, 2 * BEAM)),
    ]
    for verb, argument, order in orders:
        state: Any = decoder.new_incremental_state(2, BEAM)
        decoder(batch.prev_output_tokens, encoder_out, state)
        before = {key: _content(copy.deepcopy(value)) for key, value in state.items()}
        for key, tensors in before.items():
            if any(tensor.size(0) != encoder_out.num_rows for tensor in tensors):
                yield names.get(key.owner, "")
        getattr(decoder, verb)(state, argument)
        for key, tensors in before.items():
            pairs = zip(tensors, _content(state[key]), strict=True)
            if not all(torch.equal(new, old.index_select(0, order)) for old, new in pairs):
                yield names.get(key.owner, "")


def _content(module_state: Mapping[str, Any]) -> list[Tensor]:
    """The tensors of a module state, those of a cache as each row sees them."""
    found: list[Tensor] = []
    for value in module_state.values():
        if isinstance(value, KeyValueCache):
            found += value.view()[:2]
        elif isinstance(value, Tensor):
            found.append(value)
    return found


_NAMED = {
    "search: cached = uncached": Cause.STATE,
    "encoder output is reordered": Cause.ENCODER_NOT_REORDERED,
    "saved weights are the model": Cause.NOT_SAVED,
    "copies share no state": Cause.SHARED_BY_COPIES,
    **{name: Cause.STALE_WEIGHT for name in catalog.WEIGHTS if "stale" in name or name == "inference mode"},
    "every parameter is trained": Cause.NOT_TRAINED,
    "steps after rolling back": Cause.ROLL_BACK,
    "start offsets": Cause.JOINING,
    "batches that join": Cause.JOINING,
    "attention is a distribution": Cause.ATTENTION,
    "attention in steps": Cause.ATTENTION,
}
"""The cause of a violation that no earlier experiment explains."""


def _by_name(subject: Subject, wrong: Wrong) -> Diagnosis | None:
    cause = next((cause for name, cause in _NAMED.items() if name in wrong), Cause.UNKNOWN)
    return Diagnosis(cause, _stale_layer(subject) if cause is Cause.STALE_WEIGHT else "")


def _stale_layer(subject: Subject) -> str:
    """The first layer whose output in a changed model differs from that of a model which has not decoded yet."""
    batch, model = subject.inputs(), copy.deepcopy(subject.model)

    def step(one: EncoderDecoderModel) -> None:
        one.decoder(batch.prev_output_tokens, one.encoder(batch.src_tokens, batch.src_lengths), {})  # type: ignore[call-arg]

    step(model)
    model.load_state_dict({key: value * 1.25 for key, value in model.state_dict().items()})
    fresh = without_cached_weights(subject, model)
    return _name(first_parting(record(model, lambda: step(model)), record(fresh, lambda: step(fresh)), _whole, _whole))


def _raises(call: Callable[[], None]) -> bool:
    try:
        call()
    except Exception:
        return True
    return False


def _whole(tensor: Tensor) -> Tensor:
    return tensor


def _name(parting: Parting | None) -> str:
    return "" if parting is None else parting.name


def _joined(side: str, name: str) -> str:
    return f"{side}.{name}" if name else side
