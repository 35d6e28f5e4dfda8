"""One batch in the middle of being decoded: the loop that drives a search over the members of an ensemble."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from seqgen.errors import DecodingError
from seqgen.generation.backpointers import History, gather_beams
from seqgen.generation.candidates import Candidates, log_normalizer
from seqgen.generation.ensemble.ensemble import Member
from seqgen.generation.ensemble.guidance import guide
from seqgen.generation.finished import BestFinished, EachRow, FinishedHypotheses, FirstFinished
from seqgen.generation.processors.base import DecodingContext, apply_all
from seqgen.generation.search.base import Phrases, SearchBatch
from seqgen.structures import Batch, Hypothesis, Source

if TYPE_CHECKING:
    from seqgen.generation.sequence_generator import SequenceGenerator
    from seqgen.model import EncoderDecoderModel


class Streamer(Protocol):
    """What takes tokens as they are written."""

    def put(self, sentence: int, tokens: Sequence[int]) -> None:
        """Take the next tokens of a sentence.

        Args:
            sentence: its number in the batch's ``ids``.
            tokens: their ids.
        """
        ...

    def end(self, sentence: int) -> None:
        """Note that a sentence has come to its end."""
        ...


class Decoding:
    """A batch that is being decoded; made for one call and thrown away.

    Its tensors hold the live sentences only; ``sentences`` says which ones of the batch they are. A sentence that is
    done stays as dead weight until enough of them have gathered to pay for moving the others together.

    Args:
        generator: says how.
        sample: the batch.
        prefix_tokens: ``(sentences, P)`` int64 or ``None``.
        constraints: phrases for each sentence, or ``None``.
        streamer: takes the tokens of the first beam as they are written, or ``None``.
        beam: rows of each sentence; the generator's beam size if not given.
    """

    def __init__(
        self,
        generator: SequenceGenerator,
        sample: Batch,
        prefix_tokens: Tensor | None = None,
        constraints: Sequence[Phrases] | None = None,
        streamer: Streamer | None = None,
        beam: int | None = None,
    ):
        self.generator = generator
        self.beam = beam or generator.beam_size
        self.streamer = streamer
        sources = generator.ensemble.sources(sample)
        starts = [model.start_symbol(generator.eos) for model in generator.models]
        self.members = self._members(sources, starts)
        self.guides = self._members(self._empty(sources), starts) if generator.guidance_scale != 1 else []
        device = sources[0].src_tokens.device
        count = sample.num_sentences
        self.ids = sample.ids.to(device)
        self.search = generator.search.begin(
            SearchBatch(
                count,
                self.beam,
                generator.eos,
                device,
                constraints,
                self.ids,
                len(generator.end_tokens),
                generator.semantics,
                generator.end_tokens,
                generator.pad,
            )
        )
        self.stopping = [rule.begin() for rule in generator.stopping]
        self.sentences = torch.arange(count, device=device)
        self.done = torch.zeros(count, dtype=torch.bool, device=device)
        self.num_done = 0
        self.read_alike = generator.ensemble.read_alike(sources)
        self.src_tokens: Tensor | None = sources[0].src_tokens
        self.src_padding = _padding(sources[0], generator.models[0].left_pad_source)
        self.prefix_tokens = prefix_tokens
        self.max_lengths = generator.max_lengths(sources[0].src_lengths)
        self.first_end = int(self.max_lengths.min())
        self.scores = torch.zeros(count, self.beam, device=device)
        self.coverage: Tensor | None = None
        self.history = History(count, self.beam, starts[0], device)
        self.finished = self._finished_hypotheses(count, device)
        self.results: list[list[Hypothesis]] = [[] for _ in range(count)]
        self.collected: list[int] = []
        """Sentences whose results were collected since ``fresh`` was last asked."""
        self.has_joined = False

    def member(self, model: EncoderDecoderModel, source: Source, start_symbol: int | None) -> Member:
        """One model that has read its source; a way to decode that asks more of it has its own kind.

        Args:
            model: the model.
            source: the sentences as it reads them.
            start_symbol: what its decoder's input begins with; ``None`` where the histories begin with it anyway.
        """
        generator = self.generator
        return Member(model, source, self.beam, start_symbol, generator.use_cache, generator.beam_table)

    def _members(self, sources: Sequence[Source], starts: Sequence[int]) -> list[Member]:
        """All members; histories begin with the start symbol of the first."""
        return [
            self.member(model, source, start if start != starts[0] else None)
            for model, source, start in zip(self.generator.models, sources, starts, strict=True)
        ]

    def _empty(self, sources: Sequence[Source]) -> list[Source]:
        """For each member a source that says nothing: its end-of-sentence alone."""
        empty = []
        for model, source in zip(self.generator.models, sources, strict=True):
            last = source.src_tokens.size(1) if model.left_pad_source else source.src_lengths
            columns = torch.as_tensor(last, device=source.src_tokens.device).expand(source.src_tokens.size(0)) - 1
            ends = source.src_tokens.gather(1, columns.unsqueeze(1))
            empty.append(Source(ends, torch.ones_like(source.src_lengths)))
        return empty

    def _finished_hypotheses(self, count: int, device: torch.device) -> FinishedHypotheses:
        generator = self.generator
        own = self.search.finished(generator.ranking, generator.early_stopping)
        if own is not None:
            return own
        if self.search.independent_rows:
            return EachRow(count, self.beam, generator.ranking, device)
        if generator.semantics == "huggingface":
            return BestFinished(count, self.beam, generator.ranking, device, generator.early_stopping)
        return FirstFinished(count, self.beam, generator.ranking, device)

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
            Whether any sentence wants more.

        Raises:
            DecodingError: a model gave NaN or infinity.
        """
        step = self.history.length
        lprobs, scores, attention = self.next_scores(step)
        candidates = self.choose(lprobs, scores, step)
        ends = self.ends(candidates, step)
        self.history.attend(attention)
        own_steps = step - self.history.starts if self.has_joined else None
        going_on = self.finished.take(
            candidates,
            ends,
            step if own_steps is None else own_steps.unsqueeze(1),
            self.coverage_penalty(candidates, attention),
        )
        before = self.done
        self.done = before | self.finished.done(going_on, step if own_steps is None else own_steps, self.max_lengths)
        self.stream(candidates, self.done & ~before)
        if not self.goes_on(candidates, step):
            return False
        if self.num_done * self.generator.compact_at >= len(self.sentences):
            going_on, attention = self.compact(going_on, attention)
        self.advance(going_on, attention)
        return True

    def merge(self, other: Decoding) -> None:
        """Take in the sentences of another batch, which have been decoded for a step at least.

        From then on both are one batch. ``SequenceGenerator.joins`` says whether the generator's ways allow it.

        Args:
            other: a batch of the same generator, not to be used any more.
        """
        self.has_joined = True
        self.src_tokens = self.src_padding = None  # no processor that reads them is in use
        self.sentences = torch.cat([self.sentences, other.sentences + len(self.ids)])
        self.collected += [sentence + len(self.ids) for sentence in other.collected]
        self.ids = torch.cat([self.ids, other.ids])
        self.results += other.results
        for name in ("done", "max_lengths", "scores"):
            setattr(self, name, torch.cat([getattr(self, name), getattr(other, name)]))
        self.finished.merge(other.finished)
        self.history.merge(other.history)
        for mine, theirs in zip(self.members, other.members, strict=True):
            mine.merge(theirs)
        if (unseen := int(self.history.starts.min())) > 0:
            self.history.trim(unseen)
            for member in self.members:
                member.trim(unseen)
        self.first_end = int(self.last_steps.min())

    def drop_done(self) -> None:
        """Take the results of all sentences that are done, and forget their rows, between two steps."""
        if self.num_done:
            self.compact(Candidates(self.scores, self.history.last_tokens(), self.history.last_tokens()), None)

    @property
    def last_steps(self) -> Tensor:
        """The last step of each sentence, ``(live,)`` int64, in the batch's own count."""
        return self.max_lengths + self.history.starts if self.has_joined else self.max_lengths

    @property
    def renormalizes(self) -> bool:
        """Whether what processors leave sums to one again: to draw from it, and in Hugging Face's greedy search."""
        rows = self.search.independent_rows
        return rows and (self.generator.semantics == "huggingface" or not self.search.additive)

    def next_scores(self, step: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Score the next token of every beam.

        Returns:
            What each token adds ``(live, beam, V)``, what it adds to ``(live, beam)``, and attention
            ``(live, beam, S)`` where wanted. Where nothing needs normalized scores, the first are logits, and their
            normalizer is subtracted from the second.
        """
        generator = self.generator
        logits, attention = self._logits()
        scores = self.scores
        if self.renormalizes:  # processors may leave nothing of a row, a model may not
            nothing = logits[0].amax(1) == -torch.inf
            scores = torch.where(nothing.view_as(scores), torch.nan, scores)
        if generator.adds_logits:
            # processors may work in place
            normalizer = None if self.renormalizes else log_normalizer(logits[0])
            added = self.process(logits[0], step)
            if normalizer is None:
                normalizer = _normalizer_of_allowed(added)
            return self._by_beam(added), scores - normalizer.view_as(scores), attention
        lprobs = logits[0] if generator.processes_logits else self._combined(self.members, logits)
        if self.guides:
            tokens = self._decoder_input()
            away = self._combined(self.guides, [guide.next_logits(tokens, False).logits for guide in self.guides])
            lprobs = guide(lprobs.log_softmax(-1), away, generator.guidance_scale)
        lprobs = self.process(lprobs, step)
        if self.renormalizes:
            nothing = lprobs.amax(-1, keepdim=True) == -torch.inf  # a row of which everything is forbidden
            lprobs = lprobs.log_softmax(-1).masked_fill_(nothing, -torch.inf)
        return self._by_beam(lprobs), scores, attention

    def _logits(self) -> tuple[list[Tensor], Tensor | None]:
        """Logits ``(live * beam, V)`` of each member, in float32 or wider, and their common attention."""
        generator = self.generator
        tokens = self._decoder_input()
        logits, weights = [], []
        for member, reads_alike in zip(self.members, self.read_alike, strict=True):
            out = member.next_logits(tokens, generator.need_attention)
            own = out.logits.to(torch.promote_types(out.logits.dtype, torch.float32))
            logits.append(own / generator.temperature if generator.temperature != 1.0 else own)
            weights.append(out.attention if reads_alike else None)
        attention = generator.ensemble.combine_attention(weights) if generator.need_attention else None
        return logits, None if attention is None else self._by_beam(attention)

    def _combined(self, members: Sequence[Member], logits: Sequence[Tensor]) -> Tensor:
        """Log-probabilities ``(live * beam, V)`` of the ensemble."""
        lprobs = [member.model.get_normalized_probs(own) for member, own in zip(members, logits, strict=True)]
        return self.generator.ensemble.combine(lprobs)

    def _decoder_input(self) -> Tensor:
        """Decoder input ``(live * beam, 1 + step)`` int64; where that is enough, only its last column is true."""
        if self.generator.reads_history:
            return self.history.matrix().flatten(0, 1)
        return self.history.last_tokens().reshape(-1, 1).expand(-1, 1 + self.history.length)

    def _by_beam(self, rows: Tensor) -> Tensor:
        return rows.view(len(self.sentences), self.beam, rows.size(-1))

    def process(self, lprobs: Tensor, step: int) -> Tensor:
        """Apply the logits processors to ``(live * beam, V)`` scores."""
        return apply_all(self.generator.processors, lprobs, self.context(step, self.beam))

    def context(self, step: int, rows: int, tokens: Tensor | None = None) -> DecodingContext:
        """What processors and stopping rules may look at.

        Args:
            step: how many tokens each beam has.
            rows: rows of each live sentence.
            tokens: ``(live, rows, 1 + step)`` int64 what the rows hold; the beams' own if not given.
        """
        generator = self.generator
        if tokens is None:
            tokens = self.history.matrix() if generator.processors_read else self.sentences.new_zeros(0, 0, 1)
        written = tokens.flatten(0, 1)
        return DecodingContext(
            step=step,
            tokens=written[:, 1:],
            written=written if generator.semantics == "huggingface" else written[:, 1:],
            max_lengths=self.last_steps.repeat_interleave(rows),
            first_end=self.first_end,
            prefix_tokens=None if self.prefix_tokens is None else self.prefix_tokens.repeat_interleave(rows, 0),
            eos=generator.eos,
            pad=generator.pad,
            src_tokens=None if self.src_tokens is None else self.src_tokens.repeat_interleave(rows, 0),
            src_padding=None if self.src_padding is None else self.src_padding.repeat_interleave(rows, 0),
            sentences=self.ids[self.sentences].repeat_interleave(rows),
            starts=self.history.starts.repeat_interleave(rows) if self.has_joined else None,
        )

    def choose(self, lprobs: Tensor, scores: Tensor, step: int) -> Candidates:
        """Let the search strategy choose candidates; sentences that are done have none."""
        candidates = self.search.step(step, lprobs, scores)
        alive = candidates.scores.masked_fill(self.done.unsqueeze(1), -torch.inf)
        return Candidates(alive, candidates.tokens, candidates.beams)

    def ends(self, candidates: Candidates, step: int) -> Tensor:
        """Which candidates have come to their end: ``(live, K)`` bool."""
        generator = self.generator
        ends = candidates.tokens == generator.end_tokens[0]
        for token in generator.end_tokens[1:]:
            ends |= candidates.tokens == token
        if generator.semantics == "huggingface":
            ends |= (self.last_steps <= step).unsqueeze(1)
        if self.stopping:
            rows = candidates.tokens.size(1)
            tokens = torch.cat(
                [gather_beams(self.history.matrix(), candidates.beams), candidates.tokens.unsqueeze(-1)], dim=-1
            )
            context = self.context(step, rows, tokens[..., :-1])
            for rule in self.stopping:
                ends |= rule(tokens.flatten(0, 1)[:, 1:], context).view_as(ends)
        return ends

    def coverage_penalty(self, candidates: Candidates, attention: Tensor | None) -> Tensor | None:
        """The coverage penalty of Wu et al. 2016, ``(live, K)``; ``None`` where there is none."""
        weight = self.generator.ranking.coverage
        if not weight or attention is None:
            return None
        covered = attention if self.coverage is None else self.coverage + attention
        logs = gather_beams(covered, candidates.beams).clamp(min=1e-9, max=1.0).log()
        if self.src_padding is not None and self.src_padding.size(1) == logs.size(-1):
            logs = logs.masked_fill(self.src_padding.unsqueeze(1), 0.0)
        return weight * logs.sum(-1)

    def stream(self, candidates: Candidates, done: Tensor) -> None:
        """Hand the newest token of each sentence's first beam to the streamer, and say which sentences are done now."""
        if self.streamer is None:
            return
        going = (candidates.scores[:, 0] > -torch.inf).tolist()
        tokens, ids = candidates.tokens[:, 0].tolist(), self.ids[self.sentences].tolist()
        for sentence, token, goes, ended in zip(ids, tokens, going, done.tolist(), strict=True):
            if goes:
                self.streamer.put(sentence, [token])
            if ended:
                self.streamer.end(sentence)

    def goes_on(self, candidates: Candidates, step: int) -> bool:
        """Whether any sentence wants more. This is the one time in a step that the device is waited for."""
        damaged = candidates.scores.isnan()
        self.num_done, bad = torch.stack([self.done.sum(), damaged.sum()]).tolist()
        if bad:
            sentence = int(self.sentences[damaged.any(1)][0])
            raise DecodingError(
                f"a model's scores are NaN or infinite at step {step} in sentence {sentence} of the batch; its weights "
                "are damaged or its number format overflows"
            )
        return self.num_done < len(self.sentences)

    def compact(self, going_on: Candidates, attention: Tensor | None) -> tuple[Candidates, Tensor | None]:
        """Take the results of the sentences that are done, and forget their rows."""
        self.collect(self.done.nonzero().squeeze(1))
        keep = (~self.done).nonzero().squeeze(1)
        for name in ("sentences", "done", "max_lengths", "scores", "src_tokens", "src_padding", "prefix_tokens"):
            value = getattr(self, name)
            setattr(self, name, None if value is None else value.index_select(0, keep))
        self.coverage = None if self.coverage is None else self.coverage.index_select(0, keep)
        self.num_done = 0
        self.history.select(keep)
        self.first_end = int(self.last_steps.min()) if len(keep) else 0
        self.finished.select(keep)
        self.search.select_sentences(keep)
        for member in [*self.members, *self.guides]:
            member.select_sentences(keep)
        return going_on.select(keep), None if attention is None else attention.index_select(0, keep)

    def collect(self, rows: Tensor) -> None:
        """Read the hypotheses of the live sentences ``rows``, ``(k,)`` int64, that are done."""
        owners = self.sentences[rows].tolist()
        for sentence, hypotheses in zip(owners, self.finished.hypotheses(rows, self.history), strict=True):
            self.results[sentence] = hypotheses
        self.collected += owners

    @property
    def width(self) -> int:
        """How many positions the encoded sources of the batch have."""
        return max(int(member.encoder_out.encoder_out.size(1)) for member in self.members)

    def collect_all(self) -> None:
        """Read the hypotheses of all live sentences."""
        self.collect(torch.arange(len(self.sentences), device=self.sentences.device))

    def fresh(self) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Hand over the results that were collected since it was last asked: numbers in ``ids``, and hypotheses."""
        for sentence in self.collected:
            yield int(self.ids[sentence]), self.results[sentence]
            self.results[sentence] = []
        self.collected = []

    def advance(self, going_on: Candidates, attention: Tensor | None) -> None:
        """Move everything to the next step: histories, scores and decoding states."""
        if self.generator.ranking.coverage and attention is not None:
            covered = attention if self.coverage is None else self.coverage + attention
            self.coverage = gather_beams(covered, going_on.beams)
        self.history.append(going_on)
        self.scores = going_on.scores
        self.search.advance(going_on)
        if self.search.independent_rows or self.beam == 1:
            return  # every beam continues itself
        for member in [*self.members, *self.guides]:
            member.reorder_beams(going_on.beams)


def _normalizer_of_allowed(scores: Tensor) -> Tensor:
    """The normalizer of scores after processors, ``(rows, 1)``; 0 where they forbid everything, which is no damage."""
    nothing = scores.amax(1, keepdim=True) == -torch.inf
    return log_normalizer(scores).masked_fill(nothing, 0.0)


def _padding(source: Source, left: bool) -> Tensor | None:
    """Where a source is padding, ``(sentences, S)`` bool; ``None`` where it nowhere is."""
    width = source.src_tokens.size(1)
    if bool((source.src_lengths == width).all()):
        return None
    columns = torch.arange(width, device=source.src_tokens.device)
    lengths = source.src_lengths.unsqueeze(1)
    return columns < width - lengths if left else columns >= lengths
