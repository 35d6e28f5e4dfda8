"""Drafters: they propose the next tokens cheaply, and a larger model verifies all of them at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from seqgen.errors import ConfigError, DecodingError
from seqgen.generation.backpointers import BackPointers
from seqgen.generation.context import Sentences, StepContext
from seqgen.generation.ensemble.ensemble import Ensemble
from seqgen.generation.processors.base import LogitsProcessor, apply_all
from seqgen.generation.setup import DecodingSetup
from seqgen.generation.speculative.look_ahead import LookAhead
from seqgen.language_model import LanguageModel
from seqgen.model import EncoderDecoderModel
from seqgen.structures import Source

DRAFTED, ACCEPTANCE, REPLACEMENT = 3, 4, 5
"""Counters that keep random numbers apart, beside those of ``randomness``: which token is drafted, whether it is
accepted, and which token replaces it."""

NOTHING = -1
"""Stands where there is no drafted token."""


@dataclass(frozen=True)
class Drafts:
    """Drafted tokens for some steps.

    Attributes:
        tokens: ``(live, beam, D)`` int64; ``NOTHING`` where there is none.
        lprobs: for each step the log-probabilities ``(live, beam, V)`` that the token was drawn with; none where
            tokens were not drawn.
    """

    tokens: Tensor
    lprobs: list[Tensor]

    def select(self, keep: Tensor) -> Drafts:
        """Those of some sentences, ``keep`` being ``(kept,)`` int64."""
        return Drafts(self.tokens.index_select(0, keep), [lprobs.index_select(0, keep) for lprobs in self.lprobs])


class DraftTarget(Protocol):
    """The session that verifies drafts, as drafters see it."""

    setup: DecodingSetup
    processors: list[LogitsProcessor]
    backpointers: BackPointers
    sentences: Sentences
    beam: int
    reach: int

    @property
    def draws(self) -> bool:
        """Whether drafts are drawn at random."""
        ...

    def draw(self, purpose: int, step: int, lprobs: Tensor) -> Tensor:
        """Draw a token for each row: ``(live, beam, V)`` log-probabilities give ``(live, beam)`` int64."""
        ...

    def context(self, step: int, rows: int, tokens: Tensor | None = None) -> StepContext:
        """What components may look at; see ``Session.context``."""
        ...


class Draft(Protocol):
    """Drafts tokens for one batch."""

    def propose(self, step: int, written: Tensor, count: int) -> Drafts:
        """Draft the next tokens of all rows.

        Args:
            step: how many tokens each row has.
            written: ``(live, beam, 1 + step)`` int64, these tokens behind a start token.
            count: how many tokens are wanted at most.

        Returns:
            Tokens for ``count`` steps, or for fewer.
        """
        ...

    def select_sentences(self, keep: Tensor) -> None:
        """Forget all sentences but those in ``keep``, ``(kept,)`` int64."""
        ...


class Drafter(Protocol):
    """A way to draft tokens."""

    def begin(self, target: DraftTarget, source: Source) -> Draft:
        """Make ready for a batch.

        Args:
            target: the session that verifies.
            source: its sentences as the draft reads them.
        """
        ...

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Do whatever is needed before and after decoding."""
        ...


class ModelDrafter:
    """A smaller model over the same target vocabulary drafts (Leviathan et al. 2023, Chen et al. 2023).

    Args:
        model: any model, with a source vocabulary of its own if it likes.
    """

    def __init__(self, model: EncoderDecoderModel):
        self.model = model

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """See ``Drafter.evaluating``: the model is in evaluation mode meanwhile."""
        with Ensemble([self.model]).evaluating():
            yield

    def begin(self, target: DraftTarget, source: Source) -> Draft:
        """See ``Drafter.begin``.

        Raises:
            ConfigError: a source is longer than the model can read.
        """
        longest = self.model.max_positions()[0]
        if int(source.src_lengths.max()) > longest:
            raise ConfigError(
                f"the draft model reads at most {longest} source tokens, and a sentence has "
                f"{int(source.src_lengths.max())}; shorten it, or decode without generation.draft"
            )
        return ModelDraft(self.model, target, source)


class ModelDraft:
    """A model that drafts for one batch; see ``Draft``.

    Its scores go through the same logits processors as those of the verifying models. Where these sample, drafts are
    drawn as well; otherwise they are the likeliest tokens.

    Args:
        model: the model.
        target: the session that verifies.
        source: its sentences as the model reads them.
    """

    def __init__(self, model: EncoderDecoderModel, target: DraftTarget, source: Source):
        self.target = target
        start = model.start_token(target.setup.eos)
        self.member = LookAhead(
            model,
            source,
            target.beam,
            start if start != target.backpointers.start else None,
            target.setup.debug,
            target.reach,
        )
        room = model.max_target_lengths(source.src_lengths)
        self.longest = model.max_positions()[1] if room is None else int(room.min())

    def propose(self, step: int, written: Tensor, count: int) -> Drafts:
        """See ``Draft.propose``."""
        self.member.rewind(step)
        tokens = written
        drawn: list[Tensor] = []
        for place in range(max(0, min(count, self.longest - step))):
            self.member.read(tokens.flatten(0, 1))
            lprobs = self.scores(tokens, step + place)
            if self.target.draws:
                drawn.append(lprobs)
                newest = self.target.draw(DRAFTED, step + place, lprobs)
            else:
                newest = lprobs.argmax(-1)
            tokens = torch.cat([tokens, newest.unsqueeze(-1)], dim=-1)
        return Drafts(tokens[..., 1 + step :], drawn)

    def scores(self, tokens: Tensor, step: int) -> Tensor:
        """What the model gives to the next token, processed: ``(live, beam, V)`` log-probabilities.

        Args:
            tokens: ``(live, beam, 1 + step)`` int64.
            step: how many tokens each row has.
        """
        target, setup = self.target, self.target.setup
        logits = self.member.next_output(tokens.flatten(0, 1)).logits
        if logits.size(-1) < setup.vocab_size:
            raise other_vocabulary(logits.size(-1), setup.vocab_size)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / setup.temperature
        lprobs = logits if setup.processes_logits else self.member.model.get_normalized_probs(logits)
        context = target.context(step, target.beam, tokens)
        lprobs = apply_all(target.processors, lprobs, context).view(*tokens.shape[:2], -1)
        if bool(lprobs.isnan().any()):
            raise DecodingError(
                f"the draft model's scores are NaN at step {step}; its weights are damaged or its dtype overflows"
            )
        return normalized(lprobs) if target.draws else lprobs

    def select_sentences(self, keep: Tensor) -> None:
        """See ``Draft.select_sentences``."""
        self.member.select_sentences(keep)


