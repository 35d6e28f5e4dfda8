"""Writing files and folders atomically, so that a reader sees the complete content or nothing; the lock of a folder."""

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
from typing import IO

import portalocker

from seqgen.core.errors import CheckpointError, UserError

LEFTOVER_SECONDS = 24 * 3600.0
"""Age from which a temporary file is removed, since its process is no longer running."""
_TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}\.tmp")
CACHE = "cache"
"""Subfolder of a run folder for files that can be computed again from the data at any time."""
_frozen: contextvars.ContextVar[Path | None] = contextvars.ContextVar("frozen", default=None)


@contextlib.contextmanager
def frozen(run: Path) -> Iterator[None]:
    """Forbid creating files in a run folder, except in its cache, while the context is active.

    If the tokenizer of a trained model is missing, the task must not train a new one, whose ids would mean different
    text.

    Args:
        run: the run folder.
    """
    token = _frozen.set(run.resolve())
    try:
        yield
    finally:
        _frozen.reset(token)


def is_frozen(path: Path) -> bool:
    """True if ``frozen`` forbids creating a file or folder now."""
    run, place = _frozen.get(), path.resolve()
    return run is not None and place.is_relative_to(run) and not place.is_relative_to(run / CACHE)


def check_not_frozen(path: Path) -> None:
    """Check that a file or folder may be created now.

    Raises:
        CheckpointError: ``frozen`` forbids it.
    """
    if is_frozen(path):
        raise CheckpointError(
            f"{path} is missing; it was created when the run was trained and cannot be created again; copy the whole "
            "run folder"
        )


@contextlib.contextmanager
def disk_errors(what: Path | str) -> Iterator[None]:
    """Report a failure to write (full disk, no permission) in one sentence.

    Args:
        what: what is being written, such as a file's path.

    Raises:
        UserError: the operating system reports an error, other than that nobody reads a pipe.
    """
    try:
        yield
    except BrokenPipeError:  # the reader of a pipe has closed it
        raise
    except OSError as error:
        advice = ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            advice = "; free some space and run again"
        elif error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            advice = "; another process may have written it; give another name"
        raise UserError(f"cannot write {what}: {error.strerror or error}{advice}") from error


def open_own(path: Path) -> IO[str]:
    """Open a file of a run folder to read it and append to it; it is created if it does not exist.

    In a folder that somebody else made, it could be a symbolic link to a file of the user, which would be changed.

    Args:
        path: the file.

    Returns:
        The open file.

    Raises:
        OSError: it is a symbolic link, or cannot be opened.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
    return open(os.open(path, flags, 0o666), "a+", encoding="utf-8")


LOCK = ".lock"


@contextlib.contextmanager
def run_lock(folder: Path, key: str = "run_dir") -> Iterator[None]:
    """Lock a run folder, or the folder of a job, for this process.

    The operating system releases the lock when the process ends, so the lock file of a killed process does not block a
    new one.

    Args:
        folder: the run folder; created if it does not exist.
        key: the configuration key that names the folder, for the message.

    Raises:
        CheckpointError: another process holds the lock.
        UserError: the folder cannot be written.
    """
    if folder.is_file():
        raise CheckpointError(f"{key}={folder} is a file; give a folder")
    with disk_errors(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        file = open_own(folder / LOCK)
    with file:
        try:
            portalocker.lock(file, portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING)
        except portalocker.LockException:
            raise CheckpointError(
                f"{folder}: in use by another process; wait for it, or choose another {key}"
            ) from None
        yield


def sync(path: Path) -> None:
    """Sync a file, or the entries of a folder, to disk.

    Args:
        path: the file or folder.

    Raises:
        OSError: it cannot be synced.
    """
    if path.is_dir() and os.name == "nt":  # Windows cannot open folders
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file under a temporary name, and rename it.

    Args:
        path: the file; its folder is created if it does not exist.
        content: the file's bytes, or text: UTF-8, in which a byte of a file name that is not UTF-8 becomes ``\\udce9``,
            as JSON writes it.

    Raises:
        UserError: the file cannot be written, or may not be created (see ``frozen``).
    """
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    with new_file(path) as file:
        file.write(data)


@contextlib.contextmanager
def new_file(path: Path, *, exist_ok: bool = True) -> Iterator[IO[bytes]]:
    """Open a file under a temporary name, and rename it when the block ends without an error.

    Args:
        path: the file; its folder is created if it does not exist.
        exist_ok: whether an existing file is replaced; if not, it is an error.

    Yields:
        The temporary file, to write into.

    Raises:
        UserError: the file cannot be created, written or renamed, or may not be created (see ``frozen``).
    """
    check_not_frozen(path)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with disk_errors(path):
            with os.fdopen(descriptor, "wb") as file:  # closing it writes too, and can fail
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o666 & ~_umask())
            if not exist_ok:
                path.touch(exist_ok=False)  # only one of several processes succeeds
            os.replace(name, path)
            sync(path.parent)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def new_folder(folder: Path, *, exist_ok: bool = True) -> Iterator[Path]:
    """Create a folder under a temporary name, and rename it when the block ends without an error::

        with new_folder(run / "tokenizer") as temporary:
            tokenizer.save(temporary)

    If another process creates the folder in the meantime, its folder is kept and this one is deleted.

    Args:
        folder: the folder.
        exist_ok: whether an existing folder is assumed to have the same content, such as in a cache; if not, it is an
            error.

    Yields:
        The temporary folder to write into.

    Raises:
        UserError: the folder cannot be written, or may not be created (see ``frozen``).
    """
    check_not_frozen(folder)
    with disk_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder.parent, folder.name)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".tmp", dir=folder.parent))
        try:
            yield temporary
            os.chmod(temporary, 0o777 & ~_umask())
            try:
                os.rename(temporary, folder)
            except OSError:
                if not (exist_ok and folder.is_dir()):
                    raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def remove_leftovers(folder: Path, name: str = "", seconds: float = LEFTOVER_SECONDS) -> None:
    """Remove the temporary files and folders of processes that were killed.

    These are the temporary files of ``write_atomically`` and ``new_folder``, which are recognized by their names.

    Args:
        folder: the folder to clean; its subfolders are not searched.
        name: final name of the file or folder; empty for all.
        seconds: time since their last change; 0 if this process has locked the folder, so that no other writes there.
    """
    with contextlib.suppress(OSError):  # another process may be doing the same
        for path in list(folder.iterdir()):
            if _TEMPORARY.fullmatch(path.name) and (not name or path.name[1:-13] == name):
                _remove_leftover(path, seconds)


def _remove_leftover(path: Path, seconds: float) -> None:
    with contextlib.suppress(OSError):
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            return
        files = [path, *(path.iterdir() if path.is_dir() else ())]
        if time.time() - max(file.stat().st_mtime for file in files) >= seconds:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def _umask() -> int:
    # mkstemp and mkdtemp make files that only their owner can read; a run's files get the user's usual permissions
    mask = os.umask(0)
    os.umask(mask)
    return mask
