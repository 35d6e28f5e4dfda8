"""The generator: drives a search over one model or an ensemble."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from seqgen.config import GenerationConfig
from seqgen.errors import ConfigError, DecodingError
from seqgen.generation.ensemble import Ensemble, Member
from seqgen.generation.hypotheses import FinishedHypotheses
from seqgen.generation.logits_processors import (
    DecodingContext,
    Forbid,
    ForceEndAtMaximum,
    ForcePrefix,
    LogitsProcessor,
    MinimumLength,
    NoRepeatNgram,
    UnknownPenalty,
    apply_all,
)
from seqgen.generation.search import BeamSearch, Candidates, Phrases, Search, SearchBatch, search_from_config
from seqgen.model import EncoderDecoderModel
from seqgen.structures import Batch, Hypothesis

if TYPE_CHECKING:
    from seqgen.data.dictionary import Dictionary


class SequenceGenerator:
    """Decodes batches of sentences with beam search, by fairseq's semantics.

    Hypotheses are ranked by the sum of log-probabilities while they grow. Of the ``2 * beam`` best continuations those
    among the first ``beam`` that are end-of-sentence finish a hypothesis, and the first ``beam`` others go on. A
    sentence is done when ``beam`` hypotheses have finished.

    Args:
        models: one or more models over one target vocabulary.
        tgt_dict: that vocabulary.
        beam_size: hypotheses kept at each step.
        max_len_a: outputs have at most ``max_len_a * source length + max_len_b`` tokens, end-of-sentence not counted;
            each sentence's own source counts, with its end-of-sentence.
        max_len_b: see ``max_len_a``.
        max_len: outputs have at most this many tokens, end-of-sentence included; 0 for what the models can write.
        min_len: outputs have at least this many tokens, end-of-sentence not counted.
        normalize_scores: divide the sum of log-probabilities by ``length ** len_penalty``, end-of-sentence counted.
        len_penalty: see ``normalize_scores``; above 1 favours longer outputs.
        unk_penalty: subtracted from the score of the unknown word, and it stays in the scores.
        temperature: divides the logits.
        match_source_len: outputs are exactly as long as their source.
        no_repeat_ngram_size: no n-gram of this size occurs twice in an output; 0 for no such rule.
        search_strategy: chooses candidates; beam search if not given.
        logits_processors: further changes to the scores, after the built-in ones.
        tokens_to_suppress: symbols that are never written.
        ensemble_average: ``"probability"`` or ``"log"``, see ``Ensemble``.
        ensemble_weights: see ``Ensemble``.
        need_attention: whether hypotheses carry attention and alignment.
        use_cache: whether decoding goes on from a state rather than computing all positions at every step.
        beam_table: whether self-attention may keep keys and values in place rather than move them with the beams.

    Raises:
        ConfigError: a parameter is out of its range, or the models do not share the target vocabulary.
    """

    def __init__(
        self,
        models: Sequence[EncoderDecoderModel],
        tgt_dict: Dictionary,
        beam_size: int = 1,
        max_len_a: float = 0.0,
        max_len_b: int = 200,
        max_len: int = 0,
        min_len: int = 1,
        normalize_scores: bool = True,
        len_penalty: float = 1.0,
        unk_penalty: float = 0.0,
        temperature: float = 1.0,
        match_source_len: bool = False,
        no_repeat_ngram_size: int = 0,
        search_strategy: Search | None = None,
        logits_processors: Sequence[LogitsProcessor] = (),
        tokens_to_suppress: Sequence[str] = (),
        ensemble_average: str = "probability",
        ensemble_weights: Sequence[float] = (),
        need_attention: bool = False,
        use_cache: bool = True,
        beam_table: bool = True,
    ):
        if beam_size < 1 or temperature <= 0 or min_len < 0 or no_repeat_ngram_size < 0 or max_len_b < 0:
            raise ConfigError(
                f"beam_size={beam_size} must be at least 1, temperature={temperature} above 0, and min_len={min_len}, "
                f"max_len_b={max_len_b} and no_repeat_ngram_size={no_repeat_ngram_size} not negative"
            )
        self.ensemble = Ensemble(models, ensemble_average, ensemble_weights)
        self.tgt_dict = tgt_dict
        self.pad, self.eos = tgt_dict.pad(), tgt_dict.eos()
        self.beam_size = beam_size
        self.max_len_a, self.max_len_b = max_len_a, max_len_b
        writable = min(model.max_positions()[1] for model in models)
        self.max_len = min(max_len, writable) if max_len else writable
        self.normalize_scores, self.len_penalty = normalize_scores, len_penalty
        self.temperature = temperature
        self.match_source_len = match_source_len
        self.search = search_strategy or BeamSearch()
        self.need_attention = need_attention
        self.use_cache, self.beam_table = use_cache, beam_table
        self.processors: list[LogitsProcessor] = [Forbid([self.pad])]
        if unk_penalty:
            self.processors.append(UnknownPenalty(tgt_dict.unk(), unk_penalty))
        free: list[LogitsProcessor] = []
        if min_len or match_source_len:
            free.append(MinimumLength(self.max_len if match_source_len else min_len))
        if tokens_to_suppress:
            free.append(Forbid([_known_symbol(tgt_dict, symbol) for symbol in tokens_to_suppress]))
        self.processors += [ForceEndAtMaximum(), ForcePrefix(otherwise=free)]
        if no_repeat_ngram_size:
            self.processors.append(NoRepeatNgram(no_repeat_ngram_size))
        self.processors += logits_processors

    @classmethod
    def from_config(
        cls, models: Sequence[EncoderDecoderModel], tgt_dict: Dictionary, cfg: GenerationConfig, **further: object
    ) -> Self:
        """Make a generator from the ``generation`` group of a configuration.

        Args:
            models: one or more models over one target vocabulary.
            tgt_dict: that vocabulary.
            cfg: the configuration.
            further: constructor arguments that the configuration does not have.
        """
        if cfg.nbest > cfg.beam:
            raise ConfigError(f"generation.nbest={cfg.nbest} hypotheses cannot come from generation.beam={cfg.beam}")
        return cls(
            models,
            tgt_dict,
            beam_size=cfg.beam,
            max_len_a=cfg.max_len_a,
            max_len_b=cfg.max_len_b,
            max_len=cfg.max_len,
            min_len=cfg.min_len,
            normalize_scores=not cfg.unnormalized,
            len_penalty=cfg.lenpen,
            unk_penalty=cfg.unkpen,
            temperature=cfg.temperature,
            match_source_len=cfg.match_source_len,
            no_repeat_ngram_size=cfg.no_repeat_ngram_size,
            search_strategy=search_from_config(cfg),
            tokens_to_suppress=cfg.suppress,
            ensemble_average=cfg.ensemble_average,
            ensemble_weights=cfg.ensemble_weights,
            **further,  # type: ignore[arg-type]
        )

    @torch.inference_mode()
    def generate(
        self,
        sample: Batch,
        prefix_tokens: Tensor | None = None,
        constraints: Sequence[Phrases] | None = None,
    ) -> list[list[Hypothesis]]:
        """Decode a batch.

        Args:
            sample: the batch; only its sources are read.
            prefix_tokens: ``(sentences, P)`` int64 tokens that each output begins with, padded on the right.
            constraints: for each sentence the phrases (token ids) that its outputs must contain; for a search strategy
                that knows what to do with them.

        Returns:
            The hypotheses of each sentence in the order of the batch, best first. There are ``beam_size`` of them,
            fewer only where fewer continuations are possible at all, or where beams lack a phrase when they must end.

        Raises:
            ConfigError: the search strategy does not suit the beam size, or does not take constraints.
            DecodingError: a model gave NaN.
        """
        if sample.num_sentences == 0:
            return []
        with self.ensemble.evaluating():
            return Decoding(self, sample, prefix_tokens, constraints).run()

    def max_lengths(self, src_lengths: Tensor) -> Tensor:
        """The step at which each sentence's end is forced.

        Args:
            src_lengths: ``(sentences,)`` int64, end-of-sentence included.

        Returns:
            ``(sentences,)`` int64.
        """
        if self.match_source_len:
            return (src_lengths - 1).clamp(max=self.max_len - 1)
        return (self.max_len_a * src_lengths + self.max_len_b).long().clamp(max=self.max_len - 1)


class Decoding:
    """One batch in the middle of being decoded.

    Its tensors hold the live sentences only; ``sentences`` says which ones of the batch they are.

    Args:
        generator: says how.
        sample: the batch.
        prefix_tokens: ``(sentences, P)`` int64 or ``None``.
        constraints: phrases for each sentence, or ``None``.
    """

    def __init__(
        self,
        generator: SequenceGenerator,
        sample: Batch,
        prefix_tokens: Tensor | None,
        constraints: Sequence[Phrases] | None,
    ):
        self.generator = generator
        self.beam = generator.beam_size
        ensemble = generator.ensemble
        sources = ensemble.sources(sample)
        starts = [model.start_symbol(generator.eos) for model in ensemble.models]
        self.members = [
            Member(
                model,
                source,
                self.beam,
                start if start != starts[0] else None,
                generator.use_cache,
                generator.beam_table,
            )
            for model, source, start in zip(ensemble.models, sources, starts, strict=True)
        ]
        device = sources[0].src_tokens.device
        count = sample.num_sentences
        self.search = generator.search.begin(SearchBatch(count, self.beam, generator.eos, device, constraints))
        self.sentences = torch.arange(count, device=device)
        self.prefix_tokens = prefix_tokens
        self.max_lengths = generator.max_lengths(sources[0].src_lengths)
        self.first_end, self.last_step = int(self.max_lengths.min()), int(self.max_lengths.max())
        self.tokens = torch.full((count, self.beam, 1), starts[0], dtype=torch.int64, device=device)
        self.scores = torch.zeros(count, self.beam, device=device)
        self.positional_scores = torch.zeros(count, self.beam, 0, device=device)
        self.attention: Tensor | None = None
        self.finished = FinishedHypotheses(count, self.beam, generator.len_penalty, generator.normalize_scores, device)

    def run(self) -> list[list[Hypothesis]]:
        """Decode until every sentence is done."""
        for step in range(self.last_step + 1):
            lprobs, attention = self.next_lprobs()
            lprobs = self.process(lprobs, step)
            candidates = self.choose(lprobs, step)
            self.finalize(candidates, attention)
            going_on = self.going_on(candidates)
            alive = self.alive(going_on, step)
            if not bool(alive.any()):
                break
            if not bool(alive.all()):
                going_on, attention = self.drop_finished(alive, going_on, attention)
            self.advance(going_on, attention)
        return self.finished.ranked()

    def next_lprobs(self) -> tuple[Tensor, Tensor | None]:
        """Score the next token of every row.

        Returns:
            Log-probabilities ``(live * beam, V)``, and attention ``(live, beam, S)`` where wanted.
        """
        generator = self.generator
        tokens = self.tokens.flatten(0, 1)
        lprobs, weights = [], []
        for member in self.members:
            logits, attention = member.next_logits(tokens, generator.need_attention)
            if generator.temperature != 1.0:
                logits = logits / generator.temperature
            lprobs.append(member.model.get_normalized_probs(logits, log_probs=True))
            weights.append(attention)
        attention = generator.ensemble.combine_attention(weights) if generator.need_attention else None
        if attention is not None:
            attention = attention.view(-1, self.beam, attention.size(-1))
        return generator.ensemble.combine(lprobs), attention

    def process(self, lprobs: Tensor, step: int) -> Tensor:
        """Apply the logits processors to ``(live * beam, V)`` scores."""
        prefix = self.prefix_tokens
        context = DecodingContext(
            step=step,
            tokens=self.tokens.flatten(0, 1)[:, 1:],
            max_lengths=self.max_lengths.repeat_interleave(self.beam),
            first_end=self.first_end,
            prefix_tokens=None if prefix is None else prefix.repeat_interleave(self.beam, 0),
            eos=self.generator.eos,
            pad=self.generator.pad,
        )
        return apply_all(self.generator.processors, lprobs, context)

    def choose(self, lprobs: Tensor, step: int) -> Candidates:
        """Let the search strategy choose candidates from ``(live * beam, V)`` scores."""
        candidates = self.search.step(step, lprobs.view(-1, self.beam, lprobs.size(-1)), self.scores)
        if bool(candidates.scores.isnan().any()):
            sentence = int(self.sentences[candidates.scores.isnan().any(1)][0])
            raise DecodingError(
                f"a model's scores are NaN at step {step} in sentence {sentence} of the batch; its weights are damaged "
                "or its number format overflows"
            )
        return candidates

    def finalize(self, candidates: Candidates, attention: Tensor | None) -> None:
        """Collect the hypotheses that end: end-of-sentence among the first ``beam`` candidates."""
        first = candidates.gather(torch.arange(self.beam, device=self.sentences.device).expand(len(self.sentences), -1))
        ended = (first.tokens == self.generator.eos) & (first.scores > -torch.inf)
        if bool(ended.any()):
            tokens, positional_scores, weights = self.extend(first, attention)
            self.finished.add(self.sentences, ended, tokens[..., 1:], first.scores, positional_scores, weights)

    def extend(self, candidates: Candidates, attention: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """The histories of candidates, new token included.

        Args:
            candidates: ``k`` of each live sentence.
            attention: ``(live, beam, S)`` of the new position, or ``None``.

        Returns:
            Tokens ``(live, k, 2 + step)`` with the start column, positional scores ``(live, k, 1 + step)`` and
            attention ``(live, k, 1 + step, S)`` or ``None``.
        """
        parents = candidates.beams
        tokens = torch.cat([_gather_beams(self.tokens, parents), candidates.tokens.unsqueeze(-1)], dim=-1)
        gained = candidates.scores - self.scores.gather(1, parents)
        positional = torch.cat([_gather_beams(self.positional_scores, parents), gained.unsqueeze(-1)], dim=-1)
        if attention is None:
            return tokens, positional, None
        new = _gather_beams(attention, parents).unsqueeze(2)
        weights = new if self.attention is None else torch.cat([_gather_beams(self.attention, parents), new], dim=2)
        return tokens, positional, weights

    def going_on(self, candidates: Candidates) -> Candidates:
        """The first ``beam`` candidates of each sentence that do not end; dead ones fill up where there are fewer."""
        ends = candidates.tokens == self.generator.eos
        # a stable sort of [no, yes, no, no] by "ends" gives the columns [0, 2, 3, 1]
        columns = ends.to(torch.int8).argsort(dim=1, stable=True)[:, : self.beam]
        chosen = candidates.gather(columns)
        scores = chosen.scores.masked_fill(chosen.tokens == self.generator.eos, -torch.inf)
        return Candidates(scores, chosen.tokens, chosen.beams)

    def alive(self, going_on: Candidates, step: int) -> Tensor:
        """Which live sentences still want hypotheses and have a beam that can give one: ``(live,)`` bool."""
        wanted = self.finished.count[self.sentences] < self.beam
        return wanted & (self.max_lengths > step) & (going_on.scores > -torch.inf).any(1)

    def drop_finished(
        self, alive: Tensor, going_on: Candidates, attention: Tensor | None
    ) -> tuple[Candidates, Tensor | None]:
        """Forget the rows of finished sentences."""
        keep = alive.nonzero().squeeze(1)
        self.sentences = self.sentences[keep]
        self.max_lengths = self.max_lengths[keep]
        self.first_end = int(self.max_lengths.min())
        if self.prefix_tokens is not None:
            self.prefix_tokens = self.prefix_tokens[keep]
        self.tokens, self.scores = self.tokens[keep], self.scores[keep]
        self.positional_scores = self.positional_scores[keep]
        if self.attention is not None:
            self.attention = self.attention[keep]
        self.search.select_sentences(keep)
        for member in self.members:
            member.select_sentences(keep)
        return going_on.select(keep), None if attention is None else attention[keep]

    def advance(self, going_on: Candidates, attention: Tensor | None) -> None:
        """Move everything to the next step: tokens, scores and decoding states."""
        self.tokens, self.positional_scores, self.attention = self.extend(going_on, attention)
        self.scores = going_on.scores
        self.search.advance(going_on)
        for member in self.members:
            member.reorder_beams(going_on.beams)


def _gather_beams(values: Tensor, parents: Tensor) -> Tensor:
    """Pick beams: ``values`` ``(live, beam, ...)``, ``parents`` ``(live, k)``, giving ``(live, k, ...)``."""
    index = parents.view(*parents.shape, *[1] * (values.dim() - 2)).expand(-1, -1, *values.shape[2:])
    return values.gather(1, index)


def _known_symbol(dictionary: Dictionary, symbol: str) -> int:
    index = dictionary.index(symbol)
    if index == dictionary.unk() and symbol != dictionary.symbol(dictionary.unk()):
        raise ConfigError(f"generation.suppress: {symbol!r} is not in the target vocabulary")
    return index
