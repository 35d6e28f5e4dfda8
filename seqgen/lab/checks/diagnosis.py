"""The usual causes of violated invariants of models and decoding components, and the first layer that differs."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from seqgen.incremental_state import StatefulModule, rows_of_parents
from seqgen.lab.checks import search
from seqgen.lab.checks.checking import Advice, Diagnosis, Wrong
from seqgen.lab.checks.components import alone_equals_batched
from seqgen.lab.checks.models import WEIGHTS, without_cached_weights
from seqgen.lab.checks.search import same_hypotheses
from seqgen.lab.checks.stepping import Decode
from seqgen.lab.checks.subject import BEAM, LENGTHS, Decoding, Inputs, Subject, expand
from seqgen.model import EncoderDecoderModel
from seqgen.structures import EncoderOut, tensors_in


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


Cut = Callable[[Tensor], "Tensor | None"]
"""Cuts a tensor to the part that is compared; ``None`` if it has no such part."""


@dataclass
class Event:
    """A module is entered or left.

    Attributes:
        name: name of the module.
        module: the module.
        left: whether it is left.
        tensors: its inputs when it is entered, its outputs when it is left.
    """

    name: str
    module: nn.Module
    left: bool
    tensors: list[Tensor]


@dataclass(frozen=True)
class Parting:
    """Where two passes part.

    Attributes:
        name: the first module that has equal inputs and different outputs.
        module: that module.
        from_positions: whether the results differ before any layer with a state, or in a module whose input has no
            features: then positions differ.
    """

    name: str
    module: nn.Module
    from_positions: bool


def record(model: nn.Module, call: Callable[[], Any]) -> list[Event]:
    """Run a pass and record the inputs and outputs of all modules.

    Args:
        model: the module whose submodules are recorded.
        call: runs the pass.
    """
    events: list[Event] = []
    handles = []
    for name, module in model.named_modules():

        def entered(module: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
            events.append(Event(name, module, False, _copies((args, kwargs))))

        def left(module: nn.Module, args: Any, output: Any, name: str = name) -> None:
            events.append(Event(name, module, True, _copies(output)))

        handles.append(module.register_forward_pre_hook(entered, with_kwargs=True))
        handles.append(module.register_forward_hook(left))
    try:
        call()
    finally:
        for handle in handles:
            handle.remove()
    return events


def _copies(value: Any) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors_in(value)]


def first_parting(one: list[Event], two: list[Event], cut_one: Cut, cut_two: Cut) -> Parting | None:
    """Find where two passes part.

    Args:
        one: the events of one pass.
        two: those of the other.
        cut_one: cuts the tensors of the first pass to the part that the passes share.
        cut_two: cuts those of the other.

    Returns:
        Where they part; ``None`` if all tensors that can be compared are equal, or if the modules run in another
        order.
    """
    # A step does not run all modules: encoder-decoder attention projects the keys of the source only once.
    names = {event.name for event in one} & {event.name for event in two}
    one, two = ([event for event in events if event.name in names] for events in (one, two))
    if [(event.name, event.left) for event in one] != [(event.name, event.left) for event in two]:
        return None
    from_positions: bool | None = None
    stateful = False
    inputs: list[tuple[bool, bool]] = []
    for ours, theirs in zip(one, two, strict=True):
        differs = _differ(ours.tensors, theirs.tensors, cut_one, cut_two)
        if not ours.left:
            has_features = any(tensor.is_floating_point() for tensor in ours.tensors)
            inputs.append((differs, has_features))
            stateful |= isinstance(ours.module, StatefulModule) and ours.name != ""
            if differs and from_positions is None:
                from_positions = not stateful
            continue
        input_differs, has_features = inputs.pop()
        if differs and from_positions is None:
            from_positions = not has_features and ours.name != ""
        if differs and not input_differs:
            return Parting(ours.name, ours.module, bool(from_positions))
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


def _randomness(subject: Subject, wrong: Wrong) -> Diagnosis:
    batch = subject.inputs()

    def seeded() -> Tensor:
        torch.manual_seed(0)
        return subject.logits(batch)

    cause = Cause.RANDOMNESS if torch.equal(seeded(), seeded()) else Cause.KEPT_ON_MODULE
    one, two = (record(subject.model, partial(subject.logits, batch)) for _ in range(2))
    return Diagnosis(cause, _name(first_parting(one, two, _whole, _whole)))


def _rounding(subject: Subject, wrong: Wrong) -> Diagnosis | None:
    return Diagnosis(Cause.ROUNDING) if all(0 < violation.difference < 1e-5 for violation in wrong.values()) else None


def _later_tokens(subject: Subject, wrong: Wrong) -> Diagnosis:
    """The layer is the first one whose other columns change with the last target token."""
    batch = subject.inputs(target_length=5)
    changed = dataclasses.replace(batch, prev_output_tokens=batch.prev_output_tokens.clone())
    changed.prev_output_tokens[:, -1] = subject.ids.eos

    def earlier(tensor: Tensor) -> Tensor | None:
        return tensor[:, :-1] if tensor.dim() == 3 and tensor.size(1) == 5 else None

    one, two = (record(subject.model, partial(subject.logits, inputs)) for inputs in (batch, changed))
    return Diagnosis(Cause.LATER_TOKENS, _name(first_parting(one, two, earlier, earlier)))


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
    if parting is None or parting.name.startswith("decoder"):
        return Diagnosis(Cause.DECODER_PADDING, _name(parting))
    is_convolution = "conv" in type(parting.module).__name__.lower()
    return Diagnosis(Cause.CONVOLUTION_PADDING if is_convolution else Cause.ENCODER_PADDING, parting.name)


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
    shares = subject.decoder.shares_encoder_output and _holds(lambda: _expanded_steps(subject))
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


def _stale(subject: Subject, wrong: Wrong) -> Diagnosis:
    """The layer is the first one whose output in a changed model differs from that of one which has not decoded yet."""
    batch, model = subject.inputs(), copy.deepcopy(subject.model)

    def step(one: EncoderDecoderModel) -> None:
        one.decoder(batch.prev_output_tokens, one.encoder(batch.src_tokens, batch.src_lengths), {})  # type: ignore[call-arg]

    step(model)
    model.load_state_dict({key: value * 1.25 for key, value in model.state_dict().items()})
    fresh = without_cached_weights(subject, model)
    parting = first_parting(record(model, lambda: step(model)), record(fresh, lambda: step(fresh)), _whole, _whole)
    return Diagnosis(Cause.STALE_WEIGHT, _name(parting))


def _whole(tensor: Tensor) -> Tensor:
    return tensor


def _name(parting: Parting | None) -> str:
    return "" if parting is None else parting.name


def _joined(side: str, name: str) -> str:
    return f"{side}.{name}" if name else side


ADVICE: Advice[Subject] = [
    ("evaluation is deterministic", "", _randomness),
    ("", "", _rounding),
    ("the start token is read", "", Cause.START_HIDDEN),
    ("every token is read, later ones are not", "an earlier position", _later_tokens),
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
    *((name, "", _stale) for name in WEIGHTS if "stale" in name or name == "inference mode"),
    ("every parameter is trained", "", Cause.NOT_TRAINED),
    ("steps after rolling back", "", Cause.ROLL_BACK),
    ("start offsets", "", Cause.JOINING),
    ("batches that join", "", Cause.JOINING),
    ("attention is a distribution", "", Cause.ATTENTION),
    ("attention in steps", "", Cause.ATTENTION),
]
"""What to say about the violations of a model. The causes that violate almost all invariants come first."""


class ComponentCause(Enum):
    """The usual causes; the value says what to do."""

    RANDOMNESS = (
        "the component draws from PyTorch's own random numbers; use seqgen.generation.search.sampling, whose numbers "
        "depend on a seed, the line number and the step"
    )
    KEPT_ON_SELF = (
        "the component keeps values of a batch on the object that all batches share; let begin return a copy (call "
        "super().begin) and store them there"
    )
    NOT_REORDERED = (
        "a state does not follow the beams; name its tensor (sentences, beam, ...) in beam_state, and call "
        "super().advance where you override advance"
    )
    NOT_SELECTED = (
        "a state keeps the rows of sentences that have left the batch; name its tensor in sentence_state or beam_state"
    )
    MIXES_SENTENCES = (
        "the result of a sentence depends on the other sentences of the batch; do not reduce over the first dimension"
    )
    SOURCE_PADDING = (
        "the result depends on the padding of the source; leave out the positions where context.src_padding is true"
    )
    MIXES_BEAMS = "the scores of a beam depend on the other beams of its sentence; compute each row by itself"
    NOT_NORMALIZED = (
        "additive or shift_invariant is true, but the component needs normalized log-probabilities: adding a constant "
        "to the scores of a row changes its choices; remove the attribute"
    )
    CACHE = (
        "the result differs if nothing is cached (debug.use_cache=false computes all positions at each step): the "
        "component changes a decoder's cache or features in place, or depends on how a step is computed"
    )
    CANNOT_JOIN = (
        "can_merge is true, but the component reads context.step, tokens or source ids, or a state is not merged; use "
        "context.steps, name the state in sentence_state or beam_state, or remove the attribute"
    )
    NOT_INDEPENDENT = "independent_rows is true, but candidate i does not continue beam i; remove the attribute"
    FIRST_STEP = (
        "the same hypothesis is kept twice; at context.step == 0 all beams are equal, so that only the first one may "
        "be expanded"
    )
    INDICES = (
        "tokens or beams of candidates are wrong; of an index into (beam * V) scores, the beam is index // V and the "
        "token index % V"
    )
    FORBIDDEN = "candidates with a score of -inf become possible; leave -inf as it is"
    NAN_HIDDEN = "scores that are NaN are replaced or compared away, so that a damaged model is not noticed"
    SCORES = (
        "the scores of candidates are not scores + lprobs; return these sums, or set adjusts_scores if a penalty is "
        "intended"
    )
    OUTPUTS = "hypotheses do not end, or are not sorted; see the method finished"
    NAN = (
        "a score becomes NaN or infinite, often because -inf is multiplied by zero or subtracted from itself; leave "
        "-inf as it is"
    )
    CONTEXT_CHANGED = (
        "the component writes into a tensor that it was given, of the context or the scores of a member; clone it first"
    )
    CHANGED_BY_CALL = (
        "a call changes the component's own tensors, or returns one of them; change state in advance, and return a new "
        "tensor"
    )
    SHAPE = "the result has another shape or dtype; return (rows, V) scores in the dtype of the argument"
    SHARED_BY_FORKS = "a fork shares a tensor that is changed in place; name the tensor in sentence_state or beam_state"
    VOCABULARY = "the component works for one size of the vocabulary only; take the size from lprobs.size(-1)"
    OBSERVER = "the observer changes a tensor of the record; clone what you change"
    SCORER = (
        "the combination gives another score where all positions are known; ignores_context is true only for a "
        "combination that does not read the context"
    )


_TOGETHER: dict[str, Any] = {"end_symbols": [], "min_len": 5}
"""All outputs end at the same step, so that no sentence leaves the batch early."""


def _repeated(subject: Decoding, wrong: Wrong) -> Diagnosis:
    def seeded() -> Any:
        torch.manual_seed(0)
        return subject.decode(subject.batch())

    repeats = _holds(lambda: same_hypotheses(subject, seeded(), seeded(), ""))
    return Diagnosis(ComponentCause.RANDOMNESS if repeats else ComponentCause.KEPT_ON_SELF)


def _only_joining(subject: Decoding, wrong: Wrong) -> Diagnosis | None:
    return Diagnosis(ComponentCause.CANNOT_JOIN) if len(wrong) == 1 else None


def _batched(subject: Decoding, wrong: Wrong) -> Diagnosis:
    for rules in subject.all_rules:
        subject.rules = rules
        if _holds(lambda: alone_equals_batched(subject)):
            continue
        if _holds(lambda: search.alone_equals_batched(subject, **_TOGETHER)):
            return Diagnosis(ComponentCause.NOT_SELECTED)
        if _holds(lambda: search.alone_equals_batched(subject, lengths=[5] * 5)):
            return Diagnosis(ComponentCause.SOURCE_PADDING)
        break
    return Diagnosis(ComponentCause.MIXES_SENTENCES)


def _holds(law: Callable[[], object]) -> bool:
    try:
        law()
    except Exception:
        return False
    return True


COMPONENT_ADVICE: Advice[Decoding] = [
    ("calls change nothing else", "becomes", ComponentCause.NAN),
    ("calls change nothing else", "in place", ComponentCause.CONTEXT_CHANGED),
    ("calls change nothing else", "the call changes", ComponentCause.CHANGED_BY_CALL),
    ("calls change nothing else", "the processor returns", ComponentCause.SHAPE),
    ("state follows the beams", "", ComponentCause.NOT_REORDERED),
    ("state of sentences that leave", "", ComponentCause.NOT_SELECTED),
    ("candidates are continuations", "independent_rows", ComponentCause.NOT_INDEPENDENT),
    ("candidates are continuations", "not in the range", ComponentCause.INDICES),
    ("candidates are continuations", "shapes", ComponentCause.INDICES),
    ("candidates are continuations", "does not exist", ComponentCause.FORBIDDEN),
    ("decodes are repeatable", "", _repeated),
    ("two decodes at a time", "", ComponentCause.KEPT_ON_SELF),
    ("optimized = not optimized", "skip_log_softmax", ComponentCause.NOT_NORMALIZED),
    ("optimized = not optimized", "use_cache", ComponentCause.CACHE),
    ("joining = one batch", "", _only_joining),
    ("alone = in a batch", "", _batched),
    ("alone = in a batch, sampled", "", _batched),
    ("observed = not observed", "", ComponentCause.OBSERVER),
    ("scorer = generator", "", ComponentCause.SCORER),
    ("joining = one batch", "", ComponentCause.CANNOT_JOIN),
    ("NaN is an error", "", ComponentCause.NAN_HIDDEN),
    ("forbidden tokens", "", ComponentCause.FORBIDDEN),
    ("a sentence without outputs", "", ComponentCause.FORBIDDEN),
    ("candidates are continuations", "", ComponentCause.FIRST_STEP),
    ("hypotheses differ", "", ComponentCause.FIRST_STEP),
    ("scores are the model's", "", ComponentCause.SCORES),
    ("hypotheses end, are sorted", "", ComponentCause.OUTPUTS),
    ("calls change nothing else", "", ComponentCause.CHANGED_BY_CALL),
    ("forks are independent", "", ComponentCause.SHARED_BY_FORKS),
    ("blocks of the vocabulary", "", ComponentCause.VOCABULARY),
    ("scores depend on the hypothesis", "", ComponentCause.MIXES_BEAMS),
]
"""What to say about the violations of a decoding component."""
