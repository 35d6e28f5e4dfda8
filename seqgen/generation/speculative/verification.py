"""Speculative decoding: a drafter proposes several tokens, and the models verify all of them in one pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from seqgen.errors import ConfigError
from seqgen.generation.candidates import Candidates
from seqgen.generation.component import ATTENTION, FEATURES, LAYER_LOGITS, BatchInfo
from seqgen.generation.context import StepContext
from seqgen.generation.ensemble.member import MemberOutput, MemberSpec
from seqgen.generation.search.base import Search
from seqgen.generation.search.beam import BeamSearch, own_beams
from seqgen.generation.search.randomness import draw
from seqgen.generation.search.sampling import Sampling
from seqgen.generation.session import Session, StepScores
from seqgen.generation.setup import DecodingRequest, DecodingSetup
from seqgen.generation.speculative.drafters import (
    ACCEPTANCE,
    NOTHING,
    REPLACEMENT,
    Drafter,
    Drafts,
    other_vocabulary,
)
from seqgen.generation.speculative.look_ahead import LookAhead
from seqgen.structures import Hypothesis, Source


class SpeculativeSession(Session):
    """Decodes a batch with drafts.

    The loop is that of ``Session``. But the outputs of a step may be there already: they were computed when the members
    read the drafts for several steps at once. They are valid for as long as every sentence continues with its draft.

    Args:
        setup: see ``Session``; its search is a ``SpeculativeSearch``.
        request: see ``Session``; where members read the source differently, the batch's ``member_sources`` end with
            that of the draft model.
    """

    def __init__(self, setup: DecodingSetup, request: DecodingRequest):
        assert isinstance(setup.search, SpeculativeSearch)
        self.speculative = setup.search
        for need in setup.needs & {FEATURES, LAYER_LOGITS}:
            raise ConfigError(
                f"{setup.needing(need)} needs hidden features, which are not kept where a draft is verified; leave "
                "out the draft"
            )
        self.reach = self.speculative.draft_tokens + 1
        sample = request.sample
        source, models = sample.source, setup.ensemble.models
        if sample.member_sources is not None and len(sample.member_sources) == len(models) + 1:
            *others, source = sample.member_sources
            request = replace(request, sample=replace(sample, member_sources=others))
        with self.speculative.drafter.evaluating():
            super().__init__(setup, request)
            self.draft = self.speculative.drafter.begin(self, source)
        self.drafts = Drafts(self.backpointers.matrix()[..., :0], [])
        self.start = 0
        """The step that the first draft token is for."""
        self.stop = 0
        """The step at which a new draft is needed."""

    def run(self) -> list[list[Hypothesis]]:
        """See ``Session.run``."""
        with self.speculative.drafter.evaluating():
            return super().run()

    @property
    def draws(self) -> bool:
        """Whether drafts are drawn at random, and verified by Leviathan's rule."""
        return type(self.search).step is Sampling.step

    def new_member(self, spec: MemberSpec, source: Source, start_token: int | None) -> LookAhead:
        """A model that can read several tokens and roll back; see ``Session.new_member``."""
        return LookAhead(spec.model, source, self.beam, start_token, self.setup.debug, self.reach)

    def member_outputs(self, need_attention: bool) -> list[MemberOutput]:
        """Draft and read where needed; see ``Session.member_outputs``."""
        step = self.backpointers.length
        if step >= self.stop:
            self.look_ahead(step)
        return super().member_outputs(need_attention)

    def look_ahead(self, step: int) -> None:
        """Make a new draft, and let the members read it.

        With 3 tokens generated and 5 drafted, the members read the last of the 3 and the 5, and so have scores for the
        steps 3 to 8. Where drafts were drawn, the scores of the last of these steps are not used: in a larger batch, in
        which any sentence may reject its draft at any step, that step could have been one of a verified token.
        """
        generated = self.backpointers.matrix()
        last = int(self.sentences.max_lengths.max())
        self.drafts = self.draft.propose(step, generated, min(self.speculative.draft_tokens, last - step + 1))
        count = self.drafts.tokens.size(-1)
        tokens = torch.cat([generated, self._known(self.drafts.tokens)], dim=-1)[..., : 1 + last].flatten(0, 1)
        for member in self.members:
            assert isinstance(member, LookAhead)
            member.rewind(step)
            member.read(tokens, ATTENTION in self.needs)
        self.start, self.stop = step, tokens.size(1)
        if self.drafts.lprobs:
            self.stop = min(self.stop, step + count)

    def _known(self, drafted: Tensor) -> Tensor:
        """What members read in place of drafted tokens: tokens that all of them have."""
        return drafted.clamp(0, self.setup.vocab_size - 1)

    def choose(self, context: StepContext, scored: StepScores) -> Candidates:
        """Verify the tokens that were drawn; otherwise the strategy chooses, see ``Session.choose``."""
        place, lprobs = context.step - self.start, scored.lprobs
        if place >= len(self.drafts.lprobs):
            return super().choose(context, scored)
        tokens = self.verified(lprobs, self.drafts.tokens[..., place], self.drafts.lprobs[place], context.step)
        gains = lprobs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        alive = (scored.scores + gains).masked_fill(self.sentences.done.unsqueeze(1), -torch.inf)
        return Candidates(alive, tokens, own_beams(tokens))

    def verified(self, lprobs: Tensor, drafted: Tensor, drafted_with: Tensor, step: int) -> Tensor:
        """Accept drafted tokens or replace them, so that the results are distributed as the models say.

        A token that was drawn with probability ``q`` and should have ``p`` is accepted with probability ``p / q``, and
        otherwise replaced by a draw in proportion to ``max(0, p - q)`` (Leviathan et al. 2023, algorithm 1).

        Args:
            lprobs: ``(live, beam, V)``, the logarithm of p.
            drafted: ``(live, beam)`` int64.
            drafted_with: ``(live, beam, V)``, the logarithm of q.
            step: how many tokens each row has.

        Returns:
            ``(live, beam)`` int64.
        """
        if lprobs.size(-1) != drafted_with.size(-1):
            raise other_vocabulary(drafted_with.size(-1), lprobs.size(-1))
        wanted, had = (values.gather(-1, drafted.unsqueeze(-1)).squeeze(-1) for values in (lprobs, drafted_with))
        accepted = self.uniforms(ACCEPTANCE, step).log() < wanted - had
        residual = (lprobs.exp() - drafted_with.exp()).clamp(min=0.0).log()
        return torch.where(accepted, drafted, self.draw(REPLACEMENT, step, residual))

    def draw(self, purpose: int, step: int, lprobs: Tensor) -> Tensor:
        """Draw a token for each row: ``(live, beam, V)`` log-probabilities give ``(live, beam)`` int64."""
        tokens, _ = draw(lprobs.flatten(0, 1), self.uniforms(purpose, step).view(-1, 1))
        return tokens.view(lprobs.shape[:2])

    def uniforms(self, purpose: int, step: int) -> Tensor:
        """Uniform random numbers of the strategy for each row, ``(live, beam)``, see ``RandomSearch.uniforms``."""
        assert isinstance(self.search, Sampling)
        return self.search.uniforms(purpose, step, torch.arange(self.beam, device=self.scores.device))

    def select_sentences(self, keep: Tensor) -> None:
        """See ``Session.select_sentences``."""
        super().select_sentences(keep)
        self.draft.select_sentences(keep)
        self.drafts = self.drafts.select(keep)

    def advance(self, active: Candidates, attention: Tensor | None) -> None:
        """Compare what was generated with the draft; see ``Session.advance``."""
        step = self.backpointers.length
        super().advance(active, attention)
        place = step - self.start
        if place >= self.drafts.tokens.size(-1):
            return
        drafted = self.drafts.tokens[..., place]
        right = active.tokens == self._known(drafted)
        continues = (active.scores > -torch.inf) & ~self.sentences.done.unsqueeze(1)
        counted = continues & (drafted != NOTHING)
        verified, accepted, wrong = torch.stack(
            [counted.sum(), (counted & right).sum(), (continues & ~right).sum()]
        ).tolist()
        self.speculative.verified += verified
        self.speculative.accepted += accepted
        if wrong:
            self.stop = step + 1  # the members have read tokens after it that were not generated


