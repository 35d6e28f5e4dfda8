"""The search for outputs on whose text all members agree."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from seqgen.data.tokenizers.base import Tokenizer
from seqgen.errors import ConfigError, DecodingError
from seqgen.generation.agreement.lexicon import END, Ahead, Lexicon, first_text, token_texts
from seqgen.generation.agreement.member import OwnHistory
from seqgen.generation.ensemble.member import EMPTY
from seqgen.generation.setup import DecodingRequest, DecodingSetup
from seqgen.structures import Hypothesis


@dataclass(frozen=True)
class JointStep:
    """A continuation of a joint hypothesis.

    Attributes:
        value: the weighted mean of the members' scores per token, this step included, by which continuations rank.
        beam: the beam that it continues.
        tokens: the next token of each member; -1 for a member that waits.
        lprobs: their log-probabilities in nats; 0 for a member that waits.
        ahead: the text of each member after the text of all members.
        ended: whether all members have ended.
    """

    value: float
    beam: int
    tokens: tuple[int, ...]
    lprobs: tuple[float, ...]
    ahead: Ahead
    ended: bool


@dataclass(frozen=True)
class Agreement:
    """How members with different target vocabularies agree.

    Attributes:
        first_texts: for each member the text before its first token.
        ends: for each member the id of end-of-sentence.
        first_tokens: for each member the token that its outputs begin with, or ``None``.
        lexicon: the texts of all members.
        min_len: each member generates at least this many tokens before end-of-sentence.
        max_len: each member generates at most this many tokens, end-of-sentence included; 0 for its own limit.
    """

    first_texts: list[str]
    ends: list[int]
    first_tokens: Sequence[int | None]
    lexicon: Lexicon
    min_len: int
    max_len: int

    @classmethod
    def of(
        cls, tokenizers: Sequence[Tokenizer], first_tokens: Sequence[int | None] | None, min_len: int, max_len: int
    ) -> Self:
        """Read the texts of the vocabularies.

        Raises:
            ConfigError: a tokenizer does not return the bytes of its tokens.
        """
        texts = [token_texts(tokenizer) for tokenizer in tokenizers]
        first_texts = [first_text(*pair) for pair in zip(tokenizers, texts, strict=True)]
        ends = [tokenizer.dictionary.eos() for tokenizer in tokenizers]
        return cls(first_texts, ends, first_tokens or [None] * len(ends), Lexicon(texts), min_len, max_len)


class AgreementSession:
    """Decodes one batch with members that have different target vocabularies.

    A joint hypothesis has one token sequence for each member. The members whose text is shortest step: each generates a
    token, so that of any two texts one is a prefix of the other. The other members wait. End-of-sentence is a part of
    the text, so that all members end with the same text.

    ``Lexicon.best`` gives the best continuation with each longest text. The best ``K`` continuations of a sentence are
    among those with the ``K`` best longest texts.

    Args:
        setup: how to decode.
        agreement: how the members agree.
        request: what to decode.
    """

    def __init__(self, setup: DecodingSetup, agreement: Agreement, request: DecodingRequest):
        _check(setup, request)
        self.setup, self.beam, self.min_len = setup, setup.beam_size, agreement.min_len
        self.lexicon = agreement.lexicon
        sources = setup.ensemble.sources(request.sample)
        self.lexicon.to(sources[0].src_tokens.device)
        weights = setup.ensemble.combination.attention_weights(len(sources))
        self.weights = [weight / sum(weights) for weight in weights]
        self.members = [
            OwnHistory(spec, source, setup, eos, agreement.max_len)
            for spec, source, eos in zip(setup.ensemble.members, sources, agreement.ends, strict=True)
        ]
        count = request.sample.num_sentences
        self.live = list(range(count))
        first = _after_common(agreement.first_texts)
        self.beams: list[list[Ahead | None]] = [[first, *[None] * (self.beam - 1)] for _ in range(count)]
        """For each live sentence and beam the texts ahead; ``None`` for a beam that does not exist."""
        self.results: list[list[Hypothesis]] = [[] for _ in range(count)]
        self.num_steps = 0
        for member, token in zip(self.members, agreement.first_tokens, strict=True):
            if token is not None:
                member.force(token)

    def run(self) -> list[list[Hypothesis]]:
        """Decode until every sentence is done.

        Raises:
            DecodingError: a model gave NaN.
        """
        while self.live:
            self.step()
        return [sorted(found, key=lambda one: one.score, reverse=True) for found in self.results]

    def step(self) -> None:
        """Let each joint hypothesis take one step."""
        steps = self.steps()
        keep: list[int] = []
        active: list[list[JointStep]] = []
        for place, found in enumerate(self.candidates(self.score(steps), steps)):
            continuing = self.finalize(place, found)
            if continuing:
                keep.append(place)
                active.append(continuing)
        self.advance(keep, active)
        self.num_steps += 1

    def score(self, steps: Tensor) -> list[Tensor | None]:
        """Each member's log-probabilities of the next token, ``(rows, V)``; ``None`` if it waits in all rows."""
        lprobs: list[Tensor | None] = []
        for number, (member, step) in enumerate(zip(self.members, steps.T, strict=True)):
            own = member.next_lprobs(step, self.min_len) if bool(step.any()) else None
            if own is not None and bool(own[step].isnan().any()):
                raise DecodingError(
                    f"the scores of model {number + 1} are NaN; its weights are damaged or its dtype overflows"
                )
            lprobs.append(own)
        return lprobs

    def steps(self) -> Tensor:
        """Which members generate a token, ``(rows, members)`` bool."""
        none = [False] * len(self.members)
        rows = [none if ahead is None else [not text for text in ahead] for own in self.beams for ahead in own]
        return torch.tensor(rows, device=self.members[0].tokens.device)

    def candidates(self, lprobs: Sequence[Tensor | None], steps: Tensor) -> Iterator[list[JointStep]]:
        """The ``2 * beam`` best continuations of each live sentence, best first.

        Args:
            lprobs: what ``score`` returned.
            steps: what ``steps`` returned.
        """
        nothing = ("",) * len(self.members)
        aheads = [ahead or nothing for own in self.beams for ahead in own]
        gains, base = self._gains(lprobs, steps)
        best = self.lexicon.best(gains, base, aheads, self.beam, 2 * self.beam)
        inside = torch.tensor([self.lexicon.nearest(max(ahead, key=len)) for ahead in aheads], device=steps.device)
        # the root stands for the text of the waiting members, whose path begins at its longest prefix
        paths = self.lexicon.paths[torch.where(best.nodes == self.lexicon.root, inside[best.rows], best.nodes)]
        options = [
            None if own is None else self._options(number, own, best.rows, paths) for number, own in enumerate(lprobs)
        ]
        so_far = [(member.lprobs.sum(1).tolist(), member.lengths.tolist()) for member in self.members]
        for place, each in enumerate(zip(*(tensor.tolist() for tensor in best), strict=True)):
            found = [
                self.joint_steps(row, node, [None if own is None else own[place][k] for own in options], so_far)
                for k, (value, row, node) in enumerate(zip(*each, strict=True))
                if value > -torch.inf
            ]
            yield heapq.nlargest(2 * self.beam, itertools.chain(*found), key=lambda joint: joint.value)

    def _gains(self, lprobs: Sequence[Tensor | None], steps: Tensor) -> tuple[list[Tensor | None], Tensor]:
        """What each token of each member contributes to the value of a continuation, and what waiting members do.

        The value is ``sum_i w_i s_i / n_i``, with the sum ``s_i`` of the log-probabilities of member ``i`` and the
        number ``n_i`` of its tokens.
        """
        gains: list[Tensor | None] = []
        base = torch.zeros(len(steps), dtype=torch.float64, device=steps.device)
        for weight, member, own, step in zip(self.weights, self.members, lprobs, steps.T, strict=True):
            so_far, count = member.lprobs.sum(1), member.lengths
            base += (weight * so_far / count.clamp(min=1)).masked_fill(step, 0.0)
            gains.append(None if own is None else (own + so_far.unsqueeze(1)) * (weight / (count + 1)).unsqueeze(1))
        base.masked_fill_(~steps.any(1), -torch.inf)  # beams that do not exist
        return gains, base.to(next(own for own in gains if own is not None).dtype)

    def _options(self, number: int, lprobs: Tensor, rows: Tensor, paths: Tensor) -> list[list[list[tuple[int, float]]]]:
        """A member's tokens on each path ``(sentences, K, D)`` and their log-probabilities."""
        vocab = lprobs.size(1)
        tokens = self.lexicon.tokens[number][paths].flatten(2)
        scores = lprobs[rows.unsqueeze(-1), tokens.clamp(max=vocab - 1)].masked_fill(tokens == vocab, -torch.inf)
        return [
            [list(zip(*one, strict=True)) for one in zip(*own, strict=True)]
            for own in zip(tokens.tolist(), scores.tolist(), strict=True)
        ]

    def joint_steps(
        self,
        row: int,
        node: int,
        options: Sequence[list[tuple[int, float]] | None],
        so_far: Sequence[tuple[list[float], list[int]]],
    ) -> Iterator[JointStep]:
        """All continuations of a row with the same longest text.

        Args:
            row: the row.
            node: the node of the longest text; the root if that is the text of the waiting members.
            options: for each member, tokens whose texts are prefixes of the longest text, and their log-probabilities.
            so_far: for each member, the log-probability and the number of the tokens of each row.
        """
        longest = "" if node == self.lexicon.root else self.lexicon.texts[node]
        place, beam = divmod(row, self.beam)
        ahead = self.beams[place][beam]
        assert ahead is not None
        possible = [
            [(-1, 0.0)] if text else [one for one in own or () if one[1] > -torch.inf]
            for text, own in zip(ahead, options, strict=True)
        ]
        for chosen in itertools.product(*possible):
            tokens, lprobs = zip(*chosen, strict=True)
            texts = tuple(
                text if token < 0 else own.texts[token]
                for text, token, own in zip(ahead, tokens, self.lexicon.members, strict=True)
            )
            if (longest and longest not in texts) or not self.lexicon.possible(texts):
                continue
            value = sum(
                weight * (sums[row] + lprob) / max(1, counts[row] + (token >= 0))
                for weight, (sums, counts), token, lprob in zip(self.weights, so_far, tokens, lprobs, strict=True)
            )
            after = _after_common(texts)
            yield JointStep(value, beam, tokens, lprobs, after, not any(after) and texts[0].endswith(END))

    def finalize(self, place: int, found: Sequence[JointStep]) -> list[JointStep]:
        """Finalize the continuations that end; those of a sentence that is done do not continue.

        As by fairseq's rule, those among the first ``beam`` are finalized, until there are ``beam`` hypotheses. If no
        hypothesis has been finalized and no continuation is possible, because a member has reached its maximum length
        in the middle of a text that the others have generated, the best one is cut off.

        Returns:
            The best ``beam`` continuations that do not end; none if the sentence is done.
        """
        results = self.results[self.live[place]]
        for joint in found[: self.beam]:
            if joint.ended and len(results) < self.beam:
                results.append(self.hypothesis(place, joint.beam, joint))
        if not found and not results:
            beams = [beam for beam, ahead in enumerate(self.beams[place]) if ahead is not None]
            results.append(max((self.hypothesis(place, beam) for beam in beams), key=lambda one: one.score))
        active = [joint for joint in found if not joint.ended][: self.beam]
        return active if len(results) < self.beam else []

    def hypothesis(self, place: int, beam: int, last: JointStep | None = None) -> Hypothesis:
        """The hypothesis of a beam and its last step; without one, it is cut off."""
        tokens, lprobs, score = [], [], 0.0
        row = place * self.beam + beam
        for number, member in enumerate(self.members):
            length = int(member.lengths[row])
            own_tokens, own = member.tokens[row, 1 : 1 + length].tolist(), member.lprobs[row, :length].tolist()
            if last is not None and last.tokens[number] >= 0:
                own_tokens, own = [*own_tokens, last.tokens[number]], [*own, last.lprobs[number]]
            tokens.append(torch.tensor(own_tokens, dtype=torch.int64))
            lprobs.append(torch.tensor(own, dtype=member.lprobs.dtype))
            score += self.weights[number] * float(self.setup.ranking.score(lprobs[-1].sum(), max(1, len(own))))
        return Hypothesis(tokens[0], score, lprobs[0], member_tokens=tokens, member_scores=lprobs)

    def advance(self, keep: list[int], active: list[list[JointStep]]) -> None:
        """Drop the sentences that are done; histories and decoder states follow the beams that continue.

        Args:
            keep: places of the sentences that are not done.
            active: their continuations, at least one for each.
        """
        if not keep:
            self.live = []
            return
        device = self.members[0].tokens.device
        rows = [[*own, *[None] * (self.beam - len(own))] for own in active]
        # a beam that does not exist copies the state of the first one
        parents = torch.tensor([[(one or own[0]).beam for one in own] for own in rows], device=device)  # type: ignore[union-attr]
        flat = list(itertools.chain.from_iterable(rows))
        for number, member in enumerate(self.members):
            if len(keep) < len(self.live):
                member.select_sentences(torch.tensor(keep, device=device))
            member.reorder_beams(parents)
            tokens = torch.tensor([-1 if one is None else one.tokens[number] for one in flat], device=device)
            lprobs = [0.0 if one is None else one.lprobs[number] for one in flat]
            member.append(tokens, torch.tensor(lprobs, dtype=member.lprobs.dtype, device=device))
        self.live = [self.live[place] for place in keep]
        self.beams = [[None if one is None else one.ahead for one in own] for own in rows]


def _after_common(texts: Sequence[str]) -> Ahead:
    """The rest of each text after the shortest one, which all others begin with."""
    common = min(map(len, texts))
    return tuple(text[common:] for text in texts)


def _check(setup: DecodingSetup, request: DecodingRequest) -> None:
    """Refuse what needs one vocabulary, or a beam that does not change.

    Raises:
        ConfigError: names what cannot be used.
    """
    given = {
        "a forced beginning of the output (prefix)": request.prefix_tokens,
        "constraints": request.constraints,
        "streaming": request.streamer,
        "observers": setup.observers or None,
        "stopping rules": setup.stopping or None,
        "attention weights": setup.need_attention or None,
        "prompts": any(spec.model.continues_source and spec.source != EMPTY for spec in setup.ensemble.members) or None,
    }
    for what, value in given.items():
        if value is not None:
            raise ConfigError(f"members with different target vocabularies do not support {what}; leave this out")
