"""Which tokens may follow what is written: by a function, or by a trie of all outputs that are allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Self

import torch
from torch import Tensor

from seqgen.generation.context import StepContext
from seqgen.generation.processors.base import LogitsProcessor

_NOWHERE = -1
"""Where a hypothesis is that has left the trie."""


class PrefixConstraint(LogitsProcessor):
    """A function says which tokens may follow (De Cao et al. 2021).

    Args:
        allowed: from the number of a sentence and what is written, ``(K,)`` int64 (by Hugging Face's rules with the
            start token), to the ids of the tokens that may follow; of none, the hypothesis dies.
    """

    shift_invariant = True

    def __init__(self, allowed: Callable[[int, Tensor], Sequence[int]]):
        self.allowed = allowed

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        mask = torch.full_like(lprobs, -torch.inf)
        for row, (sentence, written) in enumerate(zip(context.sentence_ids.tolist(), context.generated, strict=True)):
            mask[row, list(self.allowed(sentence, written))] = 0.0
        return lprobs + mask


class PrefixTrie:
    """Sequences of tokens as a trie in flat arrays, which any number of hypotheses walk at once.

    Of the sequences ``a b`` and ``a c``, with the root as node 0::

        node       0    1      2   3
        children   a:1  b:2 c:3
        offsets    0    1      3   3   3      node 1 has the edges from offset 1 to offset 3

    Args:
        sequences: token ids, end-of-sentence included.
    """

    def __init__(self, sequences: Iterable[Sequence[int]]):
        children: list[dict[int, int]] = [{}]
        for sequence in sequences:
            node = 0
            for token in sequence:
                following = children[node].setdefault(token, len(children))
                if following == len(children):
                    children.append({})
                node = following
        edges = [(node, token, child) for node, found in enumerate(children) for token, child in sorted(found.items())]
        table = torch.tensor(edges, dtype=torch.int64).view(-1, 3)
        self.tokens, self.children = table[:, 1].contiguous(), table[:, 2].contiguous()
        self._size = int(self.tokens.max()) + 1 if edges else 1
        self._keys = table[:, 0] * self._size + self.tokens  # ascending
        counts = torch.tensor([len(found) for found in children])
        self.offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0))

    @classmethod
    def from_lines(cls, lines: Iterable[str], encode: Callable[[str], Sequence[int]], eos: int) -> Self:
        """Make the trie of some texts.

        Args:
            lines: the outputs that are allowed.
            encode: turns a text into ids, without end-of-sentence.
            eos: id of end-of-sentence.
        """
        return cls([*encode(line), eos] for line in lines)

    def to(self, device: torch.device) -> Self:
        """Move the arrays to a device."""
        for name in ("tokens", "children", "offsets", "_keys"):
            setattr(self, name, getattr(self, name).to(device))
        return self

    def walk(self, tokens: Tensor) -> Tensor:
        """Where hypotheses are.

        Args:
            tokens: ``(rows, step)`` int64.

        Returns:
            ``(rows,)`` int64 nodes; -1 for those that are in no sequence.
        """
        nodes = tokens.new_zeros(tokens.size(0))
        if self._keys.numel() == 0:
            return nodes if tokens.size(1) == 0 else nodes.fill_(_NOWHERE)
        for token in tokens.unbind(1):
            keys = nodes * self._size + token
            edges = torch.searchsorted(self._keys, keys).clamp(max=len(self._keys) - 1)
            found = (self._keys[edges] == keys) & (nodes != _NOWHERE) & (token < self._size)
            nodes = self.children[edges].where(found, _NOWHERE)
        return nodes

    def edges(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """What may follow.

        Args:
            nodes: ``(rows,)`` int64, see ``walk``.

        Returns:
            Rows and tokens, ``(edges,)`` int64 each, of everything that may follow in each row.
        """
        inside = nodes != _NOWHERE
        first = self.offsets[nodes.clamp(min=0)]
        counts = (self.offsets[nodes.clamp(min=0) + 1] - first).where(inside, 0)
        rows = torch.repeat_interleave(torch.arange(len(nodes), device=nodes.device), counts)
        # first edges 4 and 1, counts 2 and 3: the places 0 1 | 2 3 4 become the edges 4 5 | 1 2 3
        shift = first - (counts.cumsum(0) - counts)
        return rows, self.tokens[torch.arange(len(rows), device=nodes.device) + shift[rows]]

    def following(self, tokens: Sequence[int]) -> list[int]:
        """The tokens that may follow some others, ascending; none where those are in no sequence."""
        written = torch.tensor(tokens, dtype=torch.int64, device=self.tokens.device).view(1, -1)
        found: list[int] = self.edges(self.walk(written))[1].tolist()
        return found


class TrieConstraint(LogitsProcessor):
    """An output is one of the sequences of a trie.

    Args:
        trie: the trie.
    """

    shift_invariant = True

    def __init__(self, trie: PrefixTrie):
        self.trie = trie

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        trie = self.trie.to(lprobs.device)
        rows, tokens = trie.edges(trie.walk(context.tokens))
        scores = torch.full_like(lprobs, -torch.inf)
        scores[rows, tokens] = lprobs[rows, tokens]
        return scores
