"""``seqgen-train``: train a model, resume a run, or train one run for each of several configurations.

If it fine-tunes a checkpoint, further arguments follow from it (``checkpoint.finetune_from``).
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch

from seqgen.checkpoints.loaders import checkpoint_loader_of
from seqgen.checkpoints.loading import base_digest, load_model
from seqgen.checkpoints.run_checkpoints import resolve
from seqgen.checkpoints.run_config import read_run_config, run_folder_of
from seqgen.checkpoints.sources import is_remote, local_path
from seqgen.cli.command import Arguments, log, run, set_up_device
from seqgen.cli.provenance import note_prepared
from seqgen.cli.run_folder import open_run
from seqgen.config import BaseConfig, CheckpointConfig, TrainConfig
from seqgen.config.compose import chosen_components
from seqgen.config.keys import known_keys
from seqgen.config.values import split_argument, text_values, value_text
from seqgen.core.errors import CheckpointError, ConfigError, UserError
from seqgen.data.tokenizers.pretrained_base import PretrainedTokenizer
from seqgen.data.tokenizers.setup import TokenizerConfig
from seqgen.registry import GROUPS, MODELS, TASKS, MissingAddonError, import_declared
from seqgen.system.files import run_lock
from seqgen.system.processes import end_with
from seqgen.training.distributed import ProcessGroup, group_from_environment, join, leave
from seqgen.training.train import train

PREPARATION = timedelta(days=1)
"""Time that the other ranks wait until rank 0 has encoded the text."""
DESCRIPTION = """trains a model; without arguments, it trains fconv_tiny on the built-in example (number_names).
If the run folder contains a run, training resumes it. With prepare_only=true only the tokenizer is
trained and the text encoded. With -m, keys can have several values, such as
model=a,b common.seed=1,2: one run is trained for each combination, each in a run folder of its own.
Keys such as hydra/sweeper=optuna and hydra/launcher=joblib choose Hydra's sweepers and launchers."""


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the command."""
    typed = list(sys.argv[1:] if argv is None else argv)
    of_hydra = [text for text in typed if re.match("[+~]*hydra[./]", text)]

    def work(cfg: TrainConfig, arguments: Arguments) -> int:
        if of_hydra:
            raise ConfigError(f"{of_hydra[0]} is for sweeps: add -m, or remove it")
        if cfg.prepare_only and not cfg.run_dir:
            raise ConfigError("run_dir is missing: set run_dir=FOLDER, the run folder that training will use")
        chosen = chosen_components(TrainConfig, arguments.overrides)
        if not text_values(arguments.overrides, "task", str):
            log(f"no task is given, so the built-in example is trained: task={chosen['task']}")
        return train_run(cfg, Path(cfg.run_dir or f"runs/{chosen['task']}-{chosen['model']}"), arguments)

    others, sweep = [text for text in typed if text not in of_hydra], partial(train_sweep, of_hydra)
    run(TrainConfig, work, DESCRIPTION, others, sweep, complete=with_checkpoint, pass_arguments=True)


def train_sweep(of_hydra: Sequence[str], arguments: Arguments) -> int:
    """Train several runs, and print the table of the runs in their folder.

    Args:
        of_hydra: the arguments that are Hydra's.
        arguments: the others, some with several values.

    Returns:
        The exit code: 0, or that of the first run that failed.
    """
    sweeps = import_declared("seqgen.addons.sweeps.sweep", "seqgen-train -m")
    folder = Path(next(iter(text_values(arguments.overrides, "run_dir", str)), "runs/sweep"))
    names = text_values(arguments.overrides, "checkpoint.best_checkpoint_metric", str)
    metric = [CheckpointConfig().best_checkpoint_metric, *names][-1]
    failed = sweeps.sweep(arguments.overrides, of_hydra, folder, metric)
    with suppress(MissingAddonError, ConfigError):  # training may not have begun in any run
        tables = import_declared("seqgen.addons.compare.runs", "the table of runs")
        print(tables.table_by_score(tables.find_runs([str(folder)]), metric))
    if failed:
        listed = "; ".join(f"{name} (exit code {code})" for name, code in failed)
        log(f"runs that failed, with the messages above: {listed}")
    return failed[0][1] if failed else 0


def train_run(cfg: TrainConfig, folder: Path, arguments: Arguments) -> int:
    """Train a model into a run folder, or resume the run in it; with ``prepare_only``, make its tokenizer and encode
    its text, so that training starts at once.

    Args:
        cfg: the whole configuration.
        folder: the run folder.
        arguments: what was given, for the run's record.

    Returns:
        The exit code: 0 if training ended as configured, else that of the signal that stopped it.
    """
    if cfg.prepare_only:
        with run_lock(folder):
            task = open_run(cfg, folder, arguments)
            print(f"source vocabulary: {len(task.source_dictionary)}, target vocabulary: {len(task.target_dictionary)}")
            for split in task.splits():
                print(f"{split}: {len(task.dataset(split))} pairs")
            note_prepared(folder)
        return 0
    device = set_up_device(cfg.common)
    group = group_from_environment()
    asked = cfg.distributed_training.distributed_world_size
    if asked not in (1, group.world_size):
        raise ConfigError(
            f"distributed_training.distributed_world_size={asked}, and the number of processes is {group.world_size}; "
            f"start {asked} by torchrun --standalone --nproc-per-node {asked} -m seqgen.cli.train, without the key"
        )
    cfg.distributed_training.distributed_world_size = group.world_size  # for config.yaml
    if group.world_size > 1:
        return _train_as_rank(cfg, folder, arguments, device, group)
    with run_lock(folder):
        return train(cfg, open_run(cfg, folder, arguments), folder, device)


def _train_as_rank(
    cfg: TrainConfig, folder: Path, arguments: Arguments, device: torch.device, group: ProcessGroup
) -> int:
    """Train as one rank of the process group that ``torchrun`` started; rank 0 prepares the run folder."""
    end_with(os.getppid())
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    join(group, cfg.distributed_training, device)
    with ExitStack() as held:
        task, problem = None, ""
        if group.is_main:
            try:
                held.enter_context(run_lock(folder))
                task = open_run(cfg, folder, arguments)
            except UserError as error:
                problem = str(error)
        problem = group.gather(problem, PREPARATION)[0]  # the other ranks wait here until the folder is ready
        if problem:
            leave()
            if not group.is_main:
                return 2  # rank 0 shows it
            raise UserError(problem)
        return train(cfg, task or open_run(cfg, folder), folder, device)


TOKENIZER_KEYS = ("tokenizer", "pretrained_tokenizer", "spm_model", "srcdict")
"""Keys of the task by which the user chooses a tokenizer."""
FINETUNING_WARMUP, FINETUNING_LR, ADDITIONS_LR = "10", "[2e-4]", "[4e-3]"
"""Defaults of fine-tuning; the last one is for weights that are added to those of the checkpoint, such as adapters."""


def with_checkpoint(overrides: Sequence[str]) -> list[str]:
    """Complete the arguments of training if the initial weights come from a checkpoint.

    The learning rate and the warm-up have other defaults. Without ``model=NAME``, the model is the checkpoint's;
    ``model.KEY=VALUE`` changes single keys. Without a tokenizer, or with the tokenizer keys of the run, the tokenizer
    is that of the run or of the Hugging Face folder. Without ``task=NAME``, the task is the run's, too.

    Args:
        overrides: ``key=value`` arguments.

    Returns:
        The arguments, after those that follow from the checkpoint.

    Raises:
        CheckpointError: the checkpoint cannot be read.
    """
    path = next(iter(text_values(overrides, "checkpoint.finetune_from", str)), "")
    if not path:
        return list(overrides)
    given = dict(split_argument(override) for override in overrides)
    try:
        completed = _completed(local_path(path), given)
    except UserError as error:
        raise CheckpointError(f"checkpoint.finetune_from: {error}") from None
    defaults = {"optimization.lr": ADDITIONS_LR if "model.base" in completed else FINETUNING_LR}
    if "lr_scheduler" not in given:
        defaults["lr_scheduler.warmup_updates"] = FINETUNING_WARMUP
    return [f"{key}={value}" for key, value in {**defaults, **completed}.items()]


def _completed(path: Path, given: Mapping[str, str]) -> dict[str, str]:
    """The keys that the user gave, with those that follow from a checkpoint."""
    chosen = MODELS.find(given.get("model", ""))
    if chosen is not None and issubclass(chosen.config, BaseConfig):
        place = given["checkpoint.finetune_from"]
        absolute = place if is_remote(place) else str(path.resolve())
        given = {"model.base": absolute, "model.base_digest": base_digest(place), **given}
    if checkpoint_loader_of(path) is not None:
        if "model" not in given:
            loaded = load_model(path)
            model = component_arguments("model", loaded.config.model)
            if isinstance(loaded.task.target_tokenizer, PretrainedTokenizer):  # has a token for each row
                model.pop("model.vocab_size", None)
            given = {**model, **given}
        return _with_tokenizer(given, path, {}) if (path / "config.json").is_file() else dict(given)
    if not path.exists() and "model" in given:  # only a new run reads it
        return dict(given)
    folder = run_folder_of(resolve(path))  # before anything is written
    config = read_run_config(folder, training=False)
    model = {} if "model" in given else component_arguments("model", config.model)
    has_task = "task" in given or not TASKS.of(config.task).can_be_chosen
    task = {} if has_task else component_arguments("task", config.task)
    return _with_tokenizer({**model, **task, **given}, folder, _values("task", config.task))


def _with_tokenizer(arguments: Mapping[str, str], folder: Path, of_run: Mapping[str, str]) -> dict[str, str]:
    """Use the tokenizer of a run or of a Hugging Face folder, if the task has one and the user chooses no other.

    Args:
        arguments: the arguments, by key.
        folder: the folder with the tokenizer.
        of_run: the keys of the run's task, which mean the same tokenizer.
    """
    task = GROUPS["task"].config(chosen_components(TrainConfig, [f"{k}={v}" for k, v in arguments.items()])["task"])
    differing = {key for key, value in arguments.items() if of_run.get(key) != value}
    if not isinstance(task, TokenizerConfig) or differing & {f"task.{key}" for key in TOKENIZER_KEYS}:
        return dict(arguments)
    made = {f"task.{field.name}" for field in dataclasses.fields(TokenizerConfig)} - differing
    joined = {"task.joined_dictionary": "false"} if (folder / "source_tokenizer").is_dir() else {}
    chosen = {"task.tokenizer": "pretrained", "task.pretrained_tokenizer": str(folder), **joined}
    return {**chosen, **{key: value for key, value in arguments.items() if key not in made}}


def component_arguments(group: str, cfg: Any) -> dict[str, str]:
    """The arguments that choose a model or another component.

    Args:
        group: its group, such as ``model``.
        cfg: its configuration.

    Returns:
        ``model=NAME``, and ``model.KEY=VALUE`` for each key that differs from its default.
    """
    defaults = _values(group, type(cfg)())
    changed = {key: value for key, value in _values(group, cfg).items() if value != defaults[key]}
    return {group: GROUPS[group].of(cfg).name, **changed}


def _values(group: str, cfg: Any) -> dict[str, str]:
    return {f"{group}.{key}": value_text(value) for key, _, value in known_keys(cfg)}


if __name__ == "__main__":
    main()
