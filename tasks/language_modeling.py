"""Language modeling: raw text in, and continuations of prompts out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from seqgen.config import like, option
from seqgen.core.errors import ConfigError
from seqgen.data.text import read_lines
from seqgen.data.text_dataset import BREAK_MODES, BlockDataset
from seqgen.data.token_store import TokenEncoder, build_store
from seqgen.registry import register_task
from seqgen.task import PromptTask
from seqgen.tasks.raw_text import RawTextConfig, RawTextTask, split_files


@dataclass
class LanguageModelingConfig(RawTextConfig):
    """The raw text, and how it is cut into examples."""

    tokenizer: str = like(RawTextConfig, "tokenizer", "sentencepiece")
    train: list[str] = option(
        [], "training text: files or wildcards, plain or .gz, one sentence on each line", role="input_path"
    )
    valid: list[str] = option([], "validation text, in the same form", role="input_path")
    test: list[str] = option([], "test text, in the same form", role="input_path")
    sample_break_mode: str = option(
        "none",
        "cut the text into blocks of tokens_per_sample tokens (none), of whole lines (complete), of whole lines of one "
        "document (complete_doc; empty lines separate documents), or into lines (eos)",
        choices=BREAK_MODES,
    )
    tokens_per_sample: int = option(512, "maximum tokens of an example, end-of-sentence included", minimum=2)


@register_task("language_modeling", config=LanguageModelingConfig)
class LanguageModelingTask(PromptTask, RawTextTask):
    """Training a decoder-only model on raw text, and decoding with it from prompts.

    A prompt is the source of a sentence: what precedes every line in training, and the tokens of the input line.
    """

    cfg: LanguageModelingConfig

    @classmethod
    def training_text(cls, cfg: LanguageModelingConfig, folder: Path) -> Iterable[str]:
        """The lines of the training text; see ``RawTextTask``."""
        return read_lines(split_files(cfg, "train"))

    def load_dataset(self, split: str) -> BlockDataset:
        """Read a split and encode it, once; see ``Task.load_dataset``."""
        cfg, encoder = self.cfg, TokenEncoder(self.target_tokenizer)
        store = build_store(self.cache, f"{split}.text", split_files(cfg, split), encoder, workers=cfg.workers)
        eos, begin = self.target_dictionary.eos(), self.begin[-1]
        return BlockDataset(store, eos, begin, cfg.sample_break_mode, cfg.tokens_per_sample, split)

    def source_lines(self, split: str) -> Iterator[str]:
        """Refuse: a language model continues prompts, and a split has none.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "task=language_modeling has no source lines to decode; give prompts with input=FILE, and remove "
            "dataset.validate_decode"
        )
