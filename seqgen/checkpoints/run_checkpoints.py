"""Checkpoints: folders in a run's ``checkpoints/``, written whole or not at all.

::

    RUN/checkpoints/last/        model.safetensors            the weights to decode with
                    best/        training_state.safetensors   the rest of the training state: tensors
                    epoch_3/     training_state.json          ... and plain values
                    update_500/  SHA256SUMS                   a checksum of each file

A checkpoint is written under a hidden name, synced and renamed, so that after a kill at any time either the old or the
new one is complete. Replacing a folder takes two renames. After a kill between them, the earlier checkpoint is
named ``.NAME.old``; loading finds it there, and the next training run renames it back.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from seqgen.checkpoints import serialization
from seqgen.core.errors import CheckpointError, UserError
from seqgen.system.files import disk_errors, sync
from seqgen.system.reading import similar_path

MODEL = "model.safetensors"
STATE = "training_state.json"
STATE_TENSORS = "training_state.safetensors"
FOLDER = "checkpoints"
_HUGGINGFACE = "config.json"  # every Hugging Face folder has this file

T = TypeVar("T")


class Checkpoints:
    """Writes and deletes checkpoints of a run; only for the process that holds the run's lock.

    Args:
        run: the run folder.
    """

    def __init__(self, run: Path):
        self.folder = run / FOLDER
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.glob(".*.old"):  # of a killed process, likewise the others
            name = path.name.removeprefix(".").removesuffix(".old")
            if (self.folder / name).exists():
                _discard(path)
            else:
                path.rename(self.folder / name)
        for pattern in (".*.tmp", ".*.deleted"):
            for path in self.folder.glob(pattern):
                if path.is_dir() and not path.is_symlink():  # this class makes only folders
                    shutil.rmtree(path)

    def save(self, names: Sequence[str], weights: Mapping[str, Tensor], state: Mapping[str, Any] | None) -> None:
        """Write one checkpoint under one or several names.

        Args:
            names: folder names; they are replaced in this order.
            weights: the weights to decode with.
            state: the rest of the training state; ``None`` for a checkpoint that cannot be resumed.

        Raises:
            CheckpointError: it cannot be written, for example because the disk is full; earlier checkpoints are intact.
        """
        temporary = {name: self.folder / f".{name}.tmp" for name in names}
        first, *others = temporary.values()
        try:
            with disk_errors(f"checkpoint {self.folder / names[0]}"):
                _write(first, weights, state)
                for other in others:
                    _link(first, other)
                for name, path in temporary.items():
                    _replace(path, self.folder / name)
                sync(self.folder)
        except UserError as error:
            raise CheckpointError(f"{error}; earlier checkpoints are intact") from error.__cause__
        finally:
            for path in temporary.values():
                shutil.rmtree(path, ignore_errors=True)

    def prune(self, kind: str, keep: int) -> None:
        """Delete the oldest checkpoints of a kind; ``last`` and ``best`` are never deleted.

        Args:
            kind: ``"epoch"`` or ``"update"``.
            keep: number of checkpoints to keep; negative for all.
        """
        found = numbered_checkpoints(self.folder, kind) if keep >= 0 else []
        for path in found[: max(0, len(found) - keep)]:
            _discard(path)

    def resumable(self) -> list[Path]:
        """The checkpoints to resume from: ``last``, then the others, those with more updates first."""
        found = [path for path in self.folder.iterdir() if (path / STATE).is_file() and not path.name.startswith(".")]
        return sorted(found, key=lambda path: (path.name == "last", _update_or_less(path), path.name), reverse=True)


def _update_or_less(checkpoint: Path) -> int:
    """The number of updates of a checkpoint; -2 if it is damaged."""
    try:
        return update_of(checkpoint)
    except CheckpointError:
        return -2


def numbered_checkpoints(folder: Path, kind: str) -> list[Path]:
    """The checkpoints ``KIND_N`` in a ``checkpoints`` folder, oldest first."""
    found = [path for path in folder.glob(f"{kind}_*") if re.fullmatch(rf"{kind}_\d+", path.name)]
    return sorted(found, key=lambda path: int(path.name.rpartition("_")[2]))


def update_of(checkpoint: Path) -> int:
    """The number of updates of a checkpoint; -1 if it does not contain one.

    Raises:
        CheckpointError: the training state is damaged.
    """
    path = checkpoint / STATE
    if not path.is_file():
        return -1
    state = serialization.read_json(path)
    update = state.get("update", -1) if isinstance(state, dict) else None
    if type(update) is not int:
        raise CheckpointError(f"{path} is damaged: it does not contain the number of updates")
    return update


def resolve(path: str | Path) -> Path:
    """Find the checkpoint that a path refers to.

    Args:
        path: a run folder (its best checkpoint, else its last), a checkpoint's folder, or its ``model.safetensors``.

    Returns:
        The checkpoint's folder.

    Raises:
        CheckpointError: there is no checkpoint, or the file is of a kind that can contain code.
    """
    given = Path(path)
    if given.is_file():
        if given.name != MODEL:
            raise CheckpointError(
                f"{given}: not a checkpoint, and another file can contain code and is never loaded; give a {MODEL}, or "
                "the model.pt or model.npz of another toolkit, or a run folder"
            )
        return _checked(given.parent)
    for candidate in (given, given / FOLDER / "best", given / FOLDER / "last"):
        for place in (candidate, candidate.parent / f".{candidate.name}.old"):  # left by a kill between two renames
            if (place / MODEL).is_file():
                return _checked(place)
    raise CheckpointError(f"{given}: {_why_none(given)}")


def _why_none(given: Path) -> str:
    """The reason why a path refers to no checkpoint, with advice for the user."""
    if not given.exists():
        if str(given).startswith("[") and str(given).endswith("]"):
            first = str(given)[1:-1].partition(",")[0]
            return f"there is no such file or folder; give one model without brackets, such as {first}"
        on_hub = len(given.parts) == 2 and not given.is_absolute() and not given.parent.exists()
        advice = f"; a model of the Hugging Face Hub is written hf:{given}" if on_hub else similar_path(given)
        return f"there is no such file or folder{advice}"
    if (given / FOLDER).is_dir():
        names = ", ".join(sorted(path.name for path in (given / FOLDER).iterdir() if (path / MODEL).is_file()))
        found = f"it has: {names}" if names else "perhaps its training has not saved one yet"
        return f"a run folder without checkpoints best and last; {found}"
    inside = sorted(path.name for path in given.glob("*") if (path / MODEL).is_file())
    if given.absolute().name == FOLDER and inside:
        return (
            f"this folder has the checkpoints of a run; give the run, {given.parent}, for its best "
            f"checkpoint, or one of: {', '.join(str(given / name) for name in inside)}"
        )
    if runs := sorted(path.parent.name for path in given.glob(f"*/{FOLDER}")):
        return f"this folder contains runs; give one of them, such as {given / runs[0]}"
    weights = any(given.glob("*.safetensors"))
    hint = f"; a Hugging Face folder must also have a {_HUGGINGFACE}" if weights else ""
    return f"neither a run folder nor a checkpoint: no {MODEL} in it{hint}"


def _checked(folder: Path) -> Path:
    """The folder of a ``model.safetensors``, if it is a checkpoint of a run and not a Hugging Face folder."""
    if (folder / serialization.CHECKSUMS).exists() or folder.absolute().parent.name == FOLDER:
        return folder
    raise CheckpointError(
        f"{folder}: not a checkpoint of a run, because {serialization.CHECKSUMS} is missing; give a Hugging Face "
        f"folder itself, which must have a {_HUGGINGFACE}"
    )


def read_weights(checkpoint: Path) -> dict[str, Tensor]:
    """Read a checkpoint's weights, and verify their checksum.

    Args:
        checkpoint: the checkpoint's folder; see ``resolve``.

    Returns:
        Weights by name, on the CPU.

    Raises:
        CheckpointError: the file is missing, damaged or truncated.
    """

    def read() -> dict[str, Tensor]:
        serialization.verify_checksums(checkpoint, [MODEL])
        return serialization.read_tensors(checkpoint / MODEL)

    return read_unchanged(checkpoint, read)


def read_unchanged(checkpoint: Path, read: Callable[[], T]) -> T:
    """Read a checkpoint; if it is replaced in the meantime, read it again.

    Args:
        checkpoint: the checkpoint's folder.
        read: reads it.

    Returns:
        What ``read`` returned.

    Raises:
        CheckpointError: it is damaged, or was replaced each time.
    """
    for attempt in (1, 2, 3):
        before = _identity(checkpoint)
        try:
            found = read()
        except CheckpointError:
            # A running training process may have replaced the checkpoint while it was being read.
            if attempt == 3 or _identity(checkpoint) == before:
                raise
        else:
            if _identity(checkpoint) == before:
                return found
    raise CheckpointError(f"{checkpoint}: a training run replaced it each time it was read; read it again later")


def weight_shapes(checkpoint: Path) -> dict[str, Tensor]:
    """Read the shapes of a checkpoint's weights.

    Args:
        checkpoint: the checkpoint's folder; see ``resolve``.

    Returns:
        Tensors without values by name, on the ``meta`` device.

    Raises:
        CheckpointError: the file is missing, damaged or truncated.
    """
    return read_unchanged(checkpoint, lambda: serialization.read_tensors(checkpoint / MODEL, values=False))


def read_training_state(checkpoint: Path) -> dict[str, Any]:
    """Read a checkpoint's training state except the weights, and verify its checksums.

    Args:
        checkpoint: the checkpoint's folder; see ``resolve``.

    Returns:
        The state that ``Checkpoints.save`` was given.

    Raises:
        CheckpointError: a file is missing, damaged or truncated.
    """
    serialization.verify_checksums(checkpoint, [STATE, STATE_TENSORS])
    plain, tensors = serialization.read_json(checkpoint / STATE), serialization.read_tensors(checkpoint / STATE_TENSORS)
    try:
        state: dict[str, Any] = serialization.unpack(plain, tensors)
    except (KeyError, TypeError):
        raise CheckpointError(f"{checkpoint / STATE} names tensors that are not in {STATE_TENSORS}") from None
    return state


def _write(folder: Path, weights: Mapping[str, Tensor], state: Mapping[str, Any] | None) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    serialization.write_tensors(folder / MODEL, weights)
    if state is not None:
        plain, tensors = serialization.pack(state)
        serialization.write_tensors(folder / STATE_TENSORS, tensors)
        serialization.write_json(folder / STATE, plain)
    serialization.write_checksums(folder)


def _link(source: Path, target: Path) -> None:
    """Copy a folder, by hard links where the file system supports them."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for path in source.iterdir():
        try:
            os.link(path, target / path.name)
        except OSError:
            shutil.copy2(path, target / path.name)
    sync(target)


def _replace(new: Path, final: Path) -> None:
    old = final.with_name(f".{final.name}.old")
    if final.exists():
        final.rename(old)
    new.rename(final)
    if old.exists():
        _discard(old)


def _discard(path: Path) -> None:
    """Delete a folder; it is renamed first, so that a partly deleted folder is never loaded."""
    name = path.name.removeprefix(".").removesuffix(".old")
    deleted = path.with_name(f".{name}.deleted")
    shutil.rmtree(deleted, ignore_errors=True)
    path.rename(deleted)
    shutil.rmtree(deleted)


def _identity(folder: Path) -> int:
    try:
        return folder.stat().st_ino
    except OSError:
        return -1
