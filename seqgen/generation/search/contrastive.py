"""Contrastive search: tokens that are likely, but whose hidden features are unlike all those before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from seqgen.config import option
from seqgen.decoder import Decoder, IncrementalDecoder
from seqgen.errors import ConfigError
from seqgen.generation.candidates import Candidates
from seqgen.generation.ensemble.ensemble import Member
from seqgen.generation.search.base import Phrases, Search
from seqgen.generation.session import Decoding, Streamer
from seqgen.model import EncoderDecoderModel
from seqgen.registry import register_search
from seqgen.structures import Batch, DecoderOut, Hypothesis, Source

if TYPE_CHECKING:
    from seqgen.generation.sequence_generator import SequenceGenerator


@dataclass
class ContrastiveConfig:
    """Configuration of contrastive search."""

    penalty_alpha: float = option(0.6, "weight of the penalty for likeness", minimum=0, maximum=1)
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

    def decode(
        self,
        generator: SequenceGenerator,
        sample: Batch,
        prefix_tokens: Tensor | None = None,
        constraints: Sequence[Phrases] | None = None,
        streamer: Streamer | None = None,
    ) -> list[list[Hypothesis]]:
        """See ``Procedure``.

        Raises:
            ConfigError: there are several models, or the model's features are not to be had.
        """
        if len(generator.models) > 1 or generator.guidance_scale != 1:
            raise ConfigError(
                "contrastive search compares the hidden features of one model, which an ensemble and "
                "classifier-free guidance do not have; give one model and no guidance_scale, or another search"
            )
        decoder = generator.models[0].decoder
        if type(decoder).extract_features in (Decoder.extract_features, IncrementalDecoder.extract_features):
            raise ConfigError(
                f"contrastive search needs hidden features, and {type(decoder).__name__} has no extract_features; "
                "implement extract_features and output_layer in place of forward, or take another search"
            )
        return ContrastiveDecoding(self, generator, sample, prefix_tokens, constraints, streamer).run()

    def step(self, step: int, lprobs: Tensor, scores: Tensor) -> Candidates:
        """The ``k`` likeliest continuations, which ``ContrastiveDecoding`` chooses among; see ``Search.step``."""
        best, tokens = lprobs[:, 0].topk(min(self.contrastive_topk, lprobs.size(-1)), dim=-1)
        return Candidates(scores + best, tokens, torch.zeros_like(tokens))


class FeaturesMember(Member):
    """A model that also says what its last hidden features are."""

    def next_features(self, tokens: Tensor, need_attention: bool) -> tuple[Tensor, DecoderOut]:
        """Read one more token; see ``Member.next_logits``.

        Returns:
            Features ``(rows, C)`` at the newest position, and what ``next_logits`` returns.
        """
        if self.start_symbol is not None:
            tokens = tokens.clone()
            tokens[:, 0] = self.start_symbol
        decoder: Any = self.model.decoder
        state = {} if self.state is None else {"incremental_state": self.state}
        features, attention = decoder.extract_features(tokens, self.encoder_out, **state, need_attention=need_attention)
        logits = self.model.adjust_logits_during_generation(decoder.output_layer(features[:, -1]), tokens.size(1) - 1)
        return features[:, -1], DecoderOut(logits, None if attention is None else attention[:, -1])


class ContrastiveDecoding(Decoding):
    """A batch that is being decoded by contrastive search.

    The model has ``k`` rows for each sentence, which all hold what has been written. At each step each row reads a
    candidate of its own; when one is chosen, all go on from that one's row.

    Args:
        contrastive: the strategy.
        generator: see ``Decoding``.
        sample: see ``Decoding``.
        prefix_tokens: see ``Decoding``.
        constraints: see ``Decoding``.
        streamer: see ``Decoding``.
    """

    def __init__(
        self,
        contrastive: ContrastiveSearch,
        generator: SequenceGenerator,
        sample: Batch,
        prefix_tokens: Tensor | None,
        constraints: Sequence[Phrases] | None,
        streamer: Streamer | None,
    ):
        self.alpha = contrastive.penalty_alpha
        self.topk = min(contrastive.contrastive_topk, len(generator.tgt_dict))
        super().__init__(generator, sample, prefix_tokens, constraints, streamer)
        start = self.history.matrix().expand(-1, self.topk, -1)
        features, self.out = self._read(start)
        self.features = _normalized(features[:, :1])
        """``(live, positions, C)`` features of unit length of all that each sentence has read."""
        self.chosen = torch.zeros(self.history.sentences, 1, dtype=torch.int64, device=start.device)
        """``(live, 1)`` int64 row of its sentence that read the token chosen last."""

    def member(self, model: EncoderDecoderModel, source: Source, start_symbol: int | None) -> Member:
        """A model with a row for each candidate; see ``Decoding.member``."""
        generator = self.generator
        return FeaturesMember(model, source, self.topk, start_symbol, generator.use_cache, generator.beam_table)

    def _read(self, tokens: Tensor) -> tuple[Tensor, DecoderOut]:
        """Let the rows read their newest token.

        Args:
            tokens: ``(live, k, L)`` int64 from the start symbol on.

        Returns:
            Features ``(live, k, C)``, logits ``(live, k, V)`` and attention ``(live, k, S)`` or ``None``.
        """
        member = self.members[0]
        assert isinstance(member, FeaturesMember)
        features, out = member.next_features(tokens.flatten(0, 1), self.generator.need_attention)
        attention = None if out.attention is None else self._by_sentence(out.attention)
        return self._by_sentence(features), DecoderOut(self._by_sentence(out.logits), attention)

    def _by_sentence(self, rows: Tensor) -> Tensor:
        """``(live * k, X)`` as ``(live, k, X)``."""
        return rows.view(-1, self.topk, rows.size(-1))

    def _logits(self) -> tuple[list[Tensor], Tensor | None]:
        """What the row that read the last token gave; see ``Decoding``."""
        temperature = self.generator.temperature
        logits = _pick(self.out.logits, self.chosen).squeeze(1)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
        return [logits], None if self.out.attention is None else _pick(self.out.attention, self.chosen)

    def choose(self, lprobs: Tensor, scores: Tensor, step: int) -> Candidates:
        """Let the model read the likeliest tokens, and take the one that adds most."""
        candidates = super().choose(lprobs, scores, step)
        probabilities = lprobs[:, 0].gather(1, candidates.tokens).exp()
        possible = candidates.scores > -torch.inf
        # A table of positions may have no place for a token after the last: then the likeliest is taken.
        if step + 1 < self.generator.models[0].decoder.max_positions():
            written = self.history.matrix().expand(-1, self.topk, -1)
            features, self.out = self._read(torch.cat([written, candidates.tokens.unsqueeze(-1)], dim=-1))
            features = _normalized(features)
            likeness = (features @ self.features.transpose(1, 2)).amax(-1)
            # the same number format for both terms, and what is forbidden is never taken, however new it would be
            gains = (1 - self.alpha) * probabilities - self.alpha * likeness.to(probabilities.dtype)
            self.chosen = gains.masked_fill(~possible, -torch.inf).argmax(1, keepdim=True)
            self.features = torch.cat([self.features, _pick(features, self.chosen)], dim=1)
        else:
            self.chosen = torch.zeros_like(self.chosen)
        return candidates.gather(self.chosen)

    def compact(self, going_on: Candidates, attention: Tensor | None) -> tuple[Candidates, Tensor | None]:
        """See ``Decoding.compact``."""
        keep = (~self.done).nonzero().squeeze(1)
        self.features, self.chosen = self.features.index_select(0, keep), self.chosen.index_select(0, keep)
        seen = self.out.attention
        self.out = DecoderOut(
            self.out.logits.index_select(0, keep), None if seen is None else seen.index_select(0, keep)
        )
        return super().compact(going_on, attention)

    def advance(self, going_on: Candidates, attention: Tensor | None) -> None:
        """Let all rows go on from the one that read the chosen token; see ``Decoding.advance``."""
        super().advance(going_on, attention)
        self.members[0].reorder_beams(self.chosen.expand(-1, self.topk))


def _normalized(features: Tensor) -> Tensor:
    """Features of unit length, in float32 or wider, so that products of them are cosines."""
    features = features.to(torch.promote_types(features.dtype, torch.float32))
    lengths: Tensor = torch.linalg.vector_norm(features, dim=-1, keepdim=True)
    return features / lengths


def _pick(values: Tensor, rows: Tensor) -> Tensor:
    """The row of each sentence: ``values`` ``(live, k, X)``, ``rows`` ``(live, 1)``, giving ``(live, 1, X)``."""
    return values.gather(1, rows.unsqueeze(-1).expand(-1, -1, values.size(-1)))
