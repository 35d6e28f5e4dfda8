"""Constraints on the next token, given by a function or by a trie of all allowed outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from seqgen.data.text import read_lines
from seqgen.errors import DataError
from seqgen.generation.component import Resources
from seqgen.generation.context import StepContext
from seqgen.generation.processors.base import LogitsProcessor

_NOWHERE = -1
"""The node of a hypothesis that no sequence of the trie begins with."""


class PrefixConstraint(LogitsProcessor):
    """Allows the next tokens that a function returns (De Cao et al. 2021). It is used from Python only.

    Args:
        allowed: called with the id of a sentence and its generated tokens, ``(K,)`` int64 (under Hugging Face's rules
            with the start token; of a decoder-only model with the prompt); returns the ids of the allowed next tokens.
            If there are none, the hypothesis is dropped.
    """

    shift_invariant = True

    def __init__(self, allowed: Callable[[int, Tensor], Sequence[int]]):
        self.allowed = allowed

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        mask = torch.full_like(lprobs, -torch.inf)
        padding = context.generated_padding
        for row, (sentence, generated) in enumerate(zip(context.sentence_ids.tolist(), context.generated, strict=True)):
            own = generated if padding is None else generated[~padding[row]]
            mask[row, list(self.allowed(sentence, own))] = 0.0
        return lprobs + mask


class PrefixTrie:
    """A trie of token sequences in flat arrays, so that all hypotheses are looked up with a few tensor operations.

    The sequences ``a b`` and ``a c`` give, with the root as node 0::

        node       0    1      2   3
        children   a:1  b:2 c:3
        offsets    0    1      3   3   3      the edges of node 1 are edges 1 and 2

    Args:
        sequences: token ids, end-of-sentence included.
    """

    def __init__(self, sequences: Iterable[Sequence[int]]):
        # In sorted order, each sequence shares its longest beginning with the one before it. Bytes in big-endian order
        # compare as the ids do, and need a fraction of the memory of lists.
        ordered = sorted({np.asarray(sequence, ">i4").tobytes() for sequence in sequences})
        path, before, count = np.zeros(1, np.int64), np.empty(0, np.int64), 1  # the nodes of the sequence before
        parents, tokens = [path[:0]], [before]
        for content in ordered:
            own = np.frombuffer(content, ">i4").astype(np.int64)
            common = min(len(own), len(before))
            differs = own[:common] != before[:common]
            shared = int(differs.argmax()) if differs.any() else common
            new = np.arange(count, count + len(own) - shared)
            parents.append(np.concatenate([path[shared : shared + 1], new[:-1]])[: len(new)])
            tokens.append(own[shared:])
            path, before, count = np.concatenate([path[: shared + 1], new]), own, count + len(new)
        above, edges = np.concatenate(parents), np.concatenate(tokens)
        self._size = int(edges.max(initial=0)) + 1
        keys = above * self._size + edges
        order = keys.argsort()
        self.tokens, self.children = torch.from_numpy(edges[order]), torch.from_numpy(1 + order)
        self._keys = torch.from_numpy(keys[order])  # ascending
        counts = np.bincount(above, minlength=count)
        self.offsets = torch.from_numpy(np.concatenate([[0], counts.cumsum()]))

    @classmethod
    def from_lines(cls, lines: Iterable[str], encode: Callable[[str], Sequence[int]], eos: int) -> Self:
        """Build the trie of some texts.

        Args:
            lines: the allowed outputs.
            encode: turns a text into ids, without end-of-sentence.
            eos: id of end-of-sentence.

        Returns:
            The trie of the encoded texts, each followed by end-of-sentence.
        """
        return cls([*encode(line), eos] for line in lines)

    def to(self, device: torch.device) -> Self:
        """Move the arrays to a device, in place, and return this trie."""
        for name in ("tokens", "children", "offsets", "_keys"):
            setattr(self, name, getattr(self, name).to(device))
        return self

    def walk(self, tokens: Tensor) -> Tensor:
        """Find the node of each hypothesis.

        Args:
            tokens: ``(rows, step)`` int64.

        Returns:
            ``(rows,)`` int64 nodes; -1 for a hypothesis that is the beginning of no sequence.
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
        """Find the allowed next tokens of each row.

        Args:
            nodes: ``(rows,)`` int64, see ``walk``.

        Returns:
            Rows and tokens, ``(edges,)`` int64 each; there is one entry for each row and allowed token.
        """
        inside = nodes != _NOWHERE
        first = self.offsets[nodes.clamp(min=0)]
        counts = (self.offsets[nodes.clamp(min=0) + 1] - first).where(inside, 0)
        rows = torch.repeat_interleave(torch.arange(len(nodes), device=nodes.device), counts)
        # with first edges 4 and 1 and counts 2 and 3, entries 0 1 | 2 3 4 are the edges 4 5 | 1 2 3
        shift = first - (counts.cumsum(0) - counts)
        return rows, self.tokens[torch.arange(len(rows), device=nodes.device) + shift[rows]]

    def following(self, tokens: Sequence[int]) -> list[int]:
        """The tokens that may follow a prefix, ascending; none if no sequence begins with it."""
        generated = torch.tensor(tokens, dtype=torch.int64, device=self.tokens.device).view(1, -1)
        found: list[int] = self.edges(self.walk(generated))[1].tolist()
        return found


class TrieConstraint(LogitsProcessor):
    """Allows only outputs that are sequences of a trie.

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


def trie_of_file(path: Path, resources: Resources) -> PrefixTrie:
    """Read the allowed outputs, one per line.

    Raises:
        DataError: the file is empty, or a line has words or characters that are not in the target vocabulary.
    """
    trie = PrefixTrie.from_lines(_allowed(path, resources), resources.ids, resources.dictionary.eos())
    if not trie.following(()):
        raise DataError(f"{path} is empty; each of its lines must be an allowed output")
    return trie


def _allowed(path: Path, resources: Resources) -> Iterator[str]:
    for number, line in enumerate(read_lines(path), start=1):
        if resources.dictionary.unk() in resources.ids(line):
            raise DataError(
                f"{path}, line {number} has words or characters that are not in the target vocabulary; remove or "
                "correct it"
            )
        yield line
