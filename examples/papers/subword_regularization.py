"""Subword regularization (Kudo 2018) and BPE dropout (Provilkov et al. 2020): a new segmentation in each epoch.

A unigram model draws a segmentation ``s`` of a text from its ``nbest`` best ones (-1: from all), with smoothing
``alpha``; a BPE model leaves out each merge with probability ``alpha``::

    P(s | text) = p(s) ^ alpha / sum over t of p(t) ^ alpha

Only training pairs are sampled. In one process they depend on the seed, the epoch and the line; SentencePiece 0.2.3
mixes a number of the process into each seed, so that a run that is continued draws others. A sample that is longer than
the limits of the model is not used. The text of a line is that of its stored tokens. ::

    seqgen-train common.user_dir=examples/papers/subword_regularization.py task=subword_regularization
        task.source_lang=en task.target_lang=de task.train=DATA/train task.valid=DATA/val model=transformer_tiny
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import sentencepiece
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqgen.extend import (
    ConfigError,
    Dataset,
    Example,
    PairDataset,
    SentencePieceTokenizer,
    Side,
    Tokenizer,
    TranslationConfig,
    TranslationTask,
    option,
    register_task,
)

# SentencePiece has a random generator for each thread, but one seed for all: no other thread may set it meanwhile.
_LOCK = threading.Lock()


class Sampler:
    """Draws segmentations of the lines of one side."""

    def __init__(self, tokenizer: Tokenizer, alpha: float, nbest: int):
        if not isinstance(tokenizer, SentencePieceTokenizer):
            raise ConfigError("task=subword_regularization needs task.tokenizer=sentencepiece")
        self.tokenizer, self.alpha, self.nbest = tokenizer, alpha, nbest
        self.processor: Any = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)

    def __call__(self, text: str, seed: int) -> list[int]:
        """The ids of a text, without end-of-sentence; in one process the same seed gives the same ids."""
        with _LOCK:
            sentencepiece.set_random_generator_seed(seed)
            pieces = self.processor.encode(
                text, out_type=str, enable_sampling=True, alpha=self.alpha, nbest_size=self.nbest
            )
        return [self.tokenizer.dictionary.word_index(piece) for piece in pieces]


class SampledPairs(Dataset):
    """Pairs of sentences that are segmented each time they are read; lengths are those of the stored tokens."""

    def __init__(self, pairs: PairDataset, source: Sampler, target: Sampler):
        self.pairs, self.source, self.target = pairs, source, target

    def __len__(self) -> int:
        return len(self.pairs)

    def lengths(self, epoch: int, seed: int) -> NDArray[np.int32]:
        """See ``PairDataset``."""
        return self.pairs.lengths(epoch, seed)

    def limited(self, max_source_positions: int | None, max_target_positions: int | None) -> SampledPairs:
        """See ``PairDataset``."""
        return SampledPairs(self.pairs.limited(max_source_positions, max_target_positions), self.source, self.target)

    def report(self) -> list[str]:
        """See ``PairDataset``."""
        return self.pairs.report()

    def example(self, position: int, *, epoch: int, seed: int) -> Example:
        """The pair at a position, with the segmentations of an epoch."""
        stored = self.pairs.example(position)
        assert self.pairs.target is not None
        assert stored.target is not None
        sides = (
            (self.source, self.pairs.source, stored.source, self.pairs.limits[0]),
            (self.target, self.pairs.target, stored.target, self.pairs.limits[1]),
        )
        sampled = [_sampled(*side, (seed, epoch, number, stored.id)) for number, side in enumerate(sides)]
        return Example(stored.id, sampled[0], sampled[1], stored.columns)


def _sampled(sampler: Sampler, side: Side, stored: Tensor, limit: int, seed: tuple[int, ...]) -> Tensor:
    number = int(np.random.SeedSequence(seed).generate_state(1)[0])
    ids = side.added.around(sampler(sampler.tokenizer.decode(stored.tolist()), number))
    return stored if limit is not None and len(ids) > limit else torch.tensor(ids)


@dataclass
class SubwordRegularizationConfig(TranslationConfig):
    """Those of ``translation``, and how segmentations are drawn."""

    sampling_alpha: float = option(
        0.1, "smoothing of segmentations (unigram), or probability of leaving out a merge (bpe)", minimum=0, maximum=1
    )
    sampling_nbest: int = option(-1, "number of best segmentations to draw from; -1 for all (unigram)", minimum=-1)


@register_task("subword_regularization", config=SubwordRegularizationConfig)
class SubwordRegularizationTask(TranslationTask):
    """Translation whose training text is segmented at random."""

    def load_dataset(self, split: str) -> Any:
        """Load a split; training pairs are sampled."""
        dataset: Any = super().load_dataset(split)
        if split == "train":
            tokenizers = self.source_tokenizer, self.target_tokenizer
            samplers = [Sampler(one, self.cfg.sampling_alpha, self.cfg.sampling_nbest) for one in tokenizers]
            dataset = SampledPairs(dataset, *samplers)
        return dataset
