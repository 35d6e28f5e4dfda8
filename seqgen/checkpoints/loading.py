"""Loading trained models: from a path to a model with its task.

A path names a run of seqgen, or a checkpoint of another toolkit that a registered checkpoint loader recognizes. A
loader is declared with a function that tells whether it can load a path; its module is imported only for such a path::

    declare_checkpoint_loader("fairseq checkpoint", lambda path: path.suffix == ".pt", "my_package.fairseq")

    @register_checkpoint_loader("fairseq checkpoint")  # in that module
    def read(path: Path, reading: ReadingConfig, placement: Placement) -> LoadedModel: ...
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeAlias

import torch
import yaml
from torch import Tensor

from seqgen.checkpoints.device_map import place
from seqgen.checkpoints.hub import local_path
from seqgen.checkpoints.model_weights import (
    build_checked,
    can_materialize,
    check_size,
    fit,
    load_weights,
    materialize,
)
from seqgen.checkpoints.run_checkpoints import resolve, weight_shapes
from seqgen.checkpoints.run_record import update_generation, verify_run, verify_task
from seqgen.config import GenerationConfig, ReadingConfig, TrainConfig, option
from seqgen.config.values import from_dict, to_dict
from seqgen.data.dictionary import Dictionary
from seqgen.data.pair_dataset import PairDataset
from seqgen.data.tokenizers.base import Tokenizer, load_tokenizer, save_tokenizer
from seqgen.errors import CheckpointError, ConfigError, DataError, UserError, shown
from seqgen.generation.compatibility import check_compatible
from seqgen.generation.model_settings import own_settings
from seqgen.model import EncoderDecoderModel, Vocabularies
from seqgen.registry import MODELS, TASKS, register_task
from seqgen.system.devices import find_device
from seqgen.system.files import frozen, run_lock, write_atomically
from seqgen.system.reading import parse_yaml, read_bytes
from seqgen.system.switches import MAPPED_WEIGHTS
from seqgen.task import Task

CONFIG_FILE = "config.yaml"
WEIGHT_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""The dtypes that loaded weights can have."""


@dataclass(frozen=True)
class LoadedModel:
    """A trained model and what it needs to read and write text.

    Attributes:
        model: the model, in evaluation mode.
        task: encodes and decodes text.
        config: the configuration that it was trained with; of a checkpoint of another toolkit only the model's.
        checkpoint: the checkpoint that the weights come from.
        task_values: for a checkpoint of another toolkit, the name (``_name``) and values of a task that such a model
            can be trained on, so that it can be made a run.
        notes: what the user should know about how it was read.
        generation: the model's own decoding settings, by the names of ``GenerationConfig``'s fields; they apply to keys
            that the user does not set.
    """

    model: EncoderDecoderModel
    task: Task
    config: TrainConfig
    checkpoint: Path
    task_values: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    generation: dict[str, Any] = field(default_factory=dict)

    def save_tokenizers(self, folder: Path) -> None:
        """Write the tokenizers into a folder, each with a folder of its own: one for both sides, or one for each.

        Args:
            folder: such as a run folder.
        """
        source, target = self.task.source_tokenizer, self.task.target_tokenizer
        names = {"tokenizer": source} if source is target else {"source_tokenizer": source, "target_tokenizer": target}
        for name, tokenizer in names.items():
            save_tokenizer(tokenizer, folder / name)


