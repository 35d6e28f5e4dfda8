"""Contrastive search: tokens that are likely, but whose hidden features are unlike all those before."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seqgen.config import option
from seqgen.errors import ConfigError
from seqgen.generation.candidates import Candidates
from seqgen.generation.component import ATTENTION
from seqgen.generation.context import StepContext
from seqgen.generation.ensemble.member import Member, MemberOutput, MemberSpec, check_features
from seqgen.generation.search.base import Search
from seqgen.generation.session import Session, StepScores
from seqgen.generation.setup import DecodingRequest, DecodingSetup
from seqgen.incremental_state import rows_of_sentences
from seqgen.registry import register_search
from seqgen.structures import Source


@dataclass
class ContrastiveConfig:
    """Configuration of contrastive search."""

    penalty_alpha: float = option(0.6, "weight of the penalty for similarity", minimum=0, maximum=1)
    contrastive_topk: int = option(4, "candidates at each step", minimum=1)


@register_search("contrastive", config=ContrastiveConfig)
class ContrastiveSearch(Search):
    """Of the ``k`` likeliest tokens takes the one with the best sum of confidence and novelty (Su et al. 2022).

    With the probability ``p(v)`` of a token, and the features ``h`` that the decoder computes once it has been written,
    equation 5 of the paper: ``(1 - alpha) * p(v) - alpha * max(cosine(h(v), h(x)) for all x before)``.

    The score of an output is that of its tokens' log-probabilities alone.

    Args:
        penalty_alpha: alpha; 0 is greedy search.
        contrastive_topk: k; 1 is greedy search.
    """

    independent_rows = True

    def __init__(self, penalty_alpha: float = 0.6, contrastive_topk: int = 4):
        if not 0 <= penalty_alpha <= 1 or contrastive_topk < 1:
            raise ConfigError(
                f"penalty_alpha={penalty_alpha} must be between 0 and 1, contrastive_topk={contrastive_topk} at least 1"
            )
        self.penalty_alpha, self.contrastive_topk = penalty_alpha, contrastive_topk

    def rows(self, beam: int) -> int:
        """One: nothing is random, so that all beams would be the same."""
        return 1

    def step(self, context: StepContext, lprobs: Tensor, scores: Tensor) -> Candidates:
        """The ``k`` likeliest continuations, which ``ContrastiveSession`` chooses among; see ``Search.step``."""
        best, tokens = lprobs[:, 0].topk(min(self.contrastive_topk, lprobs.size(-1)), dim=-1)
        return Candidates(scores + best, tokens, torch.zeros_like(tokens))


class ContrastiveSession(Session):
    """Decodes a batch by contrastive search.

    The model has ``k`` rows for each sentence, which all hold the same tokens. At each step each row reads a candidate
    of its own; when one is chosen, all rows continue from that one.

    Args:
        setup: see ``Session``; its search is a ``ContrastiveSearch``.
        request: see ``Session``.

    Raises:
        ConfigError: there are several models, or the model's features cannot be had.
    """

    def __init__(self, setup: DecodingSetup, request: DecodingRequest):
        assert isinstance(setup.search, ContrastiveSearch)
        if len(setup.ensemble.members) > 1:
            raise ConfigError(
                "contrastive search compares the hidden features of one model, which an ensemble and "
                "classifier-free guidance do not have; give one model and no guidance_scale, or another search"
            )
        check_features(setup.ensemble.models, "contrastive search")
        self.alpha = setup.search.penalty_alpha
        self.topk = min(setup.search.contrastive_topk, setup.vocab_size)
        super().__init__(setup, request)
        start = self.backpointers.matrix().expand(-1, self.topk, -1)
        self.out = self._read(start)
        self.features = _normalized(self._features()[:, :1])
        """``(live, positions, C)`` features of unit length of all that each sentence has read."""
        self.chosen = torch.zeros(len(self.live), 1, dtype=torch.int64, device=start.device)
        """``(live, 1)`` int64 row of its sentence that read the token chosen last."""

    def new_member(self, spec: MemberSpec, source: Source, start_token: int | None) -> Member:
        """A model with a row for each candidate; see ``Session.new_member``."""
        return Member(spec.model, source, self.topk, start_token, self.setup.debug)

    def _read(self, tokens: Tensor) -> MemberOutput:
        """Let the rows read their newest token.

        Args:
            tokens: ``(live, k, L)`` int64 from the start token on.
        """
        return self.members[0].next_output(tokens.flatten(0, 1), ATTENTION in self.needs, need_features=True)

    def _features(self) -> Tensor:
        """The features of the rows at their newest token, ``(live, k, C)``."""
        assert self.out.features is not None
        return self.out.features.view(-1, self.topk, self.out.features.size(-1))

    def member_outputs(self, need_attention: bool) -> list[MemberOutput]:
        """The output of the row that read the chosen token; see ``Session``."""
        rows = torch.arange(0, len(self.out.logits), self.topk, device=self.chosen.device)
        return [self.out.select(rows + self.chosen.squeeze(1))]

    def choose(self, context: StepContext, scored: StepScores) -> Candidates:
        """Let the model read the likeliest tokens, and choose the one with the largest gain."""
        candidates = super().choose(context, scored)
        probabilities = scored.lprobs[:, 0].gather(1, candidates.tokens).exp()
        possible = candidates.scores > -torch.inf
        # A table of positions may have no place for a token after the last: then the likeliest is taken.
        if context.step + 1 < self.setup.ensemble.models[0].decoder.max_positions():
            generated = self.backpointers.matrix().expand(-1, self.topk, -1)
            self.out = self._read(torch.cat([generated, candidates.tokens.unsqueeze(-1)], dim=-1))
            features = _normalized(self._features())
            similarity = (features @ self.features.transpose(1, 2)).amax(-1)
            # the same dtype for both terms, and what is forbidden is never chosen, however new it would be
            gains = (1 - self.alpha) * probabilities - self.alpha * similarity.to(probabilities.dtype)
            self.chosen = gains.masked_fill(~possible, -torch.inf).argmax(1, keepdim=True)
            self.features = torch.cat([self.features, _pick(features, self.chosen)], dim=1)
        else:
            self.chosen = torch.zeros_like(self.chosen)
        return candidates.gather(self.chosen)

    def select_sentences(self, keep: Tensor) -> None:
        """See ``Session.select_sentences``."""
        super().select_sentences(keep)
        self.features, self.chosen = self.features.index_select(0, keep), self.chosen.index_select(0, keep)
        self.out = self.out.select(rows_of_sentences(keep, self.topk))

    def advance(self, active: Candidates, attention: Tensor | None) -> None:
        """Let all rows continue from the one that read the chosen token; see ``Session.advance``."""
        super().advance(active, attention)
        self.members[0].reorder_beams(self.chosen.expand(-1, self.topk))


def _normalized(features: Tensor) -> Tensor:
    """Features of unit length, in float32 or wider, so that products of them are cosines."""
    features = features.to(torch.promote_types(features.dtype, torch.float32))
    norms: Tensor = torch.linalg.vector_norm(features, dim=-1, keepdim=True)
    return features / norms


def _pick(values: Tensor, rows: Tensor) -> Tensor:
    """The row of each sentence: ``values`` ``(live, k, X)``, ``rows`` ``(live, 1)``, giving ``(live, 1, X)``."""
    return values.gather(1, rows.unsqueeze(-1).expand(-1, -1, values.size(-1)))


ContrastiveSearch.session_class = ContrastiveSession
