"""The arguments of a session: components and options (``DecodingSetup``), and the batch (``DecodingRequest``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

from torch import Tensor

from seqgen.config import DebugConfig
from seqgen.errors import listing
from seqgen.generation.certificate import Certificate
from seqgen.generation.component import (
    ATTENTION,
    FORBIDDEN,
    LAYER_LOGITS,
    MEMBER_LOGITS,
    MEMBER_LPROBS,
    Component,
    Phrases,
    flattened,
)
from seqgen.generation.ensemble.ensemble import Ensemble
from seqgen.generation.finished import Ranking
from seqgen.generation.observers import Observer
from seqgen.generation.processors.base import LogitsProcessor
from seqgen.generation.processors.length import ForceEndAtMaximum, ForceLast
from seqgen.generation.rules import Rules
from seqgen.generation.search.base import Search
from seqgen.generation.shortlist import Shortlist
from seqgen.generation.stopping import StoppingRule
from seqgen.modules.bit_exact import BitExact
from seqgen.modules.multihead_attention import MultiheadAttention
from seqgen.structures import Batch, Hypothesis
from seqgen.system.switches import INPUT_CHOICES, KERNEL_CHOICE, PREPACKED_WEIGHTS, TWO_STAGE_CANDIDATES, switched


class Streamer(Protocol):
    """Receives tokens while they are generated."""

    def put(self, sentence: int, tokens: Sequence[int]) -> None:
        """Receive the next tokens of a sentence.

        Args:
            sentence: the sentence's number, one of the batch's ``ids``.
            tokens: ids of the tokens.
        """
        ...

    def end(self, sentence: int) -> None:
        """Called when a sentence is complete."""
        ...


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


@dataclass(frozen=True)
class ScorePlan:
    """How member logits become search scores; see ``Session.score``.

    Attributes:
        processes_logits: whether processors see logits rather than log-probabilities.
        adds_logits: whether the log-softmax can be skipped: the search then adds logits and subtracts their
            log-sum-exp.
        renormalizes: whether scores are renormalized after the processors.
        columns: whether scores of a part of the vocabulary are enough for all components but the processors.
        edges: whether the search may get the scores of the tokens that a trie allows alone.
    """

    processes_logits: bool
    adds_logits: bool
    renormalizes: bool
    columns: bool
    edges: bool


@dataclass(frozen=True)
class DecodingSetup:
    """All components and options of a session.

    Attributes:
        ensemble: the members and their combination.
        rules: fairseq's or Hugging Face's rules.
        search: the strategy, in the variant that the rules select.
        processors: logits processors, in the order in which they are applied.
        stopping: stopping rules besides end-of-sentence and the maximum length.
        observers: called at every step.
        ranking: turns the cumulative score of a finished hypothesis into its score.
        limits: the length limits of outputs.
        beam_size: beams of each sentence.
        temperature: divides the logits, before everything else.
        early_stopping: see ``BestFinished``.
        eos: id of end-of-sentence.
        pad: id of padding.
        end_tokens: ids that end an output.
        vocab_size: size of the target vocabulary.
        need_attention: whether hypotheses have attention weights and alignments.
        debug: switches of optimizations.
        shortlist: the tokens that each sentence may generate; ``None`` for the whole vocabulary.
        bit_exact: whether the numbers of a sentence have the same bits in every batch.
        top_tokens: number of most probable tokens that hypotheses list for each token.
        eager_steps: with ``debug.captured_steps`` on a GPU, why some steps were not captured; sessions add to it.
    """

    ensemble: Ensemble
    rules: Rules
    search: Search
    processors: Sequence[LogitsProcessor]
    stopping: Sequence[StoppingRule]
    observers: Sequence[Observer]
    ranking: Ranking
    limits: Limits
    beam_size: int
    temperature: float
    early_stopping: str
    eos: int
    pad: int
    end_tokens: Sequence[int]
    vocab_size: int
    need_attention: bool = False
    debug: DebugConfig = field(default_factory=DebugConfig)
    shortlist: Shortlist | None = None
    bit_exact: bool = False
    top_tokens: int = 0
    eager_steps: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Bit-exact decoding keeps the keys of a row in the order of its tokens, and lets no sentence join later."""
        if self.bit_exact:
            debug = replace(self.debug, beam_table="off", kernel_choice="fixed", continuous_batching=False)
            object.__setattr__(self, "debug", debug)

    @property
    def components(self) -> list[Component]:
        """All components of a step."""
        return [self.search, self.ensemble.combination, *self.processors, *self.stopping, *self.observers]

    @property
    def certificate(self) -> Certificate | None:
        """The observer that bounds the scores of pruned outputs; ``None`` without one."""
        return next((observer for observer in self.observers if isinstance(observer, Certificate)), None)

    @property
    def needs(self) -> frozenset[str]:
        """The needs of all components."""
        wanted = frozenset({ATTENTION}) if self.need_attention or self.ranking.coverage else frozenset()
        return wanted.union(*(component.needs for component in self.components))

    def needing(self, need: str) -> str:
        """The class of the first component that declares a need, for a message."""
        return next(type(component).__name__ for component in self.components if need in component.needs)

    @contextmanager
    def switched(self) -> Iterator[None]:
        """While the context is active, the switches of ``seqgen/system/switches.py`` have the values of ``debug``.

        A strategy with another loop computes with the same bits in every batch in all of the loop, see ``exact``.
        """
        debug = self.debug
        switches = {
            PREPACKED_WEIGHTS: debug.prepacked_weights,
            KERNEL_CHOICE: debug.kernel_choice == "measured",
            TWO_STAGE_CANDIDATES: debug.two_stage_candidates,
        }
        whole_loop = self.bit_exact and self.search.session_class is not None
        with switched({**switches, INPUT_CHOICES: not self.bit_exact}), BitExact() if whole_loop else nullcontext():
            yield

    def exact(self) -> AbstractContextManager[object]:
        """With ``bit_exact``, models and components compute with the same bits in every batch in the ``with`` block."""
        return BitExact() if self.bit_exact and self.search.session_class is None else nullcontext()

    @cached_property
    def forces_end(self) -> bool:
        """True if a processor forces the last token of an output of the maximum length."""
        return any(isinstance(one, ForceEndAtMaximum | ForceLast) for one in flattened(self.processors))

    def ended(self, one: Hypothesis, last_step: int, timed_out: bool) -> Hypothesis:
        """The hypothesis with the reason why it ended; ``last_step`` is the step of its maximum length."""
        forced = int(one.tokens[-1]) not in self.end_tokens or (self.forces_end and len(one.tokens) > last_step)
        return replace(one, timed_out=timed_out, forced_end=forced)

    @cached_property
    def reads_history(self) -> bool:
        """True if any decoder reads columns of its input before the newest one."""
        models = self.ensemble.models
        return not self.debug.use_cache or any(getattr(model.decoder, "reads_history", True) for model in models)

    @cached_property
    def plan(self) -> ScorePlan:
        """How member logits become search scores."""
        combination, search = self.ensemble.combination, self.search
        models = [member.model for member in self.ensemble.members]
        softmax = all(model.normalizes_by_softmax and model.decoder.normalizes_by_softmax for model in models)
        single = len(models) == 1 and combination.keeps_single
        return ScorePlan(
            processes_logits=single and self.rules.processes_logits(search),
            adds_logits=self.debug.skip_log_softmax
            and single
            and search.accepts_logits
            and softmax
            and all(processor.shift_invariant for processor in self.processors),
            renormalizes=self.rules.renormalizes(search),
            columns=self.debug.shortlist_columns
            and search.takes_columns
            and combination.takes_columns
            and not self.needs & {MEMBER_LOGITS, MEMBER_LPROBS, LAYER_LOGITS, FORBIDDEN}
            and not any(model.adjusts_logits for model in models)
            and softmax,
            edges=self.debug.trie_edges
            and search.takes_columns
            and not search.processes_itself
            and not any(observer.reads_scores for observer in self.observers),
        )

    @cached_property
    def merge_obstacle(self) -> str:
        """The reason why waiting sentences cannot join a running batch, for a message; empty if they can."""
        models, debug = self.ensemble.models, self.debug
        unset = _without_merge([*self.components, *(model.decoder for model in models)])
        adjusting = [type(model).__name__ for model in models if model.adjusts_logits]
        cache = self.cache_without_merge
        off = [name for name in ("use_cache", "continuous_batching") if not getattr(debug, name)]
        reasons = {
            f"debug.{listing(off)} is off": off,
            f"{type(self.search).__name__} has a decoding loop of its own": self.search.session_class,
            f"{listing(unset)} does not support it": unset,
            "a component or the output needs attention": ATTENTION in self.needs,
            f"{listing(adjusting)} adjusts the scores of each step": adjusting,
            cache: cache,
        }
        return next((reason for reason, applies in reasons.items() if applies), "")

    @property
    def cache_without_merge(self) -> str:
        """The user's key/value cache that cannot merge batches, for a message; empty if there is none."""
        layers = [layer for model in self.ensemble.models for layer in model.decoder.modules()]
        used = {layer.cache for layer in layers if isinstance(layer, MultiheadAttention) and layer.cache is not None}
        caches = (cache() for cache in used)
        names = (type(cache).__name__ for cache in caches if not cache.can_merge)
        return next((f"the key/value cache {name} does not support it" for name in names), "")


@dataclass(frozen=True)
class DecodingRequest:
    """One call of the generator.

    Attributes:
        sample: the batch; only its sources are read.
        prefix_tokens: ``(sentences, P)`` int64 tokens that each output begins with, padded on the right; or ``None``.
        constraints: for each sentence the phrases that its outputs must contain; or ``None``.
        streamer: receives the tokens of the first beam; or ``None``.
    """

    sample: Batch
    prefix_tokens: Tensor | None = None
    constraints: Sequence[Phrases] | None = None
    streamer: Streamer | None = None


def _without_merge(parts: Sequence[Any]) -> list[str]:
    """The names of the classes that do not set ``can_merge``, in place of a composite those of its parts."""
    found = []
    for part in parts:
        if not getattr(part, "can_merge", False):
            found += _without_merge(getattr(part, "parts", ())) or [type(part).__name__]
    return found
