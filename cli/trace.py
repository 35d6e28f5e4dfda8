"""``seqgen-trace``: show a trace as one HTML page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seqgen.cli.command import log, run, with_words
from seqgen.cli.output import check_output
from seqgen.config import option
from seqgen.errors import ConfigError
from seqgen.lab.traces.page import page_of
from seqgen.lab.traces.trace import Trace
from seqgen.system.files import write_atomically

DESCRIPTION = """shows a trace, which seqgen-generate trace=FILE has written, as one HTML page that needs no network:
    seqgen-trace FILE [output=PAGE.html] [title=TEXT]"""


@dataclass
class TracePageConfig:
    """The configuration of ``seqgen-trace``."""

    trace: list[str] = option([], "the trace; trace= may be left out", names="output")
    output: str = option("", "the page; empty for the trace's name with .html", names="output")
    title: str = option("", "title of the page; empty for the trace's name")


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the command."""
    run(TracePageConfig, work, DESCRIPTION, with_words("trace", sys.argv[1:] if argv is None else argv))


def work(cfg: TracePageConfig) -> int:
    """Write the page.

    Args:
        cfg: the whole configuration.

    Returns:
        The exit code.

    Raises:
        UserError: the trace cannot be read, or the page cannot be written.
    """
    if not cfg.trace:
        raise ConfigError("the trace is missing: give seqgen-trace FILE, which seqgen-generate trace=FILE has written")
    if len(cfg.trace) > 1:
        raise ConfigError(f"a page shows one trace, but {' and '.join(cfg.trace)} were given; give one")
    (file,) = cfg.trace
    output = cfg.output or str(Path(file.removesuffix(".gz").removesuffix(".jsonl") + ".html"))
    if output == "-":
        raise ConfigError("output=-: a page is not written to standard output; give output=FILE.html")
    check_output("output", output, file)
    trace = Trace(file)
    if not trace.complete:
        log(f"{file} has only the first {len(trace)} lines of the decode")
    page = page_of(trace, cfg.title).encode("utf-8", "backslashreplace")
    write_atomically(Path(output), page)
    print(f"wrote {output}: {len(trace)} sentences, {len(page) / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    main()
