"""Groups of training files that are sampled with a temperature that changes from epoch to epoch, and word dropout.

Each pair of files that ``task.train`` matches is a group. With ``n_g`` pairs of lines in group ``g``, the part ``p_g``
of an epoch ``e`` comes from it (Arivazhagan et al. 2019, "Massively Multilingual Neural Machine Translation in the
Wild"), here with ::

    p_g = n_g ^ (1 / T) / sum over h of n_h ^ (1 / T),    T = first + (last - first) min(1, (e - 1) / epochs)

An epoch has as many examples as all groups together; a group is read in a new random order whenever it begins. Each
token of a source but end-of-sentence is replaced by the unknown token with probability ``dropout`` (Gal and Ghahramani
2016). All this depends on the seed and the epoch alone, so that an interrupted run ends as an undisturbed one.

``seqgen-train common.user_dir=examples/papers/temperature_epochs.py task=temperature_epochs task.first=5 task.last=1
task.source_lang=en task.target_lang=de task.train=DATA/train* task.valid=DATA/val model=transformer_tiny``
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from seqgen import extend


@dataclass
class TemperatureEpochsConfig(extend.TranslationConfig):
    """Those of ``translation``, and how groups are sampled."""

    first: float = extend.option(5.0, "temperature of the first epoch", minimum=0.01)
    last: float = extend.option(1.0, "temperature of the last epochs", minimum=0.01)
    epochs: int = extend.option(10, "number of epochs in which the temperature changes", minimum=1)
    dropout: float = extend.option(0.1, "probability of replacing a source token", minimum=0, maximum=1)


class Groups(extend.JoinedDataset):
    """Draws pairs from groups, and replaces source tokens; see ``Dataset``."""

    def __init__(self, parts: Mapping[str, extend.PairDataset], cfg: TemperatureEpochsConfig, unk: int):
        super().__init__(parts)
        self.cfg, self.unk, self.drawn = cfg, unk, functools.lru_cache(2)(self.draw)

    def draw(self, epoch: int, seed: int) -> Any:
        """The position in the concatenation of the groups of each example of an epoch, ``(n,)``."""
        share, sizes = min(1.0, (epoch - 1) / self.cfg.epochs), [len(part) for part in self.parts.values()]
        rates = extend.mixing_rates(sizes, self.cfg.first + (self.cfg.last - self.cfg.first) * share)
        counts, found = np.diff(np.rint(np.cumsum([0.0, *rates]) * len(self)).astype(int)), []
        for number, (size, count) in enumerate(zip(sizes, counts, strict=True)):
            rng = np.random.default_rng([seed, epoch, number])
            orders = [rng.permutation(size) for _ in range(-(-count // size))] or [np.arange(0)]
            found.append(self.offsets[number] + np.concatenate(orders)[:count])
        return np.concatenate(found)

    def lengths(self, epoch: int = 1, seed: int = 0) -> Any:
        """See ``Dataset.lengths``."""
        return super().lengths(epoch, seed)[self.drawn(epoch, seed)]

    def example(self, position: int, *, epoch: int, seed: int) -> extend.Example:
        """See ``Dataset.example``."""
        found = super().example(int(self.drawn(epoch, seed)[position]), epoch=epoch, seed=seed)
        uniforms = np.random.default_rng([seed, epoch, position, 1]).random(len(found.source))
        uniforms[-1] = 1.0  # end-of-sentence stays
        return found._replace(source=found.source.masked_fill(torch.from_numpy(uniforms) < self.cfg.dropout, self.unk))

    def limited(self, *limits: int | None) -> Groups:
        """See ``PairDataset.limited``."""
        return Groups({name: part.limited(*limits) for name, part in self.parts.items()}, self.cfg, self.unk)


@extend.register_task("temperature_epochs", config=TemperatureEpochsConfig)
class TemperatureEpochs(extend.TranslationTask):
    """Translation whose training files are groups."""

    def load_dataset(self, split: str) -> Any:
        """Load a split."""
        files = self.files(split)
        parts: dict[str, extend.PairDataset] = {}
        if split != "train" or files.target is None:
            return super().load_dataset(split)
        if files.source == files.target:
            raise extend.ConfigError("task=temperature_epochs needs task.train=PREFIX of pairs of files, not a table")
        added = self.source_tokenizer.source_tokens(), self.target_tokenizer.target_tokens()
        for name, source, target in zip(map(str, files.source), files.source, files.target, strict=True):
            sides = f"{len(parts)}.source", f"{len(parts)}.target"
            parts[name] = self.encode(split, extend.ParallelFiles([source], [target]), added, sides, name)
        return Groups(parts, self.cfg, self.source_dictionary.unk())
