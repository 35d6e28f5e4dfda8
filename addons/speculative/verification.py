"""Speculative decoding: a drafter proposes several tokens, and the models verify all of them in one pass."""

from __future__ import annotations

import copy
from collections.abc import Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from seqgen.extend import (
    ATTENTION,
    HIDDEN_STATES,
    LAYER_LOGITS,
    BatchInfo,
    BeamSearch,
    Candidates,
    ConfigError,
    DecodingRequest,
    DecodingSetup,
    EncoderDecoderModel,
    FastPaths,
    Hypothesis,
    IncrementalDecoder,
    IncrementalState,
    MemberOutput,
    MemberSpec,
    PlannedMember,
    RandomSearch,
    Scores,
    Search,
    Session,
    Source,
    StepContext,
    draw,
    map_tensors,
    own_beams,
    rows_of_sentences,
    run_decoder,
)

DRAFTED, ACCEPTANCE, REPLACEMENT = 3, 4, 5
"""Counters of independent random numbers, as in ``search.sampling``: for drafting a token, for accepting it, and for
replacing it."""

NOTHING = -1
"""Marks a position without a drafted token."""


@dataclass(frozen=True)
class Drafts:
    """Drafted tokens for some steps.

    Attributes:
        tokens: ``(live, beam, D)`` int64, for ``D`` steps; ``NOTHING`` at positions without a token.
        lprobs: for each step the log-probabilities ``(live, beam, V)`` of the distribution from which the token was
            drawn; empty if tokens were not drawn at random.
    """

    tokens: Tensor
    lprobs: list[Tensor]


class Draft:
    """Drafts tokens for one batch; a subclass implements ``propose``."""

    def propose(self, step: int, generated: Tensor, count: int) -> Drafts:
        """Draft the next tokens of all rows.

        Args:
            step: number of tokens that each row has generated.
            generated: ``(live, beam, 1 + step)`` int64, the start token and the generated tokens.
            count: the largest number of steps to draft for.

        Returns:
            Drafts for ``count`` steps or fewer.
        """
        raise NotImplementedError

    def select_sentences(self, keep: Tensor) -> None:
        """Drop all sentences except ``keep``, ``(kept,)`` int64; needed by drafts with state."""


class Drafter:
    """Drafts tokens; it has no state of a batch. A subclass implements ``begin``."""

    needs: ClassVar[frozenset[str]] = frozenset()
    """``frozenset({HIDDEN_STATES})`` if its drafts read ``SpeculativeSession.newest_features``."""

    def begin(self, target: SpeculativeSession, source: Source) -> Draft:
        """Start a batch.

        Args:
            target: the session that verifies the drafts.
            source: the sentences of the batch, encoded for the drafter.

        Returns:
            The object that drafts for this batch.
        """
        raise NotImplementedError

    def evaluating(self) -> AbstractContextManager[None]:
        """A context in which decoding runs, for example with the draft model in evaluation mode."""
        return nullcontext()


