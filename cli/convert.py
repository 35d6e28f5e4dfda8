"""``seqgen-convert``: write a model as a run, as a Hugging Face folder or as graphs, or the average of several."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from seqgen.checkpoints.loaders import LoadedModel, PromptDecodingConfig, checkpoint_loader_of
from seqgen.checkpoints.loading import load_model
from seqgen.checkpoints.model_weights import merge_additions
from seqgen.checkpoints.run_checkpoints import Checkpoints, resolve
from seqgen.checkpoints.run_config import write_run_checksums
from seqgen.checkpoints.sources import is_remote, local_path
from seqgen.cli.command import log, run
from seqgen.cli.model_formats import KEYS, MODEL_FORMATS, WRITERS, writer_of
from seqgen.cli.output import check_output
from seqgen.cli.run_folder import write_config
from seqgen.config import CommonConfig, ReadingConfig, TrainConfig, like, option
from seqgen.config.compose import compose
from seqgen.config.user_files import recorded_files
from seqgen.config.values import changed, from_dict
from seqgen.core.errors import ConfigError
from seqgen.data.tokenizers.base import load_tokenizer
from seqgen.registry import TASKS
from seqgen.system.files import new_folder
from seqgen.training.averaging import average_runs

DESCRIPTION = """writes a model in another form, which format chooses. run: a run folder, from a fairseq checkpoint
or a Hugging Face folder. huggingface: a Hugging Face folder, from a T5 or
transformer. export: the encoder and one step of the decoder, whose decoding state is an input and an output, as ONNX
files, with export.json and the tokenizer. ctranslate2: a folder for CTranslate2, from a T5 or transformer. trie: the
outputs that generation.allowed_outputs allows, encoded for a model, as a file that decoding maps into memory. average:
the mean of the weights of checkpoints, as a run: of the newest five of a run with path=RUN last=5, or of those of
path=[A,B,...], which may be runs of one architecture. marian: a folder in Marian's format, .npz or int8=true, from a
run that was fine-tuned from base=MODEL, such as base=firefox:en-pt."""


@dataclass
class UserCodeConfig:
    """The keys of the ``common`` group of the commands that do not compute with a model."""

    user_dir: list[str] = like(CommonConfig, "user_dir")


@dataclass
class ConvertConfig:
    """The configuration of ``seqgen-convert``."""

    path: list[str] = option(
        [],
        "what to convert: a run, a fairseq model.pt, a Marian folder, a Hugging Face folder or "
        "hf:ORGANIZATION/NAME[@REVISION]; with format=average also several runs or checkpoints, as [A,B]",
        role="input_path",
    )
    output: str = option("", "folder to write, which must not exist yet", role="output_path")
    format: str = option("run", "what is written", choices=MODEL_FORMATS)
    input: str = option(
        "",
        "with format=trie: the allowed outputs, in a form of generation.allowed_outputs; with format=marian: a text to "
        "decode, so that the command prints BLEU before and after",
        role="input_path",
    )
    reference: str = option("", "with format=marian: the reference outputs of input", role="input_path")
    base: str = option(
        "", "with format=marian: the model in Marian's format that path was fine-tuned from", role="input_path"
    )
    int8: bool = option(False, "with format=marian: write 8-bit integers, for Firefox and Bergamot, in place of .npz")
    source_lang: str = option("", "with format=run: source language, if the checkpoint does not name it")
    target_lang: str = option("", "with format=run: target language, if the checkpoint does not name it")
    opset: int = option(20, "with format=export: version of ONNX's operator set", minimum=18, maximum=23)
    last: int = option(0, "with format=average: number of newest checkpoints of the run to average", minimum=0)
    reading: ReadingConfig = dataclasses.field(default_factory=ReadingConfig)
    common: UserCodeConfig = dataclasses.field(default_factory=UserCodeConfig)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the command."""
    run(ConvertConfig, convert, DESCRIPTION, argv)


