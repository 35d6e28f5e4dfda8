"""Drafters: they propose the next tokens at low cost, and the decoded models verify all of them in one pass."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor

from seqgen.addons.speculative.verification import (
    DRAFTED,
    NOTHING,
    Draft,
    Drafter,
    Drafts,
    LookAhead,
    SpeculativeSearch,
    SpeculativeSession,
)
from seqgen.config import GenerationConfig
from seqgen.extend import (
    HIDDEN_STATES,
    ConfigError,
    DecodingError,
    EncoderDecoderModel,
    Ensemble,
    Search,
    Source,
    apply_all,
    normalized,
)


class ModelDrafter(Drafter):
    """Drafts with a smaller model of the same target vocabulary (Leviathan et al. 2023, Chen et al. 2023).

    Args:
        model: any model; its source vocabulary may differ.
    """

    def __init__(self, model: EncoderDecoderModel):
        self.model = model

    def evaluating(self) -> AbstractContextManager[None]:
        """See ``Drafter.evaluating``; the model is in evaluation mode in this context."""
        return Ensemble([self.model]).evaluating()

    def begin(self, target: SpeculativeSession, source: Source) -> Draft:
        """See ``Drafter.begin``.

        Raises:
            ConfigError: a source is longer than the model can read, or a processor needs hidden features.
        """
        if any(HIDDEN_STATES in processor.needs for processor in target.scoring.processors):
            raise ConfigError(
                f"{target.setup.needing(HIDDEN_STATES)} needs hidden states of the decoded model, but the draft model "
                "has different ones; remove the draft"
            )
        longest = self.model.max_positions()[0]
        if int(source.src_lengths.max()) > longest:
            raise ConfigError(
                f"the draft model reads at most {longest} source tokens, but a sentence has "
                f"{int(source.src_lengths.max())}; shorten it, or decode without generation.draft"
            )
        return ModelDraft(self.model, target, source)


class ModelDraft(Draft):
    """Drafts for one batch with a model; see ``Draft``.

    The logits processors of the verifying session are applied to the draft model's scores. If the verifying session
    samples, drafts are drawn as well; otherwise they are the most probable tokens.

    Args:
        model: the draft model.
        target: the session that verifies the drafts.
        source: the sentences of the batch, encoded for the draft model.
    """

    def __init__(self, model: EncoderDecoderModel, target: SpeculativeSession, source: Source):
        self.target = target
        start = model.start_token(target.setup.eos) if target.request.sample.start_tokens is None else None
        self.member = LookAhead(model, source, target.beam, start, target.setup.fast, target.reach)
        room = model.max_target_lengths(source.src_lengths)
        self.longest = model.max_positions()[1] if room is None else int(room.min())

    def propose(self, step: int, generated: Tensor, count: int) -> Drafts:
        """See ``Draft.propose``."""
        self.member.rewind(step)
        tokens = generated
        drawn: list[Tensor] = []
        for place in range(max(0, min(count, self.longest - step))):
            self.member.read(tokens.flatten(0, 1))
            lprobs = self.scores(tokens, step + place)
            if self.target.search.samples_tokens:
                drawn.append(lprobs)
                newest = self.target.draw(DRAFTED, step + place, lprobs)
            else:
                newest = lprobs.argmax(-1)
            tokens = torch.cat([tokens, newest.unsqueeze(-1)], dim=-1)
        return Drafts(tokens[..., 1 + step :], drawn)

    def scores(self, tokens: Tensor, step: int) -> Tensor:
        """Compute the processed scores of the next token.

        Args:
            tokens: ``(live, beam, 1 + step)`` int64, the start token and the tokens so far.
            step: number of tokens that each row has.

        Returns:
            ``(live, beam, V)`` scores; log-probabilities in nats if the verifying session samples.

        Raises:
            ConfigError: the target vocabulary of the model has another size.
            DecodingError: a score is NaN.
        """
        target, setup, samples = self.target, self.target.setup, self.target.search.samples_tokens
        logits = self.member.next_output(tokens.flatten(0, 1)).logits
        size, wanted = logits.size(-1), setup.vocab_size
        if size < wanted or (samples and size > wanted):  # without samples, a wrong token is only a wrong guess
            raise ConfigError(
                f"the target vocabulary of the draft model has {size} tokens, and that of the models that it drafts "
                f"for {wanted}; choose a draft model with the same vocabulary"
            )
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / setup.temperature
        lprobs = logits if target.scoring.processes_logits else self.member.model.get_normalized_probs(logits)
        context = target.context(step, target.beam, tokens)
        lprobs = apply_all(target.scoring.processors, lprobs, context).view(*tokens.shape[:2], -1)
        if bool(lprobs.isnan().any()):
            raise DecodingError(
                f"the draft model's scores are NaN at step {step}; its weights are damaged or its dtype overflows"
            )
        return normalized(lprobs) if samples else lprobs

    def select_sentences(self, keep: Tensor) -> None:
        """See ``Draft.select_sentences``."""
        self.member.select_sentences(keep)


class PromptLookup(Drafter):
    """Drafts the tokens that followed an earlier occurrence of the newest n-gram, in the source or in the output.

    It suits outputs that repeat much of their source, such as corrections and summaries. Source and target must have
    the same vocabulary. A longer match has priority over a shorter one, a match in the source over one in the output,
    and an earlier match over a later one. Hugging Face's prompt lookup has the same priorities, but for encoder-decoder
    models it searches only the output.

    Args:
        longest: the largest size of an n-gram.
    """

    def __init__(self, longest: int = 2):
        self.longest = longest

    def begin(self, target: SpeculativeSession, source: Source) -> Draft:
        """See ``Drafter.begin``."""
        return NgramDraft(self.longest, target)


class NgramDraft(Draft):
    """Drafts for one batch with n-grams; see ``Draft``.

    Args:
        longest: the largest size of an n-gram.
        target: the session that verifies the drafts.
    """

    def __init__(self, longest: int, target: SpeculativeSession):
        self.longest, self.target = longest, target

    def propose(self, step: int, generated: Tensor, count: int) -> Drafts:
        """See ``Draft.propose``.

        With the source ``a b c d`` and the output ``x b``, the newest unigram ``b`` gives the draft ``c d``. The text
        that is searched is ``a b c d - x b``; nothing matches the gap ``-``, and a draft ends at it. The output of a
        language model continues its prompt, without a gap.
        """
        output = generated[..., 1:].flatten(0, 1)
        text = torch.cat([self.source(generated.size(1)), output], dim=1)
        length = text.size(1)
        begins = text.new_full((len(text),), length)  # first column of the draft; behind the end without a match
        known = length - 1 if self.target.sentences.continues_source else step
        for size in range(1, min(self.longest, known) + 1):
            windows = text.unfold(1, size, 1)[:, :-1]  # all but the last, which nothing follows
            hits = (windows == text[:, -size:].unsqueeze(1)).all(-1) & (text[:, size:] != NOTHING)
            # window 2 of size 3 covers the columns 2, 3 and 4; what follows it begins in column 2 + 3
            begins = torch.where(hits.any(1), hits.to(torch.int8).argmax(1) + size, begins)
        text = torch.nn.functional.pad(text, (0, count), value=NOTHING)
        columns = begins.unsqueeze(1) + torch.arange(count, device=text.device)
        drafted = text.gather(1, columns)
        drafted = drafted.masked_fill((drafted == NOTHING).cumsum(1) > 0, NOTHING)
        useful = int((drafted != NOTHING).any(0).sum())
        return Drafts(drafted[:, :useful].view(*generated.shape[:2], useful), [])

    def source(self, beam: int) -> Tensor:
        """The source of each row, ``(live * beam, S or S + 1)``; padding, ends and what follows a source are gaps."""
        target = self.target
        tokens, padding = target.sentences.src_tokens, target.sentences.src_padding
        assert tokens is not None  # no other batch has joined this one
        hidden = tokens == target.setup.eos
        if padding is not None:
            hidden = hidden | padding
        gap = 0 if target.sentences.continues_source else 1
        tokens = torch.nn.functional.pad(tokens.masked_fill(hidden, NOTHING), (0, gap), value=NOTHING)
        return tokens.repeat_interleave(beam, dim=0)


def with_drafts(search: Search, cfg: GenerationConfig, draft: EncoderDecoderModel | None) -> Search:
    """The strategy, wrapped in speculative search if the configuration asks for drafts.

    Args:
        search: the strategy.
        cfg: the configuration.
        draft: the model that ``cfg.draft`` names, or another one.

    Raises:
        ConfigError: the configuration names a draft model, but ``draft`` is ``None``.
    """
    if draft is not None:
        return SpeculativeSearch(ModelDrafter(draft), cfg.draft_tokens, search)
    if cfg.draft:
        raise ConfigError(
            f"generation.draft={cfg.draft} names a model that has not been loaded; pass it as draft=MODEL where the "
            "generator is built"
        )
    if cfg.prompt_lookup:
        return SpeculativeSearch(PromptLookup(cfg.prompt_lookup), cfg.draft_tokens, search)
    return search
