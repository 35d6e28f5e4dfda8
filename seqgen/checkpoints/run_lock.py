"""The lock of a run folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import portalocker

from seqgen.errors import CheckpointError
from seqgen.files import disk_errors

LOCK = ".lock"


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