class PromptLookup:
    """Drafts the tokens that followed the newest n-gram before, in the source or in the output.

    For outputs that repeat much of their source, such as corrections and summaries; the vocabularies of source and
    target must be one. Longer matches come before shorter, the source before the output, and the first before those
    after it, as with Hugging Face's prompt lookup, which for an encoder-decoder model looks at the output alone.

    Args:
        longest: tokens that are looked up at most.
    """

    def __init__(self, longest: int = 2):
        if longest < 1:
            raise ConfigError(f"prompt_lookup={longest} must be at least 1")
        self.longest = longest

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """See ``Drafter.evaluating``."""
        yield

    def begin(self, target: DraftTarget, source: Source) -> Draft:
        """See ``Drafter.begin``."""
        has_prompts = isinstance(target.setup.ensemble.members[0].model, LanguageModel)
        return NgramDraft(self.longest, target, has_prompts)


class NgramDraft:
    """N-gram drafts for one batch; see ``Draft``.

    Args:
        longest: tokens that are looked up at most.
        target: the session that verifies.
        has_prompts: whether outputs continue their sources, as those of language models do.
    """

    def __init__(self, longest: int, target: DraftTarget, has_prompts: bool = False):
        self.longest = longest
        self.target = target
        self.has_prompts = has_prompts

    def propose(self, step: int, written: Tensor, count: int) -> Drafts:
        """See ``Draft.propose``.

        With the source a b c d and the output x b, looking up b gives c d. The text that is searched is
        a b c d - x b, where nothing matches the gap, and no draft continues across it. The output of a language model
        continues its prompt, without a gap.
        """
        output = written[..., 1:].flatten(0, 1)
        text = torch.cat([self.source(written.size(1)), output], dim=1)
        length = text.size(1)
        begins = text.new_full((len(text),), length)  # where the continuation begins; behind the end for none
        known = length - 1 if self.has_prompts else step
        for size in range(1, min(self.longest, known) + 1):
            windows = text.unfold(1, size, 1)[:, :-1]  # those that something follows
            hits = (windows == text[:, -size:].unsqueeze(1)).all(-1) & (text[:, size:] != NOTHING)
            # window 2 of size 3 covers the columns 2, 3 and 4; what follows it begins in column 2 + 3
            begins = torch.where(hits.any(1), hits.to(torch.int8).argmax(1) + size, begins)
        text = torch.nn.functional.pad(text, (0, count), value=NOTHING)
        columns = begins.unsqueeze(1) + torch.arange(count, device=text.device)
        drafted = text.gather(1, columns)
        drafted = drafted.masked_fill((drafted == NOTHING).cumsum(1) > 0, NOTHING)
        useful = int((drafted != NOTHING).any(0).sum())
        return Drafts(drafted[:, :useful].view(*written.shape[:2], useful), [])

    def source(self, beam: int) -> Tensor:
        """The source of each row, ``(live * beam, S or S + 1)``; padding, ends and what follows a source are gaps."""
        target = self.target
        tokens, padding = target.sentences.src_tokens, target.sentences.src_padding
        assert tokens is not None  # no other batch has joined this one
        hidden = tokens == target.setup.eos
        if padding is not None:
            hidden = hidden | padding
        gap = 0 if self.has_prompts else 1
        tokens = torch.nn.functional.pad(tokens.masked_fill(hidden, NOTHING), (0, gap), value=NOTHING)
        return tokens.repeat_interleave(beam, dim=0)

    def select_sentences(self, keep: Tensor) -> None:
        """See ``Draft.select_sentences``: the sources are those of the batch itself."""


def other_vocabulary(draft: int, wanted: int) -> ConfigError:
    """The error of a draft model whose target vocabulary has another size than that of the decoded models."""
    return ConfigError(
        f"the target vocabulary of the draft model has {draft} tokens, and that of the models that it drafts for "
        f"{wanted}; choose a draft model with the same vocabulary"
    )


def normalized(scores: Tensor) -> Tensor:
    """Scores ``(..., V)`` as log-probabilities; a row in which everything is forbidden stays so."""
    nothing = scores.amax(-1, keepdim=True) == -torch.inf
    return scores.log_softmax(-1).masked_fill(nothing, -torch.inf)
