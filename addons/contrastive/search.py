"""Contrastive search: probable tokens whose hidden features differ from those of all earlier tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seqgen.extend import (
    HIDDEN_STATES,
    LAYER_LOGITS,
    Candidates,
    ConfigError,
    DecodingRequest,
    DecodingSetup,
    LanguageModel,
    Member,
    MemberOutput,
    MemberSpec,
    PlannedMember,
    Scores,
    Search,
    Session,
    Source,
    StepContext,
    check_features,
    gather_beams,
    option,
    register_search,
    rows_of_sentences,
)


class ContrastiveSession(Session):
    """Decodes a batch by contrastive search.

    The model has ``k`` rows for each sentence, all with the same generated tokens. At each step, each row reads another
    candidate; then all rows continue from the row that read the chosen one.

    Args:
        setup: see ``Session``; its search is a ``ContrastiveSearch``.
        request: see ``Session``.

    Attributes:
        out: the newest output of the model, for ``k`` rows of each sentence.
        features: ``(live, positions, C)`` normalized features of all tokens that each sentence has read, prompts
            included.
        chosen: ``(live, 1)`` int64, which of the ``k`` rows read the newest token.

    Raises:
        ConfigError: there are several models, or the model does not provide its features.
    """

    can_rewind = False

    def __init__(self, setup: DecodingSetup, request: DecodingRequest):
        assert isinstance(setup.search, ContrastiveSearch)
        if len(setup.ensemble.members) > 1:
            raise ConfigError(
                "contrastive search compares the hidden features of a single model and does not support ensembles or "
                "classifier-free guidance; give one model and no guidance_scale, or choose another search"
            )
        check_features(setup.ensemble.models, "contrastive search")
        self.alpha = setup.search.penalty_alpha
        self.topk = min(setup.search.contrastive_topk, setup.vocab_size)
        super().__init__(setup, request)
        self.features = _normalized(self._prompt_features(self._read(self.backpointers.matrix())))
        self.chosen = torch.zeros_like(self.live).unsqueeze(1)

    def new_member(self, spec: MemberSpec, source: Source, start_token: int | None) -> Member:
        """A member with ``k`` rows for each sentence; see ``Session.new_member``."""
        return PlannedMember(spec.model, source, self.topk, start_token, self.setup.fast)

    def _read(self, tokens: Tensor) -> Tensor:
        """Run the decoder on the newest token of each row; its output becomes ``out``.

        Args:
            tokens: ``(live, 1 or k, L)`` int64 from the start token on.

        Returns:
            The features of the rows at their newest token, ``(live, k, C)``.
        """
        needs = self.setup.needs - {LAYER_LOGITS} | {HIDDEN_STATES}
        self.out = self.members[0].next_output(tokens.expand(-1, self.topk, -1).flatten(0, 1), needs)
        assert self.out.features is not None
        return self.out.features.view(-1, self.topk, self.out.features.size(-1))

    def _prompt_features(self, of_start: Tensor) -> Tensor:
        """The features of what each sentence has read at first, ``(live, P, C)``: the prompt or the start token."""
        model, encoder_out = self.members[0].model, self.members[0].encoder_out
        if not isinstance(model, LanguageModel):
            return of_start[:, :1]
        if not self.members[0].shares_encoder_output:
            rows = torch.arange(0, len(encoder_out.encoder_out), self.topk, device=self.live.device)
            encoder_out = model.encoder.reorder_encoder_out(encoder_out, rows)
        features = model.decoder.prompt_features(encoder_out)
        if (mask := encoder_out.encoder_padding_mask) is None:
            return features
        # a second copy of a position in place of padding does not change the largest similarity
        return torch.where(mask.unsqueeze(-1), features[:, -1:], features)

    def member_outputs(self) -> list[MemberOutput]:
        """The output of the row that read the chosen token; see ``Session``."""
        rows = torch.arange(0, len(self.out.logits), self.topk, device=self.chosen.device)
        return [self.out.select(rows + self.chosen.squeeze(1))]

    def choose(self, context: StepContext, scores: Scores) -> Candidates:
        """Let the model read the most probable tokens, and choose the one that maximizes equation 5."""
        candidates = super().choose(context, scores)
        probabilities = scores.distribution()[:, 0].gather(1, candidates.tokens).exp()
        possible = candidates.scores > -torch.inf
        # at the last position that the decoder can read, the most probable token is chosen
        if context.step + 1 < self.setup.ensemble.models[0].decoder.max_positions():
            generated = self.backpointers.matrix().expand(-1, self.topk, -1)
            features = _normalized(self._read(torch.cat([generated, candidates.tokens.unsqueeze(-1)], dim=-1)))
            similarity = (features @ self.features.transpose(1, 2)).amax(-1)
            # both terms in one dtype; forbidden tokens are masked, since only their probability is 0
            gains = (1 - self.alpha) * probabilities - self.alpha * similarity.to(probabilities.dtype)
            self.chosen = gains.masked_fill(~possible, -torch.inf).argmax(1, keepdim=True)
            self.features = torch.cat([self.features, gather_beams(features, self.chosen)], dim=1)
        else:
            self.chosen = torch.zeros_like(self.chosen)
        return candidates.gather(self.chosen)

    def select_sentences(self, keep: Tensor) -> None:
        """See ``Session.select_sentences``."""
        super().select_sentences(keep)
        self.features, self.chosen = self.features.index_select(0, keep), self.chosen.index_select(0, keep)
        self.out = self.out.select(rows_of_sentences(keep, self.topk))

    def advance(self, active: Candidates) -> None:
        """Let all rows continue from the row that read the chosen token; see ``Session.advance``."""
        super().advance(active)
        self.members[0].reorder_beams(self.chosen.expand(-1, self.topk))


@dataclass
class ContrastiveConfig:
    """Configuration of contrastive search."""

    penalty_alpha: float = option(0.6, "weight of the similarity penalty", minimum=0, maximum=1)
    contrastive_topk: int = option(4, "number of candidates per step", minimum=1)


@register_search("contrastive", config=ContrastiveConfig)
class ContrastiveSearch(Search):
    """Chooses, among the ``k`` most probable tokens, the one that maximizes equation 5 of Su et al. 2022.

    With the probability ``p(v)`` of a token and the features ``h`` that the decoder computes when it reads the token,
    this is ``(1 - alpha) * p(v) - alpha * max(cosine(h(v), h(x)) for all earlier x)``; for a language model, the tokens
    of the prompt are among the earlier ones.

    The score of an output is computed from the log-probabilities of its tokens alone.

    Args:
        penalty_alpha: alpha; 0 is greedy search.
        contrastive_topk: k; 1 is greedy search.
    """

    generates_one = True
    continues_each_beam = True
    is_stochastic = False
    session_class = ContrastiveSession
    stops_early = False

    def __init__(self, penalty_alpha: float = 0.6, contrastive_topk: int = 4):
        self.penalty_alpha, self.contrastive_topk = penalty_alpha, contrastive_topk

    def step(self, context: StepContext, scores: Scores) -> Candidates:
        """The ``k`` most probable continuations, among which ``ContrastiveSession`` chooses; see ``Search.step``."""
        best, tokens = scores.distribution()[:, 0].topk(min(self.contrastive_topk, scores.size), dim=-1)
        return Candidates(scores.beams + best, tokens, torch.zeros_like(tokens))


def _normalized(features: Tensor) -> Tensor:
    """Features divided by their norm, in float32 or wider, so that dot products are cosines."""
    wide = features.to(torch.promote_types(features.dtype, torch.float32))
    return torch.nn.functional.normalize(wide, dim=-1, eps=0.0)
