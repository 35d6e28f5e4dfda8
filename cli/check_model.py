"""``seqgen-check model=NAME``: check the invariants of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch

from seqgen.checkpoints.loading import load_models
from seqgen.cli.command import log, run, set_up_device
from seqgen.config import CommonConfig, ReadingConfig, option
from seqgen.errors import ConfigError, UserError
from seqgen.laws.catalog import Outcome, check, failed
from seqgen.laws.diagnosis import diagnose
from seqgen.laws.subject import Subject, randomize_, tiny_dictionary
from seqgen.model import EncoderDecoderModel
from seqgen.registry import MODELS

DESCRIPTION = """checks the invariants of a model: with model=NAME those of a random one for a vocabulary of 23 tokens,
with path=RUN those of a trained one, in float64 on the CPU. Prints a line for each invariant; if one fails, the first
step, sentence and beam that differ, the probable cause and the first layer that differs.
Exit code: 0 if all invariants hold, 1 if one fails."""

SHORTEST = 40
"""The number of positions that the checks need."""


@dataclass
class CheckConfig:
    """The configuration of ``seqgen-check`` without a sub-command."""

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
    has_model = any(argument.startswith("model=") for argument in argv)
    run(CheckConfig, lambda cfg: check_model(cfg, has_model), DESCRIPTION, argv)


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
        raise ConfigError("give either model=NAME for a random model, or path=RUN for a trained one")
    if has_model and cfg.reading != ReadingConfig():
        raise ConfigError("reading.KEY applies only to path=CHECKPOINT of another toolkit; remove the key")
    if cfg.common.device not in ("auto", "cpu"):
        raise ConfigError(f"common.device={cfg.common.device}: models are checked on the CPU; remove the key")
    set_up_device(cfg.common)
    subject, peaked = _trained(cfg) if cfg.path else _random(cfg)
    positions = subject.model.max_positions()
    if min(positions) < SHORTEST:
        raise ConfigError(
            f"the model has {positions[0]} source and {positions[1]} target positions, and the checks need {SHORTEST}; "
            "set the model's maximum lengths to at least that"
        )
    outcomes: list[Outcome] = []
    print(f"{'invariant':<42} {'result':<8} {'difference':>10} {'seconds':>8}")
    for outcome in check(subject, peaked):
        outcomes.append(outcome)
        print(_line(outcome), flush=True)
    wrong = failed(outcomes)
    checked = len([outcome for outcome in outcomes if not outcome.reason])
    print(f"{checked - len(wrong)} of {checked} invariants hold")
    if wrong:
        diagnosis = diagnose(subject, outcomes)
        print(f"probable cause: {diagnosis.cause.value}")
        if diagnosis.module:
            print(f"first layer that differs: {diagnosis.module}")
    return 1 if wrong else 0


def _line(outcome: Outcome) -> str:
    if outcome.reason:
        return f"{outcome.name:<42} not run: {outcome.reason}"
    violation = outcome.violation
    shown = f"{outcome.name:<42} {'failed' if violation else 'passed':<8} {outcome.difference:>10.1e}"
    shown += f" {outcome.seconds:>8.2f}"
    if violation is None:
        return shown
    parts = {"step": violation.step, "sentence": violation.sentence, "beam": violation.beam}
    place = ", ".join(f"{name} {number}" for name, number in parts.items() if number is not None)
    return f"{shown}\n    {place + ': ' if place else ''}{violation.what}"


class _OneVocabulary:
    """Has a small vocabulary for source and target."""

    def __init__(self) -> None:
        self.source_dictionary = self.target_dictionary = tiny_dictionary()


def _random(cfg: CheckConfig) -> tuple[Subject, Subject]:
    """A random model in float64, and another one with peaked distributions for the invariants of search."""
    task = _OneVocabulary()

    component: Any = MODELS.of(cfg.model).component

    def build(seed: int = 1) -> EncoderDecoderModel:
        torch.manual_seed(seed)
        model: EncoderDecoderModel = component.build_model(cfg.model, task)
        return model.double()

    try:
        models = [randomize_(build(0)), randomize_(build(0), factor=1.5)]
    except UserError:
        raise
    except Exception as error:  # the model is the user's, and may raise anything
        raise ConfigError(
            f"the model cannot be built from its keys and the dictionaries of a task: {type(error).__name__}: {error}; "
            "correct build_model, or check a trained run with path=RUN"
        ) from error
    words = task.target_dictionary
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
