"""Runs one case and finds what must not happen: other exceptions, hangs, memory, files outside the folder, code."""

import contextlib
import os
import re
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from seqgen.core.errors import ResourceError, UserError

SECONDS = 20.0
"""Time limit of a case; most cases take milliseconds, but the machine may be busy."""
MEMORY = 1 << 30
"""Bytes that a case may allocate beyond what the process has."""
LONGEST_MESSAGE = 3000

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PATHS = {  # audit events that change files, with the number of their arguments that are paths
    **dict.fromkeys([f"os.{name}" for name in ("mkdir", "rmdir", "remove", "truncate", "chmod", "chown", "utime")], 1),
    **dict.fromkeys([f"os.{name}" for name in ("rename", "link", "symlink")], 2),
    "shutil.rmtree": 1,
}
_COMMANDS = frozenset(
    """
    subprocess.Popen os.system os.exec os.posix_spawn os.spawn os.fork os.forkpty pty.spawn socket.connect
    socket.getaddrinfo socket.gethostbyname urllib.Request webbrowser.open pickle.find_class
    """.split()  # noqa: SIM905
)
"""Audit events of other programs, the network and pickles that import something."""
_NO_MEMORY = re.compile(r"bad_alloc|can't allocate memory|not enough memory|[Cc]annot allocate memory")


class Failure(Exception):
    """What a case did although no case may do it.

    Attributes:
        kind: ``traceback``, ``hang``, ``memory``, ``file``, ``code``, ``message`` or ``wrong``.
    """

    def __init__(self, kind: str, what: str):
        super().__init__(f"{kind}: {what}")
        self.kind = kind


class Wrong(Exception):
    """A case was read, but the result is not the right one."""


class Hang(BaseException):
    """A case took too long; not an ``Exception``, which a reader might turn into a user error."""


class _Audit:
    """Collects what Python reports to audit hooks while a case runs. A hook cannot be removed, so there is one."""

    def __init__(self) -> None:
        self.root: Path | None = None
        self.allowed = ""
        self.found: list[tuple[str, str]] = []
        self.installed = False

    @contextlib.contextmanager
    def watching(self, root: Path, folder: Path) -> Iterator[None]:
        if not self.installed:
            sys.addaudithook(self)
            self.installed = True
        self.found, self.allowed, self.root = [], f"{folder}{os.sep}", root
        try:
            yield
        finally:
            self.root = None

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if self.root is None:
            return
        if event == "open":
            if isinstance(args[2], int) and args[2] & _WRITING:
                self._written(event, args[0], follows=not args[2] & os.O_NOFOLLOW)
        elif event in _PATHS:
            for path in args[: _PATHS[event]]:
                self._written(event, path, follows=False)
        elif event in _COMMANDS:
            self.found.append(("code", f"{event} {str(args)[:300]}"))
        elif event in ("exec", "compile"):
            file = getattr(args[0], "co_filename", None) if event == "exec" else args[1]
            if isinstance(file, str | bytes) and str(self.root) in os.fsdecode(file):
                self.found.append(("code", f"{event} of {os.fsdecode(file)}"))

    def _written(self, event: str, path: Any, follows: bool) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return  # an open file
        name = os.fsdecode(path)
        if not os.path.isabs(name) and event.startswith("os."):
            return  # relative to an open folder, which shutil.rmtree empties; that has an event of its own
        where = os.path.realpath(name if follows else os.path.dirname(name))
        where = where if follows else os.path.join(where, os.path.basename(name))
        if not f"{where}{os.sep}".startswith(self.allowed) and "__pycache__" not in where and where != os.devnull:
            self.found.append(("file", f"{event} {where}"))


_AUDIT = _Audit()


class Sandbox:
    """A folder for the input of a case, in a folder where nothing else may change.

    Args:
        root: where to make them; an empty folder.

    Attributes:
        folder: the folder of the case. It may be changed.
        canary: a file that malicious inputs try to create.
    """

    def __init__(self, root: Path):
        self.root = root.resolve()
        self.folder = self.root / "case"
        self.folder.mkdir(parents=True)
        self.canary = self.root / "canary"
        self._before = self._outside()

    def _outside(self) -> list[str]:
        """What lies around the folder of the case; native code does not report what it writes."""
        return sorted(os.listdir(self.root))

    def run(self, work: Callable[[], Any], seconds: float = SECONDS, memory: int = MEMORY) -> str | None:
        """Run a case.

        Args:
            work: reads the case, and raises ``Wrong`` if the result is not right.
            seconds: time limit.
            memory: limit of the bytes that it allocates.

        Returns:
            The sentence with which the input was refused; ``None`` if it was read correctly.

        Raises:
            Failure: it did something that no case may do.
        """
        error: BaseException | None = None
        with _AUDIT.watching(self.root, self.folder), _limited_memory(memory), _alarm(seconds) as hung:
            try:
                work()
            except KeyboardInterrupt:
                raise
            except BaseException as raised:  # panics of Rust are no Exception
                error = raised
        found = [*_AUDIT.found]
        if self._outside() != self._before:
            found.append(("file", f"there are new files: {self._outside()}"))
        if self.canary.exists():
            found.append(("code", "the canary file was created"))
            self.canary.unlink()
        if hung:
            raise Failure("hang", f"it took longer than {seconds} s: {error!r}")
        for kind, what in sorted(found):
            raise Failure(kind, what)
        if error is None:
            return None
        try:
            return _refusal(error)
        finally:
            del error  # its traceback refers to this frame


def _refusal(error: BaseException) -> str:
    """The message of an error as the commands print it, if it is a good one."""
    if isinstance(error, Failure):
        raise error
    if isinstance(error, Wrong):
        raise Failure("wrong", str(error))
    if isinstance(error, ResourceError) or _ran_out_of_memory(error):
        raise Failure("memory", repr(error)[:500])
    if isinstance(error, UserError):
        message = str(error)
    elif isinstance(error, OSError) and error.errno is not None:  # seqgen.cli.command prints a sentence for them
        message = f"cannot read or write {error.filename}: {error.strerror}"
    else:
        raise Failure("traceback", "".join(traceback.format_exception(error, limit=-12))[-4000:])
    if not message.strip() or len(message) > LONGEST_MESSAGE or "Traceback" in message:
        raise Failure("message", f"{len(message)} characters: {message[:500]!r}")
    return message


def _ran_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error comes from an allocation that failed, even if a reader has made it a user error."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error))):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[list[float]]:
    """Interrupt a block that takes too long, again and again if it continues. Yields the times of interruption."""
    hung: list[float] = []
    start = time.monotonic()

    def interrupt(*_: Any) -> None:
        hung.append(time.monotonic() - start)
        raise Hang(f"after {hung[0]:.1f} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield hung
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _limited_memory(memory: int) -> Iterator[None]:
    """Limit the address space of the process; a larger allocation then fails at once."""
    status = Path("/proc/self/statm")
    if not status.exists():  # not Linux
        yield
        return
    size = int(status.read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + memory, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
