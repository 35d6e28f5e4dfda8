"""The base class of search strategies, which choose the tokens that continue each beam. They do not use models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from seqgen.core.candidates import Candidates
from seqgen.core.component import BatchInfo, Component, Phrases
from seqgen.core.context import StepContext
from seqgen.core.contract import Flags, check_returned, check_returned_tensor, contract_error
from seqgen.core.errors import ConfigError
from seqgen.core.finished import FinishedHypotheses, Ranking
from seqgen.core.scores import Scores


class Search(Component):
    """A search strategy; a subclass implements ``step``.

    A strategy with per-batch state declares ``sentence_state`` or ``beam_state`` and initializes it in ``begin``, so
    that one strategy can decode several batches at once. A strategy that needs another loop sets ``session_class``.
    """

    setting = "search"

    flags: ClassVar[Flags] = {
        "can_merge": ("begin", "finished", "select_sentences", "advance", "merge", "step", "token_fields"),
        "certifiable": ("rows", "begin", "finished", "advance", "step"),
        "continues_each_beam": ("begin", "step"),
        "samples_tokens": ("begin", "step"),
        "session_class": ("step",),
    }

    can_merge: bool = False
    """True if sentences may join a running batch: ``step`` then reads no tokens or source ids, of ``context.step`` only
    whether it is 0, and ``context.steps`` for the number of tokens."""

    continues_each_beam: bool = False
    """True if the beams are independent hypotheses: candidate ``i`` continues beam ``i``."""

    samples_tokens: bool = False
    """True if ``step`` draws one token for each beam from the scores by ``RandomSearch.uniforms``. Speculative decoding
    then verifies the drafts of a model by rejection sampling."""

    applies_processors: bool = False
    """True if ``step`` gets unprocessed scores and applies the logits processors itself, by ``context.process``."""

    enforces_constraints: bool = False
    """True if its outputs contain the phrases of ``BatchInfo.constraints``."""

    groups: int = 1
    """Number of groups of beams that do not compete with each other: beam and candidate ``i`` belong to group
    ``i % groups``."""

    changes_scores: bool = False
    """True if the scores of candidates differ on purpose from cumulative log-probabilities, for example by a penalty.
    Decoding does not read it; ``seqgen-check`` compares the scores with those of the model unless it is true."""

    is_stochastic: ClassVar[bool | None] = None
    """True if a built-in strategy draws random numbers, which depend on ``generation.seed``; false if it draws none."""

    generates_one: ClassVar[bool] = False
    """True if it generates a single output, whatever the beam, because all beams would be equal."""

    stops_early: ClassVar[bool] = True
    """True if ``generation.early_stopping`` applies to a built-in strategy: several hypotheses of a sentence compete
    until enough have finished."""

    session_class: ClassVar[type[Any] | None] = None
    """The class that decodes a batch; ``None`` for ``Session``. It is a subclass of ``Session``, or a class with the
    same constructor and a method ``run`` that returns the hypotheses of each sentence."""

    def rows(self, beam: int) -> int:
        """The number of beams that are decoded if the user asks for ``beam``."""
        return 1 if self.generates_one else beam

    def begin(self, batch: BatchInfo) -> Self:
        """Prepare for a batch; see ``Component.begin``.

        Raises:
            ConfigError: the batch has constraints, and the strategy does not support them.
        """
        if batch.constraints is not None and not self.enforces_constraints:
            raise ConfigError(f"{type(self).__name__} does not take constraints; pass ConstrainedSearch(inner=...)")
        return super().begin(batch)

    def check_constraints(self, constraints: Sequence[Phrases], sentences: int, vocab_size: int) -> None:
        """Check the phrases of a batch; a strategy that enforces constraints overrides this.

        Args:
            constraints: for each sentence the phrases that its outputs must contain.
            sentences: sentences of the batch.
            vocab_size: size of the target vocabulary.

        Raises:
            ConfigError: a phrase cannot be generated.
        """

    def finished(self, batch: BatchInfo, ranking: Ranking, early_stopping: str) -> FinishedHypotheses | None:
        """Make the object that stores finished hypotheses, for a strategy with another rule of which candidates finish.

        Args:
            batch: the properties of the batch.
            ranking: how they are scored.
            early_stopping: see ``BestFinished``.

        Returns:
            An empty object for the batch; ``None`` for that of the rules in use.
        """
        return None

    def complete(self, candidates: Candidates) -> Tensor | None:
        """Find the candidates that may become hypotheses if they end.

        Args:
            candidates: those that ``step`` returned, or some of them.

        Returns:
            Bool of their shape; ``None`` for all.
        """
        return None

    def summary(self) -> str:
        """A sentence about the batches decoded so far, which ``seqgen-generate`` prints at the end; by default none."""
        return ""

    def step(self, context: StepContext, scores: Scores) -> Candidates:
        """Choose the candidates of each sentence.

        Twice as many candidates as beams are needed: at most one candidate of each beam is end-of-sentence, so that
        enough others continue. With further end tokens, ``BatchInfo.num_candidates`` are needed.

        Args:
            context: the step context; at ``context.step == 0`` all beams of a sentence are equal.
            scores: the scores of the next token after each beam: ``scores.best(k)`` gives the best candidates,
                ``scores.lprobs()`` and ``scores.distribution()`` the log-probabilities of all tokens.

        Returns:
            ``2 * beam`` candidates of each sentence, best first: those among the first ``beam`` that are
            end-of-sentence finish a hypothesis, and the first ``beam`` others continue.
        """
        raise NotImplementedError


def choose_candidates(search: Search, context: StepContext, scores: Scores) -> Candidates:
    """Call the ``step`` of a strategy, and check the candidates that it returns.

    Raises:
        ContractError: they are no ``Candidates``, too few, their tensors have other shapes or dtypes, or, at the first
            step, there is no such token or beam.
    """
    found = check_returned(search, "step", search.step(context, scores), Candidates)
    live, beams = scores.beams.shape
    count = check_returned(search, "step", found.tokens, Tensor).size(-1)
    if count < beams:
        raise contract_error(search, "step", f"must return at least {beams} candidates of each sentence, not {count}")
    dtypes = {"scores": torch.result_type(scores.values, scores.beams), "tokens": torch.int64, "beams": torch.int64}
    for name, dtype in dtypes.items():
        check_returned_tensor(
            search, "step", getattr(found, name), (live, count), dtype, scores.beams.device, f"{name} "
        )
    if context.step == 0:  # only here, because this waits for the device
        exists, sizes = found.scores > -torch.inf, {"tokens": scores.size, "beams": beams}
        wrong = {k: ((getattr(found, k) < 0) | (getattr(found, k) >= size)) & exists for k, size in sizes.items()}
        if bool((wrong["tokens"] | wrong["beams"]).any()):
            name = "tokens" if bool(wrong["tokens"].any()) else "beams"
            bad = int(getattr(found, name)[wrong[name]][0])
            raise contract_error(search, "step", f"must return {name} from 0 to {sizes[name] - 1} but returns {bad}")
    return found
