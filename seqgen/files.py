"""Writing files and folders so that a reader sees all of them or nothing."""

from __future__ import annotations

import contextlib
import contextvars
import errno
import glob
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from seqgen.errors import CheckpointError, UserError

LEFTOVER_SECONDS = 24 * 3600
CACHE = "cache"
"""Folder in a run folder of what can be made again from the data at any time."""
_frozen: contextvars.ContextVar[Path | None] = contextvars.ContextVar("frozen", default=None)


@contextlib.contextmanager
def frozen(run: Path) -> Iterator[None]:
    """Let nothing be made in a run folder but its cache: a trained model needs what it was trained with.

    Without its tokenizer, a task would make another one, with which the model's ids stand for other text.

    Args:
        run: the run's folder.
    """
    token = _frozen.set(run.resolve())
    try:
        yield
    finally:
        _frozen.reset(token)


def is_frozen(path: Path) -> bool:
    """Whether a file or folder may not be made now; see ``frozen``."""
    run, place = _frozen.get(), path.resolve()
    return run is not None and place.is_relative_to(run) and not place.is_relative_to(run / CACHE)


def check_not_frozen(path: Path) -> None:
    """See that a file or folder may be made now.

    Raises:
        CheckpointError: it may not; see ``frozen``.
    """
    if is_frozen(path):
        raise CheckpointError(
            f"{path} is missing, which was made when the run was trained and is not made again; copy the run folder "
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
    """See a file, or a folder's own entries, on disk."""
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

    Where another process has made the folder meanwhile, that one stays and this one is thrown away.

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
        _remove_leftovers(folder)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".tmp", dir=folder.parent))
        try:
            yield temporary
            os.chmod(temporary, 0o777 & ~_umask())
            try:
                os.rename(temporary, folder)
            except OSError:
                if not folder.is_dir():
                    raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary folders that nobody has written to for a day: those of processes that were killed."""
    for leftover in folder.parent.glob(f".{glob.escape(folder.name)}.*.tmp"):
        with contextlib.suppress(OSError):  # another process may be doing the same
            newest = max(path.stat().st_mtime for path in (leftover, *leftover.iterdir()))
            if newest < time.time() - LEFTOVER_SECONDS:
                shutil.rmtree(leftover)


def _umask() -> int:
    # mkstemp and mkdtemp make private files; a run folder is as readable as anything else that its user writes.
    mask = os.umask(0)
    os.umask(mask)
    return mask
