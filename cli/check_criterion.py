"""``seqgen-check criterion=NAME``: check the invariants of a training criterion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from seqgen.cli.check_report import report
from seqgen.cli.check_subjects import Vocabularies, new_model, refuse_device, small_transformer
from seqgen.cli.command import run, set_up_device
from seqgen.config import CommonConfig, option
from seqgen.errors import ConfigError, UserError
from seqgen.lab.checks.advice import CRITERION_ADVICE
from seqgen.lab.checks.checking import check_all
from seqgen.lab.checks.criteria import CRITERION, Training
from seqgen.lab.checks.subject import Subject, randomize_, tiny_dictionary
from seqgen.registry import CRITERIA

DESCRIPTION = """checks the invariants of a training criterion, with a random model for a vocabulary of 23 tokens, in
float64 on the CPU: its gradient against finite differences, padding, sums over ranks, and more. Prints a line for each
invariant and, if one fails, the probable cause. Exit code: 0 if all invariants hold, 1 if one fails."""


@dataclass
class CriterionCheckConfig:
    """The configuration of ``seqgen-check criterion=NAME``."""

    criterion: Any = None
    model: Any = None
    tolerance: float = option(
        1e-9, "largest difference of losses and gradients that counts as equal, relative if they are above 1", minimum=0
    )
    common: CommonConfig = field(default_factory=CommonConfig)


def main(argv: Sequence[str]) -> NoReturn:
    """Entry point of the check of a criterion.

    Args:
        argv: the arguments of the command.
    """
    run(CriterionCheckConfig, check_criterion, DESCRIPTION, argv)


def check_criterion(cfg: CriterionCheckConfig) -> int:
    """Check the invariants of a criterion, and print a line for each.

    Args:
        cfg: the configuration.

    Returns:
        The exit code: 0 if all invariants hold, 1 if one fails.

    Raises:
        UserError: the criterion or the model cannot be built.
    """
    refuse_device(cfg.common)
    set_up_device(cfg.common)
    words = tiny_dictionary()
    model = randomize_(new_model(cfg.model or small_transformer(), words))
    component: Any = CRITERIA.of(cfg.criterion).component
    try:
        criterion = component(cfg.criterion, Vocabularies(words))
    except UserError:
        raise
    except Exception as error:  # the criterion is the user's, and may raise anything
        raise ConfigError(
            f"the criterion cannot be built from its keys and a task with two dictionaries: {type(error).__name__}: "
            f"{error}; correct its __init__"
        ) from error
    ids = Subject.of(model, words, len(words)).ids
    subject = Training(criterion, model, ids, tolerance=cfg.tolerance)
    return report(check_all(CRITERION, subject), CRITERION_ADVICE, subject)
