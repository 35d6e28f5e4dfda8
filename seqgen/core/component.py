"""The base of all components of decoding: configuration, declared needs, and per-batch state that follows the beams.

Search strategies, logits processors, combinations, stopping rules and observers are components. A component that
needs values from earlier steps stores them in tensors and lists their names in ``sentence_state`` or ``beam_state``.
The session then reorders them with the beams, drops them with finished sentences and merges them with joining ones::

    class MaximumCoverage(LogitsProcessor):
        beam_state = ("seen",)                                   # (sentences, beam, V)

        def begin(self, batch):
            processor = super().begin(batch)                     # a copy for this batch
            processor.seen = torch.zeros(batch.num_sentences, batch.beam_size, self.size, device=batch.device)
            return processor

        def advance(self, active):
            super().advance(active)                              # row i of seen now belongs to the parent of beam i
            self.seen.scatter_(2, active.tokens.unsqueeze(2), 1.0)
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

import torch
from torch import Tensor

from seqgen.core.backpointers import CONTINUATION
from seqgen.core.candidates import Candidates, gather_beams
from seqgen.core.contract import Flagged, check_returned, check_returned_tensor, contract_error, defined_in
from seqgen.core.errors import ConfigError, DecodingError, nearest
from seqgen.core.structures import map_tensors

Phrase: TypeAlias = Sequence[int] | Sequence[Sequence[int]]
"""Token ids that must occur in sequence; or several alternatives, of which one must occur."""

Phrases: TypeAlias = Sequence[Phrase]
"""The phrases that the output of one sentence must contain."""


HIDDEN_STATES = "features"
"""A need: the last hidden features of the first member's decoder."""

ATTENTION = "attention"
"""A need: attention over the source."""

MEMBER_LOGITS = "member_logits"
"""A need: the logits of each member before they are combined."""

MEMBER_LPROBS = "member_lprobs"
"""A need: the log-probabilities of each member of an ensemble before they are combined; they cost no computation."""

LAYER_LOGITS = "layer_logits"
"""A need: the logits that the output layer gives to the output of each decoder layer."""

FORBIDDEN = "forbidden"
"""A need of observers: ``StepRecord.forbidden``."""

NEEDS = (HIDDEN_STATES, ATTENTION, MEMBER_LOGITS, MEMBER_LPROBS, LAYER_LOGITS, FORBIDDEN)
"""All needs."""


@dataclass(frozen=True)
class BatchInfo:
    """The ``live`` sentences, those that have not left the batch: all of them when its decoding begins.

    Attributes:
        ids: ``(live,)`` int64, line number of each sentence, on which random numbers depend.
        beam_size: beams of each sentence.
        eos: id of end-of-sentence.
        pad: id of padding.
        end_tokens: ids that end an output, end-of-sentence first.
        max_lengths: ``(live,)`` int64, last step of each sentence, counted from the first step of the batch.
        done: ``(live,)`` bool, which sentences need no further hypotheses.
        counts_start: whether the start token counts as generated (Hugging Face's rules) or not (fairseq's).
        continues_source: whether the source is a prompt, which counts as generated.
        start_offsets: ``(live,)`` int64, the step at which each joined the batch; ``None`` where all began together.
        prefix_tokens: ``(live, P)`` int64, tokens that each output begins with, padded on the right; or ``None``.
        first_tokens: ``(live,)`` int64, the first token of each output; ``None`` if the batch does not say.
        constraints: for each sentence the phrases that its output must contain; ``None`` without constraints.
        src_tokens: ``(live, S)`` int64, ids of the source as the first member reads it; ``None`` if not known.
        src_padding: ``(live, S)`` bool, true at padding; ``None`` if there is no padding.
        source_texts: the text of each source line; ``None`` if sentences were not given as text.
        members: the members that decode; none where known targets are scored.
    """

    ids: Tensor
    beam_size: int
    eos: int
    pad: int
    end_tokens: Sequence[int]
    max_lengths: Tensor
    done: Tensor
    counts_start: bool = False
    continues_source: bool = False
    start_offsets: Tensor | None = None
    prefix_tokens: Tensor | None = None
    first_tokens: Tensor | None = None
    constraints: Sequence[Phrases] | None = None
    src_tokens: Tensor | None = None
    src_padding: Tensor | None = None
    source_texts: Sequence[str] | None = None
    members: Sequence[Any] = ()

    @property
    def encoder_outs(self) -> list[Any]:
        """The ``EncoderOut`` of each member, with a row for each live sentence; it must not be changed in place."""
        return [member.sentence_encoder_out() for member in self.members]

    @property
    def num_sentences(self) -> int:
        """The number of live sentences."""
        return len(self.ids)

    @property
    def device(self) -> torch.device:
        """The device of the scores."""
        return self.ids.device

    @property
    def num_candidates(self) -> int:
        """Candidates of which at least ``beam_size`` continue: each end token can end at most ``beam_size`` of them."""
        return (1 + len(self.end_tokens)) * self.beam_size

    @property
    def own_limits(self) -> Tensor:
        """``(live,)`` int64, last step of each sentence, counted from the first step of the sentence."""
        return self.max_lengths if self.start_offsets is None else self.max_lengths - self.start_offsets

    def select(self, keep: Tensor) -> BatchInfo:
        """The sentences ``keep``, ``(kept,)`` int64."""
        rows = keep.tolist() if self.source_texts or self.constraints else []
        kept: BatchInfo = map_tensors(self, lambda tensor: tensor.index_select(0, keep))
        return replace(
            kept,
            source_texts=self.source_texts and [self.source_texts[row] for row in rows],
            constraints=self.constraints and [self.constraints[row] for row in rows],
        )


