"""Lexical shortlists (Jean et al. 2015, section 3.3): each sentence may generate only some tokens of the vocabulary.

They are the likely translations of its source tokens, and tokens that every output may contain. All other tokens are
forbidden in the logits of each member, before these are normalized: the probabilities are those of a softmax over the
shortlist, as in Marian and CTranslate2. There, all sentences of a batch share one shortlist. Here each sentence has
another one, so that its outputs do not depend on the other sentences of the batch. The decoders compute only the scores
of tokens that are in the shortlist of any sentence (``OutputColumns``).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from seqgen.addons.catalogue.vocabulary_map import VocabularyMap
from seqgen.extend import (
    FORBIDDEN,
    LAYER_LOGITS,
    MEMBER_LOGITS,
    MEMBER_LPROBS,
    BatchInfo,
    Component,
    Composite,
    ConfigError,
    DecodingSetup,
    Dictionary,
    LogitsProcessor,
    Member,
    Resources,
    Scoring,
    StepContext,
    apply_all,
    begin_component,
)


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
        shortlist = super().begin(batch)
        forbidden = np.ones((batch.num_sentences, self.size), dtype=bool)
        forbidden[:, [*self.always, *batch.end_tokens]] = False
        assert batch.src_tokens is not None
        for row, tokens in enumerate(batch.src_tokens):
            source = tokens if batch.src_padding is None else tokens[~batch.src_padding[row]]
            for ids in self.candidates.of_source(source.tolist()):
                forbidden[row, ids] = False
        for row, phrases in enumerate(batch.constraints or ()):
            forbidden[row, list(_tokens_of(phrases))] = False
        shortlist.forbidden = torch.from_numpy(forbidden).to(batch.device)
        for given in (batch.prefix_tokens, batch.first_tokens):
            if given is not None:
                shortlist.forbidden.scatter_(1, given.to(batch.device).view(batch.num_sentences, -1), False)
        shortlist.use_columns(None)
        return shortlist

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


def _tokens_of(phrases: Any) -> Iterator[int]:
    """The tokens of phrases, each a list of tokens or a list of alternatives."""
    for part in phrases:
        yield from (part,) if isinstance(part, int) else _tokens_of(part)


class ShortlistScoring(Scoring):
    """The scores of the tokens in the shortlists of a batch.

    Args:
        shortlist: the tokens that each sentence may generate.
        setup: see ``Scoring``.
        batch: see ``Scoring``.

    Attributes:
        columns: the part of the vocabulary that the members compute; ``None`` for all of it.
    """

    def __init__(self, shortlist: Shortlist, setup: DecodingSetup, batch: BatchInfo):
        super().__init__(setup, batch)
        self.parts = [*self.parts, begin_component(shortlist, batch)]
        self.num_tokens = -1
        self.columns: OutputColumns | None = None
        self._in_columns = (
            setup.fast.narrowed_scores
            and batch.prefix_tokens is None  # forced tokens are compared with ids
            and self.combination.takes_columns
            and not setup.search.applies_processors
            and not setup.needs & {MEMBER_LOGITS, MEMBER_LPROBS, LAYER_LOGITS, FORBIDDEN}
            and not any(model.adjusts_logits for model in setup.ensemble.models)
            and setup.ensemble.normalizes_by_softmax
        )

    @property
    def shortlist(self) -> Shortlist:
        """The tokens that each sentence of the batch may generate."""
        shortlist: Shortlist = self.parts[-1]
        return shortlist

    def attach(self, members: Sequence[Member]) -> None:
        """See ``Scoring.attach``."""
        if self._in_columns:
            self.columns = OutputColumns.choose(self.shortlist, self.setup, self.processors)
        self.tokens = None if self.columns is None else self.columns.ids
        self.shortlist.use_columns(self.tokens)
        for number, member in enumerate(members):
            member.output_columns = None if self.columns is None else self.columns.projections[number]

    def restrict(self, logits: Tensor) -> Tensor:
        """See ``Scoring.restrict``."""
        return self.shortlist.restrict(logits)

    def process(
        self, context: StepContext, lprobs: Tensor, log_sum: Tensor | None = None
    ) -> tuple[StepContext, Tensor]:
        """See ``Scoring.process``."""
        if self.columns is None:
            return super().process(context, lprobs, log_sum)
        return context, self.columns.process(lprobs, context)


def restrict_to_file(setup: DecodingSetup, file: str, resources: Resources) -> DecodingSetup:
    """The setup with the shortlists of a file, which contain the tokens that the settings force.

    Args:
        setup: the setup.
        file: the file; see ``VocabularyMap.read``.
        resources: have the vocabularies and the settings.

    Raises:
        ConfigError: the source vocabulary is not known.
    """
    cfg, source = resources.settings, resources.source_dictionary
    if source is None:
        raise ConfigError(
            f"generation.shortlist={file} needs the source vocabulary; pass it as source_dictionary=WORDS where the "
            "generator is built"
        )
    candidates = VocabularyMap.read(Path(file), source, resources.dictionary)
    forced = [resources.token(token) for token in (cfg.forced_first, cfg.forced_last) if token]
    return restricted(setup, Shortlist(candidates, resources.dictionary, forced))


def restricted(setup: DecodingSetup, shortlist: Shortlist) -> DecodingSetup:
    """The setup with a shortlist."""
    return replace(setup, scoring=partial(ShortlistScoring, shortlist))


LARGEST_SHARE = 0.5
"""Columns are used if the shortlists of a batch contain at most this share of the vocabulary; copying the weights of
more columns would take longer than it saves."""


@dataclass(frozen=True)
class OutputColumns:
    """The tokens in the shortlists of a batch, as the columns of all scores: column ``i`` is token ``ids[i]``.

    Attributes:
        ids: ``(U,)`` int64, ascending, so that equal scores are ordered as in the whole vocabulary.
        eos: the column of end-of-sentence.
        pad: the column of padding.
        projections: the output layer of each member for these columns.
        processors: the logits processors, with columns in place of the ids of tokens.
    """

    ids: Tensor
    eos: int
    pad: int
    projections: Sequence[Callable[[Tensor], Tensor]]
    processors: Sequence[LogitsProcessor]

    @classmethod
    def choose(
        cls, shortlist: Shortlist, setup: DecodingSetup, processors: Sequence[LogitsProcessor]
    ) -> OutputColumns | None:
        """The columns of a batch.

        Args:
            shortlist: the shortlists of the batch.
            setup: has the members that compute them.
            processors: the logits processors of the batch.

        Returns:
            The columns; ``None`` if a processor or a decoder needs the whole vocabulary, or if most of it is needed.
        """
        ids = shortlist.union()
        if len(ids) > LARGEST_SHARE * shortlist.size:
            return None
        column = {token: place for place, token in enumerate(ids.tolist())}
        changed = [_with_columns(processor, column) for processor in processors]
        decoders: dict[int, Any] = {id(spec.model): spec.model.decoder for spec in setup.ensemble.members}
        made = {key: decoder.output_columns(ids) for key, decoder in decoders.items()}
        if any(part is None for part in (*changed, *made.values())):
            return None
        return cls(
            ids,
            column[setup.eos],
            column[setup.pad],
            [made[id(spec.model)] for spec in setup.ensemble.members],
            [processor for processor in changed if processor is not None],
        )

    def process(self, scores: Tensor, context: StepContext) -> Tensor:
        """Apply the logits processors to ``(rows, U)`` scores."""
        sentences = replace(context.sentences, eos=self.eos, pad=self.pad)
        return apply_all(self.processors, scores, replace(context, sentences=sentences))


def _with_columns(processor: LogitsProcessor, column: dict[int, int]) -> LogitsProcessor | None:
    """A processor with columns in place of the ids of tokens; ``None`` if it needs others, or the whole vocabulary."""
    if processor.token_attributes is None or processor.sentence_state or processor.beam_state:
        return None
    changed = copy.copy(processor)
    if isinstance(processor, Composite):
        parts = [_with_columns(part, column) for part in processor.parts]
        if None in parts:
            return None
        changed.parts = parts  # type: ignore[attr-defined]
    for name in processor.token_attributes:
        ids = getattr(changed, name)
        if ids is None:
            continue
        wanted = ids.tolist() if isinstance(ids, Tensor) else ids if isinstance(ids, list) else [ids]
        found = [column[token] for token in wanted if token in column]
        if isinstance(ids, list):  # a token without a column is forbidden anyway
            setattr(changed, name, found)
        elif len(found) < len(wanted):
            return None
        else:
            setattr(changed, name, torch.tensor(found, device=ids.device) if isinstance(ids, Tensor) else found[0])
    return changed
