"""The session: the loop that decodes one batch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from seqgen.core.backpointers import BackPointers
from seqgen.core.candidates import Candidates, gather_beams
from seqgen.core.component import (
    HIDDEN_STATES,
    LAYER_LOGITS,
    BatchInfo,
    Component,
    begin_component,
    fields_of,
    flattened,
)
from seqgen.core.context import StepContext
from seqgen.core.contract import check_returned, check_returned_tensor, is_built_in
from seqgen.core.errors import DecodingError, listing
from seqgen.core.finished import Coverage, EachRow, FinishedHypotheses
from seqgen.core.member import Member, MemberOutput, MemberSpec, check_features, check_layers
from seqgen.core.observers import Forbidden, StepRecord
from seqgen.core.scores import Scores
from seqgen.core.scoring import Scoring
from seqgen.core.search import Search, choose_candidates
from seqgen.core.setup import DecodingRequest, DecodingSetup
from seqgen.core.structures import Hypothesis, Source, copy_to_cpu, map_tensors, with_forked_attributes

_LAZY = 8
"""Rows of done sentences are dropped when at least one in eight live sentences is done: dropping copies the others."""


class Session:
    """Decodes one batch; each call of the generator makes a new session.

    Its tensors contain the live sentences only; ``live`` has their indices in the batch. A sentence that is done stays
    live until enough sentences are done to pay for copying the others.

    Args:
        setup: how to decode.
        request: what to decode.
        beam: rows of each sentence; the setup's beam size if not given.

    Attributes:
        members: the models that decode this batch, with their encoder outputs and states.
        reads_alike: for each member whether it reads the same source as the first one.
        ids: ``(sentences,)`` int64, line number of each sentence of the batch, live or not.
        live: ``(live,)`` int64, index in the batch of each live sentence.
        sentences: the live sentences, as components see them.
        scores: ``(live, beam)`` cumulative score of each beam.
        backpointers: the tokens that each beam has generated.
        finished: the finished hypotheses of the live sentences.
        results: the hypotheses of each sentence of the batch; empty while it is live.
        search: the search strategy for this batch, as ``begin`` returned it.
        scoring: turns the members' logits into scores: the combination and the processors for this batch.
        stopping: the stopping rules for this batch.
        observers: the observers for this batch.
        coverage: the attention that each source position has received.
        timed_out: ``(live,)`` bool, which sentences were ended by a time limit; ``None`` if none was.
        num_done: number of live sentences that are done.
        first_end: the smallest last step of the live sentences.
    """

    can_rewind = True  # whether ``rewind`` restores all of its state

    def __init__(self, setup: DecodingSetup, request: DecodingRequest, beam: int | None = None):
        self.setup, self.request = setup, request
        self.beam = beam or setup.beam_size
        sources = setup.ensemble.sources(request.sample)
        device, count = sources[0].src_tokens.device, request.sample.num_sentences
        models = [spec.model for spec in setup.ensemble.members]
        if HIDDEN_STATES in setup.needs:
            check_features(models[:1], setup.needing(HIDDEN_STATES))
        if LAYER_LOGITS in setup.needs:
            check_layers(models, setup.needing(LAYER_LOGITS))
        start = self._begin_members(sources)
        self.reads_alike = setup.ensemble.read_alike(sources)
        self.sentences = batch = self._sentences(sources)
        self.ids, self.live = batch.ids, torch.arange(count, device=device)
        self.search: Search = begin_component(setup.search, batch)
        self.scoring: Scoring = (setup.scoring or Scoring)(setup, batch)
        self.scoring.attach(self.members)
        self.stopping = [begin_component(rule, batch) for rule in setup.stopping]
        self.observers = [begin_component(observer, batch) for observer in setup.observers]
        self.timed_out: Tensor | None = None
        self.num_done, self.first_end = 0, int(batch.max_lengths.min())
        self.scores = torch.zeros(count, self.beam, device=device)
        self.coverage = Coverage(setup.ranking.coverage, batch)
        self.backpointers = BackPointers(self.beam, start)
        self.finished = self.new_finished(batch)
        self.results: list[list[Hypothesis]] = [[] for _ in range(count)]

    def computing(self, phase: str) -> AbstractContextManager[object]:
        """The contexts around the computation of a phase; see ``DecodingSetup.around_step``."""
        makers = self.setup.around_step
        if len(makers) < 2:  # an ``ExitStack`` takes several microseconds
            return makers[0](self, phase) if makers else nullcontext()
        stack = ExitStack()
        for make in makers:
            stack.enter_context(make(self, phase))
        return stack

    def _begin_members(self, sources: Sequence[Source]) -> Tensor:
        """Make the members; returns ``(sentences,)`` int64, the start tokens, which are those of the first member."""
        setup, given = self.setup, self.request.sample.start_tokens
        specs, device = setup.ensemble.members, sources[0].src_tokens.device
        starts = [spec.model.start_token(setup.eos) for spec in specs]
        different = [None if given is not None or start == starts[0] else start for start in starts]
        with self.computing("begin"):
            self.members = [self.new_member(*each) for each in zip(specs, sources, different, strict=True)]
        return torch.full_like(self.request.sample.ids, starts[0]).to(device) if given is None else given.to(device)

    def _sentences(self, sources: Sequence[Source]) -> BatchInfo:
        """The sentences of the batch, as components see them; ``sources`` are those of the members."""
        setup, sample, first = self.setup, self.request.sample, sources[0]
        last_steps = setup.limits.last_steps(first.src_lengths)
        for spec, source in zip(setup.ensemble.members, sources, strict=True):
            if (longest := spec.model.max_target_lengths(source.src_lengths)) is not None:
                last_steps = torch.minimum(last_steps, longest - 1)
        model, device = setup.ensemble.members[0].model, first.src_tokens.device
        return BatchInfo(
            ids=sample.ids.to(device),
            beam_size=self.beam,
            eos=setup.eos,
            pad=setup.pad,
            end_tokens=setup.end_tokens,
            max_lengths=last_steps,
            done=torch.zeros_like(last_steps, dtype=torch.bool),
            counts_start=setup.rules.counts_start,
            continues_source=model.continues_source,
            prefix_tokens=self.request.prefix_tokens,
            first_tokens=None if sample.first_tokens is None else sample.first_tokens.to(device),
            constraints=self.request.constraints,
            src_tokens=first.src_tokens,
            src_padding=first.padding(model.left_pad_source),
            source_texts=sample.texts,
            members=self.members,
        )

    def new_member(self, spec: MemberSpec, source: Source, start_token: int | None) -> Member:
        """Make a member; a session that needs another class overrides this.

        Args:
            spec: the model and its role.
            source: the sentences as this model reads them.
            start_token: the model's start token, if it differs from that of the first member; else ``None``.
        """
        return self.setup.member(spec.model, source, self.beam, start_token, self.setup.fast)

    def new_finished(self, batch: BatchInfo) -> FinishedHypotheses:
        """Make the object that stores finished hypotheses; see ``Search.finished``.

        Args:
            batch: the properties of the batch.
        """
        setup = self.setup
        if (of_search := self.search.finished(batch, setup.ranking, setup.early_stopping)) is not None:
            return check_returned(self.search, "finished", of_search, FinishedHypotheses)
        if self.search.continues_each_beam:
            return EachRow(batch, setup.ranking)
        return setup.rules.finished(batch, setup.ranking, setup.early_stopping)

    def run(self) -> list[list[Hypothesis]]:
        """Decode until every sentence is done.

        Raises:
            DecodingError: a model gave NaN or infinity.
        """
        while self.step():
            pass
        self.collect_all()
        return self.results

    def step(self) -> bool:
        """Decode one step.

        Returns:
            Whether any sentence needs another step.

        Raises:
            DecodingError: a model gave NaN or infinity.
        """
        step = self.backpointers.length
        with self.computing("step"):
            # (1) The members score the next token, the combination merges their scores, the processors change them.
            context, scores = self.score(step)
            # (2) The search strategy chooses candidates.
            candidates = self.choose(context, scores)
        # (3) Some candidates end: at end-of-sentence, at the maximum length, by a stopping rule.
        ended = self.ended(candidates, context)
        # (4) Those that end may become finished hypotheses; of the others, the best continue.
        self.record(context, scores)
        active = self.finalize(context, candidates, ended, scores)
        if self.setup.has_fields:
            with self.computing("fields"):
                given = map_tensors(candidates, Tensor.clone)  # which components cannot change
                fields = fields_of(self.components, given, context, self.backpointers.fields)
            self.backpointers.record_fields(candidates, fields)
        # (5) If enough sentences are done, they leave the batch.
        if not self.update_done(candidates, step):
            return False
        if self.num_done * (_LAZY if self.setup.fast.lazy_compaction else len(self.live)) >= len(self.live):
            active = self.compact(active)
        # (6) Tokens, scores, decoder states and components follow the beams that continue.
        self.advance(active)
        return True

    def score(self, step: int) -> tuple[StepContext, Scores]:
        """Score the next token of each beam."""
        found = self.member_outputs()
        if not step:
            self.scoring.check(found, self.scores)
        logits, outputs = self.scoring.read(found, self.reads_alike)
        known: dict[str, Any] = {"scores": self.scores.flatten(), "processors": [*flattened(self.scoring.processors)]}
        context = self.context(step, self.beam, outputs=outputs, **known)
        return self.scoring(context, logits, self.scores)

    def member_outputs(self) -> list[MemberOutput]:
        """Run each member on the newest token of each row."""
        tokens, needs = self._decoder_input(), self.setup.needs
        return [
            member.next_output(tokens, needs - {HIDDEN_STATES} if number else needs)
            for number, member in enumerate(self.members)
        ]

    def _decoder_input(self) -> Tensor:
        """Decoder input ``(rows, 1 + step)`` int64; if no decoder reads earlier columns, only the last is valid."""
        if self.setup.reads_history:
            return self.backpointers.matrix().flatten(0, 1)
        return self.backpointers.last_tokens().reshape(-1, 1).expand(-1, 1 + self.backpointers.length)

    def context(self, step: int, rows: int, tokens: Tensor | None = None, **known: Any) -> StepContext:
        """The step context of components.

        Args:
            step: number of tokens of each row.
            rows: rows of each live sentence.
            tokens: ``(live, rows, 1 + step)`` int64 tokens of the rows; those of the beams if not given.
            known: other attributes of the context.
        """
        return StepContext(
            step=step,
            sentences=self.sentences,
            rows_per_sentence=rows,
            first_end=self.first_end,
            read_tokens=lambda: (self.backpointers.matrix() if tokens is None else tokens).flatten(0, 1),
            **known,
        )

    def choose(self, context: StepContext, scores: Scores) -> Candidates:
        """Let the search strategy choose candidates; those of done sentences get score ``-inf``."""
        return choose_candidates(self.search, context, scores).without(self.sentences.done.unsqueeze(1))

    def record(self, context: StepContext, scores: Scores) -> None:
        """Store what hypotheses list for each token: attention, and values of observers."""
        attention = None if context.outputs.attention is None else context.by_sentence(context.outputs.attention)
        self.backpointers.record(attention=attention)
        self.coverage.attend(attention)
        for observer in self.observers:
            self.backpointers.record(**observer.beam_values(context, scores))

    def ended(self, candidates: Candidates, context: StepContext) -> Tensor:
        """``(live, K)`` bool, true for candidates that end."""
        ended = candidates.tokens == self.setup.end_tokens[0]
        for token in self.setup.end_tokens[1:]:
            ended |= candidates.tokens == token
        if not self.setup.rules.forces_end and context.step >= self.first_end:
            ended |= (self.sentences.max_lengths <= context.step).unsqueeze(1)
        if self.stopping:
            parents = gather_beams(self.backpointers.matrix(), candidates.beams)
            tokens = torch.cat([parents, candidates.tokens.unsqueeze(-1)], dim=-1)
            of_candidates = self.context(
                context.step,
                candidates.tokens.size(1),
                tokens[..., :-1],
                scores=candidates.scores.flatten(),
                parents=candidates.beams,
            )
            rows = tokens.flatten(0, 1)[:, 1:]
            for rule in self.stopping:
                found = rule(rows, of_candidates)
                check_returned_tensor(rule, "__call__", found, rows.shape[:1], torch.bool, rows.device)
                ended |= found.view_as(ended)
            if any(rule.expired for rule in self.stopping):
                self.timed_out = ~self.sentences.done
        return ended

    def finalize(self, context: StepContext, candidates: Candidates, ended: Tensor, scores: Scores) -> Candidates:
        """Finalize hypotheses, update which sentences are done, and call observers.

        Returns:
            The ``beam`` candidates of each sentence that continue.
        """
        offsets = self.sentences.start_offsets
        step = context.step if offsets is None else context.step - offsets  # of each sentence
        by_candidate = step.unsqueeze(1) if isinstance(step, Tensor) else step
        # copies, since some classes write in place
        reads_finished = any(observer.reads_finished for observer in self.observers)
        before = self.finished.fork() if reads_finished else self.finished
        was_done = self.sentences.done
        penalty = self.coverage.penalty(candidates, self.sentences.src_padding)
        complete = self.search.complete(candidates)
        ending = candidates if complete is None else candidates.without(ended & ~complete)
        active = self.finished.finalize(ending, ended, by_candidate, penalty)
        done = was_done | self.finished.done(active, step, self.sentences.own_limits)
        self.sentences = replace(self.sentences, done=done)
        if self.observers:
            watch = context.watch if isinstance(context.watch, Forbidden) else None
            shown = [map_tensors(each, Tensor.clone) for each in (candidates, active)]  # which observers cannot change
            after = self.finished.fork() if reads_finished else self.finished
            record = StepRecord(context, shown[0], ended, shown[1], was_done, done, before, after, scores, watch)
            for observer in self.observers:
                observer.observe(record)
        return active

    def update_done(self, candidates: Candidates, step: int) -> bool:
        """True if any sentence is not done. This is the only point of a step that waits for the device."""
        damaged = candidates.scores.isnan()
        self.num_done, bad = torch.stack([self.sentences.done.sum(), damaged.sum()]).tolist()
        if bad:
            sentence = int(self.live[damaged.any(1)][0])
            users = sorted({type(part).__name__ for part in flattened(self.components) if not is_built_in(type(part))})
            raise DecodingError(
                f"a model's scores are NaN or infinite at step {step} in sentence {sentence} of the batch; its weights "
                f"are damaged or its dtype overflows{f', or {listing(users)} returns such scores' if users else ''}"
            )
        return self.num_done < len(self.live)

    @property
    def components(self) -> list[Component]:
        """All components; their state follows the beams."""
        return [self.search, self.scoring, *self.stopping, *self.observers, self.finished, self.coverage]

    def compact(self, active: Candidates) -> Candidates:
        """Collect the results of the sentences that are done, and drop their rows."""
        order = self.sentences.done.to(torch.int8).argsort(descending=True, stable=True)  # nonzero would wait
        done, keep = order[: self.num_done], order[self.num_done :]
        self.collect(done)
        self.select_sentences(keep)
        self.num_done, self.first_end = 0, int(self.sentences.max_lengths.min()) if len(keep) else 0
        return active.select(keep)

    def select_sentences(self, keep: Tensor) -> None:
        """Keep only the rows of the sentences ``keep``, ``(kept,)`` int64."""
        self.live, self.scores = self.live.index_select(0, keep), self.scores.index_select(0, keep)
        self.sentences = self.sentences.select(keep)
        self.timed_out = None if self.timed_out is None else self.timed_out.index_select(0, keep)
        self.backpointers.select(keep)
        for component in self.components:
            component.select_sentences(keep)
        for member in self.members:
            member.select_sentences(keep)

    def fork(self, rows: Tensor | None = None) -> Self:
        """Branch the search: a session that continues from the same prefixes, independently of this one.

        Every attribute is copied: objects with a method ``fork`` by it (members, components, back-pointers), lists,
        tuples and dicts with their items. Tensors of rows are copied by ``select_sentences``. All else, such as the
        setup and what an observer collects outside of its state, belongs to both sessions.

        Args:
            rows: ``(k,)`` int64 live sentences, in any order and with repeats, of which the new session is the batch:
                its results are those of these rows, and ``sentences.ids`` has their line numbers. All beams of a
                sentence are copied. If not given, the batch is the same.
        """
        other = with_forked_attributes(self)
        other.sentences = replace(other.sentences, members=other.members)
        pairs = zip(flattened(self.components), flattened(other.components), strict=True)
        copies = {id(component): copied for component, copied in pairs}
        for owner, given in [(other, vars(self)), *((copied, vars(copied)) for copied in copies.values())]:
            # components that refer to each other refer to each other's copies
            vars(owner).update({name: copies[id(value)] for name, value in given.items() if id(value) in copies})
        keep = torch.arange(len(self.live), device=self.live.device) if rows is None else rows
        other.select_sentences(keep)
        if rows is not None:
            other.ids, other.live = self.ids[self.live[rows]], torch.arange(len(rows), device=rows.device)
            other.results = [[] for _ in rows]
            other.num_done = int(other.sentences.done.sum())
            other.first_end = int(other.sentences.max_lengths.min()) if len(rows) else 0
        return other

    def merge(self, other: Self) -> None:
        """Append the sentences of another session; the steps of both need not be equal, but are above 0.

        Positions are aligned at the newest one: ``sentences.start_offsets`` has the step at which each sentence began,
        counted from the first step of the merged session. ``DecodingSetup.merge_obstacle`` says whether models and
        components can be merged. Done sentences leave this session before.

        Args:
            other: a session of the same setup; it must not be used afterwards.
        """
        if self.num_done:
            newest = self.backpointers.last_tokens()
            self.compact(Candidates(self.scores, newest, newest))
        self.live, self.ids = torch.cat([self.live, other.live + len(self.ids)]), torch.cat([self.ids, other.ids])
        self.results += other.results
        self.scores = torch.cat([self.scores, other.scores])
        for mine, theirs in zip(self.components, other.components, strict=True):
            mine.merge(theirs)
        for mine_, theirs_ in zip(self.members, other.members, strict=True):
            mine_.merge(theirs_)
        own_limits = torch.cat([one.sentences.own_limits for one in (self, other)])
        self.backpointers.merge(other.backpointers)
        if (unseen := int(self.backpointers.start_offsets.min())) > 0:
            self.backpointers.crop(unseen)
            for member in self.members:
                member.crop(unseen)
        start_offsets = self.backpointers.start_offsets
        texts = [one.sentences.source_texts for one in (self, other)]
        self.sentences = replace(
            self.sentences,
            ids=torch.cat([self.sentences.ids, other.sentences.ids]),
            max_lengths=own_limits + start_offsets,
            done=torch.cat([self.sentences.done, other.sentences.done]),
            start_offsets=start_offsets,
            source_texts=None if None in texts else [text for some in texts for text in some or ()],
            # components that support merged batches do not read these
            src_tokens=None,
            src_padding=None,
            prefix_tokens=None,
            first_tokens=None,
            constraints=None,
        )
        self.first_end = int(self.sentences.max_lengths.min())
        self.scoring.attach(self.members)

    def advance(self, active: Candidates) -> None:
        """Let tokens, scores, components and decoder states follow the beams that continue."""
        self.backpointers.append(active)
        self.scores = active.scores
        for component in self.components:
            component.advance(active)
        if self.search.continues_each_beam or self.beam == 1:
            return  # each beam continues itself
        for member in self.members:
            member.reorder_beams(active.beams)

    def collect(self, rows: Tensor) -> list[int]:
        """Read the hypotheses of the live sentences ``rows``, ``(k,)`` int64, all of which are done.

        Returns:
            The index in the batch of each of them.
        """
        owners = self.live[rows]
        late = torch.zeros_like(self.sentences.done) if self.timed_out is None else self.timed_out
        of_rows = [owners, self.ids[owners], late[rows], self.sentences.own_limits[rows]]
        read = [values.tolist() for values in copy_to_cpu(of_rows)]
        found = self.finished.hypotheses(rows, self.backpointers)
        for sentence, number, timed_out, last_step, hypotheses in zip(*read, found, strict=True):
            self.results[sentence] = [self.setup.with_end_reason(each, last_step, timed_out) for each in hypotheses]
            for observer in self.observers:
                observer.end(number, self.results[sentence])
        return read[0]

    def collect_all(self) -> None:
        """Read the hypotheses of all live sentences."""
        for member in self.members:
            member.finish(self.setup.notes)
        self.collect(torch.arange(len(self.live), device=self.live.device))


def has_steps(search: Search) -> bool:
    """True if a strategy decodes by the steps of ``Session``."""
    return getattr(search.session_class or Session, "step", None) is Session.step
