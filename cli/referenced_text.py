"""A text whose reference outputs are known: the keys that name it, and its lines."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from seqgen.cli.generate import input_lines, split_references
from seqgen.cli.line_decoding import check_path_and_split
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
from seqgen.core.errors import ConfigError, DataError
from seqgen.metrics import METRICS
from seqgen.task import Task


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


def read_lines_with_references(
    cfg: ReferencedTextConfig, task: Task, references: list[str] | None
) -> tuple[list[str], list[str]]:
    """The lines to decode and the reference of each.

    Args:
        cfg: the whole configuration.
        task: the task of the first model.
        references: the lines of ``cfg.reference``, if it is given.

    Raises:
        DataError: there are no lines, or there is not one reference for each.
    """
    lines = list(input_lines(cfg, task))
    references = references if cfg.input else split_references(cfg, task)
    if not lines or references is None or len(references) != len(lines):
        count = "no" if references is None else len(references)
        named = cfg.input or f"split {cfg.dataset.gen_subset}"
        raise DataError(f"{named} has {len(lines)} lines and {count} references; give a text with one for each line")
    return lines, references


def check_text(cfg: ReferencedTextConfig) -> None:
    """Check before the models are loaded that there is a text with references, and that the figures can be written."""
    check_path_and_split(cfg.path, cfg.input, cfg.dataset)
    if bool(cfg.input) != bool(cfg.reference):
        raise ConfigError("set both input=FILE and reference=FILE, its correct outputs; or neither, for a split")
    if cfg.json:
        check_output("json", cfg.json, cfg.input, cfg.reference, cfg.prefix)