class LookAhead(PlannedMember):
    """A member that reads drafted tokens before they are verified.

    ``rewind`` drops rejected tokens, ``read`` reads the newest and the drafted tokens in one pass, and then
    ``next_output`` returns the stored output of each of these positions.

    If the decoder can roll back its state, ``rewind`` does so; otherwise it restores a copy of the state.

    Args:
        model: see ``Member``.
        source: see ``Member``.
        beam_size: see ``Member``.
        start_token: see ``Member``.
        fast: see ``Member``.
        reach: the largest number of positions that ``rewind`` drops.

    Attributes:
        seen: number of columns of the decoder's input that have been read.
        first: the first column of the newest pass.
        out: the output for all columns of the newest pass, ``(rows, new, ...)``.
        mark: ``seen`` and a copy of the state at the last ``rewind``, if the decoder cannot roll back.
    """

    def __init__(
        self,
        model: EncoderDecoderModel,
        source: Source,
        beam_size: int,
        start_token: int | None,
        fast: FastPaths,
        reach: int,
    ):
        super().__init__(model, source, beam_size, start_token, fast)
        if self.state is not None:
            self.state.max_roll_back = reach
        self.can_roll_back = isinstance(model.decoder, IncrementalDecoder) and model.decoder.can_roll_back
        self.seen = self.first = 0
        self.out = MemberOutput(torch.empty(0, 0), None)
        self.mark: tuple[int, IncrementalState] | None = None

    def rewind(self, columns: int) -> None:
        """Drop all columns but the first.

        Args:
            columns: number of columns to keep; at least as many as at the last call.
        """
        if self.state is None:
            self.seen = min(self.seen, columns)
            return
        if self.seen > columns:
            if self.can_roll_back:
                self.model.decoder.roll_back(self.state, self.seen - columns)  # type: ignore[operator]
                self.seen = columns
            elif self.mark is not None:
                self.seen, self.state = self.mark
        if not self.can_roll_back:
            self.mark = self.seen, copy.deepcopy(self.state)

    def read(self, tokens: Tensor, needs: Set[str] = frozenset()) -> None:
        """Read the columns that have not been read yet.

        Args:
            tokens: ``(rows, L)`` int64 from the start token on; columns read before are not read again.
            needs: ``ATTENTION`` to compute attention weights, ``HIDDEN_STATES`` to store the decoder's last hidden
                states.
        """
        if self.start_token is not None:
            tokens = torch.cat([torch.full_like(tokens[:, :1], self.start_token), tokens[:, 1:]], dim=1)
        state: dict[str, Any] = {} if self.state is None else {"incremental_state": self.state}
        out = run_decoder(self.model.decoder, tokens, self.encoder_out, needs, **state)
        first = self.seen if self.state is None else 0  # without a state, all columns are computed
        self.out = map_tensors(out, lambda tensor: tensor[:, first:])
        self.first, self.seen = self.seen, tokens.size(1)

    def next_output(self, tokens: Tensor, needs: Set[str] = frozenset()) -> MemberOutput:
        """The output for the last column of ``tokens``, which the newest pass has read; see ``Member``."""
        step = tokens.size(1) - 1
        newest = self.out.at(step - self.first)
        return replace(newest, logits=self.model.adjust_logits_during_generation(newest.logits, step))

    def select_sentences(self, keep: Tensor) -> None:
        """Drop all sentences except ``keep``, ``(kept,)`` int64."""
        super().select_sentences(keep)
        if self.mark is not None:
            self.model.decoder.select_sentences(self.mark[1], keep)  # type: ignore[operator]
        self.out = self.out.select(rows_of_sentences(keep, self.beam_size))


