"""The arguments of a session: components and options (``DecodingSetup``), and the batch (``DecodingRequest``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, TypeAlias

from torch import Tensor

from seqgen.core.combinations import Combination
from seqgen.core.component import ATTENTION, BatchInfo, Component, Phrases, flattened, with_fields
from seqgen.core.ensemble import Ensemble
from seqgen.core.errors import listing
from seqgen.core.finished import Ranking
from seqgen.core.member import FastPaths, Member, ModelOrMember
from seqgen.core.observers import Observer
from seqgen.core.processors import LogitsProcessor
from seqgen.core.rules import Rules, StoppingRule
from seqgen.core.search import Search
from seqgen.core.structures import Batch, Hypothesis

Context: TypeAlias = AbstractContextManager[object]


@dataclass(frozen=True)
class Limits:
    """The length limits of outputs.

    Attributes:
        max_len_a: an output has at most ``max_len_a * source length + max_len_b`` tokens before end-of-sentence;
            -1 limits prompt and output together.
        max_len_b: see ``max_len_a``.
        max_len: maximum number of tokens of any output, end-of-sentence included.
        match_source_len: whether each output has exactly the length of its source.
    """

    max_len_a: float
    max_len_b: int
    max_len: int
    match_source_len: bool = False

    def last_steps(self, src_lengths: Tensor) -> Tensor:
        """The last step of each sentence.

        Args:
            src_lengths: ``(sentences,)`` int64, end-of-sentence included.

        Returns:
            ``(sentences,)`` int64.
        """
        if self.match_source_len:
            return (src_lengths - 1).clamp(max=self.max_len - 1)
        return (self.max_len_a * src_lengths + self.max_len_b).clamp(min=0, max=self.max_len - 1).long()


class BatchStage(Protocol):
    """Changes a batch before it is decoded or scored, and each result afterwards."""

    def before(self, sample: Batch) -> Batch:
        """The batch that is decoded in place of ``sample``; its sentences are the same."""

    def after(self, one: Hypothesis, sample: Batch) -> Hypothesis:
        """The result for ``sample``, given that of the batch that was decoded."""


@dataclass(frozen=True)
class DecodingSetup:
    """All components and options of a session.

    Attributes:
        ensemble: the members and their combination.
        search: the strategy, in the variant that the rules select.
        limits: the length limits of outputs.
        beam_size: beams of each sentence.
        eos: id of end-of-sentence.
        pad: id of padding.
        end_tokens: ids that end an output.
        rules: the rules of a toolkit.
        processors: logits processors, in the order in which they are applied.
        stopping: stopping rules besides end-of-sentence and the maximum length.
        observers: called at every step.
        ranking: turns the cumulative score of a finished hypothesis into its score.
        temperature: divides the logits, before everything else.
        early_stopping: see ``BestFinished``.
        vocab_size: size of the target vocabulary; -1 if it is not known.
        need_attention: whether hypotheses have attention weights and alignments.
        fast: switches of optimizations.
        member: makes a member of a session, with the arguments of ``Member``.
        scoring: makes what turns the members' logits into scores, with the arguments of ``Scoring``, which is the
            default.
        around: contexts around the decoding of a batch; each is made from the setup.
        around_step: contexts around the computation of a phase: ``"begin"`` (the encoders), ``"step"`` (the members and
            components) and ``"fields"`` (fields of tokens); each is made from the session and the phase.
        stages: change the batch before, and the hypotheses after the decoding, in this order.
        notes: what the user should know, before and after a decode; members and observers add to it.
    """

    ensemble: Ensemble
    search: Search
    limits: Limits
    beam_size: int
    eos: int
    pad: int
    end_tokens: Sequence[int]
    rules: Rules = field(default_factory=Rules)
    processors: Sequence[LogitsProcessor] = ()
    stopping: Sequence[StoppingRule] = ()
    observers: Sequence[Observer] = ()
    ranking: Ranking = field(default_factory=Ranking)
    temperature: float = 1.0
    early_stopping: str = "false"
    vocab_size: int = -1
    need_attention: bool = False
    fast: FastPaths = field(default_factory=FastPaths)
    member: Callable[..., Member] = Member
    scoring: Callable[[DecodingSetup, BatchInfo], Any] | None = None
    around: Sequence[Callable[[DecodingSetup], Context]] = ()
    around_step: Sequence[Callable[[Any, str], Context]] = ()
    stages: Sequence[BatchStage] = ()
    notes: set[str] = field(default_factory=set)

    @property
    def components(self) -> list[Component]:
        """All components of a step."""
        return [self.search, self.ensemble.combination, *self.processors, *self.stopping, *self.observers]

    @cached_property
    def needs(self) -> frozenset[str]:
        """The needs of all components."""
        wanted = frozenset({ATTENTION}) if self.need_attention or self.ranking.coverage else frozenset()
        return wanted.union(*(component.needs for component in self.components))

    def needing(self, need: str) -> str:
        """The class of the first component that declares a need, for a message."""
        return next(type(component).__name__ for component in self.components if need in component.needs)

    @cached_property
    def has_fields(self) -> bool:
        """True if a component has fields; see ``Component.token_fields``."""
        return bool(with_fields(self.components))

    @contextmanager
    def active(self) -> Iterator[None]:
        """In the ``with`` block, the contexts of ``around`` are active."""
        with ExitStack() as stack:
            for make in self.around:
                stack.enter_context(make(self))
            yield

    @cached_property
    def forces_end(self) -> bool:
        """True if a processor forces the last token of an output of the maximum length."""
        return any(getattr(one, "forces_end", False) for one in flattened(self.processors))

    def with_end_reason(self, one: Hypothesis, last_step: int, timed_out: bool) -> Hypothesis:
        """The hypothesis with the reason why it ended; ``last_step`` is the step of its maximum length."""
        forced = int(one.tokens[-1]) not in self.end_tokens or (self.forces_end and len(one.tokens) > last_step)
        return replace(one, timed_out=timed_out, forced_end=forced)

    @cached_property
    def reads_history(self) -> bool:
        """True if any decoder reads columns of its input before the newest one."""
        models = self.ensemble.models
        return not self.fast.use_cache or any(getattr(model.decoder, "reads_history", True) for model in models)

    @cached_property
    def merge_obstacle(self) -> str:
        """The reason why waiting sentences cannot join a running batch, for a message; empty if they can."""
        models = self.ensemble.models
        unset = _without_merge([*self.components, *(model.decoder for model in models)])
        adjusting = [type(model).__name__ for model in models if model.adjusts_logits]
        found = (getattr(model.decoder, "merge_obstacle", "") for model in models)
        of_decoder = next(filter(None, found), "")
        off = [name for name in ("use_cache", "continuous_batching") if not getattr(self.fast, name)]
        reasons = {
            f"fast.{listing(off)} is off": off,
            "a stage changes batches before they are decoded": self.stages,
            f"{type(self.search).__name__} has a decoding loop of its own": self.search.session_class,
            f"{listing(unset)} does not support it": unset,
            "a component or the output needs attention": ATTENTION in self.needs,
            f"{listing(adjusting)} adjusts the scores of each step": adjusting,
            of_decoder: of_decoder,
        }
        return next((reason for reason, applies in reasons.items() if applies), "")


def Setup(  # it stands for the class, whose other arguments it fills in
    models: Sequence[ModelOrMember],
    search: Search,
    *,
    eos: int,
    pad: int,
    max_len: int,
    beam_size: int = 1,
    combination: Combination | None = None,
    **others: Any,
) -> DecodingSetup:
    """A setup with defaults: plain rules, no processors, scores divided by the length.

    Args:
        models: one or more models that share the target vocabulary.
        search: the strategy.
        eos: id of end-of-sentence.
        pad: id of padding.
        max_len: maximum number of tokens of an output, end-of-sentence included.
        beam_size: beams of each sentence.
        combination: combines the members' scores; by default the mean of probabilities.
        others: other fields of ``DecodingSetup``.
    """
    given: dict[str, Any] = {"limits": Limits(0.0, max_len, max_len), "end_tokens": [eos], "eos": eos, "pad": pad}
    given |= {"ensemble": Ensemble(models, combination), "search": search, "beam_size": search.rows(beam_size)}
    return DecodingSetup(**{**given, **others})


@dataclass(frozen=True)
class DecodingRequest:
    """One call of the generator.

    Attributes:
        sample: the batch; only its sources are read.
        prefix_tokens: ``(sentences, P)`` int64 tokens that each output begins with, padded on the right; or ``None``.
        constraints: for each sentence the phrases that its outputs must contain; or ``None``.
    """

    sample: Batch
    prefix_tokens: Tensor | None = None
    constraints: Sequence[Phrases] | None = None


def _without_merge(parts: Sequence[Any]) -> list[str]:
    """The names of the classes that do not set ``can_merge``, in place of a composite those of its parts."""
    found = []
    for part in parts:
        inner = _without_merge(getattr(part, "parts", ())) if isinstance(part, Component) else []
        found += inner or ([] if getattr(part, "can_merge", False) else [type(part).__name__])
    return found
