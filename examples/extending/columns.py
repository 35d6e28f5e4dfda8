"""Translation that reads a context, in a vocabulary of its own, and features of an image besides the source.

    seqgen-train common.user_dir=examples/extending/columns.py run_dir=runs/columns task=with_columns \
        model=with_columns task.source_lang=en task.target_lang=de task.train=train task.valid=val \
        task.features=features.npy
    seqgen-generate common.user_dir=examples/extending/columns.py path=runs/columns input=test.tsv

A line of ``test.tsv`` has three fields: the source, its context, and the row of its image in ``features.npy``. The last
two are also those of each line of ``train.columns`` and ``val.columns``, for the same line of ``train.en``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from seqgen import extend
from seqgen.config import option


@dataclass
class ColumnsConfig(extend.TranslationConfig):
    """The keys of the task."""

    features: str = option("", "features of images: a .npy file of (images, dimensions)", role="input_path")


@extend.register_task("with_columns", config=ColumnsConfig)
class ColumnsTask(extend.TranslationTask):
    """Translation whose examples have the columns ``context``, the bytes of a text from 1, and ``image``."""

    column_pads: Mapping[str, int] = {"context": 0}

    @cached_property
    def features(self) -> Any:
        """The features of all images."""
        with extend.library_errors(self.cfg.features):
            return np.load(self.cfg.features, mmap_mode="c")

    def split_columns(self, line: str, number: int) -> tuple[str, Mapping[str, Any]]:
        """Separate the source of a line from its context and image."""
        text, context, image = [*line.split("\t"), "", ""][:3]
        if not image.isdecimal() or int(image) >= len(self.features):
            raise extend.DataError(f"line {number + 1}: its third field is no row of {self.cfg.features}: {image!r}")
        read = torch.tensor([1 + byte for byte in f"{context}\n".encode()])
        return text, {"context": read, "image": self.features[int(image)]}

    def source_lines(self, split: str) -> Iterator[str]:
        """The lines of a split with all fields."""
        file = Path(f"{getattr(self.cfg, split)}.columns")
        texts, columns = list(super().source_lines(split)), list(extend.read_lines(file))
        if len(texts) != len(columns):
            raise extend.DataError(f"{file} has {len(columns)} lines, and there are {len(texts)} sources of {split}")
        return map("\t".join, zip(texts, columns, strict=True))

    def load_dataset(self, split: str) -> extend.PairDataset:
        """Load a split, with columns."""
        dataset, lines = super().load_dataset(split), list(self.source_lines(split))
        assert isinstance(dataset, extend.PairDataset)
        dataset.columns = lambda number: self.split_columns(lines[number], number)[1]
        return dataset


class ColumnsEncoder(extend.TransformerEncoder):
    """Concatenates the features of the source, of the context, and of the image."""

    inputs = ("context", "context_lengths", "image")

    def __init__(self, cfg: Any, embed_tokens: nn.Embedding, dim: int):
        super().__init__(cfg, embed_tokens)
        self.context = extend.TransformerEncoder(cfg, nn.Embedding(257, cfg.encoder_embed_dim, 0))
        self.image = nn.Linear(dim, cfg.encoder_embed_dim)

    def forward(  # type: ignore[override]
        self, src_tokens: Tensor, src_lengths: Tensor, context: Tensor, context_lengths: Tensor, image: Tensor
    ) -> extend.EncoderOut:
        """Encode a batch of sentences; see ``Encoder.forward``."""
        texts = super().forward(src_tokens, src_lengths), self.context(context, context_lengths)
        image = self.image(image.to(self.image.weight.dtype)).unsqueeze(1)
        padding = src_tokens.eq(self.padding_idx), context.eq(0), torch.zeros_like(src_tokens[:, :1]).bool()
        return extend.EncoderOut(torch.cat([*(text.encoder_out for text in texts), image], 1), torch.cat(padding, 1))


@dataclass
class ColumnsModelConfig(extend.TransformerConfig):
    """The keys of the model."""


@extend.register_model("with_columns", config=ColumnsModelConfig)
class ColumnsModel(extend.TransformerModel):
    """A transformer with this encoder."""

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> Self:
        """Build the model for a task with columns."""
        model = super().build_model(cfg, task)
        model.encoder = ColumnsEncoder(cfg, model.encoder.embed_tokens, task.features.shape[1])
        return model
