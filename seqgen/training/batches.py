"""The batches that a run trains and validates on."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from seqgen.config import TrainConfig
from seqgen.core.errors import ConfigError
from seqgen.core.model import EncoderDecoderModel
from seqgen.core.structures import Batch
from seqgen.data.combined_datasets import JoinedDataset, PackedDataset, pack
from seqgen.data.iterator import EpochIterator
from seqgen.data.pair_dataset import Dataset
from seqgen.registry import MODELS
from seqgen.task import Task
from seqgen.training.distributed import ProcessGroup


class RunBatches:
    """Makes the iterators of a run, which give each process its batches.

    Args:
        cfg: the whole configuration.
        task: has the datasets.
        model: has limits of lengths, and defines the padding side of sources and the start token.
        group: this process's rank in the process group.

    Attributes:
        notes: what the user should know about the data.
    """

    def __init__(self, cfg: TrainConfig, task: Task, model: EncoderDecoderModel, group: ProcessGroup):
        self.cfg, self.task, self.model = cfg, task, model
        self.notes: list[str] = []
        self._make = functools.partial(
            EpochIterator,
            seed=cfg.common.seed,
            rank=group.rank,
            world_size=group.world_size,
            num_workers=cfg.dataset.num_workers,
        )

    def train(self) -> EpochIterator:
        """The batches of the training split.

        Raises:
            ConfigError: the model cannot keep the examples of packed rows apart.
        """
        cfg = self.cfg.dataset
        dataset, collate = self._dataset(cfg.train_subset, cfg.max_tokens), self.collate
        if cfg.pack and not self.model.supports_packing:
            raise ConfigError(
                f"dataset.pack=true is not possible with model={MODELS.of(self.cfg.model).name}, which cannot keep the "
                "examples of a row apart; choose a t5 or a transformer, or set dataset.pack=false"
            )
        if cfg.pack:
            dataset, collate = PackedDataset(dataset, cfg.pack_length), self._collate_rows
        return self._make(dataset, collate, max_tokens=cfg.max_tokens, batch_size=cfg.batch_size)

    def valid(self) -> dict[str, EpochIterator]:
        """The batches of each part of the validation split; that of the whole split is named ``""``."""
        cfg = self.cfg.dataset
        tokens, size = cfg.max_tokens_valid or cfg.max_tokens, cfg.batch_size_valid or cfg.batch_size
        dataset = self._dataset(cfg.valid_subset, tokens)
        parts = dataset.parts if isinstance(dataset, JoinedDataset) else {"": dataset}
        make = functools.partial(self._make, max_tokens=tokens, batch_size=size, shuffle=False)
        return {name: make(part, self.collate) for name, part in parts.items()}

    def _dataset(self, split: str, max_tokens: int | None) -> Dataset:
        dataset = self.task.dataset(split).limited(*self.model.max_positions())
        self.notes += dataset.report()
        longest = dataset.lengths(1, self.cfg.common.seed).max(1)
        if max_tokens is not None and (longer := int((longest > max_tokens).sum())):
            self.notes.append(
                f"{longer} examples of {split} are longer than dataset.max_tokens={max_tokens}, the longest has "
                f"{longest.max()} tokens; each is a batch of its own"
            )
        return dataset

    def collate(self, examples: Sequence[Any]) -> Batch:
        """Collate examples into a batch for the model."""
        return self.task.collate(examples, self.model)

    def _collate_rows(self, examples: Sequence[Any]) -> Batch:
        """Collate packed examples: each row has several."""
        batches = [self.collate(row) for row in examples]
        return pack(batches, self.task.source_dictionary.pad(), self.task.target_dictionary.pad())
