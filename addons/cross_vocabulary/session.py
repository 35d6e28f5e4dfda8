"""The search of a cross-vocabulary ensemble: it finds outputs on whose text all members agree."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seqgen.addons.cross_vocabulary.member import AgreementMember
from seqgen.addons.cross_vocabulary.vocabulary_trie import END, MemberTexts, PendingText
from seqgen.extend import ConfigError, DecodingError, DecodingRequest, DecodingSetup, Hypothesis, Search, Source


@dataclass(frozen=True)
class JointStep:
    """A continuation of a joint hypothesis.

    Attributes:
        value: the weighted mean of the members' scores per token, this step included, by which continuations rank.
        beam: the beam that it continues.
        tokens: the next token of each member; -1 for a member that waits.
        lprobs: their log-probabilities in nats; 0 for a member that waits.
        pending: the text of each member after the text of all members.
        ended: whether all members have ended.
    """

    value: float
    beam: int
    tokens: tuple[int, ...]
    lprobs: tuple[float, ...]
    pending: PendingText
    ended: bool


class AgreementSession:
    """Decodes one batch with members that have different target vocabularies.

    A joint hypothesis has one token sequence for each member. The members whose text is shortest step: each generates a
    token, so that of any two texts one is a prefix of the other. The other members wait. End-of-sentence is a part of
    the text, so that all members end with the same text.

    ``VocabularyTrie.best`` gives the best continuation with each longest text. The best ``K`` continuations of a
    sentence are among those with the ``K`` best longest texts.

    Args:
        setup: how to decode; its search is an ``AgreementSearch``.
        request: what to decode.
    """

    def __init__(self, setup: DecodingSetup, request: DecodingRequest):
        assert isinstance(setup.search, AgreementSearch)
        _check(setup)
        self.setup, self.beam, self.search, self.trie = setup, setup.beam_size, setup.search, setup.search.texts.trie
        sources = setup.ensemble.sources(request.sample)
        self.trie.to(sources[0].src_tokens.device)
        weights = setup.ensemble.combination.attention_weights(len(sources))
        self.weights = [weight / sum(weights) for weight in weights]
        self.members = [
            AgreementMember(spec, source, setup, ends, self.search.max_len)
            for spec, source, ends in zip(setup.ensemble.members, sources, self.search.texts.ends, strict=True)
        ]
        count = request.sample.num_sentences
        self.live = list(range(count))
        nothing = [None] * (self.beam - 1)
        given = [] if request.prefix_tokens is None else request.prefix_tokens.tolist()
        texts = self.trie.members[0].texts
        prefixes = ["".join(texts[token] for token in row).replace(END, "") for row in given] or [""] * count
        begun = [self._begin(number, source, prefixes) for number, source in enumerate(sources)]
        self.beams: list[list[PendingText | None]] = [
            [_after_common(each), *nothing] for each in zip(*begun, strict=True)
        ]
        """The pending texts of each live sentence and beam; ``None`` for a beam that does not exist."""
        self.results: list[list[Hypothesis]] = [[] for _ in range(count)]

    def _begin(self, number: int, source: Source, prefixes: Sequence[str]) -> list[str]:
        """Force a member's first token, and the tokens of a prefix.

        Args:
            number: the member.
            source: the sentences as it reads them.
            prefixes: the text that each output begins with.

        Returns:
            The text that it has in each sentence.

        Raises:
            ConfigError: it cannot generate a prefix.
        """
        member, texts, first = self.members[number], self.search.texts, self.search.first_tokens[number]
        begun, forced = texts.before(number, member.model, source), list[list[int]]()
        for sentence, prefix in enumerate(prefixes):
            text = f" {prefix.removeprefix(' ')}" if prefix.strip() else begun[sentence]
            ids = texts.encode(number, text, begun[sentence])
            if ids is None or len(ids) > int(member.last_steps[sentence]):
                shown = text[1:].encode("latin-1").decode(errors="replace")
                raise ConfigError(f"model {number + 1} cannot generate {shown!r} within its limits; change this prefix")
            forced.append(ids if first is None else [first, *ids])
            begun[sentence] = text
        for tokens in itertools.zip_longest(*forced, fillvalue=-1):
            member.force(torch.tensor(tokens, device=member.tokens.device).repeat_interleave(self.beam))
        return begun

    def run(self) -> list[list[Hypothesis]]:
        """Decode until every sentence is done.

        Raises:
            DecodingError: a model gave NaN.
        """
        while self.live:
            self.step()
        return [sorted(found, key=lambda hypothesis: hypothesis.score, reverse=True) for found in self.results]

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

    def score(self, steps: Tensor) -> list[Tensor | None]:
        """Each member's log-probabilities of the next token, ``(rows, V)``; ``None`` if it waits in all rows."""
        lprobs: list[Tensor | None] = []
        for number, (member, step) in enumerate(zip(self.members, steps.T, strict=True)):
            scores = member.next_lprobs(step, self.search.min_len) if bool(step.any()) else None
            if scores is not None and bool(scores[step].isnan().any()):
                raise DecodingError(
                    f"the scores of model {number + 1} are NaN; its weights are damaged or its dtype overflows"
                )
            lprobs.append(scores)
        return lprobs

    def steps(self) -> Tensor:
        """``(rows, members)`` bool, true for members that generate a token."""
        none = [False] * len(self.members)
        flat = itertools.chain.from_iterable(self.beams)
        rows = [none if pending is None else [not text for text in pending] for pending in flat]
        return torch.tensor(rows, device=self.members[0].tokens.device)

    def candidates(self, lprobs: Sequence[Tensor | None], steps: Tensor) -> Iterator[list[JointStep]]:
        """The ``2 * beam`` best continuations of each live sentence, best first.

        Args:
            lprobs: what ``score`` returned.
            steps: what ``steps`` returned.
        """
        nothing = ("",) * len(self.members)
        texts = [pending or nothing for pending in itertools.chain.from_iterable(self.beams)]
        gains, base = self._gains(lprobs, steps)
        best = self.trie.best(gains, base, texts, self.beam, 2 * self.beam)
        inside = torch.tensor([self.trie.nearest(max(pending, key=len)) for pending in texts], device=steps.device)
        # the root stands for the text of the waiting members, whose path begins at its longest prefix
        paths = self.trie.paths[torch.where(best.nodes == self.trie.root, inside[best.rows], best.nodes)]
        options = [
            None if scores is None else self._options(number, scores, best.rows, paths)
            for number, scores in enumerate(lprobs)
        ]
        so_far = [(member.lprobs.sum(1).tolist(), member.lengths.tolist()) for member in self.members]
        for place, each in enumerate(zip(*(tensor.tolist() for tensor in best), strict=True)):
            found = [
                self.joint_steps(row, node, [each if each is None else each[place][k] for each in options], so_far)
                for k, (value, row, node) in enumerate(zip(*each, strict=True))
                if value > -torch.inf
            ]
            yield heapq.nlargest(2 * self.beam, itertools.chain(*found), key=lambda joint: joint.value)

    def _gains(self, lprobs: Sequence[Tensor | None], steps: Tensor) -> tuple[list[Tensor | None], Tensor]:
        """The contribution of each token of each member to the value of a continuation, and that of waiting members.

        The value is ``sum_i w_i s_i / n_i``, with the sum ``s_i`` of the log-probabilities of member ``i`` and the
        number ``n_i`` of its tokens.
        """
        gains: list[Tensor | None] = []
        base = torch.zeros(len(steps), dtype=torch.float64, device=steps.device)
        for weight, member, scores, step in zip(self.weights, self.members, lprobs, steps.T, strict=True):
            so_far, count = member.lprobs.sum(1), member.lengths
            base += (weight * so_far / count.clamp(min=1)).masked_fill(step, 0.0)
            share = (weight / (count + 1)).unsqueeze(1)
            gains.append(None if scores is None else (scores + so_far.unsqueeze(1)) * share)
        base.masked_fill_(~steps.any(1), -torch.inf)  # beams that do not exist
        return gains, base.to(next(gain for gain in gains if gain is not None).dtype)

    def _options(self, number: int, lprobs: Tensor, rows: Tensor, paths: Tensor) -> list[list[list[tuple[int, float]]]]:
        """A member's tokens on each path ``(sentences, K, D)`` and their log-probabilities."""
        vocab = lprobs.size(1)
        tokens = self.trie.tokens[number][paths].flatten(2)
        scores = lprobs[rows.unsqueeze(-1), tokens.clamp(max=vocab - 1)].masked_fill(tokens == vocab, -torch.inf)
        return [
            [list(zip(*path, strict=True)) for path in zip(*sentence, strict=True)]
            for sentence in zip(tokens.tolist(), scores.tolist(), strict=True)
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
        longest = "" if node == self.trie.root else self.trie.texts[node]
        place, beam = divmod(row, self.beam)
        pending = self.beams[place][beam]
        assert pending is not None
        possible = [
            [(-1, 0.0)] if text else [option for option in some or () if option[1] > -torch.inf]
            for text, some in zip(pending, options, strict=True)
        ]
        for chosen in itertools.product(*possible):
            tokens, lprobs = zip(*chosen, strict=True)
            texts = tuple(
                text if token < 0 else vocabulary.texts[token]
                for text, token, vocabulary in zip(pending, tokens, self.trie.members, strict=True)
            )
            if (longest and longest not in texts) or not self.trie.possible(texts):
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
            beams = [beam for beam, pending in enumerate(self.beams[place]) if pending is not None]
            cut_off = [self.hypothesis(place, beam) for beam in beams]
            results.append(max(cut_off, key=lambda hypothesis: hypothesis.score))
        active = [joint for joint in found if not joint.ended][: self.beam]
        return active if len(results) < self.beam else []

    def hypothesis(self, place: int, beam: int, last: JointStep | None = None) -> Hypothesis:
        """The hypothesis of a beam and its last step; without a last step, it is cut off."""
        tokens, lprobs, score = [], [], 0.0
        row = place * self.beam + beam
        for number, member in enumerate(self.members):
            length = int(member.lengths[row])
            ids, scores = member.tokens[row, 1 : 1 + length].tolist(), member.lprobs[row, :length].tolist()
            if last is not None and last.tokens[number] >= 0:
                ids, scores = [*ids, last.tokens[number]], [*scores, last.lprobs[number]]
            tokens.append(torch.tensor(ids, dtype=torch.int64))
            lprobs.append(torch.tensor(scores, dtype=member.lprobs.dtype))
            score += self.weights[number] * float(self.setup.ranking.score(lprobs[-1].sum(), max(1, len(scores))))
        return Hypothesis(tokens[0], score, lprobs[0], member_tokens=tokens, member_scores=lprobs, forced_end=not last)

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
        rows = [[*steps, *[None] * (self.beam - len(steps))] for steps in active]
        # a beam that does not exist copies the state of the first one
        parents = torch.tensor([[(step or steps[0]).beam for step in steps] for steps in rows], device=device)  # type: ignore[union-attr]
        flat = list(itertools.chain.from_iterable(rows))
        for number, member in enumerate(self.members):
            if len(keep) < len(self.live):
                member.select_sentences(torch.tensor(keep, device=device))
            member.reorder_beams(parents)
            tokens = torch.tensor([-1 if step is None else step.tokens[number] for step in flat], device=device)
            lprobs = [0.0 if step is None else step.lprobs[number] for step in flat]
            member.append(tokens, torch.tensor(lprobs, dtype=member.lprobs.dtype, device=device))
        self.live = [self.live[place] for place in keep]
        self.beams = [[None if step is None else step.pending for step in steps] for steps in rows]


class AgreementSearch(Search):
    """Beam search over the tokens of several members that agree on the text (Wicks et al. 2025).

    Args:
        texts: the texts of all members' tokens.
        first_tokens: for each member the token that its outputs begin with, or ``None``; ``None`` if no member has one.
        min_len: each member generates at least this many tokens before end-of-sentence.
        max_len: each member generates at most this many tokens, end-of-sentence included; 0 for its limit.
    """

    session_class = AgreementSession

    def __init__(
        self, texts: MemberTexts, first_tokens: Sequence[int | None] | None = None, min_len: int = 1, max_len: int = 0
    ):
        self.texts, self.first_tokens = texts, first_tokens or [None] * len(texts.ends)
        self.min_len, self.max_len = min_len, max_len


def _after_common(texts: Sequence[str]) -> PendingText:
    """The rest of each text after the shortest one, which all others begin with."""
    common = min(map(len, texts))
    return tuple(text[common:] for text in texts)


def _check(setup: DecodingSetup) -> None:
    """Refuse observers of candidates that are tokens of one vocabulary.

    Raises:
        ConfigError: names the first.
    """
    for observer in setup.observers:
        raise ConfigError(
            f"members with different target vocabularies do not support {type(observer).__name__}; remove it"
        )