def convert(cfg: ConvertConfig) -> None:
    """Write a model in another form, and print how to use it.

    Args:
        cfg: the whole configuration.

    Raises:
        ConfigError: a key is missing or has no effect, or the folder already exists.
        CheckpointError: a checkpoint cannot be read or converted.
    """
    _check_keys(cfg)
    folder = Path(cfg.output)
    if cfg.format == "average":
        checkpoints = average_runs(cfg.path, cfg.last, folder, log)
        names = [str(path) if len(cfg.path) > 1 else path.name for path in checkpoints]
        print(f"{folder}: the average of {', '.join(names)}")
        return
    (name,) = cfg.path
    path = local_path(name)
    if cfg.format == "run" and path.exists() and checkpoint_loader_of(path) is None:
        resolve(path)  # raises if it is no run either
        raise ConfigError(f"path={path} is a run; runs of seqgen need no conversion")
    writer = writer_of(cfg.format) if cfg.format in WRITERS else None
    loaded = load_model(path, dtype=getattr(writer, "DTYPE", None), reading=cfg.reading)
    for note in loaded.notes:
        log(note)
    loaded = dataclasses.replace(loaded, model=merge_additions(loaded.model))
    if writer is not None:
        writer.write(cfg, loaded)
        return
    config = run_config(loaded, cfg)
    write_run(loaded, config, folder)
    parameters = sum(parameter.numel() for parameter in loaded.model.parameters())
    print(f"{folder}: {type(loaded.model).__name__} of {parameters:,} parameters, from {name}")
    print(f"decode:    seqgen-generate path={folder} input=FILE")
    words = ["seqgen-train", "run_dir=NEW", f"checkpoint.finetune_from={folder}"]
    print(f"fine-tune: {shlex.join([*words, *_text_arguments(config.task, folder)])}")


def _check_keys(cfg: ConvertConfig) -> None:
    """Check that no key is missing or has no effect, and that the output can be written.

    Raises:
        ConfigError: a key cannot be used.
    """
    if not cfg.path:
        raise ConfigError("path is missing: set path=MODEL, or path=[A,B] with format=average")
    used = KEYS.get(cfg.format, ("reading",))
    for key in sorted(set(changed(cfg)) & {*chain.from_iterable(KEYS.values())} - {*used}):
        owners = " or ".join(f"format={name}" for name, keys in KEYS.items() if key in keys)
        raise ConfigError(f"{key} has no effect with format={cfg.format}; remove it, or set {owners}")
    if cfg.format == "average" and (remote := next((path for path in cfg.path if is_remote(path)), "")):
        raise ConfigError(
            f"path={remote} is downloaded, and only checkpoints of runs are averaged; make it a "
            f"run with seqgen-convert path={remote} output=RUN"
        )
    if cfg.last and len(cfg.path) > 1:
        raise ConfigError(f"last={cfg.last} needs one run folder, but path names {len(cfg.path)}")
    if cfg.format in WRITERS:
        writer_of(cfg.format).check(cfg)
    if len(cfg.path) > 1 and cfg.format != "average":
        raise ConfigError(
            f"path names {len(cfg.path)} models, and only format=average takes several; give one, such as "
            f"path={cfg.path[0]}"
        )
    if not cfg.output:
        raise ConfigError(f"output is missing: set output=FOLDER, the {cfg.format} folder to write")
    if Path(cfg.output).exists():
        raise ConfigError(f"output={cfg.output} already exists; give the name of a new folder")
    if cfg.format in WRITERS:
        check_output("output", cfg.output, cfg.input)


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
            raise ConfigError(f"{cfg.path[0]} does not contain its {key}; set {key}=, such as {key}=en")
    config = compose(TrainConfig, [f"task={values['_name']}"])
    config.task = from_dict(TrainConfig, {"task": values}, cfg.path[0]).task
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
    with new_folder(folder, exist_ok=False) as temporary:
        loaded.save_tokenizers(temporary)
        write_config(temporary, config)
        Checkpoints(temporary).save(["best"], loaded.model.state_dict(), state=None)
        write_run_checksums(temporary, config, loaded.task)


def _text_arguments(task: Any, folder: Path) -> list[str]:
    """The arguments of fine-tuning that choose the task and name the text, in capitals what the user replaces."""
    prefixes = ["task.train=PREFIX", "task.valid=PREFIX"]
    if TASKS.of(task).can_be_chosen:
        return prefixes  # the task is the run's
    if isinstance(task, PromptDecodingConfig):
        return ["task=language_modeling", "task.train=FILE", "task.valid=FILE"]
    two_sided = (folder / "source_tokenizer").is_dir()  # Marian
    if not two_sided and load_tokenizer(folder / "tokenizer").languages is not None:
        return ["task=multilingual_translation", "task.pairs=[SOURCE-TARGET]", *prefixes]
    if two_sided or task.translates:
        languages = (
            f"task.source_lang={task.source_lang or 'SOURCE'}",
            f"task.target_lang={task.target_lang or 'TARGET'}",
        )
        return ["task=translation", *languages, *prefixes]
    return ["task=text_to_text", "task.mixture=MIXTURE.yaml"]


if __name__ == "__main__":
    main()
