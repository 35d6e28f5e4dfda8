"""The constraint that an output is one of a trie."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from seqgen.addons.catalogue.prefix_trie import PrefixTrie
from seqgen.extend import (
    BatchInfo,
    Candidates,
    DataError,
    LogitsProcessor,
    Resources,
    StepContext,
    read_ids,
    read_lines,
)

TRIE_SUFFIX = ".safetensors"
"""The end of the name of a file that has a trie."""

_FEW = 8
"""The search gets the scores of allowed tokens alone if no row has more of them than an eighth of the vocabulary."""


class TrieConstraint(LogitsProcessor):
    """Allows only outputs that are sequences of a trie.

    Each beam has its node of the trie, so that a step reads only the edges of these nodes.

    Args:
        trie: the trie.

    Attributes:
        nodes: ``(sentences, beam)`` int64, the node of each beam.
        is_deferred: whether a call changes nothing, because ``narrow`` is called after all processors.
    """

    shift_invariant = True
    can_merge = True
    certifiable = True
    beam_state = ("nodes",)

    def __init__(self, trie: PrefixTrie):
        self.trie = trie
        self.nodes = torch.zeros(0, 0, dtype=torch.int64)
        self.is_deferred = False

    def begin(self, batch: BatchInfo) -> Self:
        """See ``Component.begin``."""
        processor = super().begin(batch)
        self.trie = processor.trie = self.trie.to(batch.device)
        processor.nodes = torch.zeros(batch.num_sentences, batch.beam_size, dtype=torch.int64, device=batch.device)
        return processor

    def advance(self, active: Candidates) -> None:
        """See ``Component.advance``."""
        super().advance(active)
        self.nodes = self.trie.child(self.nodes, active.tokens)

    def defer(self) -> LogitsProcessor:
        """See ``LogitsProcessor.defer``."""
        self.is_deferred = True
        return self

    def narrow(self, lprobs: Tensor) -> tuple[Tensor, Tensor | None]:
        """The scores of the allowed tokens alone, if they are few.

        Args:
            lprobs: ``(rows, V)``.

        Returns:
            ``(rows, W)`` their scores, and ``(rows, W)`` int64 their tokens, ascending; the score is ``-inf`` where a
            row has fewer than ``W``. If a row has many, the scores ``(rows, V)`` of all tokens and ``None``.
        """
        nodes = self.nodes.flatten()
        first, counts = self.trie.degrees(nodes)
        width = max(1, int(counts.max()))
        if width * _FEW > lprobs.size(1):
            return self._all_scores(lprobs), None
        places = torch.arange(width, device=nodes.device)
        children = (first.unsqueeze(1) + places).clamp(max=len(self.trie.tokens) - 1)
        tokens = self.trie.tokens[children].long().clamp(min=0)
        return lprobs.gather(1, tokens).masked_fill(places >= counts.unsqueeze(1), -torch.inf), tokens

    def _all_scores(self, lprobs: Tensor) -> Tensor:
        """The scores ``(rows, V)``, ``-inf`` where a token is not allowed."""
        nodes, of_row = self.nodes.flatten().unique(return_inverse=True)  # at the first step all rows are at the root
        rows, children = self.trie.edges(nodes)
        added = lprobs.new_full((len(nodes), lprobs.size(1)), -torch.inf)
        added[rows, self.trie.tokens[children].long()] = 0.0
        return lprobs + (added if len(nodes) == 1 else added[of_row])

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        return lprobs if self.is_deferred else self._all_scores(lprobs)


def constraint_of_file(file: str, resources: Resources) -> TrieConstraint:
    """The constraint of ``generation.allowed_outputs``; see ``trie_of_file``."""
    return TrieConstraint(trie_of_file(Path(file), resources))


def trie_of_file(path: Path, resources: Resources) -> PrefixTrie:
    """Read the allowed outputs of a file.

    Args:
        path: text, one output per line; ids of tokens if the name ends in ``.ids``; or a trie that ``PrefixTrie.save``
            wrote if it ends in ``TRIE_SUFFIX``.
        resources: the target vocabulary and its tokenizer.

    Raises:
        DataError: the file is empty or damaged, or a line cannot be read.
    """
    if path.suffix == TRIE_SUFFIX:
        return PrefixTrie.load(path, len(resources.dictionary))
    flat, lengths = array("i"), array("q")
    for number, text in enumerate(read_lines(path), start=1):
        where = f"{path}, line {number}"
        if "\t" in text:
            raise DataError(f"{where} has a tab; each line must be an allowed output alone")
        words = resources.dictionary
        ids = read_ids(text, len(words), where) if path.suffix == ".ids" else resources.ids(text)
        if words.eos() in ids:
            raise DataError(f"{where} has end-of-sentence (id {words.eos()}), which is added to each output; remove it")
        if words.unk() in ids:
            raise DataError(
                f"{where} has words or characters that are not in the target vocabulary; remove or correct it"
            )
        flat.extend(ids)
        flat.append(words.eos())
        lengths.append(len(ids) + 1)
    if not lengths:
        raise DataError(f"{path} is empty; each of its lines must be an allowed output")
    return PrefixTrie.of_arrays(np.frombuffer(flat, np.int32), np.frombuffer(lengths, np.int64))
