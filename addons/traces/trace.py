"""Reads a trace."""

from __future__ import annotations

import gzip
import json
import os
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from seqgen.addons.traces.records import FORMAT, VERSION, Damaged, SentenceTrace, TraceHeader, read
from seqgen.extend import ConfigError, DataError, open_regular, parse_json

MAX_BYTES = 1 << 28
"""Maximum bytes of a line."""

_RATIO, _SMALL = 100, 1 << 22
"""Maximum ratio of the unpacked to the packed size of a ``.gz`` trace larger than the second number of bytes; real
ones have ratios of 5 to 20."""


@dataclass(frozen=True)
class _End:
    """The last line of a trace: the number of sentences, and whether all lines of the decode were traced."""

    sentences: int
    complete: bool


class Trace:
    """A trace that ``seqgen-generate trace=FILE`` has written::

        trace = seqgen.Trace("trace.jsonl.gz")
        trace[0].hypotheses[0].text

    Args:
        path: the file.

    Attributes:
        header: the settings of the decode.
        sentences: the traced lines, in their order.
        complete: whether all lines were traced; otherwise ``trace_options.sentences`` or ``max_megabytes`` ended the
            trace.

    Raises:
        DataError: the file cannot be read, is no trace, is damaged, or has another version.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._by_id: dict[int, SentenceTrace] = {}
        self._number = 0  # of the line that is read, from 0
        end: _End | None = None
        try:
            records = self._records()
            self.header = self._header(next(records, None))
            for record in records:
                if end is not None:
                    raise Damaged("it continues after its end")
                if isinstance(record, dict) and "end" in record:
                    end = read(_End, record, "the last line")
                    continue
                sentence = SentenceTrace.of(record, self.header.beam, self.header.members)
                if sentence.id in self._by_id:
                    raise Damaged(f"it repeats sentence {sentence.id}")
                self._by_id[sentence.id] = sentence
            if end is not None and end.sentences != len(self._by_id):
                self._number -= 1
                raise Damaged(f"it has {len(self._by_id)} of {end.sentences} sentences")
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise self._damaged("it is not a whole gzip file") from None
        except OSError as error:
            raise DataError(f"the trace {self.path} cannot be read: {error.strerror or error}") from None
        except (json.JSONDecodeError, UnicodeDecodeError):
            raise self._damaged("it is not JSON") from None
        except (ValueError, ConfigError) as error:
            raise self._damaged(str(error)) from None
        if end is None:
            raise DataError(
                f"the trace {self.path} is incomplete: the decode that wrote it was interrupted; run it again"
            )
        self.sentences, self.complete = list(self._by_id.values()), end.complete

    def __len__(self) -> int:
        return len(self.sentences)

    def __iter__(self) -> Iterator[SentenceTrace]:
        return iter(self.sentences)

    def __getitem__(self, line: int) -> SentenceTrace:
        """The trace of a line, by its number from 0.

        Raises:
            KeyError: the line was not traced.
        """
        return self._by_id[line]

    def _records(self) -> Iterator[Any]:
        """The JSON value of each line."""
        with open_regular(self.path) as raw:
            compressed = raw.peek(2)[:2] == b"\x1f\x8b"
            limit = max(_SMALL, _RATIO * os.fstat(raw.fileno()).st_size) if compressed else sys.maxsize
            file: IO[bytes] = gzip.GzipFile(fileobj=raw) if compressed else raw  # type: ignore[assignment]
            while line := file.readline(min(MAX_BYTES, limit) + 1):
                if file.tell() > limit:
                    raise DataError(
                        f"the trace {self.path} unpacks to more than {limit} bytes, far more than its own; unpack it "
                        "with gunzip if you trust it"
                    )
                if len(line) > MAX_BYTES:
                    raise Damaged(f"it has more than {MAX_BYTES} bytes")
                yield parse_json(line)
                self._number += 1

    def _header(self, first: Any) -> TraceHeader:
        """The first line, if it is that of a trace of this version."""
        if not isinstance(first, dict) or first.get("format") != FORMAT:
            raise Damaged(f"its first line does not name the format {FORMAT}")
        if not isinstance(version := first.get("version"), int):
            raise Damaged("its first line has no version")
        if version != VERSION:
            raise DataError(
                f"{self.path} is a trace of version {version}; this seqgen reads version {VERSION}; decode again, or "
                "use a newer seqgen"
            )
        return TraceHeader.of(first)

    def _damaged(self, why: str) -> DataError:
        if self._number == 0:
            return DataError(f"{self.path} is not a trace of seqgen-generate: {why}; write one with trace=FILE")
        return DataError(f"the trace {self.path} is damaged in line {self._number + 1}: {why}; write it again")
