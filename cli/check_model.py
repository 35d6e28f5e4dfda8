"""``seqgen-check model=NAME``: check the invariants of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

import torch

from seqgen.checkpoints.loading import load_models
from seqgen.cli.check_diff import DiffConfig
from seqgen.cli.check_languages import LanguagesConfig
from seqgen.cli.check_report import report
from seqgen.cli.check_subjects import new_model, refuse_device
from seqgen.cli.command import log, run, set_up_device
from seqgen.cli.config_file import Arguments
from seqgen.config import CommonConfig, ReadingConfig, option
from seqgen.errors import ConfigError
from seqgen.lab.checks.catalog import check
from seqgen.lab.checks.diagnosis import diagnose
from seqgen.lab.checks.subject import Subject, randomize_, tiny_dictionary
from seqgen.model import EncoderDecoderModel

DESCRIPTION = """checks the invariants of a model: with model=NAME those of a random one for a vocabulary of 23 tokens,
with path=RUN those of a trained one, in float64 on the CPU. Prints a line for each invariant; if one fails, the first
step, sentence and beam that differ, the probable cause and the first layer that differs.
Exit code: 0 if all invariants hold, 1 if one fails."""

SHORTEST = 40
"""The number of positions that the checks need."""


@dataclass
class CheckConfig:
    """The configuration of ``seqgen-check`` without a sub-command."""

    subcommands: ClassVar[Mapping[str, type]] = {"diff": DiffConfig, "languages": LanguagesConfig}
    model: Any = None
    path: str = option("", "run, or model of another toolkit, in place of model=NAME")
    tolerance: float = option(
        1e-10, "largest difference of logits and scores that counts as equal, relative if they are above 1", minimum=0
    )
    reading: ReadingConfig = field(default_factory=ReadingConfig)
    common: CommonConfig = field(default_factory=CommonConfig)


def main(argv: Sequence[str]) -> NoReturn:
    """Entry point of the check of a model.

    Args:
        argv: the arguments of the command.
    """

    def work(cfg: CheckConfig, arguments: Arguments) -> int:
        return check_model(cfg, any(override.startswith("model=") for override in arguments.overrides))

    run(CheckConfig, work, DESCRIPTION, argv, pass_arguments=True)


def check_model(cfg: CheckConfig, has_model: bool) -> int:
    """Check the invariants of a model, and print a line for each.

    Args:
        cfg: the configuration.
        has_model: whether the user gave ``model``.

    Returns:
        The exit code: 0 if all invariants hold, 1 if one fails.

    Raises:
        UserError: the model cannot be built or loaded, or is too short for the checks.
    """
    if has_model == bool(cfg.path):
        raise ConfigError(
            "give either model=NAME for a random model or path=RUN for a trained one, or another component, such as "
            "search=NAME"
        )
    if has_model and cfg.reading != ReadingConfig():
        raise ConfigError("reading.KEY applies only to path=CHECKPOINT of another toolkit; remove the key")
    refuse_device(cfg.common)
    set_up_device(cfg.common)
    subject, peaked = _trained(cfg) if cfg.path else _random(cfg)
    positions = subject.model.max_positions()
    if min(positions) < SHORTEST:
        raise ConfigError(
            f"the model has {positions[0]} source and {positions[1]} target positions, and the checks need {SHORTEST}; "
            "set the model's maximum lengths to at least that"
        )
    return report(check(subject, peaked), lambda outcomes: diagnose(subject, outcomes))


def _random(cfg: CheckConfig) -> tuple[Subject, Subject]:
    """A random model in float64, and another one with peaked distributions for the invariants of search."""
    words = tiny_dictionary()

    def build(seed: int = 1) -> EncoderDecoderModel:
        return new_model(cfg.model, words, seed)

    models = [randomize_(build(0)), randomize_(build(0), factor=1.5)]
    one, two = (Subject.of(model, words, len(words), cfg.tolerance, build) for model in models)
    return one, two


def _trained(cfg: CheckConfig) -> tuple[Subject, None]:
    (loaded, *others) = load_models([cfg.path], "cpu", cfg.reading, torch.float64)
    if others:
        raise ConfigError(f"path={cfg.path} names {len(others) + 1} models; check them one at a time")
    for note in loaded.notes:
        log(note)
    source, target = loaded.task.source_dictionary, loaded.task.target_dictionary
    return Subject.of(loaded.model, target, len(source), cfg.tolerance), None
