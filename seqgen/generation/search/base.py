"""Search strategies: which tokens continue which beams. They know nothing of models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import torch
from torch import Tensor

from seqgen.errors import ConfigError
from seqgen.generation.candidates import Candidates, best_continuations
from seqgen.registry import SEARCHES, register_search

if TYPE_CHECKING:
    from seqgen.config import GenerationConfig
    from seqgen.generation.finished import FinishedHypotheses, Ranking
    from seqgen.generation.sequence_generator import SequenceGenerator
    from seqgen.generation.session import Streamer
    from seqgen.structures import Batch, Hypothesis

Phrase: TypeAlias = Sequence[int] | Sequence[Sequence[int]]
"""Token ids that must follow one another; or several such phrases, of which one is enough."""

Phrases: TypeAlias = Sequence[Phrase]
"""What one sentence's output must contain."""


@dataclass(frozen=True)
class SearchBatch:
    """What a strategy is told when the decoding of a batch begins.

    Attributes:
        num_sentences: sentences in the batch.
        beam_size: hypotheses kept of each.
        eos: id of end-of-sentence.
        device: where the scores will be.
        constraints: for each sentence the phrases that its output must contain; ``None`` where nobody asked.
        ids: ``(num_sentences,)`` int64, which line each sentence is: what is random depends on it, not on the batch.
        end_symbols: how many symbols end an output, end-of-sentence included.
        semantics: ``"fairseq"`` or ``"huggingface"``.
        end_tokens: their ids.
        pad: id of padding.
    """

    num_sentences: int
    beam_size: int
    eos: int
    device: torch.device
    constraints: Sequence[Phrases] | None = None
    ids: Tensor | None = None
    end_symbols: int = 1
    semantics: str = "fairseq"
    end_tokens: Sequence[int] = ()
    pad: int = 1

    @property
    def num_candidates(self) -> int:
        """How many candidates are enough for ``beam_size`` of them to go on: each beam may end in so many ways."""
        return (1 + max(1, self.end_symbols)) * self.beam_size


class Search:
    """A strategy; a subclass implements ``step``.

    One that remembers something between two steps overrides ``begin`` to return an object of its own for each batch,
    so that any number of decodes may run with one strategy at once, and ``select_sentences`` and ``advance`` to follow
    what the generator does with the batch.
    """

    additive: bool = False
    """Whether it does no more with ``lprobs`` and ``scores`` than to add them: then the generator may hand over logits,
    with their normalizer taken from ``scores``, and spares a pass over the vocabulary."""

    joins: bool = False
    """Whether sentences may join a batch that it is searching: it remembers nothing, and asks of ``step`` no more than
    whether it is 0."""

    independent_rows: bool = False
    """Whether every beam is a hypothesis of its own: candidate ``i`` continues beam ``i``, and ends when it ends."""

    def rows(self, beam: int) -> int:
        """How many beams are decoded where ``beam`` are asked for."""
        return beam

    @classmethod
    def build(cls, cfg: Any) -> Self:
        """Make the strategy from an instance of the configuration class that it is registered with.

        Args:
            cfg: the configuration; its fields are the constructor's arguments, or else a subclass overrides this.
        """
        return cls(**{field.name: getattr(cfg, field.name) for field in fields(cfg)})

    def begin(self, batch: SearchBatch) -> Search:
        """Make ready for a batch.

        Args:
            batch: what is known of it.

        Returns:
            The strategy for this batch; itself where it remembers nothing.

        Raises:
            ConfigError: the batch has constraints, and the strategy does not know what to do with them.
        """
        if batch.constraints is not None:
            raise ConfigError(f"{type(self).__name__} does not take constraints; choose the constrained search")
        return self

    def decode(
        self,
        generator: SequenceGenerator,
        sample: Batch,
        prefix_tokens: Tensor | None = None,
        constraints: Sequence[Phrases] | None = None,
        streamer: Streamer | None = None,
    ) -> list[list[Hypothesis]]:
        """Decode a batch with this strategy; see ``Procedure``.

        The default asks ``step`` for candidates, step by step. A strategy that is more than a choice among the next
        tokens overrides it.
        """
        from seqgen.generation.session import Decoding

        return Decoding(generator, sample, prefix_tokens, constraints, streamer).run()

    def finished(self, ranking: Ranking, early_stopping: str) -> FinishedHypotheses | None:
        """The rule by which this batch's hypotheses finish, for a strategy that has one of its own.

        Args:
            ranking: how they score.
            early_stopping: see ``BestFinished``.

        Returns:
            The finished hypotheses of the batch, none so far; ``None`` for the rule of the semantics.
        """
        return None

    def select_sentences(self, keep: Tensor) -> None:
        """Forget all sentences but those in ``keep``, ``(kept,)`` int64."""

    def advance(self, going_on: Candidates) -> None:
        """Note which candidates become the beams of the next step.

        Args:
            going_on: ``beam`` candidates of each sentence.
        """

    def step(self, step: int, lprobs: Tensor, scores: Tensor) -> Candidates:
        """Choose the candidates of each sentence.

        Twice as many as beams are wanted: at most one of each beam's candidates is end-of-sentence, so that enough
        others go on.

        Args:
            step: how many tokens each hypothesis has; at 0 all beams of a sentence are the same.
            lprobs: ``(sentences, beam, V)`` log-probabilities of the next token; ``-inf`` where it is forbidden.
            scores: ``(sentences, beam)`` sum of log-probabilities so far; ``-inf`` for a beam that is dead.

        Returns:
            ``2 * beam`` candidates of each sentence, in the order in which they are preferred: those among the first
            ``beam`` that are end-of-sentence finish a hypothesis, and the first ``beam`` others go on.
        """
        raise NotImplementedError