class SpeculativeSession(Session):
    """Decodes a batch with drafts.

    The loop is that of ``Session``. The members read the drafts for several steps in one pass, and the outputs of these
    steps are stored. The stored outputs are valid as long as every sentence generates its draft.

    Args:
        setup: see ``Session``; its search is a ``SpeculativeSearch``.
        request: see ``Session``; if the batch has ``member_sources``, the last one may be that of the draft model.

    Attributes:
        start: the step of the first drafted token.
        stop: the step at which a new draft is needed.
    """

    can_rewind = False

    def __init__(self, setup: DecodingSetup, request: DecodingRequest):
        assert isinstance(setup.search, SpeculativeSearch)
        self.speculative = setup.search
        if LAYER_LOGITS in setup.needs:
            raise ConfigError(
                f"{setup.needing(LAYER_LOGITS)} needs hidden features of all layers, which are not stored in "
                "speculative decoding; remove the draft"
            )
        self.reach = self.speculative.draft_tokens + 1
        sample = request.sample
        source, models = sample.source, setup.ensemble.models
        if sample.member_sources is not None and len(sample.member_sources) == len(models) + 1:
            *others, source = sample.member_sources
            request = replace(request, sample=replace(sample, member_sources=others))
        source = replace(source, encoder_out=None)  # which is that of another encoder
        with self.speculative.drafter.evaluating():
            super().__init__(setup, request)
            self.draft = self.speculative.drafter.begin(self, source)
        self.drafts = Drafts(self.backpointers.matrix()[..., :0], [])
        self.start = self.stop = 0

    def run(self) -> list[list[Hypothesis]]:
        """See ``Session.run``."""
        with self.speculative.drafter.evaluating():
            return super().run()

    @property
    def newest_features(self) -> Tensor | None:
        """``(live * beam, C)``, the features from which the first model predicted the newest token.

        ``None`` before the first step, and if neither the drafter nor a component has ``HIDDEN_STATES`` in its
        ``needs``.
        """
        first, step = self.members[0], self.backpointers.length
        assert isinstance(first, LookAhead)
        # the newest token is in column `step`; the column before it has the features from which it was predicted
        features = first.out.features
        return None if features is None else features[:, step - 1 - first.first]

    def new_member(self, spec: MemberSpec, source: Source, start_token: int | None) -> LookAhead:
        """A model that can read several tokens and roll back; see ``Session.new_member``."""
        return LookAhead(spec.model, source, self.beam, start_token, self.setup.fast, self.reach)

    def member_outputs(self) -> list[MemberOutput]:
        """Make and read a new draft if the last one is used up; see ``Session.member_outputs``."""
        step = self.backpointers.length
        if step >= self.stop:
            self.look_ahead(step)
        return super().member_outputs()

    def look_ahead(self, step: int) -> None:
        """Make a new draft; the members read it in one pass.

        With 3 tokens generated and 5 drafted, the members read the last generated token and the 5 drafted ones, which
        gives scores for steps 3 to 8. Step 8 has no drafted token. If drafts are drawn at random, its scores are not
        used, and a new draft is made instead. Otherwise an output would depend on its batch: if another sentence
        rejected its draft earlier, a new draft would be made earlier, and step 8 would have a drafted token.

        Args:
            step: number of generated tokens.
        """
        generated = self.backpointers.matrix()
        last = int(self.sentences.max_lengths.max())
        self.drafts = self.draft.propose(step, generated, min(self.speculative.draft_tokens, last - step + 1))
        drafted = self.drafts.tokens.clamp(0, self.setup.vocab_size - 1)  # ids that the members know
        tokens = torch.cat([generated, drafted], dim=-1)[..., : 1 + last].flatten(0, 1)
        for number, member in enumerate(self.members):
            assert isinstance(member, LookAhead)
            member.rewind(step)
            member.read(tokens, self.setup.needs & ({ATTENTION, HIDDEN_STATES} if number == 0 else {ATTENTION}))
        self.start, self.stop = step, tokens.size(1)
        if self.drafts.lprobs:
            self.stop = min(self.stop, step + self.drafts.tokens.size(-1))

    def choose(self, context: StepContext, scores: Scores) -> Candidates:
        """Verify drafted tokens that were drawn at random; otherwise see ``Session.choose``."""
        offset = context.step - self.start
        if offset >= len(self.drafts.lprobs):
            return super().choose(context, scores)
        lprobs = scores.distribution()
        tokens = self.verified(lprobs, self.drafts.tokens[..., offset], self.drafts.lprobs[offset], context.step)
        gains = lprobs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        totals = (scores.beams + gains).masked_fill(self.sentences.done.unsqueeze(1), -torch.inf)
        return Candidates(totals, tokens, own_beams(tokens))

    def verified(self, lprobs: Tensor, drafted: Tensor, drafted_with: Tensor, step: int) -> Tensor:
        """Accept or replace drafted tokens, so that the results have the distribution of the verifying models.

        Let ``q`` be the draft model's probability of the drafted token, and ``p`` that of the verifying models. The
        token is accepted with probability ``min(1, p / q)``. Otherwise its replacement is drawn from the normalized
        ``max(0, p - q)`` (Leviathan et al. 2023, algorithm 1).

        Args:
            lprobs: ``(live, beam, V)``, log p in nats.
            drafted: ``(live, beam)`` int64.
            drafted_with: ``(live, beam, V)``, log q in nats.
            step: number of tokens that each row has generated.

        Returns:
            ``(live, beam)`` int64, the accepted and the replacing tokens.
        """
        log_p, log_q = (values.gather(-1, drafted.unsqueeze(-1)).squeeze(-1) for values in (lprobs, drafted_with))
        accepted = self.uniforms(ACCEPTANCE, step).log() < log_p - log_q
        residual = (lprobs.exp() - drafted_with.exp()).clamp(min=0.0).log()
        return torch.where(accepted, drafted, self.draw(REPLACEMENT, step, residual))

    def draw(self, purpose: int, step: int, lprobs: Tensor) -> Tensor:
        """Draw a token for each row: ``(live, beam, V)`` log-probabilities give ``(live, beam)`` int64."""
        tokens, _ = draw(lprobs.flatten(0, 1), self.uniforms(purpose, step).view(-1, 1))
        return tokens.view(lprobs.shape[:2])

    def uniforms(self, purpose: int, step: int) -> Tensor:
        """Uniform random numbers of the strategy, ``(live, beam)``; see ``RandomSearch.uniforms``."""
        assert isinstance(self.search, RandomSearch)
        return self.search.uniforms(purpose, step, torch.arange(self.beam, device=self.scores.device))

    def fork(self, rows: Tensor | None = None) -> Self:
        """Refused; see ``Session.fork``."""
        raise ConfigError("a draft belongs to one session; remove the draft to branch the search by Session.fork")

    def select_sentences(self, keep: Tensor) -> None:
        """See ``Session.select_sentences``."""
        super().select_sentences(keep)
        self.draft.select_sentences(keep)
        self.drafts = map_tensors(self.drafts, lambda tensor: tensor.index_select(0, keep))

    def advance(self, active: Candidates) -> None:
        """Compare the generated tokens with the draft; see ``Session.advance``."""
        step = self.backpointers.length
        super().advance(active)
        offset = step - self.start
        if offset >= self.drafts.tokens.size(-1):
            return
        drafted = self.drafts.tokens[..., offset]
        right = active.tokens == drafted.clamp(0, self.setup.vocab_size - 1)  # as the members have read it
        continues = (active.scores > -torch.inf) & ~self.sentences.done.unsqueeze(1)
        counted = continues & (drafted != NOTHING)
        verified, accepted, wrong = torch.stack(
            [counted.sum(), (counted & right).sum(), (continues & ~right).sum()]
        ).tolist()
        self.speculative.verified += verified
        self.speculative.accepted += accepted
        if wrong:
            self.stop = step + 1  # members have read drafted tokens that were rejected