class Component(Flagged):
    """The base class of all parts of a decoding step that can be exchanged."""

    needs: ClassVar[frozenset[str]] = frozenset()
    """The optional parts of the step context that it reads: any of ``HIDDEN_STATES``, ``ATTENTION``, ``MEMBER_LOGITS``,
    ``MEMBER_LPROBS`` and ``LAYER_LOGITS``. The session computes only those that some component in use declares."""

    sentence_state: ClassVar[tuple[str, ...]] = ()
    """Names of attributes that hold tensors ``(sentences, ...)`` while a batch is decoded."""

    beam_state: ClassVar[tuple[str, ...]] = ()
    """Names of attributes that hold tensors ``(sentences, beam, ...)`` while a batch is decoded."""

    setting: ClassVar[str] = ""
    """The key of the ``generation`` group whose value may be such an object in place of a name; empty if none is."""

    certifiable: bool = False
    """True if the scores of pruned outputs can be bounded: a combination turns log-probabilities into scores of at
    most 0; a processor raises no score, or its changes along any output sum to at most 0 after the first token; a
    strategy prunes only candidates that score below its beams."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("needs", "sentence_state", "beam_state"):
            if isinstance(given := getattr(cls, name), str):
                raise ConfigError(f"{defined_in(cls)}: {cls.__name__}.{name} is the string {given!r}; write {[given]}")
        if not isinstance(cls.needs, property) and (unknown := sorted(map(str, {*cls.needs} - {*NEEDS}))):
            raise ConfigError(
                f"{defined_in(cls)}: {cls.__name__}.needs has {unknown[0]!r}, which is not a "
                f"need{nearest(unknown[0], NEEDS)}; the needs are {', '.join(NEEDS)}"
            )

    @classmethod
    def build(cls, cfg: Any, resources: Any) -> Self:
        """Make the component from an instance of the configuration class that it is registered with.

        Args:
            cfg: the configuration; its fields are the arguments of the constructor, unless a subclass overrides this.
            resources: what it may use besides, such as the target vocabulary and its tokenizer.
        """
        return cls(**{field.name: getattr(cfg, field.name) for field in fields(cfg)})

    def begin(self, batch: BatchInfo) -> Self:
        """Prepare for a batch.

        Args:
            batch: the properties of the batch.

        Returns:
            The component for this batch: a shallow copy, on which a subclass sets what belongs to the batch. Changes
            in place of lists and tensors that ``__init__`` has made last from batch to batch.
        """
        return copy.copy(self)

    def advance(self, active: Candidates) -> None:
        """Follow the beams: beam ``i`` of each sentence now continues beam ``active.beams[:, i]``.

        Args:
            active: the ``beam`` candidates of each sentence that continue.
        """
        for name in self.beam_state:
            setattr(self, name, gather_beams(getattr(self, name), active.beams))

    def select_sentences(self, keep: Tensor) -> None:
        """Keep only the sentences ``keep``, ``(kept,)`` int64."""
        for name in (*self.sentence_state, *self.beam_state):
            setattr(self, name, getattr(self, name).index_select(0, keep))

    def merge(self, other: Self) -> None:
        """Append the sentences of another batch; see ``Session.merge``."""
        for name in (*self.sentence_state, *self.beam_state):
            setattr(self, name, torch.cat([getattr(self, name), getattr(other, name)]))

    def token_fields(self, candidates: Candidates, context: Any) -> Mapping[str, Tensor]:
        """Values of the component for the new token of each candidate, for ``Hypothesis.fields``; none by default.

        Called at each step, after the candidates were chosen and finalized, and after ``Observer.observe``.

        Args:
            candidates: ``K`` of each live sentence, in the order of the search strategy.
            context: the ``StepContext`` of the beams that they continue.

        Returns:
            Tensors ``(live, K, ...)`` by name; the same names, further dimensions and dtypes at every step.
        """
        return {}

    def fork(self) -> Self:
        """A copy whose state changes independently, for a strategy that returns to earlier prefixes."""
        other = copy.copy(self)
        for name in (*self.sentence_state, *self.beam_state):
            setattr(other, name, getattr(self, name).clone())
        return other


class Composite(Component):
    """A component that consists of other components; a subclass sets ``parts``."""

    parts: list[Any]
    """The components that it consists of."""

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """The needs of all parts."""
        return frozenset().union(*(part.needs for part in self.parts))

    def begin(self, batch: BatchInfo) -> Self:
        """See ``Component.begin``."""
        return self._with([begin_component(part, batch) for part in self.parts])

    def advance(self, active: Candidates) -> None:
        """See ``Component.advance``."""
        for part in self.parts:
            part.advance(active)

    def select_sentences(self, keep: Tensor) -> None:
        """See ``Component.select_sentences``."""
        for part in self.parts:
            part.select_sentences(keep)

    def merge(self, other: Self) -> None:
        """See ``Component.merge``."""
        for mine, theirs in zip(self.parts, other.parts, strict=True):
            mine.merge(theirs)

    def fork(self) -> Self:
        """See ``Component.fork``."""
        return self._with([part.fork() for part in self.parts])

    def _with(self, parts: list[Any]) -> Self:
        other = copy.copy(self)
        other.parts = parts
        return other


def flattened(components: Iterable[Component]) -> Iterator[Component]:
    """The components, each after its parts if it is a composite."""
    for component in components:
        yield from flattened(component.parts if isinstance(component, Composite) else ())
        yield component


C = TypeVar("C", bound=Component)


def begin_component(component: C, batch: BatchInfo) -> C:
    """Prepare a component for a batch, and check the tensors that it names as its state.

    Args:
        component: the component.
        batch: the properties of the batch.

    Returns:
        What its ``begin`` returns.

    Raises:
        DecodingError: that is no component, or a tensor of its state is missing or has another shape.
    """
    found: C = check_returned(component, "begin", component.begin(batch), Component)  # type: ignore[assignment]
    of_sentences = dict.fromkeys(found.sentence_state, (batch.num_sentences,))
    for name, shape in (of_sentences | dict.fromkeys(found.beam_state, (batch.num_sentences, batch.beam_size))).items():
        value = getattr(found, name, None)
        if not isinstance(value, Tensor) or value.shape[: len(shape)] != shape:
            given = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            sizes = ", ".join(map(str, shape))
            wrong = f"must set the state {name!r} to a tensor ({sizes}, ...), not {given}"
            raise contract_error(found, "begin", wrong)
    return found


def with_fields(components: Iterable[Component]) -> list[Component]:
    """The components, and parts of composites, that have fields."""
    return [one for one in flattened(components) if type(one).token_fields is not Component.token_fields]


def fields_of(
    components: Iterable[Component], candidates: Candidates, context: Any, known: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The fields of candidates, after a check of what the components return.

    Args:
        components: see ``Component.token_fields``.
        candidates: see ``Component.token_fields``.
        context: see ``Component.token_fields``.
        known: the fields of earlier steps, ``(live, steps, K, ...)`` by name; empty at the first step.

    Raises:
        ContractError: a component returns something else, or other fields than at earlier steps.
        ConfigError: two components have a field of the same name.
    """
    found: dict[str, Tensor] = {}
    for one in with_fields(components):
        values: Any = check_returned(one, "token_fields", one.token_fields(candidates, context), Mapping)
        for name, value in values.items():
            if name in found:
                raise ConfigError(
                    f"{type(one).__name__} and another component both return the field {name!r}; remove one of the two"
                )
            like = known[name][:, 0] if name in known else check_returned(one, "token_fields", value, Tensor)
            shape, device = (*candidates.tokens.shape, *like.shape[2:]), candidates.tokens.device
            found[name] = check_returned_tensor(one, "token_fields", value, shape, like.dtype, device, f"{name} ")
    if known and (other := sorted({*found} ^ {*known} - {CONTINUATION})):
        raise DecodingError(f"the field {other[0]!r} is missing at some steps; token_fields must return it at each")
    return found
