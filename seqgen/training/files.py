"""Files that are written whole or not at all, full disks, and the lock of a run folder."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import portalocker

from seqgen.errors import CheckpointError, UserError

LOCK = ".lock"


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a kill at any moment leaves the old content or the new one.

    Args:
        path: the file; its folder exists.
        content: what it shall hold.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with disk_errors(str(path)):
        try:
            temporary.write_bytes(content)
            sync(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """See a file, or a folder's own entries, on disk."""
    if path.is_dir() and os.name == "nt":  # Windows opens no folders
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def disk_errors(what: str) -> Iterator[None]:
    """Answer a full disk, or one that cannot be written, by a sentence.

    Args:
        what: what is being written, such as a checkpoint's path.

    Raises:
        UserError: in place of the operating system's error.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise UserError(f"{what} could not be written ({reason}); free some space and run again") from error
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO):
            raise UserError(f"{what} could not be written ({reason})") from error
        raise


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Hold a run folder for this process.

    The operating system drops the lock with the process that holds it, so the file that a killed one leaves behind is
    no obstacle.

    Args:
        folder: the run's folder; made if there is none.

    Raises:
        CheckpointError: another process holds it.
    """
    with disk_errors(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOCK).touch()
    with open(folder / LOCK, "a+", encoding="utf-8") as file:
        try:
            portalocker.lock(file, portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING)
        except portalocker.LockException:
            file.seek(0)
            holder = file.read().strip()
            raise CheckpointError(
                f"{folder}: in use by another process{f' ({holder})' if holder else ''}; wait for it, or choose "
                "another run_dir"
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()}")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)