class SpeculativeSearch(Search):
    """Decodes as another strategy would, with fewer passes of the models (Leviathan et al. 2023, Chen et al. 2023).

    The output is that of the strategy itself: greedy search writes the same tokens. Where a model drafts for sampling,
    the outputs have the same distribution, but are others than sampling alone draws with the same seed; n-gram drafts
    change nothing there either.

    All sentences of a batch advance together, as far as the one whose draft is rejected first. So this pays for small
    batches; what is generated does not depend on them.

    Args:
        drafter: makes the drafts.
        draft_tokens: how many tokens are drafted at a time.
        inner: the strategy; each of its beams must be a hypothesis of its own, or there is one beam.

    Raises:
        ConfigError: the strategy has a loop of its own, or ``draft_tokens`` is below 1.
    """

    session_class = SpeculativeSession

    def __init__(self, drafter: Drafter, draft_tokens: int = 5, inner: Search | None = None):
        if draft_tokens < 1:
            raise ConfigError(f"draft_tokens={draft_tokens} must be at least 1")
        self.inner = inner or BeamSearch()
        if self.inner.session_class is not None:
            raise ConfigError(
                f"a draft is verified token by token, and {type(self.inner).__name__} has a loop of its own; take "
                "greedy search or sampling, or no draft"
            )
        self.drafter = drafter
        self.draft_tokens = draft_tokens
        self.additive, self.independent_rows = self.inner.additive, self.inner.independent_rows
        self.needs = self.inner.needs  # type: ignore[misc]
        self.verified = 0
        """Drafted tokens that were verified, over all batches."""
        self.accepted = 0
        """Those of them that were accepted."""

    @property
    def acceptance_rate(self) -> float:
        """The share of drafted tokens that were accepted; NaN before the first."""
        return self.accepted / self.verified if self.verified else float("nan")

    def rows(self, beam: int) -> int:
        """See ``Search.rows``.

        Raises:
            ConfigError: the strategy compares beams with each other.
        """
        rows = self.inner.rows(beam)
        if rows > 1 and not self.inner.independent_rows:
            raise ConfigError(
                f"a draft is verified token by token, and {type(self.inner).__name__} with beam_size={beam} compares "
                "hypotheses with each other; take beam_size=1 or sampling, or no draft"
            )
        return rows

    def begin(self, batch: BatchInfo) -> Any:
        """The strategy itself, for a batch."""
        return self.inner.begin(batch)