@register_task("decoding")
class DecodingTask(Task):
    """The task of a model without data: it can only encode and decode text.

    Args:
        cfg: has no options.
        source_tokenizer: the tokenizer of the source.
        target_tokenizer: that of the target, or one with a ``target_side``.
    """

    can_be_chosen = False  # it has no data to train on, so help and completion leave it out

    def __init__(self, cfg: Any, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer):
        super().__init__(cfg, source_tokenizer, target_tokenizer.target_side)
        self.translates = source_tokenizer.languages is not None or self.target_tokenizer is not source_tokenizer

    @classmethod
    def setup_task(cls, cfg: Any, folder: Path) -> Self:
        """Read the tokenizers of a run that was made from such a model.

        Args:
            cfg: has no options.
            folder: the run folder.

        Raises:
            DataError: a tokenizer is missing or damaged.
        """
        if (folder / "source_tokenizer").is_dir():
            source, target = (load_tokenizer(folder / f"{side}_tokenizer") for side in ("source", "target"))
        else:
            source = target = load_tokenizer(folder / "tokenizer")
        return cls(cfg, source, target)

    def source_lines(self, split: str) -> Iterator[str]:
        """There are none.

        Raises:
            DataError: always.
        """
        raise DataError("this model has no data splits to decode; give input=FILE, or input=- for standard input")

    def load_dataset(self, split: str) -> PairDataset:
        """There is none; see ``source_lines``."""
        raise DataError("task=decoding has no training data; choose another task, such as task=translation")

    def as_values(self) -> dict[str, Any]:
        """The task of a run that is made from the model: its name and values; see ``LoadedModel.task_values``."""
        return {"_name": "decoding"}


@dataclass
class PromptDecodingConfig:
    """How prompts are encoded."""

    begin_with_eos: bool = option(
        False, "whether every prompt begins with end-of-sentence (fairseq); an empty prompt always does"
    )


@register_task("prompt_decoding", config=PromptDecodingConfig)
class PromptDecodingTask(DecodingTask):
    """The task of a decoder-only model without data: its source is a prompt."""

    cfg: PromptDecodingConfig

    @classmethod
    def of(cls, tokenizer: Tokenizer, begin_with_eos: bool) -> Self:
        """The task of a tokenizer; see ``PromptDecodingConfig``."""
        return cls(PromptDecodingConfig(begin_with_eos), tokenizer, tokenizer)

    def encode_source(self, text: str) -> Tensor:
        """Turn a prompt into ids.

        Args:
            text: one line, which may be empty.

        Returns:
            ``(P,)`` int64, without end-of-sentence at the end.
        """
        ids, eos = self.source_tokenizer.encode(text), self.source_dictionary.eos()
        return torch.tensor([eos, *ids] if self.cfg.begin_with_eos or not ids else ids)

    def as_values(self) -> dict[str, Any]:
        """See ``DecodingTask.as_values``."""
        return {"_name": "prompt_decoding", **to_dict(self.cfg)}


@dataclass(frozen=True)
class Placement:
    """Device and dtype of the model. A loader may use them to avoid a second copy of the weights, or ignore them.

    Attributes:
        device: the device.
        dtype: dtype of the weights; ``None`` for the dtype in which they were saved.
    """

    device: torch.device
    dtype: torch.dtype | None = None


CheckpointLoader: TypeAlias = Callable[[Path, ReadingConfig, Placement], LoadedModel]

_DECLARED: dict[str, tuple[Callable[[Path], bool], str]] = {}
_LOADERS: dict[str, CheckpointLoader] = {}


def declare_checkpoint_loader(kind: str, recognizes: Callable[[Path], bool], module: str) -> None:
    """Declare which module loads one kind of checkpoint, so that it is imported only when needed.

    Args:
        kind: what it loads, in words, such as ``"fairseq checkpoint"``.
        recognizes: whether a path is of that kind; it should check names rather than contents, to be fast.
        module: dotted name of the module, which calls ``register_checkpoint_loader(kind)``.
    """
    _DECLARED[kind] = (recognizes, module)


def register_checkpoint_loader(
    kind: str, recognizes: Callable[[Path], bool] | None = None
) -> Callable[[CheckpointLoader], CheckpointLoader]:
    """Register the decorated function as the checkpoint loader for one kind of checkpoint.

    Args:
        kind: what it loads, in words.
        recognizes: whether a path is of that kind; required if the kind was not declared before.

    Raises:
        ConfigError: the kind already has a loader, or it was not declared and ``recognizes`` is missing.
    """

    def decorator(loader: CheckpointLoader) -> CheckpointLoader:
        if kind in _LOADERS:
            raise ConfigError(
                f"two checkpoint loaders are registered for a {kind}, in {_LOADERS[kind].__module__} and "
                f"{loader.__module__}"
            )
        if recognizes is not None:
            declare_checkpoint_loader(kind, recognizes, loader.__module__)
        elif kind not in _DECLARED:
            raise ConfigError(
                f"the checkpoint loader for a {kind} in {loader.__module__} does not define which paths it recognizes"
            )
        _LOADERS[kind] = loader
        return loader

    return decorator


