"""``seqgen-convert``: turn a checkpoint of another toolkit into a run folder, or a model into a Hugging Face folder."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqgen.checkpoints.derived import checkpoints_of, gather_run
from seqgen.checkpoints.hub import local_path
from seqgen.checkpoints.loading import LoadedModel, PromptDecodingConfig, checkpoint_loader_of, load_model
from seqgen.checkpoints.run_checkpoints import Checkpoints
from seqgen.checkpoints.run_checksums import write_run_checksums
from seqgen.checkpoints.sharded import is_sharded
from seqgen.cli.command import log, run
from seqgen.cli.output import check_output
from seqgen.cli.run_folder import write_config
from seqgen.config import GenerationConfig, ReadingConfig, TrainConfig, option
from seqgen.config.compose import compose
from seqgen.config.user_files import recorded_files
from seqgen.config.values import from_dict
from seqgen.data.tokenizers.base import Tokenizer, load_tokenizer, save_tokenizer
from seqgen.errors import ConfigError
from seqgen.registry import TASKS
from seqgen.system.files import new_folder

DESCRIPTION = """turns a checkpoint of another toolkit into a run folder: path=model.pt run_dir=RUN, where path is a
fairseq checkpoint or a Hugging Face folder. It also turns a T5, transformer or transformer_lm into a Hugging Face
folder: path=RUN huggingface_dir=FOLDER. A run with sharded checkpoints becomes one with plain ones: path=RUN
run_dir=NEW. The command prints how to decode with the run and how to fine-tune it."""


@dataclass
class UserCodeConfig:
    """The keys of the ``common`` group of the commands that do not compute with a model."""

    user_dir: list[str] = option(
        [],
        "Python files or folders with your own components (models, loaders, ...), imported first; the value run "
        "imports the files that were used in training",
        names="code",
    )


@dataclass
class ConvertConfig:
    """The configuration of ``seqgen-convert``."""

    path: str = option(
        "",
        "checkpoint to convert: a fairseq model.pt, a Hugging Face folder, hf:ORGANIZATION/NAME[@REVISION], or (with "
        "huggingface_dir) a run",
    )
    run_dir: str = option("", "run folder to write; it must not exist yet", names="output")
    huggingface_dir: str = option("", "Hugging Face folder to write; it must not exist yet", names="output")
    source_lang: str = option("", "source language, if the checkpoint does not name it")
    target_lang: str = option("", "target language, if the checkpoint does not name it")
    reading: ReadingConfig = dataclasses.field(default_factory=ReadingConfig)
    common: UserCodeConfig = dataclasses.field(default_factory=UserCodeConfig)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the command."""
    run(ConvertConfig, convert, DESCRIPTION, argv)


def convert(cfg: ConvertConfig) -> int:
    """Write a checkpoint as a run folder or a Hugging Face folder, and print how to use it.

    Args:
        cfg: the whole configuration.

    Returns:
        The exit code.

    Raises:
        ConfigError: a key is missing, or the folder already exists.
        CheckpointError: the checkpoint cannot be read or converted.
    """
    if not cfg.path or bool(cfg.run_dir) == bool(cfg.huggingface_dir):
        raise ConfigError(
            "give path=CHECKPOINT to convert, and the folder to write: either run_dir=RUN or huggingface_dir=FOLDER"
        )
    folder = Path(cfg.run_dir or cfg.huggingface_dir)
    if folder.exists():
        key = "run_dir" if cfg.run_dir else "huggingface_dir"
        raise ConfigError(f"{key}={folder} already exists; give the name of a new folder")
    if cfg.huggingface_dir:
        check_output("huggingface_dir", cfg.huggingface_dir)
    path = local_path(cfg.path)
    if cfg.run_dir and path.exists() and checkpoint_loader_of(path) is None:
        if any(map(is_sharded, checkpoints_of(path))):
            return gather(path, folder)
        raise ConfigError(f"path={path} is not a checkpoint of a supported toolkit; runs of seqgen need no conversion")
    loaded = load_model(path, reading=cfg.reading)
    for note in loaded.notes:
        log(note)
    if cfg.run_dir:
        config = run_config(loaded, cfg)
        write_run(loaded, config, folder)
    else:
        write_huggingface(loaded, folder)
    parameters = sum(parameter.numel() for parameter in loaded.model.parameters())
    print(f"{folder}: {type(loaded.model).__name__} of {parameters:,} parameters, from {cfg.path}")
    print(f"decode:    seqgen-generate path={folder} input=FILE")
    if cfg.run_dir:
        print(f"fine-tune: {finetuning_command(config, folder)}")
    return 0


