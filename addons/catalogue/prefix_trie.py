"""A trie of allowed outputs in flat arrays, built by sorting, which can stay in a file that is mapped into memory."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from seqgen.extend import DataError, new_file, open_regular

NOWHERE = -1
"""The node of a hypothesis that no sequence of the trie begins with."""

_FORMAT = "seqgen.prefix_trie"
"""The value of ``format`` in the metadata of a file."""


@dataclass(frozen=True)
class PrefixTrie:
    """A trie of token sequences, end-of-sentence included, whose nodes are numbered level by level.

    The children of a node are consecutive nodes, in ascending order of their tokens. The sequences ``a b``, ``a c`` and
    ``d`` give, with the root as node 0::

        node      0  1  2  3  4
        tokens    -  a  d  b  c       the token that leads to each node
        first     1  3  5  5  5  5    the children of node 0 are nodes 1 and 2, those of node 1 are nodes 3 and 4

    Attributes:
        tokens: ``(nodes,)`` int32; -1 for the root.
        first: ``(nodes + 1,)`` int32, the first child of each node, or where it would be.
    """

    tokens: Tensor
    first: Tensor

    @classmethod
    def of(cls, sequences: Iterable[Sequence[int]]) -> PrefixTrie:
        """Build the trie of some sequences; see ``of_arrays``."""
        arrays = [np.asarray(sequence, np.int32) for sequence in sequences]
        lengths = np.fromiter(map(len, arrays), np.int64, len(arrays))
        flat = np.concatenate([np.empty(0, np.int32), *arrays])
        return cls.of_arrays(flat, lengths)

    @classmethod
    def of_arrays(cls, flat: NDArray[np.int32], lengths: NDArray[np.int64]) -> PrefixTrie:
        """Build the trie of some sequences.

        Args:
            flat: the tokens of all sequences, one sequence after the other.
            lengths: ``(N,)`` number of tokens of each sequence.
        """
        starts, size = lengths.cumsum() - lengths, int(flat.max(initial=0)) + 1
        longer = np.flatnonzero(lengths)  # the sequences that are longer than the number of complete levels
        nodes = np.zeros(len(lengths), np.int64)  # the node of each sequence within the last complete level
        tokens, children, depth, width = [np.full(1, -1, np.int32)], list[NDArray[np.int32]](), 0, 1
        while len(longer):
            # sorted by parent, then by token: the children of a node are consecutive
            keys = nodes[longer] * size + flat[starts[longer] + depth]
            distinct, nodes[longer] = np.unique(keys, return_inverse=True)
            children.append(np.bincount(distinct // size, minlength=width).astype(np.int32))
            tokens.append((distinct % size).astype(np.int32))
            depth, width = depth + 1, len(distinct)
            longer = longer[lengths[longer] > depth]
        degrees = np.concatenate([*children, np.zeros(width, np.int32)])
        first = 1 + np.concatenate([np.zeros(1, np.int32), degrees.cumsum(dtype=np.int32)])
        return cls(torch.from_numpy(np.concatenate(tokens)), torch.from_numpy(first))

    def to(self, device: torch.device) -> PrefixTrie:
        """This trie on a device."""
        if self.tokens.device == device:
            return self
        return PrefixTrie(self.tokens.to(device), self.first.to(device))

    @cached_property
    def longest(self) -> int:
        """The number of tokens of the longest sequence."""
        end, depth = 1, 0  # the nodes before ``end`` have at most this depth
        while (following := int(self.first[end])) > end:
            end, depth = following, depth + 1
        return depth

    def degrees(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """The first child and the number of children of each node, int64 of the shape of ``nodes``."""
        inside = nodes.clamp(min=0)
        first = self.first[inside].long()
        return first, (self.first[inside + 1] - first).where(nodes != NOWHERE, 0)

    def child(self, nodes: Tensor, tokens: Tensor) -> Tensor:
        """The node that a token leads to from each node.

        Args:
            nodes: int64 of any shape.
            tokens: int64 of the same shape.

        Returns:
            int64; ``NOWHERE`` where there is none.
        """
        low, count = self.degrees(nodes)
        end = low + count
        high, last = end, len(self.tokens) - 1
        for _ in range(int(count.max()).bit_length() if count.numel() else 0):  # binary search among the children
            middle = (low + high) // 2
            before = (self.tokens[middle.clamp(max=last)] < tokens) & (low < high)
            low, high = torch.where(before, middle + 1, low), torch.where(before, high, middle)
        found = (low < end) & (self.tokens[low.clamp(max=last)] == tokens)
        return low.where(found, NOWHERE)

    def edges(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """The children of some nodes.

        Args:
            nodes: ``(rows,)`` int64.

        Returns:
            ``(edges,)`` int64 each: the row and the child of each edge, in the order of the rows, then of the tokens.
        """
        first, counts = self.degrees(nodes)
        rows = torch.arange(len(nodes), device=nodes.device).repeat_interleave(counts)
        # with first children 4 and 1 and counts 2 and 3, edges 0 1 | 2 3 4 lead to the children 4 5 | 1 2 3
        shift = first - (counts.cumsum(0) - counts)
        return rows, torch.arange(len(rows), device=nodes.device) + shift[rows]

    def following(self, tokens: Sequence[int]) -> list[int]:
        """The tokens that may follow a prefix, ascending; none if no sequence begins with it."""
        node = torch.zeros(1, dtype=torch.int64)
        for token in tokens:
            node = self.child(node, torch.tensor([token]))
        found: list[int] = self.tokens[self.edges(node)[1]].tolist()
        return found

    def save(self, path: Path) -> None:
        """Write the arrays to a file, atomically."""
        with new_file(path, exist_ok=False) as file:
            metadata = {"format": _FORMAT, "crc32": self._checksum()}
            file.write(save({"tokens": self.tokens, "first": self.first}, metadata))

    @classmethod
    def load(cls, path: Path, vocab_size: int) -> PrefixTrie:
        """Map a file that ``save`` wrote; processes that read the same file share its memory.

        Args:
            path: the file.
            vocab_size: size of the target vocabulary.

        Raises:
            DataError: it is not such a file, is damaged, or has tokens that are not in the vocabulary.
        """
        open_regular(path).close()
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != _FORMAT:
                    raise DataError(f"{path} is not a trie; write one with seqgen-convert format=trie")
                trie = cls(**{name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
        except (SafetensorError, OSError, TypeError) as error:
            raise DataError(f"{path} is damaged: {error}; write it again with seqgen-convert format=trie") from None
        problem = trie._problem(vocab_size)
        if not problem and metadata.get("crc32") != trie._checksum():
            problem = "is damaged, or an earlier version of seqgen wrote it: its checksum is not that of its content"
        if problem:
            raise DataError(f"{path} {problem}; write it again with seqgen-convert format=trie")
        return trie

    def _checksum(self) -> str:
        """The CRC-32 of the arrays, one after the other."""
        checksum = zlib.crc32(self.first.cpu().numpy().data, zlib.crc32(self.tokens.cpu().numpy().data))
        return f"{checksum:08x}"

    def _problem(self, vocab_size: int) -> str:
        """The reason why these arrays are no trie over a vocabulary; empty if they are one."""
        tokens, first = self.tokens, self.first
        nodes = tokens.numel()
        kinds = tokens.dtype == first.dtype == torch.int32 and tokens.dim() == first.dim() == 1
        if not kinds or nodes < 1 or len(first) != nodes + 1 or int(first[0]) != 1 or int(first[-1]) != nodes:
            return "is damaged: its arrays do not fit each other"
        # children come after their parent, so that no walk returns to a node
        if bool((first[1:] < first[:-1]).any()) or bool((first[:-1] <= torch.arange(nodes, dtype=torch.int32)).any()):
            return "is damaged: a node has a child twice"
        if nodes > 1 and (int(tokens[1:].min()) < 0 or int(tokens.max()) >= vocab_size):
            return f"has tokens that are not in the target vocabulary of {vocab_size}"
        parents = first[1:] > first[:-1]
        begins = first[:-1][parents].long()  # the first child of each parent
        descends = tokens.diff() <= 0
        descends[begins - 1] = False
        if bool(descends.any()):
            return "is damaged: the children of a node are not in ascending order"
        return ""