def checkpoint_loader_of(path: Path) -> CheckpointLoader | None:
    """The checkpoint loader that recognizes a path, its module imported; ``None`` if there is none, as for a run."""
    for kind, (recognizes, module) in _DECLARED.items():
        if recognizes(path):
            if kind not in _LOADERS:
                importlib.import_module(module)
            return _LOADERS[kind]
    return None


def load_models(
    paths: Sequence[str],
    device: torch.device | str = "cpu",
    reading: ReadingConfig | None = None,
    dtype: torch.dtype | str | None = torch.float32,
    device_map: str = "",
) -> list[LoadedModel]:
    """Load the members of an ensemble.

    Args:
        paths: what ``load_model`` takes; several in one string are separated by colons, as in fairseq.
        device: where to put them.
        reading: what checkpoints of other toolkits lack.
        dtype: dtype of the weights, or its name; ``None`` for the dtype in which they were saved.
        device_map: see ``load_model``.

    Raises:
        CheckpointError: one cannot be loaded.
        ConfigError: ``reading`` has values but all models are runs of seqgen, or the device or dtype is not available.
    """
    separate = [str(local_path(part)) for path in paths for part in split_path(path)]
    given = [key for key, value in to_dict(reading or ReadingConfig()).items() if value]
    toolkits = {checkpoint_loader_of(Path(path)) for path in separate} - {None}
    if given and not toolkits:
        raise ConfigError(
            f"reading.{given[0]} applies only to checkpoints of other toolkits, but {', '.join(separate)} is a run of "
            "seqgen; remove the key"
        )
    try:
        return [load_model(path, device, dtype, reading, device_map) for path in separate]
    except UserError as error:
        if given and len(toolkits) > 1:
            raise type(error)(
                f"{error} (reading.{given[0]} applies to the models of all toolkits in path; in place of the key, put "
                "the files of each model into its folder)"
            ) from None
        raise


def split_path(path: str) -> list[str]:
    """Split ``a.pt:b.pt`` at its colons, unless it is an address, or a file or folder of that whole name exists.

    The colon of ``hf:`` at the beginning of a part belongs to the part.
    """
    if ":" not in path or "://" in path or Path(path).exists():
        return [path]
    return [part for part in re.split(r"(?<!^hf)(?<!:hf):", path) if part]


def load_model(
    path: str | Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | str | None = None,
    reading: ReadingConfig | None = None,
    device_map: str = "",
) -> LoadedModel:
    """Load a trained model.

    On a CPU, weights that are used in the dtype of their ``safetensors`` file stay in it, and the file must not be
    written to; see ``seqgen.system.mapped_weights``. In ``with MAPPED_WEIGHTS.off()`` they are copied.

    Args:
        path: a run folder (its best checkpoint is loaded), a checkpoint inside one, a path that a checkpoint loader
            recognizes, or ``hf:ORGANIZATION/NAME[@REVISION]`` for a model on the Hugging Face Hub.
        device: where to put it.
        dtype: dtype of the weights, or its name, such as ``"bfloat16"``; as saved if not given.
        reading: what a checkpoint of another toolkit lacks.
        device_map: distributes the layers over several devices, of which ``device`` is the main one: ``auto``, or the
            devices of layers; see ``seqgen.checkpoints.device_map``. Empty for one device.

    Returns:
        The model with its task.

    Raises:
        CheckpointError: there is no such checkpoint, it is damaged, or it does not fit its configuration.
        ConfigError: the device or dtype is not available.
        DataError: a vocabulary or tokenizer is missing or damaged.
    """
    main, local = find_device(device), local_path(path)
    placement = Placement(torch.device("cpu") if device_map else main, _weight_dtype(dtype))
    loader = checkpoint_loader_of(local)
    if loader is None:
        loaded = _load_run(local, placement)
    else:
        loaded = loader(local, reading or ReadingConfig(), placement)
    loaded.model.to(device=placement.device, dtype=placement.dtype).eval()
    if device_map:
        place(loaded.model, main, device_map)
    return loaded


