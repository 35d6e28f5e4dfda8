"""An encoder that reads a context, in a vocabulary of its own, and features of an image besides the source.

    seqgen-train common.user_dir=examples/extending/columns.py run_dir=runs/columns task=translation \
        task.source_lang=en task.target_lang=de task.train=train task.valid=val model=with_columns \
        "task.columns={context:text,image:[5]}"
    seqgen-generate common.user_dir=examples/extending/columns.py path=runs/columns input=test.en

The context of line n of ``train.en`` is line n of ``train.context``, its image row n of the array in
``train.image.npy``; likewise of ``val.en`` and ``test.en``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from seqgen.extend import (
    ConfigError,
    EncoderOut,
    TransformerConfig,
    TransformerEncoder,
    TransformerModel,
    register_model,
)


class ColumnsEncoder(TransformerEncoder):
    """Concatenates the features of the source, of the context, and of the image."""

    inputs = ("context", "context_lengths", "image")

    def __init__(self, cfg: Any, embed_tokens: nn.Embedding, columns: Any):
        super().__init__(cfg, embed_tokens)
        words = columns["context"].tokenizer.dictionary
        self.context = TransformerEncoder(cfg, nn.Embedding(len(words), cfg.encoder_embed_dim, words.pad()))
        self.image = nn.Linear(columns["image"].shape[0], cfg.encoder_embed_dim)

    def forward(  # type: ignore[override]
        self, src_tokens: Tensor, src_lengths: Tensor, context: Tensor, context_lengths: Tensor, image: Tensor
    ) -> EncoderOut:
        """Encode a batch of sentences; see ``Encoder.forward``."""
        texts = super().forward(src_tokens, src_lengths), self.context(context, context_lengths)
        image = self.image(image.to(self.image.weight.dtype)).unsqueeze(1)
        pads = self.padding_idx, self.context.padding_idx
        padding = src_tokens.eq(pads[0]), context.eq(pads[1]), torch.zeros_like(src_tokens[:, :1]).bool()
        return EncoderOut(torch.cat([*(text.encoder_out for text in texts), image], 1), torch.cat(padding, 1))


@dataclass
class ColumnsModelConfig(TransformerConfig):
    """The keys of the model."""


@register_model("with_columns", config=ColumnsModelConfig)
class ColumnsModel(TransformerModel):
    """A transformer with this encoder."""

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> Self:
        """Build the model for a task with these columns."""
        kinds = {name: column.kind for name, column in getattr(task, "columns", {}).items()}
        if kinds.get("context") != "text" or len(kinds.get("image", "")) != 1:
            raise ConfigError("model=with_columns needs task.columns={context:text,image:[SIZE]}")
        model = super().build_model(cfg, task)
        model.encoder = ColumnsEncoder(cfg, model.encoder.embed_tokens, task.columns)
        return model
