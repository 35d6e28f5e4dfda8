"""Atomic writing of files and folders: a process that reads sees the complete content or nothing."""

from __future__ import annotations

import contextlib
import contextvars
import errno
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import portalocker

from seqgen.errors import CheckpointError, UserError

LEFTOVER_SECONDS = 24 * 3600
"""Age from which a temporary file is removed if it is unknown whether its process is alive."""
GRACE_SECONDS = 1.0
"""Age below which a temporary file is not removed, since its process may not have locked it yet."""
_TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}\.tmp")
CACHE = "cache"
"""Folder in a run folder of what can be made again from the data at any time."""
_frozen: contextvars.ContextVar[Path | None] = contextvars.ContextVar("frozen", default=None)


@contextlib.contextmanager
def frozen(run: Path) -> Iterator[None]:
    """Forbid creating files in a run folder, except in its cache, while the context is active.

    If the tokenizer of a trained model is missing, the task must not train another one, whose ids would stand for
    different text.

    Args:
        run: the run's folder.
    """
    token = _frozen.set(run.resolve())
    try:
        yield
    finally:
        _frozen.reset(token)


def is_frozen(path: Path) -> bool:
    """Whether creating a file or folder is forbidden now; see ``frozen``."""
    run, place = _frozen.get(), path.resolve()
    return run is not None and place.is_relative_to(run) and not place.is_relative_to(run / CACHE)


def check_not_frozen(path: Path) -> None:
    """Check that a file or folder may be created now.

    Raises:
        CheckpointError: it may not; see ``frozen``.
    """
    if is_frozen(path):
        raise CheckpointError(
            f"{path} is missing; it was made when the run was trained and cannot be made again; copy the run folder "
            "whole"
        )


@contextlib.contextmanager
def disk_errors(what: Path | str) -> Iterator[None]:
    """Turn a failure to write (full disk, no permission) into a sentence.

    Args:
        what: what is being written, such as a file's path.

    Raises:
        UserError: in place of the operating system's error.
    """
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        advice = "; free some space and run again" if full else ""
        raise UserError(f"cannot write {what}: {error.strerror or error}{advice}") from error


def sync(path: Path) -> None:
    """Sync a file, or the entries of a folder, to disk."""
    if path.is_dir() and os.name == "nt":  # Windows opens no folders
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file under a temporary name and rename it.

    Args:
        path: where the file shall be; its folder is made where there is none.
        content: its bytes.

    Raises:
        UserError: it cannot be written.
    """
    check_not_frozen(path)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        try:
            _hold(descriptor)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, path)
            sync(path.parent)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Fill a folder under a temporary name and rename it when the block ends without an error::

        with new_folder(run / "tokenizer") as temporary:
            tokenizer.save(temporary)

    If another process has created the folder meanwhile, that folder is kept and this one is deleted.

    Args:
        folder: where the folder shall be; what stands there is assumed to hold the same.

    Yields:
        The temporary folder to write into.

    Raises:
        UserError: it cannot be written.
    """
    check_not_frozen(folder)
    with disk_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder.parent, folder.name)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".tmp", dir=folder.parent))
        try:
            with _held(temporary):
                yield temporary
                os.chmod(temporary, 0o777 & ~_umask())
                try:
                    os.rename(temporary, folder)
                except OSError:
                    if not folder.is_dir():
                        raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def remove_leftovers(folder: Path, name: str = "") -> None:
    """Remove the temporary files and folders of processes that were killed.

    Only those of ``write_atomically`` and ``new_folder``, told by their names; a process that is alive holds a lock on
    what it writes.

    Args:
        folder: where they are; what is in its folders stays.
        name: name of the file or folder that they were to become; empty for all.
    """
    with contextlib.suppress(OSError):  # another process may be doing the same
        for path in list(folder.iterdir()):
            if _TEMPORARY.fullmatch(path.name) and (not name or path.name[1:-13] == name):
                _remove_leftover(path)


def _remove_leftover(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            return
        files = [path, *(path.iterdir() if path.is_dir() else ())]
        age = time.time() - max(file.stat().st_mtime for file in files)
        if age > GRACE_SECONDS and _is_abandoned(path, age):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Lock a file, so that other processes see that this one is alive and writes into a folder."""
    if os.name == "nt":  # Windows opens no folders
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _hold(descriptor)
        yield
    finally:
        os.close(descriptor)


def _hold(descriptor: int) -> None:
    if os.name != "nt":
        with contextlib.suppress(OSError, portalocker.LockException):  # a file system without locks
            portalocker.lock(descriptor, portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING)


def _is_abandoned(path: Path, age: float) -> bool:
    """Whether the process that made a temporary file or folder has ended; by its age where there are no locks."""
    if os.name == "nt":
        return age > LEFTOVER_SECONDS
    descriptor = os.open(path, os.O_RDONLY)
    try:
        portalocker.lock(descriptor, portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING)
    except portalocker.AlreadyLocked:
        return False
    except (OSError, portalocker.LockException):
        return age > LEFTOVER_SECONDS
    else:
        return True
    finally:
        os.close(descriptor)


def _umask() -> int:
    # mkstemp and mkdtemp make private files; a run folder is as readable as anything else that its user writes.
    mask = os.umask(0)
    os.umask(mask)
    return mask