def _weight_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """The dtype with a name, such as ``"bfloat16"``; a dtype or ``None`` is returned unchanged.

    Raises:
        ConfigError: it is not one of ``WEIGHT_DTYPES``.
    """
    known = {str(one).removeprefix("torch."): one for one in WEIGHT_DTYPES}
    found = known.get(dtype) if isinstance(dtype, str) else dtype
    if dtype is not None and found not in WEIGHT_DTYPES:
        raise ConfigError(f"dtype={dtype} is not a dtype that weights can have; choose one of: {', '.join(known)}")
    return found


def _load_run(path: Path, placement: Placement) -> LoadedModel:
    checkpoint = resolve(path)
    folder = run_folder_of(checkpoint)
    config = read_run_config(folder, training=False)
    notes = verify_run(folder, to_dict(config))
    with frozen(folder):
        task: Task = TASKS.of(config.task).component.setup_task(config.task, folder)  # type: ignore[attr-defined]
    verify_task(folder, task)
    model = check_size(lambda: task.build_model(config.model), weight_shapes(checkpoint), str(checkpoint))
    if model is not None and can_materialize(model):
        model.to(placement.dtype)
        materialize(model, placement.device)
    else:
        model = build_checked(lambda: task.build_model(config.model), str(checkpoint))
    load_weights(model, checkpoint)
    return LoadedModel(model, task, config, checkpoint, notes=notes, generation=own_settings(config.generation))


def initialize(model: EncoderDecoderModel, given: str, task: Vocabularies) -> list[str]:
    """Load the weights of a trained model into a new one, whose vocabularies may have further tokens at the end.

    The rows of further tokens, in embeddings and in the output projection, keep their new random values::

        checkpoint   <s> <pad> </s> <unk> a b              rows 0 to 5 are loaded
        here         <s> <pad> </s> <unk> a b __de__       row 6 is new

    Args:
        model: the new model.
        given: what ``load_model`` takes.
        task: has the vocabularies of the new model.

    Returns:
        Messages for the user: the origin of the weights, and how many rows are new.

    Raises:
        CheckpointError: the checkpoint cannot be read, the vocabularies differ in another way, or names or shapes of
            weights differ; the model is then unchanged.
    """
    with MAPPED_WEIGHTS.off():  # training changes all of them
        initial = load_model(given, dtype=torch.float32)
    origin, weights = initial.checkpoint, dict(initial.model.state_dict())
    trained = {name for name, one in model.named_parameters(remove_duplicate=False) if one.requires_grad}
    messages = [*initial.notes, f"starting from the weights of {origin}"]
    for side, prefix in (("source", "encoder."), ("target", "decoder.")):
        old, new = (getattr(one, f"{side}_dictionary") for one in (initial.task, task))
        if not any(name.startswith(prefix) for name in weights):
            continue
        _check_vocabulary(old, new, f"{origin}: the vocabulary does not fit: in the {side}")
        if added := _add_rows(weights, model, prefix, len(old), len(new)):
            further = new.symbols[len(old) :]
            listing = ", ".join(further[:5]) + (", ..." if len(further) > 5 else "")
            frozen = [name for name in added if name not in trained]
            stay = f" and stay so, because {frozen[0]} is frozen" if frozen else ""
            messages.append(f"new tokens of the {side}, whose embeddings are initialized at random{stay}: {listing}")
    try:
        fit(model, weights, str(origin))
    except CheckpointError:
        if not isinstance(model, type(initial.model)):
            raise CheckpointError(
                f"{origin}: these are the weights of a model={MODELS.of(initial.config.model).name}, and the model "
                f"here is a {type(model).__name__}; leave out model=NAME, so that the new run has the checkpoint's "
                "model"
            ) from None
        raise
    model.load_state_dict(weights)
    return messages


def _check_vocabulary(old: Dictionary, new: Dictionary, where: str) -> None:
    """Check that two vocabularies have the same tokens up to the end of the shorter one."""
    for index, (before, now) in enumerate(zip(old.symbols, new.symbols, strict=False)):
        if before != now:
            raise CheckpointError(
                f"{where}, the id {index} is {shown(before)} in the checkpoint and {shown(now)} here; use the "
                "tokenizer of the checkpoint"
            )


