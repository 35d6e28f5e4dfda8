"""The tasks of trained models without data: they only encode and decode text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from seqgen.config import option
from seqgen.config.values import to_dict
from seqgen.data.pair_dataset import PairDataset
from seqgen.data.tokenizers.base import Tokenizer, load_tokenizer
from seqgen.errors import DataError
from seqgen.registry import register_task
from seqgen.task import Task


@dataclass
class DecodingConfig:
    """The known properties of the text that a model was trained on."""

    source_lang: str = option("", "language of the source, such as en, by whose rules lines are split into sentences")
    translates: bool = option(
        False, "whether outputs are about as long as their sources; also if there are languages or two tokenizers"
    )


@register_task("decoding", config=DecodingConfig)
class DecodingTask(Task):
    """The task of a model without data: it can only encode and decode text.

    Args:
        cfg: what is known about the text.
        source_tokenizer: the tokenizer of the source.
        target_tokenizer: that of the target, or one with a ``target_side``.
    """

    can_be_chosen = False  # it has no data to train on, so help and completion leave it out

    def __init__(self, cfg: Any, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer):
        super().__init__(cfg, source_tokenizer, target_tokenizer.target_side)
        two_sides = source_tokenizer.languages is not None or self.target_tokenizer is not source_tokenizer
        self.translates = two_sides or getattr(cfg, "translates", False)

    @classmethod
    def setup_task(cls, cfg: Any, folder: Path) -> Self:
        """Read the tokenizers of a run that was made from such a model.

        Args:
            cfg: what is known about the text.
            folder: the run folder.

        Raises:
            DataError: a tokenizer is missing or damaged.
        """
        if (folder / "source_tokenizer").is_dir():
            source, target = (load_tokenizer(folder / f"{side}_tokenizer") for side in ("source", "target"))
        else:
            source = target = load_tokenizer(folder / "tokenizer")
        return cls(cfg, source, target)

    def source_lines(self, split: str) -> Iterator[str]:
        """There are none.

        Raises:
            DataError: always.
        """
        raise DataError("this model has no data splits to decode; give input=FILE, or input=- for standard input")

    def load_dataset(self, split: str) -> PairDataset:
        """There is none; see ``source_lines``."""
        raise DataError("task=decoding has no training data; choose another task, such as task=translation")

    def as_values(self) -> dict[str, Any]:
        """The task of a run that is made from the model: its name and values; see ``LoadedModel.task_values``."""
        return {"_name": "decoding", **{key: value for key, value in to_dict(self.cfg).items() if value}}


@dataclass
class PromptDecodingConfig:
    """The encoding of prompts."""

    begin_with_eos: bool = option(
        False, "whether every prompt begins with end-of-sentence (fairseq); an empty prompt always does"
    )


@register_task("prompt_decoding", config=PromptDecodingConfig)
class PromptDecodingTask(DecodingTask):
    """The task of a decoder-only model without data: its source is a prompt."""

    cfg: PromptDecodingConfig

    @classmethod
    def of(cls, tokenizer: Tokenizer, begin_with_eos: bool) -> Self:
        """The task of a tokenizer; see ``PromptDecodingConfig``."""
        return cls(PromptDecodingConfig(begin_with_eos), tokenizer, tokenizer)

    def encode_source(self, text: str) -> Tensor:
        """Turn a prompt into ids.

        Args:
            text: one line, which may be empty.

        Returns:
            ``(P,)`` int64, without end-of-sentence at the end.
        """
        ids, eos = self.source_tokenizer.encode(text), self.source_dictionary.eos()
        return torch.tensor([eos, *ids] if self.cfg.begin_with_eos or not ids else ids)

    def as_values(self) -> dict[str, Any]:
        """See ``DecodingTask.as_values``."""
        return {"_name": "prompt_decoding", **to_dict(self.cfg)}