def gather(path: Path, folder: Path) -> int:
    """Write a run with sharded checkpoints as a run with plain ones; return the exit code.

    Args:
        path: the run, or one of its checkpoints.
        folder: the run folder to write.

    Raises:
        UserError: see ``gather_run``.
    """
    names = gather_run(path, folder)
    print(f"{folder}: a copy of {path} with plain checkpoints: {', '.join(names)}")
    print(f"decode:    seqgen-generate path={folder} input=FILE")
    return 0


def run_config(loaded: LoadedModel, cfg: ConvertConfig) -> TrainConfig:
    """The configuration of the new run: its task and model, and defaults for the rest.

    Args:
        loaded: the model and what its checkpoint contains about the task.
        cfg: the command's configuration.

    Returns:
        The configuration.

    Raises:
        ConfigError: neither the checkpoint nor the user names the languages.
    """
    values = dict(loaded.task_values)
    for key in ("source_lang", "target_lang"):
        given = getattr(cfg, key) or values.get(key)
        if given:
            values[key] = given
        elif key in values:
            raise ConfigError(f"{cfg.path} does not contain its {key}; give {key}=, such as {key}=en")
    config = compose(TrainConfig, [f"task={values['_name']}"])
    config.task = from_dict(TrainConfig, {"task": values}, cfg.path).task
    config.model = loaded.config.model
    config.common.user_dir = cfg.common.user_dir
    config.common.user_files = recorded_files(config, cfg.common.user_dir)
    config.generation = dataclasses.replace(config.generation, **loaded.generation)
    return config


def write_run(loaded: LoadedModel, config: TrainConfig, folder: Path) -> None:
    """Write a run folder atomically.

    Args:
        loaded: the model and its task.
        config: the run's configuration.
        folder: the folder, which must not exist yet.

    Raises:
        UserError: it cannot be written.
    """
    with new_folder(folder) as temporary:
        for name, tokenizer in tokenizers_of(loaded).items():
            save_tokenizer(tokenizer, temporary / name)
        write_config(temporary, config)
        Checkpoints(temporary).save(["best"], loaded.model.state_dict(), state=None)
        write_run_checksums(temporary, config, loaded.task)


def write_huggingface(loaded: LoadedModel, folder: Path) -> None:
    """Write a model as a Hugging Face folder, atomically.

    Args:
        loaded: the model and its task.
        folder: the folder, which must not exist yet.

    Raises:
        UserError: the model cannot be converted, or the folder cannot be written.
    """
    from seqgen.models.huggingface.checkpoint import save_pretrained

    wanted = GenerationConfig(**loaded.generation) if loaded.generation else loaded.config.generation
    for note in save_pretrained(loaded.model, folder, loaded.task.target_tokenizer, wanted):
        log(f"{folder}: {note}")


def tokenizers_of(loaded: LoadedModel) -> dict[str, Tokenizer]:
    """The tokenizers of a run, by the names of their folders: one for both sides, or one for each side."""
    source, target = loaded.task.source_tokenizer, loaded.task.target_tokenizer
    return {"tokenizer": source} if source is target else {"source_tokenizer": source, "target_tokenizer": target}


def finetuning_command(config: TrainConfig, folder: Path) -> str:
    """The command line that fine-tunes a run's model on other text, in a new run.

    Args:
        config: the run's configuration.
        folder: the run folder.

    Returns:
        The command line; the user replaces the names in capitals.
    """
    words = ["seqgen-train", "run_dir=NEW", f"checkpoint.finetune_from={folder}"]
    return shlex.join([*words, *_text_arguments(config.task, folder)])


def _text_arguments(task: Any, folder: Path) -> list[str]:
    """The arguments of the command line that choose the task and name the text."""
    prefixes = ["task.train=PREFIX", "task.valid=PREFIX"]
    if TASKS.of(task).can_be_chosen:
        return prefixes  # the task is the run's
    if isinstance(task, PromptDecodingConfig):
        return ["task=language_modeling", "task.train=FILE", "task.valid=FILE"]
    if (folder / "source_tokenizer").is_dir():  # Marian
        return ["task=translation", "task.source_lang=SOURCE", "task.target_lang=TARGET", *prefixes]
    if load_tokenizer(folder / "tokenizer").languages is not None:
        return ["task=multilingual_translation", "task.pairs=[SOURCE-TARGET]", *prefixes]
    return ["task=text_to_text", "task.mixture=MIXTURE.yaml"]


if __name__ == "__main__":
    main()
