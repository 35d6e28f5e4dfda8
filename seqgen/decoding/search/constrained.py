"""Lexical constraints: phrases that an output must contain, and the progress of each hypothesis.

With dynamic beam allocation, the beam is divided among banks of hypotheses with equally many constraint tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from seqgen.config.generation import keys_tagged
from seqgen.config.options import CONSTRAINS
from seqgen.core.beam_search import BeamSearch
from seqgen.core.candidates import Candidates, gather_beams
from seqgen.core.component import BatchInfo, Phrase, Phrases, begin_component
from seqgen.core.context import StepContext
from seqgen.core.errors import ConfigError
from seqgen.core.finished import FinishedHypotheses, FirstFinished, Ranking
from seqgen.core.scores import Scores
from seqgen.core.search import Search, choose_candidates
from seqgen.core.structures import map_tensors
from seqgen.registry import register_search

NONE = -1


def allocate(banks: Tensor) -> Tensor:
    """Order candidates of banks in rounds: the first of each bank, then the second ones, the largest bank number first.

    Candidates in the banks 2 2 1 1 0 are put into the order of banks 2 1 0 2 1.

    Args:
        banks: ``(sentences, K)`` int64; candidates of bank ``NONE`` come last.

    Returns:
        ``(sentences, K)`` int64 columns.
    """
    sorted_banks, order = banks.sort(dim=1, descending=True, stable=True)
    return order.gather(1, take_turns(sorted_banks))


def take_turns(banks: Tensor) -> Tensor:
    """The columns of the first of each bank, then those of the second of each, and so on.

    Args:
        banks: ``(sentences, K)`` int64; candidates of one bank are adjacent; ``NONE`` comes last.

    Returns:
        ``(sentences, K)`` int64 columns: of banks 2 2 1 1 0, these are 0 2 4 1 3.
    """
    size = banks.size(1)
    # of banks 2 2 1 1 0, the first columns are 0 0 2 2 4, and the ranks within banks 0 1 0 1 0
    columns = torch.arange(size, device=banks.device).expand_as(banks)
    begins = torch.ones_like(banks, dtype=torch.bool)
    begins[:, 1:] = banks[:, 1:] != banks[:, :-1]
    turns = columns - columns.masked_fill(~begins, 0).cummax(dim=1).values
    return (turns + size * (banks == NONE)).argsort(dim=1, stable=True)


def repeated(entries: Tensor) -> Tensor:
    """Find entries that occur earlier in their row: ``[5, 3, 5, 5]`` gives ``[False, False, True, True]``."""
    ordered, order = entries.sort(dim=1, stable=True)
    seen = torch.zeros_like(ordered, dtype=torch.bool)
    seen[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return torch.zeros_like(seen).scatter(1, order, seen)


Node: TypeAlias = tuple[int, ...]
"""The matched part of a phrase: the beginning of one of its alternatives."""


@dataclass(frozen=True)
class Progress:
    """The progress of hypotheses with the phrases of their sentence.

    Attributes:
        met: ``(sentences, k, P)`` bool, the phrases that they contain.
        matched: ``(sentences, k, P)`` int64, the node that they have reached in each phrase; 0 (no token matched) for
            phrases that are met or must wait for a predecessor.
        turns: ``(sentences, k, P)`` int64, the order in which phrases may begin.
    """

    met: Tensor
    matched: Tensor
    turns: Tensor


class LexicalConstraints:
    """The phrases of a batch as tensors, ``P`` for each sentence.

    A phrase is met when it occurs; a phrase with alternatives, when one of them occurs. A phrase that is listed twice
    must occur twice, and ordered phrases must occur one after the other. One rule implements both: a phrase may have a
    predecessor, and it may begin only after the predecessor is met. Otherwise phrases may overlap.

    A phrase is a tree whose ``N`` nodes are the beginnings of its alternatives; its alphabet is the ``A`` tokens that
    occur in it.

    Args:
        phrases: the phrases of each sentence, as ids.
        ordered: whether they must occur in the given order.
        device: device of the tensors.
    """

    falls_back: bool = True
    """True if the newest tokens may still be the beginning of a phrase when a longer match breaks off."""

    def __init__(self, phrases: Sequence[Phrases], ordered: bool, device: torch.device):
        trees = [[Tree(some, self.falls_back) for phrase in row if (some := alternatives(phrase))] for row in phrases]
        self.alphabet = _tensor([[tree.alphabet for tree in row] for row in trees], 3, NONE, device)
        self.following = _tensor([[tree.children for tree in row] for row in trees], 4, NONE, device)
        self.table = _tensor([[tree.table for tree in row] for row in trees], 4, 0, device)
        self.accepting = _tensor([[tree.accepting for tree in row] for row in trees], 3, 0, device).bool()
        depths = _tensor([[tree.depths for tree in row] for row in trees], 3, 0, device)
        missing = _tensor([[tree.missing for tree in row] for row in trees], 3, 0, device)
        self.lengths, self.worths = self.worth(depths, missing)
        self.predecessors = _tensor([_predecessors(row, ordered) for row in trees], 2, NONE, device)

    def worth(self, depths: Tensor, missing: Tensor) -> tuple[Tensor, Tensor]:
        """The numbers of tokens that progress counts.

        Args:
            depths: ``(sentences, P, N)`` int64, see ``Tree``.
            missing: ``(sentences, P, N)`` int64, see ``Tree``.

        Returns:
            For each phrase, the number of tokens that it counts when it is met, and for each of its nodes the number
            that the node counts: how many tokens fewer are missing there than at the beginning.
        """
        return missing[..., 0], (missing[..., :1] - missing).clamp(min=0)

    def select(self, keep: Tensor) -> None:
        """Forget all sentences but those in ``keep``, ``(kept,)`` int64."""
        for name, values in vars(self).items():
            setattr(self, name, values.index_select(0, keep))

    @property
    def any_given(self) -> Tensor:
        """``(sentences, 1)`` bool, true for sentences with phrases."""
        return self.lengths.any(1, keepdim=True)

    def start(self, beam: int) -> Progress:
        """The progress of ``beam`` hypotheses without tokens; the empty phrases that pad the lists are met."""
        met = self.lengths.eq(0).unsqueeze(1).expand(-1, beam, -1)
        turns = torch.arange(met.size(-1), device=met.device).expand_as(met)
        return Progress(met, torch.zeros_like(met, dtype=torch.int64), turns)

    def advance(self, progress: Progress, tokens: Tensor) -> Progress:
        """Append a token to each hypothesis.

        Args:
            progress: the progress before.
            tokens: ``(sentences, k)`` int64.
        """
        return self._arrived(progress, self._steps(progress, tokens) * self._open(progress.met), progress.turns)

    def next_tokens(self, progress: Progress) -> Tensor:
        """Tokens that match a further part of a phrase: ``(sentences, k, W)`` int64, padded with ``NONE``.

        These are the first tokens of each phrase, and the next tokens of those that have begun. As in fairseq, the
        first tokens of a met phrase are included: they stay among the candidates and may fill a free slot in the
        beam.
        """
        begins = self.following[:, :, 0].unsqueeze(1).expand(-1, progress.met.size(1), -1, -1)
        continues = _at(self.following, progress.matched).masked_fill(progress.met.unsqueeze(-1), NONE)
        return torch.cat([begins, continues], dim=-1).flatten(2)

    def bank(self, progress: Progress) -> Tensor:
        """The number of constraint tokens of each hypothesis, ``(sentences, k)`` int64.

        These are the tokens of the phrases that are met, and those of the unmet phrase with the most matched tokens.
        """
        worths = _at(self.worths, progress.matched).max(-1).values
        return (progress.met * self.lengths.unsqueeze(1)).sum(-1) + worths

    def _steps(self, progress: Progress, tokens: Tensor) -> Tensor:
        """The node of each phrase after a token, ``(sentences, k, P)`` int64; 0 if the match breaks off."""
        same = self.alphabet.unsqueeze(1) == tokens[..., None, None]  # (sentences, k, P, A)
        after = _at(self.table, progress.matched).gather(-1, same.to(torch.int8).argmax(-1, keepdim=True))
        return after.squeeze(-1) * same.any(-1)

    def _arrived(self, progress: Progress, matched: Tensor, turns: Tensor) -> Progress:
        """The progress at given nodes: a phrase is met at an accepting node."""
        complete = _at(self.accepting, matched)
        return Progress(progress.met | complete, matched.masked_fill(complete, 0), turns)

    def _open(self, met: Tensor) -> Tensor:
        """The unmet phrases whose predecessor, if any, is met: ``(sentences, k, P)`` bool."""
        predecessors = self.predecessors.unsqueeze(1).expand_as(met)
        return ~met & ((predecessors == NONE) | met.gather(-1, predecessors.clamp(min=0)))


class OneAtATime(LexicalConstraints):
    """Phrases under Hugging Face's rules: a hypothesis matches one phrase at a time, and a token counts for one phrase.

    A token that does not continue the phrase in progress ends the match and begins no other phrase; the interrupted
    phrase then comes last in the order. A met phrase counts as many tokens as the longest phrase of the sentence,
    whichever alternative is met; a phrase in progress counts this number less its missing tokens.
    """

    falls_back = False

    def worth(self, depths: Tensor, missing: Tensor) -> tuple[Tensor, Tensor]:
        """See ``LexicalConstraints.worth``."""
        heights = depths.amax(-1, keepdim=True)
        longest = heights.amax(1, keepdim=True)
        return (longest * (heights > 0)).squeeze(-1), (longest - heights + depths) * (depths > 0)

    def advance(self, progress: Progress, tokens: Tensor) -> Progress:
        """See ``LexicalConstraints.advance``."""
        steps, turns = self._steps(progress, tokens), progress.turns
        within = progress.matched > 0
        begins = self._open(progress.met) & (steps > 0)
        first = turns.masked_fill(~begins, torch.iinfo(turns.dtype).max).amin(-1, keepdim=True)
        goes = torch.where(within.any(-1, keepdim=True), within, begins & (turns == first))
        turns = torch.where(within & (steps == 0), turns.amax(-1, keepdim=True) + 1, turns)
        return self._arrived(progress, steps * goes, turns)

    def next_tokens(self, progress: Progress) -> Tensor:
        """The next tokens of the phrase in progress, or else the first tokens of the unmet phrases."""
        within = progress.matched > 0
        asked = torch.where(within.any(-1, keepdim=True), within, self._open(progress.met))
        return _at(self.following, progress.matched).masked_fill(~asked.unsqueeze(-1), NONE).flatten(2)


class Tree:
    """The alternatives of one phrase as a tree; alternatives with the same beginning share its nodes.

    A node is the beginning of an alternative; node 0 is the empty one, and each node comes after its parent. The tree
    is built in time proportional to its nodes times its alphabet (Aho and Corasick 1975).

    Args:
        some: the alternatives; none is empty.
        falls_back: see ``LexicalConstraints``.

    Attributes:
        needed: the alternatives that do not begin with another one, which would be met first.
        depths: for each node, its number of tokens.
        alphabet: the tokens that occur.
        table: for each node and token of the alphabet, the next node. For the phrase ``a a b``, after ``a a`` another
            ``a`` leads to ``a a`` with ``falls_back``, and to the root without it.
        children: for each node, the tokens that continue it.
        accepting: for each node, whether an alternative is complete there.
        missing: for each node, the smallest number of tokens that an alternative lacks.
    """

    def __init__(self, some: Sequence[Node], falls_back: bool):
        whole = set(some)
        self.needed = [phrase for phrase in some if whole.isdisjoint(phrase[:size] for size in range(len(phrase)))]
        nodes: list[dict[int, int]] = [{}]  # for each node, its children by token
        self.depths, ends = [0], set()
        for phrase in self.needed:
            node = 0
            for token in phrase:
                parent, node = node, nodes[node].setdefault(token, len(nodes))
                if node == len(nodes):
                    nodes.append({})
                    self.depths.append(self.depths[parent] + 1)
            ends.add(node)
        self.alphabet = sorted({token for children in nodes for token in children})
        self.table = [[children.get(token, 0) for token in self.alphabet] for children in nodes]
        self.accepting = [node in ends for node in range(len(nodes))]
        self.missing = [0] * len(nodes)
        suffixes = [0] * len(nodes)  # for each node, the longest end of it that is a node, too: it is less deep
        for node in sorted(range(len(nodes)) if falls_back else (), key=self.depths.__getitem__):
            after_suffix = self.table[suffixes[node]]
            for place, token in enumerate(self.alphabet):
                if (child := nodes[node].get(token, 0)) and node:
                    suffixes[child] = after_suffix[place]
                elif not child:
                    self.table[node][place] = after_suffix[place]
            self.accepting[node] |= self.accepting[suffixes[node]]
        for node in reversed(range(len(nodes))):
            self.missing[node] = min((1 + self.missing[child] for child in nodes[node].values()), default=0)
        self.children = [list(children) for children in nodes]


def alternatives(phrase: Phrase) -> list[Node]:
    """The alternatives of a phrase without duplicates; the phrase itself if it has none.

    Args:
        phrase: ids, or several sequences of ids.

    Returns:
        Those that are not empty.
    """
    items: list[Any] = list(phrase)
    several = items if items and not isinstance(items[0], int) else [items]
    return list(dict.fromkeys(tuple(tokens) for tokens in several if len(tokens)))


def _predecessors(trees: Sequence[Tree], ordered: bool) -> list[int]:
    """For each phrase, the one that must be met first: the previous one, or the previous equal one; else ``NONE``."""
    latest: dict[frozenset[Node], int] = {}
    found = []
    for i, tree in enumerate(trees):
        phrase = frozenset(() if ordered else tree.needed)  # in a given order, each counts as equal
        found.append(latest.get(phrase, NONE))
        latest[phrase] = i
    return found


def _at(values: Tensor, nodes: Tensor) -> Tensor:
    """Look up the values of each hypothesis's node in each phrase.

    Args:
        values: ``(sentences, P, N, ...)``.
        nodes: ``(sentences, k, P)`` int64.

    Returns:
        ``(sentences, k, P, ...)``.
    """
    index = nodes.reshape(*nodes.shape, *[1] * (values.dim() - 2))  # (sentences, k, P, 1, ...)
    return values.unsqueeze(1).take_along_dim(index, dim=3).squeeze(3)


def _tensor(values: list[Any], depth: int, fill: int, device: torch.device) -> Tensor:
    """Nested lists of ``depth`` levels as int64; each is filled up to the longest of its level, at least to 1."""
    flat, shape = values, [len(values)]
    for below in reversed(range(depth - 1)):
        shape.append(max([1, *map(len, flat)]))
        filler: Any = [] if below else fill
        flat = [item for row in flat for item in [*row, *[filler] * (shape[-1] - len(row))]]
    return torch.tensor(flat, dtype=torch.int64, device=device).view(shape)


def continuations(totals: Tensor, tokens: Tensor) -> Candidates:
    """The candidates that continue each beam with some tokens.

    Args:
        totals: ``(sentences, k, V)`` the score of each continuation.
        tokens: ``(sentences, k, W)`` int64, padded with ``NONE``.

    Returns:
        ``k * W`` candidates of each sentence.
    """
    scores = totals.gather(-1, tokens.clamp(min=0)).masked_fill(tokens == NONE, -torch.inf)
    beams = torch.arange(tokens.size(1), device=tokens.device).view(1, -1, 1).expand_as(tokens)
    return Candidates(scores.flatten(1), tokens.clamp(min=0).flatten(1), beams.flatten(1))


class ConstrainedBatch(Search):
    """The search over one batch: its phrases, and the progress of each beam; a subclass implements ``step``.

    Args:
        batch: the batch.
        search: the strategy.
    """

    constraints_class: ClassVar[type[LexicalConstraints]] = LexicalConstraints

    def __init__(self, batch: BatchInfo, search: ConstrainedSearch):
        assert batch.constraints is not None
        self.batch = batch
        self.constraints = self.constraints_class(batch.constraints, search.ordered, batch.device)
        self.progress = self.constraints.start(batch.beam_size)

    def select_sentences(self, keep: Tensor) -> None:
        """See ``Search.select_sentences``."""
        self.constraints = copy.copy(self.constraints)  # that of a fork is another object
        self.constraints.select(keep)
        self.progress = map_tensors(self.progress, lambda values: values.index_select(0, keep))

    def advance(self, active: Candidates) -> None:
        """See ``Search.advance``."""
        self.progress = self.reached(active)

    def reached(self, candidates: Candidates) -> Progress:
        """The progress of candidates."""
        before = map_tensors(self.progress, lambda values: gather_beams(values, candidates.beams))
        return self.constraints.advance(before, candidates.tokens)


class _BankedBatch(ConstrainedBatch):
    """The search over one batch by fairseq's rules, with any strategy in place of beam search.

    Candidates of a bank are in the order of the strategy; those that it did not choose follow, best first.
    """

    def __init__(self, batch: BatchInfo, search: ConstrainedSearch):
        super().__init__(batch, search)
        self._inner = begin_component(search.inner, replace(batch, constraints=None))
        self.groups = self._inner.groups
        if self.groups > 1 and batch.beam_size < 2 * self.groups:
            raise ConfigError(
                f"generation.beam={batch.beam_size} gives each of {self.groups} groups one beam, which would begin "
                "every output with the phrases; give two beams or more for each group"
            )

    def select_sentences(self, keep: Tensor) -> None:
        """See ``Search.select_sentences``."""
        super().select_sentences(keep)
        self._inner.select_sentences(keep)

    def advance(self, active: Candidates) -> None:
        """See ``Search.advance``."""
        super().advance(active)
        self._inner.advance(active)

    def finished(self, batch: BatchInfo, ranking: Ranking, early_stopping: str) -> FinishedHypotheses | None:
        """See ``Search.finished``; samples do not replace each other."""
        return _FinishedSamples(batch, ranking, self) if self._inner.continues_each_beam else None

    def complete(self, candidates: Candidates) -> Tensor:
        """``(sentences, K)`` bool, true for candidates that have every phrase; see ``Search.complete``."""
        return self.reached(candidates).met.all(-1)

    def step(self, context: StepContext, scores: Scores) -> Candidates:
        """See ``Search.step``; the candidates of each group are divided among the banks.

        A sentence without phrases has the strategy's candidates.
        """
        independent = self._inner.continues_each_beam
        if independent:
            scores = Scores(scores.distribution(), scores.beams)
        unmet = ~self.progress.met.all(-1)
        forbidden = scores.values.new_zeros(*unmet.shape, scores.size)
        for token in self.batch.end_tokens:
            forbidden[..., token].masked_fill_(unmet, -torch.inf)
        # independent beams draw from the distribution without constraints, less end-of-sentence
        scores = replace(scores.plus(forbidden), is_distribution=independent)
        top = choose_candidates(self._inner, context, scores)
        candidates = self._candidates(context, scores.totals(), top)
        banks = self.constraints.bank(self.reached(candidates))
        size, parts = self.batch.num_candidates // self.groups, []
        for group in range(self.groups):
            of_group = candidates.without(candidates.beams % self.groups != group)
            columns = allocate(banks.masked_fill(of_group.scores == -torch.inf, NONE))
            parts.append(of_group.gather(columns[:, :size]).padded(size))
        found = Candidates.joined(parts, interleaved=True)
        if self.batch.counts_start:
            # Hugging Face's rules continue the candidates with the best scores: only those of the allocation may remain
            ends = torch.isin(found.tokens, torch.tensor(self.batch.end_tokens, device=found.tokens.device))
            continues = ~ends & (found.scores > -torch.inf)
            found = found.without(continues & (continues.cumsum(1) > self.batch.beam_size))
        width = max(found.scores.size(1), top.scores.size(1))
        pairs = zip(vars(found.padded(width)).values(), vars(top.padded(width)).values(), strict=True)
        return Candidates(*(torch.where(self.constraints.any_given, *pair) for pair in pairs))

    def _candidates(self, context: StepContext, totals: Tensor, top: Candidates) -> Candidates:
        """The strategy's candidates, the best one of each beam, and those that match a further token.

        A strategy that returns fewer candidates than it might has pruned the others: then only beams that have begun a
        phrase keep their best candidate.
        """
        beam, vocab = totals.shape[1:]
        if context.step == 0:  # all beams of a group are equal
            beam, top = self.groups, replace(top, beams=top.beams % self.groups)
        pruned = (top.scores == -torch.inf).any(1, keepdim=True) & (self.constraints.bank(self.progress) == 0)
        best = totals.argmax(-1).masked_fill(pruned, NONE)[:, :beam].unsqueeze(-1)
        further = self.constraints.next_tokens(self.progress)[:, :beam]
        others = Candidates.joined([continuations(totals, best), continuations(totals, further)])
        by_score = others.scores.argsort(dim=1, descending=True, stable=True)
        found = Candidates.joined([top, others.gather(by_score)])
        entries = (found.beams * vocab + found.tokens).masked_fill(found.scores == -torch.inf, NONE)
        return found.without(repeated(entries))


class _FinishedSamples(FirstFinished):
    """The first samples that end; in a sentence without phrases, each beam continues itself, as in ``EachRow``."""

    def __init__(self, batch: BatchInfo, ranking: Ranking, search: _BankedBatch):
        super().__init__(batch, ranking)
        self.search = search

    def _first_active(self, candidates: Candidates, ends: Tensor) -> Candidates:
        order = torch.where(self.search.constraints.any_given, ends, False)
        return super()._first_active(candidates.without(ends), order)


@register_search("constrained")
class ConstrainedSearch(Search):
    """Beam search with dynamic beam allocation (Post and Vilar 2018; Hu et al. 2019 for phrases in any order).

    Hypotheses are divided into banks by their number of matched constraint tokens, and the beam is filled with the best
    of each bank in turn, beginning with the bank that has most. The candidates are the best ones of the sentence, the
    best one of each beam, and all that match a further constraint token. No hypothesis ends before it has every
    phrase. Under Hugging Face's rules, ``HuggingFaceConstrainedBeam`` is used instead.

    Another strategy can take the place of beam search: its candidates are the first ones of each bank. Candidates that
    it did not choose have no penalty of the strategy in their scores.

    Args:
        ordered: whether phrases must occur in the given order, without overlaps.
        inner: the strategy that chooses candidates; beam search if not given.

    Raises:
        ConfigError: the strategy does not choose among the scored candidates of several beams.
    """

    is_stochastic = False
    enforces_constraints = True
    batch_class: ClassVar[type[ConstrainedBatch]] = _BankedBatch

    def __init__(self, ordered: bool = False, inner: Search | None = None):
        self.ordered, self.inner = ordered, inner or BeamSearch()
        kind = type(self.inner)
        obstacles = {
            "keeps one hypothesis of a sentence": self.inner.generates_one,
            "has a decoding loop of its own": self.inner.session_class,
            "applies the logits processors itself": self.inner.applies_processors,
            "has its own rule for which hypotheses finish": kind.finished is not Search.finished,
        }
        if why := next((obstacle for obstacle, applies in obstacles.items() if applies), ""):
            keys = " and ".join(f"generation.{key}" for key in keys_tagged(CONSTRAINS))
            raise ConfigError(
                f"{kind.__name__} {why}, so it does not support constraints; remove {keys}, or choose a strategy "
                "that does, such as beam search or sampling"
            )
        self.needs, self.changes_scores = self.inner.needs, self.inner.changes_scores  # type: ignore[misc]
        self.continues_each_beam = self.inner.continues_each_beam  # the rules of scores read it

    def check_constraints(self, constraints: Sequence[Phrases], sentences: int, vocab_size: int) -> None:
        """See ``Search.check_constraints``."""
        if len(constraints) != sentences:
            raise ConfigError(
                f"there are constraints for {len(constraints)} sentences, but the batch has {sentences}; give a list "
                "of phrases for each sentence, an empty one for none"
            )
        for sentence, phrases in enumerate(constraints):
            for token in (token for phrase in phrases for tokens in alternatives(phrase) for token in tokens):
                if not isinstance(token, int) or not 0 <= token < vocab_size:
                    raise ConfigError(
                        f"a phrase of sentence {sentence} has {token!r}, not an id of the target vocabulary of "
                        f"{vocab_size} tokens; a phrase is a list of ids, or a list of such lists for alternatives"
                    )

    def summary(self) -> str:
        """See ``Search.summary``."""
        return self.inner.summary()

    def begin(self, batch: BatchInfo) -> Any:
        """See ``Search.begin``; without constraints this is the inner strategy."""
        return self.inner.begin(batch) if batch.constraints is None else self.batch_class(batch, self)