@register_search("beam")
class BeamSearch(Search):
    """Keeps the hypotheses with the largest sum of log-probabilities."""

    additive = True
    joins = True

    def __init__(self) -> None:
        self.end_symbols = 1

    def begin(self, batch: SearchBatch) -> Search:
        """See ``Search.begin``."""
        search = super().begin(batch)
        if batch.end_symbols > 1:
            search = BeamSearch()
            search.end_symbols = batch.end_symbols
        return search

    def step(self, step: int, lprobs: Tensor, scores: Tensor) -> Candidates:
        """See ``Search.step``."""
        count = (1 + self.end_symbols) * lprobs.size(1)
        if step == 0:
            lprobs, scores = lprobs[:, :1], scores[:, :1]
        return best_continuations(lprobs, scores, count)


def search_name(cfg: GenerationConfig, semantics: str) -> str:
    """The name of the strategy that the ``generation`` group of a configuration asks for.

    By Hugging Face's rules one beam is greedy search, and sampling with several beams draws a beam search's candidates.

    Args:
        cfg: the configuration.
        semantics: ``"fairseq"`` or ``"huggingface"``.

    Raises:
        ConfigError: it asks for several at once.
    """
    asked = {
        "search": cfg.search,
        "diverse_beam_groups": "diverse_beam" if cfg.diverse_beam_groups > 0 else "",
        "diversity_rate": "diverse_siblings" if cfg.diversity_rate > 0 else "",
        "constraints": "constrained" if cfg.constraints else "",
    }
    names = {key: name for key, name in asked.items() if name}
    if len(set(names.values())) > 1:
        first, second, *_ = names
        raise ConfigError(f"generation.{first} and generation.{second} are two search strategies; choose one")
    if names:
        return next(iter(names.values()))
    huggingface = semantics == "huggingface"
    if cfg.sampling:
        return "beam_sampling" if huggingface and cfg.beam > 1 else "sampling"
    return "greedy" if huggingface and cfg.beam == 1 else "beam"


def search_from_config(cfg: GenerationConfig, semantics: str = "fairseq") -> Search:
    """Make the strategy that a configuration asks for, with the values that it has for it.

    Args:
        cfg: the configuration.
        semantics: ``"fairseq"`` or ``"huggingface"``.

    Raises:
        ConfigError: it asks for several at once, or for one that is not registered.
    """
    entry = SEARCHES.entry(search_name(cfg, semantics))
    values: dict[str, dict[str, Any]] = {
        "diverse_beam": {"groups": cfg.diverse_beam_groups, "strength": cfg.diverse_beam_strength},
        "diverse_siblings": {"rate": cfg.diversity_rate},
        "constrained": {"ordered": cfg.constraints == "ordered"},
        "sampling": {"seed": cfg.seed},
        "beam_sampling": {"seed": cfg.seed},
        "stochastic_beam": {"seed": cfg.seed},
        "contrastive": {"penalty_alpha": cfg.penalty_alpha, "contrastive_topk": cfg.contrastive_topk},
    }
    given = {"diverse_beam": cfg.diverse_beam_groups > 0, "diverse_siblings": cfg.diversity_rate > 0}
    chosen = values.get(entry.name, {}) if given.get(entry.name, True) else {}
    search: Search = entry.component.build(entry.config(**chosen))  # type: ignore[attr-defined]
    return search
