"""Programs of the user that score texts in other environments: in batches, with time-outs and restarts."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from shlex import quote
from tempfile import NamedTemporaryFile
from typing import Any

import numpy

import seqgen.extend as api
from seqgen.addons.programs import server

TRIES = 4
"""Times in a row that rows are sent without an answer before the client gives up: twice, then half, and half of it."""


@dataclass(eq=False)
class Program:
    """A program that scores texts, in a process of its own and by the Python of any environment.

    It is a file with a function ``score(rows)``, which receives a list of dicts with the keys ``source``, ``text`` and,
    if there is one, ``reference``, and returns a number for each. The process starts when the first rows are sent, and
    ends with this one; a process that forks starts its own.

    Attributes:
        file: the program.
        python: runs it, 3.8 or later; by default this Python.
        arguments: the arguments of the program, its ``sys.argv[1:]``.
        batch: largest number of rows that are sent at a time; the next ones are sent when these are answered.
        timeout: seconds in which the program must be loaded, and each batch answered.

    Raises:
        ConfigError: a number is not positive, or the package execnet is not installed.
    """

    file: str | os.PathLike[str]
    python: str | os.PathLike[str] = sys.executable
    arguments: Sequence[str] = ()
    batch: int = 64
    timeout: float = 600.0

    def __post_init__(self) -> None:
        if not find_spec("execnet"):
            raise api.ConfigError("a program in another environment needs a package: pip install execnet")
        if not (self.batch > 0 and self.timeout > 0):
            raise api.ConfigError(f"{self.file}: batch={self.batch} and timeout={self.timeout:g} must be positive")
        self._channels = dict[int, Any]()  # by process: a fork cannot use that of its parent

    def values(self, rows: Sequence[tuple[str, ...]]) -> list[float]:
        """Score texts.

        Args:
            rows: source, text and, if there is one, reference.

        Returns:
            The value of each.

        Raises:
            ResourceError: ``TRIES`` times in a row, the program cannot be started, ends, does not answer, or does not
                return a finite number for each row.
        """
        found: list[float] = []
        size, failures = self.batch, 0
        while part := rows[len(found) : len(found) + size]:
            try:
                found, failures = found + self._answer(part), 0
            except Exception as error:
                failures += 1
                size = max(1, len(part) // min(failures, 2))
                if failures == TRIES:
                    raise self._failure(error) from None
        return found

    def _answer(self, rows: Sequence[tuple[str, ...]]) -> list[float]:
        """Send rows to the process, which is started if there is none, and ended if it does not answer."""
        channel = self._channels.pop(os.getpid(), None)
        try:
            channel = channel or self._start()
            self._errors.truncate(0)
            channel.send(rows)
            answer: list[float] = channel.receive(self.timeout)
        except BaseException:  # also if this process is interrupted: the answer would be taken for that of other rows
            self._group.terminate(1)
            raise
        self._channels[os.getpid()] = channel
        return answer

    def _start(self) -> Any:
        import execnet

        self._group, python = execnet.Group(), quote(os.path.normpath(self.python))
        with NamedTemporaryFile() as file:
            self._errors = open(file.name, "r+", errors="replace")  # noqa: SIM115  # as long as the process
            channel = self._group.makegateway(f"popen//python={python}").remote_exec(server)
            channel.send([file.name, *map(str, [self.file, *self.arguments])])
            channel.receive(self.timeout)
        return channel

    def _failure(self, error: Exception) -> api.ResourceError:
        self._errors.seek(0)
        lines = self._errors.read() if isinstance(error, EOFError) else str(error).replace("no item", "no answer")
        said = api.printable(lines.strip().rpartition("\n")[2])[-300:] or "it ends without a message"
        failed = f"the program {self.file}, run by {self.python}, fails {TRIES} times in a row: {said}; correct it, its"
        return api.ResourceError(f"{failed} Python (3.8 or later), batch or timeout; what is written so far is kept")


class _ProgramUtility(api.Utility):
    program: Program

    def of_lines(self, lines: Sequence[api.UtilityLine]) -> list[api.Matrix]:
        """See ``Utility``."""
        rows = [row for line in lines for row in product([line.source], line.texts, line.references)]
        values, sizes = iter(self.program.values(rows)), [(len(line.texts), len(line.references)) for line in lines]
        return [numpy.fromiter(values, numpy.float64, n * m).reshape(n, m) for n, m in sizes]


class _ProgramReranker(api.Reranker):
    program: Program

    def of_lines(self, lines: Sequence[api.DecodedLine]) -> list[Sequence[float]]:
        """See ``Reranker``."""
        rows = [(line.member_sources[0], one.text) for line, found in lines for one in found]
        values = iter(self.program.values(rows))
        return [[next(values) for _ in found] for _, found in lines]


def register_program(name: str, program: Program) -> None:
    """Give a program a name in ``generation.mbr``, ``criterion.decode.mbr``, ``generation.rerank`` and ``metrics``.

    Args:
        name: the name. A metric that has it is replaced.
        program: the program. As a reranker it gets no references; otherwise its values are utilities, from 0 to 100.

    Raises:
        ConfigError: there is a utility or a reranker of this name.
    """
    own = {"program": program, "__module__": sys._getframe(1).f_globals["__name__"]}  # the user's, which runs record
    utility = api.register_utility(name)(type(name, (_ProgramUtility,), own))
    api.register_reranker(name)(type(name, (_ProgramReranker,), own))

    @api.register_metric(name, f"mean of sentences and references, by {program.file}", needs_sources=True, settings=())
    def metric(texts: api.Texts) -> api.TextScore:
        given = zip(texts.sources, texts.hypotheses, texts.references_of_sentences(), strict=True)
        found = utility().of_lines([api.UtilityLine(source, [text], wanted) for source, text, wanted in given])
        means = tuple(float(one.mean()) for one in found)
        return api.TextScore(sum(means) / len(means), f"program:{program.file}", means)
