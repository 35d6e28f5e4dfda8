"""Loading trained models: from a path to a model with its task.

A path names a run of seqgen, or a checkpoint of another toolkit that a registered checkpoint loader recognizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from seqgen.checkpoints.loaders import LoadedModel, Placement, checkpoint_loader_of
from seqgen.checkpoints.model_weights import build_to_load, fit, load_weights, merge_additions, named
from seqgen.checkpoints.run_checkpoints import MODEL, resolve, weight_shapes
from seqgen.checkpoints.run_config import read_run_config, run_folder_of, verify_run, verify_task
from seqgen.checkpoints.sources import local_path, split_path
from seqgen.config import BaseConfig, ReadingConfig
from seqgen.config.values import to_dict
from seqgen.core.errors import CheckpointError, ConfigError, UserError, listing, shown
from seqgen.core.model import EncoderDecoderModel
from seqgen.data.dictionary import Dictionary, Vocabularies
from seqgen.data.text import digest
from seqgen.decoding.resolution import settings_of_model
from seqgen.registry import MODELS, TASKS
from seqgen.system.devices import find_device
from seqgen.system.files import frozen
from seqgen.system.switches import MAPPED_WEIGHTS
from seqgen.task import Task, other_languages

WEIGHT_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""The dtypes that loaded weights can have."""


def load_models(
    paths: Sequence[str],
    device: torch.device | str = "cpu",
    reading: ReadingConfig | None = None,
    dtype: torch.dtype | str | None = torch.float32,
    note: Callable[[str], None] | None = None,
) -> list[LoadedModel]:
    """Load the members of an ensemble.

    Args:
        paths: what ``load_model`` takes; several in one string are separated by colons, as in fairseq.
        device: where to put them.
        reading: what checkpoints of other toolkits lack.
        dtype: dtype of the weights, or its name; ``None`` for the dtype in which they were saved.
        note: called with each note for the user.

    Raises:
        CheckpointError: one cannot be loaded.
        ConfigError: ``reading`` has values but all models are runs of seqgen, or the device or dtype is not available.
    """
    separate = [str(local_path(part)) for path in paths for part in split_path(path)]
    given = [key for key, value in to_dict(reading or ReadingConfig()).items() if value]
    if given and not any(checkpoint_loader_of(Path(path)) for path in separate):
        raise ConfigError(
            f"reading.{given[0]} applies only to checkpoints of other toolkits, but {', '.join(separate)} is a run of "
            "seqgen; remove the key"
        )
    loaded = [load_model(path, device, dtype, reading) for path in separate]
    if note is not None:
        for text in (text for one in loaded for text in one.notes):
            note(text)
    return loaded


def load_model(
    path: str | Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | str | None = None,
    reading: ReadingConfig | None = None,
    among: Sequence[object] = (),
) -> LoadedModel:
    """Load a trained model.

    On a CPU, weights that are used in the dtype of their ``safetensors`` file stay in it, and the file must not be
    written to; see ``seqgen.system.mapped_weights``. In ``with MAPPED_WEIGHTS.off()`` they are copied.

    Args:
        path: a run folder (its best checkpoint is loaded), a checkpoint inside one, a path that a checkpoint loader
            recognizes, or a name such as ``hf:ORGANIZATION/NAME[@REVISION]`` and ``firefox:en-pt``.
        device: where to put it.
        dtype: dtype of the weights, or its name, such as ``"bfloat16"``; as saved if not given.
        reading: what a checkpoint of another toolkit lacks.
        among: models that are loaded already, such as those that decode: the one of this checkpoint and ``dtype`` is
            returned, on its device.

    Returns:
        The model with its task.

    Raises:
        CheckpointError: there is no such checkpoint, it is damaged, or it does not fit its configuration.
        ConfigError: the device or dtype is not available.
        DataError: a vocabulary or tokenizer is missing or damaged.
    """
    local = local_path(path)
    placement = Placement(find_device(device), _weight_dtype(dtype))
    loader = checkpoint_loader_of(local)
    place = (resolve(local) if loader is None else local).resolve()
    for one in among:
        if not isinstance(one, LoadedModel) or one.checkpoint.resolve() != place:
            continue
        if placement.dtype in (None, next(one.model.parameters()).dtype):
            return one
    if loader is None:
        loaded = _load_run(local, placement)
    else:
        loaded = loader(local, reading or ReadingConfig(), placement)
    loaded.model.to(device=placement.device, dtype=placement.dtype).eval()
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
    verify_run(folder, to_dict(config))
    with frozen(folder):
        task: Task = TASKS.of(config.task).component.setup_task(config.task, folder)  # type: ignore[attr-defined]
    verify_task(folder, task)
    shapes, where = weight_shapes(checkpoint), str(checkpoint)
    model = build_to_load(lambda: task.build_model(config.model), shapes, where, placement.device, placement.dtype)
    load_weights(model, checkpoint)
    return LoadedModel(model, task, config, checkpoint, generation=settings_of_model(config.generation))