def _add_rows(
    weights: dict[str, Tensor], model: EncoderDecoderModel, prefix: str, old_size: int, new_size: int
) -> list[str]:
    """Add rows to the weights that have a row for each token; return the names of these weights.

    Args:
        weights: the weights of the checkpoint, which are changed.
        model: has the values of new rows.
        prefix: what the names of the side's weights begin with.
        old_size: number of tokens of the checkpoint.
        new_size: number of tokens of the model.
    """
    added = []
    for name, fresh in model.state_dict().items():
        saved = weights.get(name)
        if saved is None or not name.startswith(prefix) or "position" in name or saved.dim() == 0:
            continue
        # embeddings can have more rows than there are tokens
        if saved.shape[1:] == fresh.shape[1:] and old_size <= len(saved) < len(fresh) >= new_size > old_size:
            weights[name] = torch.cat([saved[:old_size].to(fresh), fresh[old_size:]])
            added.append(name)
    return added


def run_folder_of(checkpoint: Path) -> Path:
    """The run folder that a checkpoint lies in: the nearest folder above it with a configuration.

    Raises:
        CheckpointError: there is none.
    """
    if folder := run_folder(checkpoint):
        return folder
    raise CheckpointError(
        f"{checkpoint}: no folder above it contains a {CONFIG_FILE}; give a checkpoint inside its run folder"
    )


def run_folder(path: Path) -> Path | None:
    """The run folder that a path to a run or to a checkpoint inside one means; ``None`` for all other paths."""
    if (path / CONFIG_FILE).is_file():
        return path
    above = (folder for folder in path.resolve().parents if (folder / CONFIG_FILE).is_file())
    return next(above, None) if path.exists() and checkpoint_loader_of(path) is None else None


def recorded_user_dirs(folder: Path) -> list[str]:
    """The files and folders of the user's own that a run records (``common.user_dir``).

    Args:
        folder: the run folder.

    Raises:
        CheckpointError: its configuration is missing or damaged.
    """
    common = read_yaml(folder / CONFIG_FILE).get("common")
    recorded = common.get("user_dir") if isinstance(common, dict) else None
    items = recorded if isinstance(recorded, list) else [recorded]
    return [item for item in items if isinstance(item, str) and item]


def read_run_config(folder: Path, *, training: bool = True) -> TrainConfig:
    """Read the configuration of a run.

    Args:
        folder: the run folder.
        training: whether to read criterion, optimizer and learning-rate schedule, too. A model is used without them, so
            that their files need not exist where it is used.

    Raises:
        CheckpointError: the file is missing or no YAML.
        ConfigError: it holds an unknown key or a value of the wrong type.
    """
    plain = read_yaml(folder / CONFIG_FILE)
    if not training:
        plain = {key: value for key, value in plain.items() if key not in ("criterion", "optimizer", "lr_scheduler")}
    return from_dict(TrainConfig, plain, str(folder / CONFIG_FILE))


def save_generation(run: str | Path, cfg: GenerationConfig) -> None:
    """Change the default decoding settings of a run, which apply to keys that the user does not set.

    They are stored in the group ``generation`` of the run's ``config.yaml``, which also holds the settings used in
    validation. Continuing to train the run overwrites the group.

    Args:
        run: the run folder.
        cfg: the decoding settings; if its ``semantics`` is empty, the run keeps its own.

    Raises:
        CheckpointError: it is no run folder, or one that is being trained.
        ConfigError: a value does not fit, or settings exclude each other.
    """
    path = Path(run) / CONFIG_FILE
    plain = read_yaml(path)
    before = plain.get("generation")
    semantics = cfg.semantics or (before.get("semantics", "") if isinstance(before, dict) else "")
    cfg = from_dict(GenerationConfig, {**to_dict(cfg), "semantics": semantics}, "generation")
    check_compatible(cfg)
    plain["generation"] = to_dict(cfg)
    with run_lock(path.parent):
        write_atomically(path, yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))
        update_generation(path.parent, cfg)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file of keys and values.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    try:
        content = parse_yaml(read_bytes(path))
    except FileNotFoundError:
        raise CheckpointError(f"there is no file {path}; {path.parent} is not a run folder") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is damaged: it must contain keys and values")
    return content
