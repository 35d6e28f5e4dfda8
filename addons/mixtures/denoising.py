"""Denoising: the input is text with hidden parts, the target is the hidden parts (Raffel et al. 2020, section 3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from seqgen.addons.mixtures.noising import NoiseTokens, Objective, SpanCorruption
from seqgen.addons.mixtures.noisy_text import NoisyTextDataset
from seqgen.config import option
from seqgen.extend import (
    SENTINEL,
    ConfigError,
    DataError,
    JsonFormat,
    PlainFormat,
    RawTextConfig,
    RawTextTask,
    Records,
    Template,
    is_json,
    register_task,
    split_files,
)


@dataclass
class DenoisingConfig(RawTextConfig):
    """The raw text, and the parameters of span corruption."""

    train: list[str] = option(
        [],
        "raw training text: files or wildcards, plain or .gz; JSON lines if the name ends in .jsonl",
        role="input_path",
    )
    valid: list[str] = option([], "raw validation text, in the same form", role="input_path")
    test: list[str] = option([], "raw test text, in the same form", role="input_path")
    text_field: str = option("text", "field of JSON lines that contains the text")
    on_empty: str = option(
        "error",
        "what to do with a document without tokens; blank lines of plain text are not documents",
        choices=("error", "skip"),
    )
    concatenate: bool = option(
        True, "concatenate documents before cutting examples; if false, each document is cut separately"
    )
    noise_density: float = option(0.15, "fraction of tokens that are hidden", minimum=0.001, maximum=0.999)
    mean_span_length: float = option(3.0, "mean length of a hidden span, in tokens", minimum=1)
    input_length: int = option(512, "maximum input length in tokens, end-of-sentence included", minimum=4)


@register_task("denoising", config=DenoisingConfig)
class DenoisingTask(RawTextTask):
    """Pretraining on raw text by span corruption; a subclass with another ``objective`` has another one."""

    cfg: DenoisingConfig

    @classmethod
    def training_text(cls, cfg: DenoisingConfig, folder: Path) -> Iterable[str]:
        """The documents of the training text; see ``RawTextTask``."""
        return _records(cfg, "train").texts()

    def load_dataset(self, split: str) -> NoisyTextDataset:
        """Load a split and encode it; see ``Task.load_dataset``."""
        return NoisyTextDataset(
            _records(self.cfg, split).store(self.cache, f"{split}.text", self.source_tokenizer, self.cfg.workers),
            self.objective(),
            self.noise_tokens(),
            self.cfg.input_length,
            concatenate=self.cfg.concatenate,
            name=split,
            fixed=split != "train",
        )

    def objective(self) -> Objective:
        """The denoising objective: span corruption."""
        return SpanCorruption(self.cfg.noise_density, self.cfg.mean_span_length)

    def noise_tokens(self) -> NoiseTokens:
        """The ids of the tokens that the objective inserts.

        Raises:
            DataError: the vocabulary has no sentinels.
        """
        sentinels = self.source_tokenizer.sentinels
        if not sentinels:
            raise DataError(
                f"the vocabulary has no {SENTINEL.format(0)}, the sentinel that replaces hidden text; train or give a "
                "tokenizer with sentinels (task.tokenizer=t5 or bytes)"
            )
        return NoiseTokens(self.source_dictionary.eos(), np.array(sentinels))

    def source_lines(self, split: str) -> Iterator[str]:
        """The inputs of a split as text, with sentinels; see ``Task.source_lines``."""
        return (self.decode(example.source) for example in self._examples(split))

    def references(self, split: str) -> Iterator[str]:
        """The targets of a split as text, with sentinels; see ``Task.references``."""
        return (self.decode(example.target) for example in self._examples(split) if example.target is not None)

    def _examples(self, split: str) -> Iterator[Any]:
        dataset = self.dataset(split)
        return (dataset.example(position, epoch=1, seed=0) for position in range(len(dataset)))

    def decode(self, tokens: Tensor) -> str:
        """Turn ids into text that includes sentinels, with spaces around them; see ``Task.decode``."""
        numbers = {token: number for number, token in enumerate(self.target_tokenizer.sentinels)}
        ends = np.flatnonzero([token in numbers for token in tokens.tolist()])
        parts = []
        for begin, end in zip([0, *(ends + 1)], [*ends, len(tokens)], strict=True):
            parts.append(super().decode(tokens[begin:end]))
            if end < len(tokens):
                parts.append(SENTINEL.format(numbers[int(tokens[end])]))
        return " ".join(part for part in parts if part)


def _records(cfg: DenoisingConfig, split: str) -> Records:
    """The documents of a split, whose format depends on the names of the files."""
    files = split_files(cfg, split)
    kinds = {is_json(path) for path in files}
    if len(kinds) > 1:
        raise ConfigError(
            f"{next(path for path in files if is_json(path))} contains JSON lines and "
            f"{next(path for path in files if not is_json(path))} plain text; give files of one kind"
        )
    field = cfg.text_field if True in kinds else "text"
    record_format = JsonFormat((field,)) if True in kinds else PlainFormat(field)
    return Records(files, record_format, Template.of_field(field), skip_empty=cfg.on_empty == "skip")