WEIGHT_FILES = (".safetensors", ".bin", ".npz", ".pt")
"""How the names of files with weights end."""


def base_digest(path: str) -> str:
    """The checksum of a model's files: of its weights, and of a ``config.json`` beside them.

    Args:
        path: what ``load_model`` takes.

    Raises:
        CheckpointError: there is no such model.
    """
    local = local_path(path)
    if checkpoint_loader_of(local) is None:
        files = [resolve(local) / MODEL]
    elif local.is_dir():
        files = sorted(one for one in local.iterdir() if one.suffix in WEIGHT_FILES or one.name == "config.json")
    else:
        files = [local]
    return digest(files)


def load_base(cfg: BaseConfig) -> LoadedModel:
    """Load the trained model that another model extends, in float32, for ``build_model``.

    Args:
        cfg: says where it is, and its checksum.

    Raises:
        ConfigError: the keys are missing.
        CheckpointError: the model is not there, has changed, or has additions itself.
    """
    if torch.empty(0).is_meta:
        raise NotImplementedError("the weights of the base are read from its files")  # see build_to_load
    if not (cfg.base and cfg.base_digest):
        raise ConfigError("model.base and model.base_digest are missing; checkpoint.finetune_from=BASE sets them")
    try:
        if base_digest(cfg.base) != cfg.base_digest:
            raise CheckpointError("its files have changed since the run was started (model.base_digest)")
        with MAPPED_WEIGHTS.off():
            loaded = load_model(cfg.base, dtype=torch.float32)
        if merge_additions(loaded.model) is not loaded.model:
            raise CheckpointError("it has additions itself; remove model=NAME to continue their training")
    except UserError as error:
        raise CheckpointError(
            f"the base of the model, model.base={cfg.base}: {error}; if it was moved, write its new path into the "
            "config.yaml of the run (model.base, checkpoint.finetune_from)"
        ) from None
    return loaded


def initialize(model: EncoderDecoderModel, given: str, task: Vocabularies, languages: Sequence[str] = ()) -> list[str]:
    """Load the weights of a trained model into a new one, whose vocabularies may have further tokens at the end.

    Weights that the model declares as ``new_weights`` keep their values if the checkpoint lacks them. The rows of
    further tokens, in embeddings and in the output projection, keep their new random values::

        checkpoint   <s> <pad> </s> <unk> a b              rows 0 to 5 are loaded
        here         <s> <pad> </s> <unk> a b __de__       row 6 is new

    Args:
        model: the new model.
        given: what ``load_model`` takes.
        task: has the vocabularies of the new model.
        languages: those of the text, which must be the checkpoint's; empty if they are not known or not compared.

    Returns:
        Messages for the user: where the weights come from, and how many rows are new.

    Raises:
        CheckpointError: the checkpoint cannot be read or has other languages, the vocabularies differ in another way,
            or names or shapes of weights differ; the model is then unchanged.
    """
    with MAPPED_WEIGHTS.off():  # training changes all of them
        initial = load_model(given, dtype=torch.float32)
    checkpoint, weights = initial.checkpoint, dict(initial.model.state_dict())
    if other_languages(languages, initial.task.language_pair):
        raise CheckpointError(
            f"{checkpoint} translates {'-'.join(initial.task.language_pair)}, and the text of this run is "
            f"{'-'.join(languages)}; correct task.source_lang and task.target_lang, or set "
            "checkpoint.other_languages=true if this is meant"
        )
    trained = {name for name, one in model.named_parameters(remove_duplicate=False) if one.requires_grad}
    messages = [*initial.notes, f"starting from the weights of {checkpoint}"]
    for side, prefix in (("source", "encoder."), ("target", "decoder.")):
        old, new = (getattr(one, f"{side}_dictionary") for one in (initial.task, task))
        if not any(name.startswith(prefix) for name in weights):
            continue
        _check_vocabulary(old, new, f"{checkpoint}: the vocabulary does not fit: in the {side}")
        if added := _add_rows(weights, model, prefix, len(old), len(new)):
            further = new.symbols[len(old) :]
            tokens = ", ".join(further[:5]) + (", ..." if len(further) > 5 else "")
            frozen = [name for name in added if name not in trained]
            stay = f" and stay so, because {frozen[0]} is frozen" if frozen else ""
            messages.append(f"new tokens of the {side}, whose embeddings are initialized at random{stay}: {tokens}")
    new = {name: one for name, one in named(model.state_dict(), model.new_weights).items() if name not in weights}
    if new:
        messages.append(f"weights that the checkpoint does not have and the model initializes: {listing(list(new))}")
    weights |= new
    try:
        fit(model, weights, str(checkpoint))
    except CheckpointError:
        if not isinstance(model, type(initial.model)):
            raise CheckpointError(
                f"{checkpoint}: these are the weights of a model={MODELS.of(initial.config.model).name}, and the model "
                f"here is a {type(model).__name__}; remove model=NAME, so that the new run has the checkpoint's "
                "model"
            ) from None
        raise
    model.load_state_dict(weights, strict=False)  # fit has compared the names
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
