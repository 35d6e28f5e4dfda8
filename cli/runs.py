"""``seqgen-runs``: training runs as a table and as a page, and how two runs differ."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from seqgen.cli.command import log, run, with_words
from seqgen.cli.output import check_output, check_report, write_report
from seqgen.config import option
from seqgen.errors import ConfigError
from seqgen.lab.compare.curves import page as page_of, write_png
from seqgen.lab.compare.run import Run, find_runs, read_runs
from seqgen.lab.compare.table import as_dict, sorted_runs, text_difference, text_table
from seqgen.system.files import write_atomically

DESCRIPTION = """shows training runs: scores, speed, what differs in their configurations, and learning curves:
    seqgen-runs FOLDER... [sort=bleu] [page=FILE.html]; a folder may contain runs."""
DIFF = "diff"
DIFF_DESCRIPTION = """shows how two runs differ: keys and where their values come from, versions, data, scores:
    seqgen-runs diff FOLDER FOLDER"""


@dataclass
class DiffRunsConfig:
    """The configuration of ``seqgen-runs diff``."""

    path: list[str] = option([], "the two run folders; path= may be left out")
    json: str = option("", "file for the JSON form; - for standard output, in place of the table", names="output")


@dataclass
class RunsConfig(DiffRunsConfig):
    """The configuration of ``seqgen-runs``."""

    subcommands: ClassVar[Mapping[str, type]] = {DIFF: DiffRunsConfig}

    path: list[str] = option([], "run folders, or folders that contain runs; path= may be left out")
    sort: str = option("", "score (the best run first), column or key to sort by; empty for the order given")
    page: str = option("", "file for an HTML page with the learning curves", names="output")
    png: str = option("", "file for a picture of the learning curves (.png); needs matplotlib", names="output")


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the command."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == [DIFF]:
        run(DiffRunsConfig, diff, DIFF_DESCRIPTION, with_words("path", arguments[1:]), subcommand=DIFF)
    run(RunsConfig, work, DESCRIPTION, with_words("path", arguments))


def work(cfg: RunsConfig) -> int:
    """Show runs.

    Args:
        cfg: the whole configuration.

    Returns:
        The exit code.

    Raises:
        UserError: a folder or key cannot be used, or a file cannot be written.
    """
    if cfg.png and not cfg.png.endswith(".png"):
        raise ConfigError(f"png={cfg.png} must end in .png; give another name")
    if cfg.png:
        check_output("png", cfg.png)
    check_report(cfg.json, cfg.page, other_outputs=[cfg.png])
    runs = sorted_runs(_read(cfg.path), cfg.sort)
    if cfg.page:
        write_atomically(Path(cfg.page), page_of(runs))
    if cfg.png:
        write_png(Path(cfg.png), runs)
    write_report(text_table(runs, cfg.sort), as_dict(runs), cfg.json)
    return 0


def diff(cfg: DiffRunsConfig) -> int:
    """Show how two runs differ.

    Args:
        cfg: the whole configuration.

    Returns:
        The exit code.

    Raises:
        UserError: a folder cannot be used.
    """
    check_report(cfg.json, "")
    runs = _read(cfg.path)
    if len(runs) != 2:
        names = ", ".join(run.name for run in runs)
        raise ConfigError(f"two different runs are needed, but these were given: {names}; give two run folders")
    write_report(text_difference(runs), as_dict(runs), cfg.json)
    return 0


def _read(folders: Sequence[str]) -> list[Run]:
    if not folders:
        raise ConfigError("no folder is given: give run folders, or a folder with runs, such as seqgen-runs runs")
    for name in folders:
        if name in vars(RunsConfig()) and not Path(name).exists():
            raise ConfigError(f"{name} is a key, which needs a value; give {name}=VALUE")
    runs = read_runs(find_runs(folders))
    for problem in (problem for item in runs for problem in item.problems):
        log(problem)
    return runs


if __name__ == "__main__":
    main()
