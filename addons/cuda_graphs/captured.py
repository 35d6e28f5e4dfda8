"""Captured steps: a decoding step of a model is recorded once on a GPU, and later steps replay it without Python.

A recorded step reads and writes the same memory at every replay, and numbers that Python computed stay as they were.
Therefore every recorded step is the last of a window of ``W`` positions, at which all of these numbers are the same:
before a step, the state has ``W - 1`` positions, and its start offsets hide those that a sentence does not have, as in
continuous batching. After the step the first position is dropped, and the start offsets decrease by one::

    window of 4, a sentence with 1 token, start offset 2    . . a      step 1 reads a and writes b     . . a b
    after dropping the first position, start offset 1       . a b      step 2 is the same computation

The number of sentences, the source and the window are rounded up, so that a few recordings serve all batches.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dataclasses import replace
from itertools import zip_longest
from threading import Lock
from typing import Any, NamedTuple, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from seqgen.addons.cuda_graphs.graphs import GRAPHS
from seqgen.core.incremental_state import leaves
from seqgen.core.member import encode, run_decoder
from seqgen.extend import (
    LAYER_LOGITS,
    DecodingSetup,
    EncoderDecoderModel,
    IncrementalState,
    Member,
    MemberOutput,
    PlannedMember,
    Resources,
    Source,
    has_features,
    map_tensors,
    rows_of_sentences,
)
from seqgen.modules.step_plan import StepPlan, has_hooks

_SMALLEST_SOURCE, _SMALLEST_WINDOW = 16, 64
"""The smallest sizes of a source and of a window; larger ones are powers of 2."""

_SHRINKS = 4
"""When this many times fewer sentences need a place, a smaller recording is used; until then places stay empty."""

_KEPT = 12
"""Recordings of a decoder that are kept; each needs the memory of a batch: its keys, values and logits."""


class NotCapturable(Exception):
    """A step cannot be recorded; the message says why."""


class Shape(NamedTuple):
    """Key of a recording: the conditions under which it is valid.

    Attributes:
        sentences: number of sentences.
        beam: rows of each sentence.
        source: positions of the source.
        window: positions of the target, with the new one.
        needs: what components need besides the logits.
        weights: address and version of each weight.
    """

    sentences: int
    beam: int
    source: int
    window: int
    needs: frozenset[str]
    weights: tuple[tuple[int, int], ...]


def obstacle(model: EncoderDecoderModel, device: torch.device) -> str:
    """Why no step of a model can be recorded on a device; empty if steps can."""
    decoder: Any = model.decoder
    if device.type not in GRAPHS:
        return f"steps are recorded on {' and '.join(sorted(GRAPHS))}, not on {device.type}"
    if not getattr(decoder, "can_merge", False) or decoder.reads_history or model.continues_source:
        return f"{type(decoder).__name__} does not set can_merge, reads earlier tokens or continues its source"
    if getattr(model.encoder, "inputs", ()):
        return f"{type(model.encoder).__name__} reads further inputs"
    return "" if decoder.shares_encoder_output else f"{type(decoder).__name__} does not set shares_encoder_output"


def _current_obstacle(member: Member, needs: Set[str]) -> str:
    """Why the steps of a member cannot be recorded now; empty if they can."""
    decoder: Any = member.model.decoder
    if member.state is None or not member.shares_encoder_output:
        return "fast.use_cache or fast.share_encoder_output is off"
    if torch.is_grad_enabled() or torch.is_autocast_enabled(member.state.start_offsets.device.type):
        return "gradients are recorded, or autocast is active, whose cached weights are freed"
    if LAYER_LOGITS in needs or member.output_columns is not None or decoder.training:
        return "logits of layers or of a shortlist are computed, or dropout is active"
    watched = any(has_hooks(module) or getattr(module, "on_weights", None) for module in decoder.modules())
    return "modules of the decoder have hooks" if watched else ""


class Filler(NamedTuple):
    """A sentence that fills the places without one, and whose size the others are padded to.

    Attributes:
        state: a state with ``window - 1`` positions.
        encoder_out: the encoder's output.
    """

    state: IncrementalState
    encoder_out: Any

    @classmethod
    def of(cls, model: EncoderDecoderModel, source: Source, shape: Shape) -> Self:
        """A sentence of end-of-sentence alone; ``source`` is any source of the model."""
        decoder: Any = model.decoder
        tokens = model.empty_source(source).src_tokens[:1].expand(-1, shape.source).contiguous()
        encoder_out = encode(model.encoder, Source(tokens, torch.full_like(tokens[:, 0], shape.source)))
        state = decoder.new_incremental_state(1, shape.beam, tokens.device)
        state.beam_indirection = False
        inputs = tokens.new_zeros(shape.beam, shape.window - 1)
        decode = decoder.extract_features if has_features(decoder) else decoder
        decode(inputs, encoder_out, incremental_state=state)
        return cls(state, encoder_out)

    def joined(self, model: EncoderDecoderModel, state: IncrementalState, encoder_out: Any, sentences: int) -> Self:
        """A state and encoder output, padded to the sizes of this one and to a number of sentences."""
        decoder: Any = model.decoder
        missing = sentences - len(state.start_offsets)
        rest = torch.zeros(missing, dtype=torch.int64, device=state.start_offsets.device)
        others = self.state.fork()
        decoder.select_sentences(others, rest)
        merged = decoder.merge(state.fork(), others)
        assert merged.has_start_offsets  # read from the device now, not while a step is recorded
        padded = model.encoder.reorder_encoder_out(self.encoder_out, rest)
        return type(self)(merged, model.encoder.merge_encoder_outs(encoder_out, padded))


class CapturedStep:
    """A recorded step of one model, with the memory that it reads and writes.

    Args:
        model: the model.
        shape: the sizes.
        filler: a sentence of these sizes.
        like: a state and encoder output of these sizes.

    Attributes:
        state: the state before the next step.
        owner: the member that uses this step, and no other may.
        fault: what is wrong with replays; empty if the first one was right, ``None`` if there was none yet.

    Raises:
        NotCapturable: the step changes something other than tensors, or the device refuses it.
    """

    def __init__(self, model: EncoderDecoderModel, shape: Shape, filler: Filler, like: Filler):
        self.shape, self.filler = shape, filler
        self.owner: Callable[[], CapturedMember | None] = lambda: None
        self.fault: str | None = None
        self.state, self._encoder_out = copy.deepcopy(like)
        device = self.state.start_offsets.device
        self._tokens = torch.zeros(shape.sentences * shape.beam, 1, dtype=torch.int64, device=device)
        self._own = torch.arange(shape.beam, device=device).repeat(shape.sentences, 1)
        self._parents = self._own.clone()
        self._graph = GRAPHS[device.type](device)
        try:
            with self._graph.warm_up():
                self._step(model)
            with self._graph.capture():
                self._output = self._step(model)
        except RuntimeError as error:  # a wait, a copy from the CPU, too little memory
            raise NotCapturable(str(error).strip().split("\n")[0]) from error
        # a graph knows addresses only: train() and eval() must not free layouts of weights that it reads
        modules = model.decoder.modules()
        self._layouts = [list(vars(module)["_kept"].values()) for module in modules if "_kept" in vars(module)]

    def _step(self, model: EncoderDecoderModel) -> MemberOutput:
        decoder: Any = model.decoder
        state = self.state.fork()
        if self.shape.beam > 1:
            decoder.reorder_beams(state, self._parents)
        tokens = self._tokens.expand(-1, self.shape.window)
        with StepPlan().active():
            out = run_decoder(decoder, tokens, self._encoder_out, self.shape.needs, incremental_state=state).at(-1)
        decoder.drop_first(state, 1)
        state.start_offsets.sub_(1).clamp_(min=0)  # in place, so that the device is not asked whether any is above 0
        _copy(state, self.state)
        return out

    def check(self, found: MemberOutput, wanted: MemberOutput) -> None:
        """Set ``fault`` by the outputs of the first replay and of the same step without a recording."""
        one, other = found.logits, wanted.logits
        error = torch.where(one == other, 0.0, one - other).abs().amax()  # -inf equals -inf
        scale = other.masked_fill(other.isinf(), 0.0).abs().amax()
        equal = bool(error <= scale * torch.finfo(other.dtype).eps ** 0.5)
        self.fault = "" if equal else "the first replayed step differs from the same step without a recording"

    def load(self, begin: Filler) -> None:
        """Begin with a state and encoder output of these sizes."""
        _copy(begin, (self.state, self._encoder_out))

    def replay(self, tokens: Tensor, parents: Tensor | None, places: Tensor | None = None) -> MemberOutput:
        """Compute a step of some sentences. Other places repeat an old token, without effect on these.

        Args:
            tokens: ``(rows, 1)`` int64, the newest token of each row.
            parents: ``(sentences, beam)`` int64, the beam that each row continues; ``None`` if each continues itself.
            places: ``(sentences,)`` int64, the place of each sentence; ``None`` for the first ones.

        Returns:
            The output of these rows, which the next step may overwrite.
        """
        rows = None if places is None else rows_of_sentences(places, self.shape.beam)
        _write(self._tokens, tokens, rows)
        if self.shape.beam > 1:
            _write(self._parents, self._own[: len(tokens) // self.shape.beam] if parents is None else parents, places)
        self._graph.replay()
        found: MemberOutput = map_tensors(
            self._output, lambda tensor: tensor[: len(tokens)] if rows is None else tensor.index_select(0, rows)
        )
        return found


_STEPS: WeakKeyDictionary[nn.Module, list[CapturedStep]] = WeakKeyDictionary()
"""The recordings of each decoder; the one that was chosen last is at the end. They do not refer to the decoder."""

_CHOICE = Lock()


def record_steps(setup: DecodingSetup, cuda_graphs: bool, resources: Resources) -> DecodingSetup:
    """A setup whose sessions record their steps; see ``Capturing``.

    Args:
        setup: the setup.
        cuda_graphs: the value of the key, which is true.
        resources: are not used.
    """
    reasons = {obstacle(model, _device_of(model)) for model in setup.ensemble.models} - {""}
    notes = {*setup.notes, *(f"fast.cuda_graphs has no effect: {reason}" for reason in reasons)}
    capturing = Capturing()
    return replace(setup, member=capturing.member, around=[*setup.around, capturing.around], notes=notes)


class Capturing:
    """Lets the sessions of a setup record their steps, on devices that can."""

    def __init__(self) -> None:
        self.used = False

    def member(self, model: EncoderDecoderModel, source: Source, *arguments: Any) -> Member:
        """Make a member; see ``DecodingSetup.member``."""
        if source.src_tokens.device.type not in GRAPHS:
            return PlannedMember(model, source, *arguments)
        self.used = True
        return CapturedMember(model, source, *arguments)

    @contextmanager
    def around(self, setup: DecodingSetup) -> Iterator[None]:
        """See ``DecodingSetup.around``; a session that makes members of its own captures nothing."""
        yield
        if not self.used and _device_of(setup.ensemble.models[0]).type in GRAPHS:
            setup.notes.add(_NOTE.format("steps of this search have changing shapes"))


def _device_of(model: EncoderDecoderModel) -> torch.device:
    return next(model.parameters(), torch.zeros(0)).device


_NOTE = "some steps were not captured: {}"


class CapturedMember(PlannedMember):
    """A member whose steps after the first are replayed; a change of its sentences returns to the ordinary state.

    Attributes:
        step: the recording in use; ``None`` if there is none yet.
        refused: why steps are not recorded; ``None`` if they are, or if that is not known yet.
    """

    def __init__(self, model: EncoderDecoderModel, source: Source, *arguments: Any):
        super().__init__(model, source, *arguments)
        self.step: CapturedStep | None = None
        given = "" if source.encoder_out is None else "the encoder's output is given"
        self.refused: str | None = obstacle(model, source.src_tokens.device) or given or None
        self._width = _rounded(1 + source.src_tokens.size(1), _SMALLEST_SOURCE)
        self._parents: Tensor | None = None
        self._free = 0
        """Positions of the window that no sentence uses."""
        self._places: Tensor | None = None
        """``(sentences,)`` int64, the places of the sentences in the recording; ``None`` for the first ones."""
        if self.state is not None and not self.refused:
            self.state.beam_indirection = False  # the memory of a table changes its size

    def finish(self, notes: set[str]) -> None:
        """See ``Member.finish``."""
        if self.refused:
            notes.add(_NOTE.format(self.refused))

    def compute(self, tokens: Tensor, needs: Set[str]) -> MemberOutput:
        """See ``Member.compute``."""
        if self.refused is None and tokens.size(1) > 1 and self._free == 0:
            self._leave()
            self.refused = _current_obstacle(self, needs) or self._begin(frozenset(needs))
        if self.refused is not None or self.step is None:
            return super().compute(tokens, needs)
        self._free -= 1
        out = self.step.replay(tokens[:, -1:], self._parents, self._places)
        self._parents = None
        if out.attention is not None:
            out = replace(out, attention=out.attention[:, : self.encoder_out.encoder_out.size(1)])
        if self.step.fault is None:
            eager = super().compute(tokens, needs)  # the ordinary state is still that before this step
            self.step.check(out, eager)
            if self.step.fault:
                self.refused, self.step, self._free = self.step.fault, None, 0
                return eager
        return out

    def _begin(self, needs: frozenset[str]) -> str | None:
        """Choose or make the recording of the next steps; returns why there is none."""
        assert self.state is not None
        seen, beam = self.model.decoder.positions_seen(self.state), self.beam_size  # type: ignore[operator]
        sentences, window = _sentences_for(len(self.state.start_offsets)), _rounded(seen + 2, _SMALLEST_WINDOW)
        weights = tuple((weight.data_ptr(), _version(weight)) for weight in self.model.decoder.parameters())
        if window - 1 > self.model.decoder.max_positions():
            return "the output may be longer than what the model can read"
        shape = Shape(sentences, beam, self._width, window, needs, weights)
        try:
            step = self._use(shape)
            if step is not None and step.fault:
                raise NotCapturable(step.fault)
            filler = Filler.of(self.model, self.source, shape) if step is None else step.filler
            begin = filler.joined(self.model, self.state, self.encoder_out, sentences)
            if step is None:
                step = CapturedStep(self.model, shape, filler, begin)
                self._use(shape, step)
            step.load(begin)
        except NotCapturable as error:
            self.step = None
            return str(error)
        self._free = window - 1 - seen
        return None

    def _use(self, shape: Shape, new: CapturedStep | None = None) -> CapturedStep | None:
        """Use a recorded step of this shape that no other member uses, if there is one, or a new one, and keep it."""
        with _CHOICE:
            steps = _STEPS.setdefault(self.model.decoder, [])
            free = (step for step in steps if step.shape == shape and getattr(step.owner(), "step", None) is not step)
            self.step = new or next(free, None)
            if self.step is not None:
                self.step.owner = weakref.ref(self)
                steps[:] = [*(step for step in steps if step is not self.step), self.step][-_KEPT:]
        return self.step

    def _leave(self) -> None:
        """Take the state from the recording's memory."""
        if self.step is None:
            return
        decoder: Any = self.model.decoder
        self.state = self.step.state.fork()
        places, count = self._places, self.encoder_out.num_rows
        if places is not None:
            self.encoder_out = self.model.encoder.reorder_encoder_out(self.encoder_out, places)
        first = torch.arange(count, device=self.encoder_out.encoder_out.device) if places is None else places
        decoder.select_sentences(self.state, first)
        if self._parents is not None:
            decoder.reorder_beams(self.state, self._parents)
        decoder.crop(self.state, self._free)
        self.step, self._parents, self._places, self._free = None, None, None, 0

    def sentence_encoder_out(self) -> Any:
        """See ``Member.sentence_encoder_out``."""
        found, places = super().sentence_encoder_out(), self._places
        return found if places is None else self.model.encoder.reorder_encoder_out(found, places)

    def fork(self) -> Self:
        """See ``Member.fork``; the copy leaves the recording."""
        other = super().fork()
        other._leave()
        return other

    def reorder_beams(self, parents: Tensor) -> None:
        """See ``Member.reorder_beams``; a recorded step begins with it."""
        if self.step is None:
            super().reorder_beams(parents)
        else:
            self._parents = parents

    def select_sentences(self, keep: Tensor) -> None:
        """See ``Member.select_sentences``; others stay in a recording, without effect, until it is much too large."""
        if self.step is None or _sentences_for(len(keep)) * _SHRINKS <= self.step.shape.sentences:
            self._leave()
            super().select_sentences(keep)
            return
        self._places = keep if self._places is None else self._places.index_select(0, keep)
        self._parents = None if self._parents is None else self._parents.index_select(0, keep)

    def merge(self, other: Member) -> None:
        """See ``Member.merge``."""
        self._leave()
        if isinstance(other, CapturedMember):
            other._leave()
            self._width = max(self._width, other._width)
        super().merge(other)

    def crop(self, positions: int) -> None:
        """See ``Member.crop``."""
        self._leave()
        super().crop(positions)