class SpeculativeSearch(Search):
    """Runs another strategy with fewer passes of the models (Leviathan et al. 2023, Chen et al. 2023).

    The output of greedy search does not change. With a draft model, samples have the same distribution, but differ from
    those that the strategy alone draws with the same seed; with n-gram drafts they are the same.

    A new draft is made for the whole batch as soon as one sentence rejects a token, so that the speedup is largest for
    small batches. The output for a sentence does not depend on the other sentences.

    Args:
        drafter: makes the drafts.
        draft_tokens: number of tokens in a draft.
        inner: the strategy; its beams must be independent of each other, or there must be one beam.

    Attributes:
        verified: number of verified tokens of drafts, over all batches.
        accepted: number of accepted ones.

    Raises:
        ConfigError: the strategy has another decoding loop.
    """

    session_class = SpeculativeSession

    def __init__(self, drafter: Drafter, draft_tokens: int = 5, inner: Search | None = None):
        self.inner = inner or BeamSearch()
        if self.inner.session_class is not None:
            raise ConfigError(
                f"a draft is verified token by token, but {type(self.inner).__name__} has its own decoding loop; "
                "choose greedy search or sampling, or remove the draft"
            )
        self.drafter = drafter
        self.draft_tokens = draft_tokens
        self.continues_each_beam = self.inner.continues_each_beam
        self.needs = self.inner.needs | drafter.needs  # type: ignore[misc]
        self.verified = self.accepted = 0

    @property
    def acceptance_rate(self) -> float:
        """The share of drafted tokens that were accepted; NaN before the first."""
        return self.accepted / self.verified if self.verified else float("nan")

    def summary(self) -> str:
        """The acceptance rate; see ``Search.summary``."""
        if not self.verified:
            return ""
        return f"{self.verified} drafted tokens were verified, and {100 * self.acceptance_rate:.1f} % of them accepted"

    def rows(self, beam: int) -> int:
        """See ``Search.rows``.

        Raises:
            ConfigError: the strategy compares beams with each other.
        """
        rows = self.inner.rows(beam)
        if rows > 1 and not self.inner.continues_each_beam:
            raise ConfigError(
                f"a draft is verified token by token, and {type(self.inner).__name__} with beam_size={beam} compares "
                "hypotheses with each other; choose beam_size=1 or sampling, or remove the draft"
            )
        return rows

    def begin(self, batch: BatchInfo) -> Any:
        """See ``Search.begin``; returns what ``begin`` of the inner strategy returns."""
        return self.inner.begin(batch)
