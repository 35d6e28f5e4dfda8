"""Lexical shortlists (Jean et al. 2015, section 3.3): each sentence may generate only some tokens of the vocabulary.

They are the likely translations of its source tokens, and tokens that every output may contain. All other tokens are
forbidden in the logits of each member, before these are normalized: the probabilities are those of a softmax over the
shortlist, as in Marian and CTranslate2. There, all sentences of a batch share one shortlist. Here each sentence has its
own, so that its outputs do not depend on the other sentences of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor

from seqgen.data.dictionary import Dictionary
from seqgen.data.vocabulary_map import VocabularyMap
from seqgen.generation.component import BatchInfo, Component, Phrase


class Shortlist(Component):
    """Forbids the tokens that are not in the shortlist of a sentence.

    Tokens of constraints and of given prefixes belong to the shortlist of their sentence.

    Args:
        candidates: target tokens by source tokens.
        dictionary: the target vocabulary; its special tokens belong to every shortlist.
        further: ids of other tokens that belong to every shortlist.

    Attributes:
        forbidden: ``(sentences, V)`` bool, the tokens that are not in the shortlist of each sentence.
    """

    sentence_state = ("forbidden",)

    def __init__(self, candidates: VocabularyMap, dictionary: Dictionary, further: Sequence[int] = ()):
        self.candidates, self.size = candidates, len(dictionary)
        special = [index for index in dictionary.special_ids.values() if index is not None]
        self.always = [*special, *further]
        self.forbidden: Tensor
        self._ids: Tensor | None = None
        self._mask: Tensor

    def begin(self, batch: BatchInfo) -> Self:
        """See ``Component.begin``."""
        own = super().begin(batch)
        forbidden = np.ones((batch.num_sentences, self.size), dtype=bool)
        forbidden[:, [*self.always, *batch.end_tokens]] = False
        for row, source in enumerate(_sources(batch)):
            for ids in self.candidates.of_source(source):
                forbidden[row, ids] = False
        for row, phrases in enumerate(batch.constraints or ()):
            forbidden[row, [token for phrase in phrases for token in _tokens(phrase)]] = False
        own.forbidden = torch.from_numpy(forbidden).to(batch.device)
        for given in (batch.prefix_tokens, batch.first_tokens):
            if given is not None:
                own.forbidden.scatter_(1, given.to(batch.device).view(batch.num_sentences, -1), False)
        own.use_columns(None)
        return own

    def union(self) -> Tensor:
        """The ids that are in the shortlist of any sentence, ``(U,)`` int64, ascending."""
        return (~self.forbidden).any(0).nonzero().squeeze(1)

    def use_columns(self, ids: Tensor | None) -> None:
        """Choose the columns of the logits that ``restrict`` receives.

        Args:
            ids: ``(U,)`` int64, their ids; ``None`` for the whole vocabulary.
        """
        self._ids = ids
        self._mask = self.forbidden if ids is None else self.forbidden.index_select(1, ids)

    def select_sentences(self, keep: Tensor) -> None:
        """See ``Component.select_sentences``."""
        super().select_sentences(keep)
        self._mask = self._mask.index_select(0, keep)

    def restrict(self, logits: Tensor) -> Tensor:
        """Forbid tokens.

        Args:
            logits: ``(rows, V)``, or ``(rows, U)`` if columns are in use.

        Returns:
            The logits, ``-inf`` where a token is not in the shortlist of the sentence.
        """
        by_sentence = logits.view(len(self._mask), -1, logits.size(1))
        return by_sentence.masked_fill(self._mask.unsqueeze(1), -torch.inf).view_as(logits)


def _sources(batch: BatchInfo) -> Iterator[list[int]]:
    """The ids of each source, without padding."""
    assert batch.src_tokens is not None
    padding = batch.src_padding
    for row, tokens in enumerate(batch.src_tokens):
        yield (tokens if padding is None else tokens[~padding[row]]).tolist()


def _tokens(phrase: Phrase) -> Iterator[int]:
    """The tokens of a phrase, or of all its alternatives."""
    for item in phrase:
        if isinstance(item, int):
            yield item
        else:
            yield from item
