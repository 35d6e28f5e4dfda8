"""``seqgen-check task=NAME``: check the invariants of a task."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch

from seqgen.checkpoints.loading import DecodingTask
from seqgen.cli.check_report import report
from seqgen.cli.check_subjects import refuse_device, small_transformer
from seqgen.cli.command import run, set_up_device
from seqgen.config import CommonConfig, option
from seqgen.errors import ConfigError
from seqgen.lab.checks.advice import TASK_ADVICE
from seqgen.lab.checks.checking import check_all
from seqgen.lab.checks.subject import randomize_
from seqgen.lab.checks.tasks import TASK, Prepared
from seqgen.registry import CRITERIA, TASKS
from seqgen.task import PromptTask, Task

DESCRIPTION = """checks the invariants of a task, on data that its keys name or that it generates, in a temporary run
folder: text and ids, examples, batches, resuming, training and validation steps of a small random model. Prints a line
for each invariant and, if one fails, the probable cause. Exit code: 0 if all invariants hold, 1 if one fails."""


@dataclass
class TaskCheckConfig:
    """The configuration of ``seqgen-check task=NAME``."""

    task: Any = None
    tolerance: float = option(
        1e-9, "largest difference of losses that counts as equal, relative if they are above 1", minimum=0
    )
    common: CommonConfig = field(default_factory=CommonConfig)


def main(argv: Sequence[str]) -> NoReturn:
    """Entry point of the check of a task.

    Args:
        argv: the arguments of the command.
    """
    run(TaskCheckConfig, check_task, DESCRIPTION, argv)


def check_task(cfg: TaskCheckConfig) -> int:
    """Check the invariants of a task, and print a line for each.

    Args:
        cfg: the configuration.

    Returns:
        The exit code: 0 if all invariants hold, 1 if one fails.

    Raises:
        UserError: the task cannot be made, or its data cannot be read.
    """
    refuse_device(cfg.common)
    set_up_device(cfg.common)
    component: Any = TASKS.of(cfg.task).component
    if issubclass(component, DecodingTask):
        raise ConfigError(
            f"task={TASKS.of(cfg.task).name} is for decoding and has no data to check; choose another task, such as "
            "task=translation"
        )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)

        def make() -> Task:
            task: Task = component.setup_task(cfg.task, folder)
            return task

        task = make()
        splits = task.splits()
        split = next((name for name in ("valid", "test", *splits) if name in splits), None)
        if split is None:
            raise ConfigError("the task has no data to check; give them by its keys, such as task.train and task.valid")
        task.dataset(split)
        config = small_transformer("transformer_lm" if isinstance(task, PromptTask) else "transformer")
        torch.manual_seed(0)
        model = randomize_(task.build_model(config).double())
        criterion: Any = CRITERIA.entry("cross_entropy")
        subject = Prepared(
            task, make, model, criterion.component(criterion.config(), task), split, tolerance=cfg.tolerance
        )
        return report(check_all(TASK, subject), TASK_ADVICE, subject)
