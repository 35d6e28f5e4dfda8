"""A text whose reference outputs are known: the keys that name it, and its lines."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqgen.checkpoints.loaders import LoadedModel
from seqgen.cli.command import set_up_device
from seqgen.cli.generate import check_input, input_lines, split_references
from seqgen.cli.line_decoding import check_path_and_split, load_with_notes, settings_of_part
from seqgen.cli.output import check_output
from seqgen.config import (
    DecodingCommonConfig,
    FastConfig,
    GenerateConfig,
    GenerateDatasetConfig,
    GenerationConfig,
    ReadingConfig,
    like,
    option,
)
from seqgen.config.settings import USER, Layer, Settings
from seqgen.core.errors import ConfigError, DataError
from seqgen.data.text import read_lines
from seqgen.metrics import METRICS
from seqgen.text.translator import Translator


@dataclass
class ReferencedSplitConfig(GenerateDatasetConfig):
    """The split of the task that is decoded."""

    gen_subset: str = like(GenerateDatasetConfig, "gen_subset", "valid")


@dataclass
class ReferencedTextConfig:
    """The keys of a command that decodes a text whose reference outputs are known."""

    path: list[str] = option([], "model, as for seqgen-generate; [A,B] for an ensemble", role="input_path")
    input: str = option("", "text file to decode; empty for the split dataset.gen_subset", role="input_path")
    reference: str = option("", "text file with the reference outputs of input", role="input_path")
    prefix: str = like(GenerateConfig, "prefix")
    json: str = option("", "file for the scores; - for standard output, in place of the table", role="output_path")
    metric: str = option("bleu", "score to maximize", choices=METRICS)
    dataset: ReferencedSplitConfig = dataclasses.field(default_factory=ReferencedSplitConfig)
    reading: ReadingConfig = dataclasses.field(default_factory=ReadingConfig)
    common: DecodingCommonConfig = dataclasses.field(default_factory=DecodingCommonConfig)
    generation: GenerationConfig = dataclasses.field(default_factory=GenerationConfig)
    fast: FastConfig = dataclasses.field(default_factory=FastConfig)

    def check(self) -> None:
        """Check before the models are loaded that there is a text with references, and that ``json`` can be written.

        Raises:
            UserError: a key is missing or has no effect, or the file cannot be written.
        """
        check_path_and_split(self.path, self.input, self.dataset)
        if bool(self.input) != bool(self.reference):
            raise ConfigError("set both input=FILE and reference=FILE, its correct outputs; or neither, for a split")
        if self.json:
            check_output("json", self.json, self.input, self.reference, self.prefix)


@dataclass(frozen=True)
class ReferencedText:
    """Lines with their references, and the models that decode them.

    Attributes:
        lines: the lines.
        references: the reference output of each.
        prefixes: the forced beginning of each output; ``None`` if there are none.
        models: the models.
        settings: the decoding settings of the part of the task that is decoded.
    """

    lines: list[str]
    references: list[str]
    prefixes: list[str] | None
    models: list[LoadedModel]
    settings: Settings

    def translator(self, given: Mapping[str, Any]) -> Translator:
        """Decode with the models.

        Args:
            given: the settings that the user gave on the command line, by whole key.
        """
        return Translator(self.models, settings=self.settings.plus(Layer(USER, given)))


def read_referenced_text(cfg: ReferencedTextConfig) -> ReferencedText:
    """Load the models of a command, and read its lines and references; files are read first.

    Args:
        cfg: its configuration; ``check`` has found no error in it.

    Raises:
        UserError: a model cannot be loaded, or a file cannot be read.
        DataError: there are no lines, or there is not one reference for each.
    """
    references, _ = check_input(cfg)
    models = load_with_notes(cfg, set_up_device(cfg.common))
    task = models[0].task
    lines = list(input_lines(cfg, task))
    references = references if cfg.input else split_references(cfg, task)
    if not lines or references is None or len(references) != len(lines):
        count = "no" if references is None else len(references)
        named = cfg.input or f"split {cfg.dataset.gen_subset}"
        raise DataError(f"{named} has {len(lines)} lines and {count} references; give a text with one for each line")
    prefixes = list(read_lines(Path(cfg.prefix))) if cfg.prefix else None
    return ReferencedText(lines, references, prefixes, models, settings_of_part(cfg.dataset, task))
