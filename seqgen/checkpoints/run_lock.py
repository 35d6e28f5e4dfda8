"""The lock of a run folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import portalocker

from seqgen.errors import CheckpointError
from seqgen.system.files import disk_errors, open_own

LOCK = ".lock"


class RunLock:
    """The held lock of a run folder.

    It is held as long as any process has the file open: the process that took the lock, or a child process that got
    this object as an argument. No other process can take the lock until all of them have ended.

    Args:
        descriptor: file descriptor of the open, locked file.
    """

    def __init__(self, descriptor: int):
        self.descriptor = descriptor

    def sign(self) -> None:
        """Write the ID of this process into the file, for the message to other processes."""
        os.ftruncate(self.descriptor, 0)
        os.write(self.descriptor, f"process {os.getpid()}".encode())  # the file is open for appending

    def __reduce__(self) -> tuple[Any, ...]:
        """Pass the descriptor itself to a child process; a newly opened file would be another lock."""
        from multiprocessing.reduction import DupFd  # does not exist on Windows

        return _inherited, (DupFd(self.descriptor),)


def _inherited(duplicate: Any) -> RunLock:
    return RunLock(duplicate.detach())


@contextmanager
def run_lock(folder: Path, key: str = "run_dir") -> Iterator[RunLock]:
    """Lock a run folder, or the folder of a job, for this process, and for child processes that get the lock object.

    The operating system releases the lock when the last process that holds it ends, so the lock file of a killed
    process does not block a new one.

    Args:
        folder: the run folder; created if it does not exist.
        key: the configuration key that names the folder, for the message.

    Yields:
        The lock.

    Raises:
        CheckpointError: another process holds the lock.
        UserError: the folder cannot be written.
    """
    with disk_errors(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        file = open_own(folder / LOCK)
    with file:
        try:
            portalocker.lock(file, portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING)
        except portalocker.LockException:
            file.seek(0)
            holder = file.read().strip()
            raise CheckpointError(
                f"{folder}: in use by another process{f' ({holder})' if holder else ''}; wait for it, or choose "
                f"another {key}"
            ) from None
        lock = RunLock(file.fileno())
        lock.sign()
        try:
            yield lock
        finally:
            file.truncate(0)
