"""Speculative decoding: a draft guesses several tokens, and the models judge all of them in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from seqgen.errors import ConfigError
from seqgen.generation.candidates import Candidates
from seqgen.generation.ensemble.ensemble import Member
from seqgen.generation.search.base import Phrases, Search
from seqgen.generation.search.randomness import draw
from seqgen.generation.search.sampling import Sampling
from seqgen.generation.session import Decoding, Streamer
from seqgen.generation.speculative.drafters import (
    ACCEPTANCE,
    NOTHING,
    REPLACEMENT,
    Drafter,
    Drafts,
    ModelDrafter,
    PromptLookup,
    other_vocabulary,
)
from seqgen.generation.speculative.look_ahead import LookAhead
from seqgen.model import EncoderDecoderModel
from seqgen.structures import Batch, Hypothesis, Source

if TYPE_CHECKING:
    from seqgen.config import GenerationConfig
    from seqgen.generation.sequence_generator import SequenceGenerator


class SpeculativeDecoding:
    """Decodes as the search strategy would, with fewer passes of the models (Leviathan et al. 2023, Chen et al. 2023).

    The output is that of the strategy itself: greedy search writes the same tokens. Where a model drafts for sampling,
    the outputs have the same distribution, but are others than sampling alone draws with the same seed; a draft that
    is looked up changes nothing there either.

    All sentences of a batch advance together, as far as the one whose guesses fail first. So this pays for small
    batches; what is written does not depend on them.

    Args:
        drafter: makes the guesses.
        draft_tokens: how many are made at a time.
    """

    def __init__(self, drafter: Drafter, draft_tokens: int = 5):
        if draft_tokens < 1:
            raise ConfigError(f"draft_tokens={draft_tokens} must be at least 1")
        self.drafter = drafter
        self.draft_tokens = draft_tokens
        self.judged = 0
        """Guesses that have been judged, over all batches."""
        self.accepted = 0
        """Those of them that were right."""

    @property
    def acceptance_rate(self) -> float:
        """The share of guesses that were right; NaN before the first."""
        return self.accepted / self.judged if self.judged else float("nan")

    def decode(
        self,
        generator: SequenceGenerator,
        sample: Batch,
        prefix_tokens: Tensor | None = None,
        constraints: Sequence[Phrases] | None = None,
        streamer: Streamer | None = None,
    ) -> list[list[Hypothesis]]:
        """See ``Procedure``.

        Args:
            generator: see there.
            sample: see there; where members read the source differently, its ``member_sources`` end with that of the
                draft model.
            prefix_tokens: see there.
            constraints: see there.
            streamer: see there.

        Raises:
            ConfigError: the search strategy compares hypotheses with each other, or the draft model does not fit.
        """
        search = generator.search
        if type(search).decode is not Search.decode or not (search.independent_rows or generator.beam_size == 1):
            raise ConfigError(
                f"a draft is judged token by token, and {type(search).__name__} with beam_size={generator.beam_size} "
                "compares hypotheses with each other; take beam_size=1 or sampling, or no draft"
            )
        source = sample.source
        if sample.member_sources is not None and len(sample.member_sources) == len(generator.models) + 1:
            *others, source = sample.member_sources
            sample = replace(sample, member_sources=others)
        with self.drafter.evaluating():
            return Speculation(self, generator, sample, source, prefix_tokens, constraints, streamer).run()


class Speculation(Decoding):
    """A batch that is being decoded with guesses.

    The loop is that of ``Decoding``. But where it asks for the scores of a step, they may be there already: they were
    computed when the members read the guesses for several steps at once. They are good for as long as every sentence
    has written what was guessed.

    Args:
        speculative: the procedure.
        generator: see ``Decoding``.
        sample: see ``Decoding``.
        source: the sentences as the draft reads them.
        prefix_tokens: see ``Decoding``.
        constraints: see ``Decoding``.
        streamer: see ``Decoding``.
    """

    def __init__(
        self,
        speculative: SpeculativeDecoding,
        generator: SequenceGenerator,
        sample: Batch,
        source: Source,
        prefix_tokens: Tensor | None,
        constraints: Sequence[Phrases] | None,
        streamer: Streamer | None,
    ):
        self.speculative = speculative
        self.reach = speculative.draft_tokens + 1
        super().__init__(generator, sample, prefix_tokens, constraints, streamer)
        self.draft = speculative.drafter.begin(self, source)
        self.drafts = Drafts(self.history.matrix()[..., :0], [])
        self.start = 0
        """The step that the first of the guesses is for."""
        self.stop = 0
        """The step at which new guesses are needed."""

    @property
    def draws(self) -> bool:
        """Whether guesses are drawn at random, and judged by Leviathan's rule."""
        return isinstance(self.search, Sampling)

    def member(self, model: EncoderDecoderModel, source: Source, start_symbol: int | None) -> Member:
        """A model that can read ahead; see ``Decoding.member``."""
        generator = self.generator
        return LookAhead(model, source, self.beam, start_symbol, generator.use_cache, generator.beam_table, self.reach)

    def next_scores(self, step: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Look ahead where needed; see ``Decoding.next_scores``."""
        if step >= self.stop:
            self.look_ahead(step)
        return super().next_scores(step)

    def look_ahead(self, step: int) -> None:
        """Make new guesses, and let the members read them.

        With 3 tokens written and 5 guessed, the members read the last of the 3 and the 5, and so have scores for the
        steps 3 to 8. Where guesses were drawn, the last of these is not used: in a larger batch, in which a sentence
        may be interrupted anywhere, it could have been a guess that was judged.
        """
        written = self.history.matrix()
        last = int(self.max_lengths.max())
        self.drafts = self.draft.propose(step, written, min(self.speculative.draft_tokens, last - step + 1))
        count = self.drafts.tokens.size(-1)
        tokens = torch.cat([written, self._read(self.drafts.tokens)], dim=-1)[..., : 1 + last].flatten(0, 1)
        for member in [*self.members, *self.guides]:
            assert isinstance(member, LookAhead)
            member.rewind(step)
            member.read(tokens, self.generator.need_attention)
        self.start, self.stop = step, tokens.size(1)
        if self.drafts.lprobs:
            self.stop = min(self.stop, step + count)

    def _read(self, guesses: Tensor) -> Tensor:
        """What members read in place of guesses: tokens that all of them know."""
        return guesses.clamp(0, len(self.generator.tgt_dict) - 1)

    def choose(self, lprobs: Tensor, scores: Tensor, step: int) -> Candidates:
        """Judge the guesses that were drawn; otherwise the strategy chooses, see ``Decoding.choose``."""
        place = step - self.start
        if place >= len(self.drafts.lprobs):
            return super().choose(lprobs, scores, step)
        tokens = self.judged(lprobs, self.drafts.tokens[..., place], self.drafts.lprobs[place], step)
        gains = lprobs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        alive = (scores + gains).masked_fill(self.done.unsqueeze(1), -torch.inf)
        return Candidates(alive, tokens, torch.arange(self.beam, device=tokens.device).expand_as(tokens).contiguous())

    def judged(self, lprobs: Tensor, guesses: Tensor, guessed_with: Tensor, step: int) -> Tensor:
        """Accept guesses or replace them, such that the results are distributed as the models say.

        A guess that was drawn with probability ``q`` and should have ``p`` is accepted with probability ``p / q``, and
        otherwise replaced by a draw in proportion to ``max(0, p - q)`` (Leviathan et al. 2023, algorithm 1).

        Args:
            lprobs: ``(live, beam, V)``, the logarithm of p.
            guesses: ``(live, beam)`` int64.
            guessed_with: ``(live, beam, V)``, the logarithm of q.
            step: how many tokens each row has.

        Returns:
            ``(live, beam)`` int64.
        """
        if lprobs.size(-1) != guessed_with.size(-1):
            raise other_vocabulary(guessed_with.size(-1), lprobs.size(-1))
        wanted, had = (values.gather(-1, guesses.unsqueeze(-1)).squeeze(-1) for values in (lprobs, guessed_with))
        accepted = self.numbers(ACCEPTANCE, step).log() < wanted - had
        residual = (lprobs.exp() - guessed_with.exp()).clamp(min=0.0).log()
        return torch.where(accepted, guesses, self.draw(REPLACEMENT, step, residual))

    def draw(self, purpose: int, step: int, lprobs: Tensor) -> Tensor:
        """Draw a token for each row: ``(live, beam, V)`` log-probabilities give ``(live, beam)`` int64."""
        tokens, _ = draw(lprobs.flatten(0, 1), self.numbers(purpose, step).view(-1, 1))
        return tokens.view(lprobs.shape[:2])

    def numbers(self, purpose: int, step: int) -> Tensor:
        """Random numbers of the strategy for each row, ``(live, beam)``, see ``RandomSearch.numbers``."""
        assert isinstance(self.search, Sampling)
        return self.search.numbers(purpose, step, torch.arange(self.beam, device=self.scores.device))

    def compact(self, going_on: Candidates, attention: Tensor | None) -> tuple[Candidates, Tensor | None]:
        """See ``Decoding.compact``."""
        keep = (~self.done).nonzero().squeeze(1)
        self.draft.select_sentences(keep)
        self.drafts = self.drafts.select(keep)
        return super().compact(going_on, attention)

    def advance(self, going_on: Candidates, attention: Tensor | None) -> None:
        """Compare what was written with what had been read; see ``Decoding.advance``."""
        step = self.history.length
        super().advance(going_on, attention)
        place = step - self.start
        if place >= self.drafts.tokens.size(-1):
            return
        guesses = self.drafts.tokens[..., place]
        right = going_on.tokens == self._read(guesses)
        goes_on = (going_on.scores > -torch.inf) & ~self.done.unsqueeze(1)
        guessed = goes_on & (guesses != NOTHING)
        judged, accepted, wrong = torch.stack(
            [guessed.sum(), (guessed & right).sum(), (goes_on & ~right).sum()]
        ).tolist()
        self.speculative.judged += judged
        self.speculative.accepted += accepted
        if wrong:
            self.stop = step + 1  # what has been read behind it is not what was written


def speculation_from_config(
    cfg: GenerationConfig, draft: EncoderDecoderModel | None = None
) -> SpeculativeDecoding | None:
    """Make what a configuration asks for with ``draft`` or ``prompt_lookup``; ``None`` where it asks for neither.

    Args:
        cfg: the configuration.
        draft: the model that ``cfg.draft`` names, loaded.

    Raises:
        ConfigError: a draft model is named, and none is given.
    """
    if draft is not None:
        return SpeculativeDecoding(ModelDrafter(draft), cfg.draft_tokens)
    if cfg.draft:
        raise ConfigError(
            f"generation.draft={cfg.draft} names a model that has not been loaded; give it as draft=MODEL where the "
            "generator is built"
        )
    if cfg.prompt_lookup:
        return SpeculativeDecoding(PromptLookup(cfg.prompt_lookup), cfg.draft_tokens)
    return None