def _write(memory: Tensor, values: Tensor, places: Tensor | None) -> None:
    """Write rows to some places; ``None`` for the first ones."""
    if places is None:
        memory[: len(values)].copy_(values)
    else:
        memory.index_copy_(0, places, values)


def _rounded(count: int, smallest: int) -> int:
    """The first of ``smallest``, ``2 * smallest``, ``4 * smallest`` ... that is at least ``count``."""
    while smallest < count:
        smallest *= 2
    return smallest


def _sentences_for(count: int) -> int:
    """The first of 1, 4, 16, 32, 64, 128 ... that is at least ``count``: more sizes where rows cost time."""
    return next((size for size in (1, 4) if count <= size), _rounded(count, 16))


def _version(weight: Tensor) -> int:
    """The number of changes of a weight in place; 0 for one that does not count them."""
    return 0 if weight.is_inference() else weight._version


def _copy(new: Any, old: Any) -> None:
    """Write the tensors of ``new`` into those of ``old``; all else must be equal.

    Raises:
        NotCapturable: it is not.
    """
    for (path, value), (place, memory) in zip_longest(leaves(new), leaves(old), fillvalue=("", None)):
        if path != place or not _alike(value, memory):
            raise NotCapturable(f"{path or place} is not the same at every step, or for every batch")
        if isinstance(value, Tensor) and isinstance(memory, Tensor) and value is not memory:
            begin = memory.data_ptr()
            overlaps = begin <= value.data_ptr() < begin + memory.numel() * memory.element_size()
            memory.copy_(value.clone() if overlaps else value)


def _alike(one: Any, other: Any) -> bool:
    """True for tensors of equal shape and dtype, and for equal values."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and one.dtype == other.dtype
    return type(one) is type(other) and not isinstance(one, Tensor) and bool(one == other)
