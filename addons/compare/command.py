"""``seqgen-show``: traces, outputs and training runs as pages, runs as a table, the languages of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seqgen.addons.compare.curves import page_of_runs
from seqgen.addons.compare.review import are_outputs, page_of_outputs
from seqgen.addons.compare.runs import as_dict, find_runs, read_runs, sort_runs, text_table
from seqgen.config import option
from seqgen.extend import (
    ConfigError,
    Tokenizer,
    check_output,
    load_pretrained_tokenizer,
    load_tokenizer,
    local_path,
    log,
    printable,
    run,
    run_folder,
    write_atomically,
    write_report,
)
from seqgen.registry import import_declared

DESCRIPTION = """shows what a file or folder contains: seqgen-show FILE|FOLDER... A trace, which seqgen-generate
trace=FILE has written, and outputs of format=json become one HTML page that needs no network; that of outputs is for
reviewers, who compare the first file with others and references, and edit it. Training runs, and folders with runs,
become a table: scores, speed, and what differs: keys, versions, data; page=FILE.html adds their learning curves.
languages=true lists the language codes of a multilingual model."""


@dataclass
class ShowConfig:
    """The configuration of ``seqgen-show``."""

    path: list[str] = option(
        [], "a trace, outputs, or run folders and folders with runs; path= may be left out", role="output_path"
    )
    page: str = option("", "the HTML page; empty for the file's name with .html, and none of runs", role="output_path")
    reference: list[str] = option(
        [], "of outputs: text files whose words are compared with theirs, such as references", role="input_path"
    )
    sort: str = option("", "of runs: score (the best run first), column or key to sort by; empty for the order given")
    json: str = option("", "of runs: file for JSON; - for standard output, in place of the table", role="output_path")
    languages: bool = option(
        False, "the codes for generation.source_lang and generation.target_lang; only the tokenizer is read"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the command."""
    run(ShowConfig, show, DESCRIPTION, argv, words="path")


def show(cfg: ShowConfig) -> int:
    """Show a trace, runs, or languages.

    Args:
        cfg: the whole configuration.

    Returns:
        The exit code.

    Raises:
        UserError: a file, folder or key cannot be used, or a file cannot be written.
    """
    if cfg.languages:
        _refuse_others(cfg, "languages", ())
        _show_languages(cfg)
    elif cfg.path and all(Path(path).is_file() for path in cfg.path):
        _show_file(cfg)
    else:
        _refuse_others(cfg, "runs", ("page", "sort", "json"))
        _show_runs(cfg)
    return 0


def _refuse_others(cfg: ShowConfig, what: str, keys: Sequence[str]) -> None:
    for key, value in vars(cfg).items():
        if value and key not in ("path", "languages", *keys):
            raise ConfigError(f"{key}={value} has no effect on {what}; remove it")


def _show_file(cfg: ShowConfig) -> None:
    """Write the page of outputs or a trace."""
    file, *others = cfg.path
    outputs = are_outputs(file)
    _refuse_others(cfg, "outputs" if outputs else "a trace", ("page", "reference")[: 1 + outputs])
    output = cfg.page or str(Path(file.removesuffix(".gz")).with_suffix(".html"))
    check_output("page", output, *cfg.path, *cfg.reference)
    if outputs:
        page = page_of_outputs(cfg.path, cfg.reference)
    elif others:
        raise ConfigError(f"a page shows one trace, but {' and '.join(cfg.path)} were given; give one")
    else:
        traces = import_declared("seqgen.addons.traces.page", "the page of a trace")
        trace = traces.Trace(file)
        if not trace.complete:
            log(f"{file} has only the first {len(trace)} lines of the decode")
        page = traces.page_of(trace)
    write_atomically(Path(output), page)
    print(f"wrote {output}: {len(page) / 1e6:.1f} MB")


def _show_runs(cfg: ShowConfig) -> None:
    if cfg.json:
        check_output("json", cfg.json)
    if not cfg.path:
        raise ConfigError("nothing to show: give a trace, run folders, or a folder with runs, as in seqgen-show runs")
    if cfg.page:
        check_output("page", cfg.page, other_outputs=[cfg.json])
    every = read_runs(find_runs(cfg.path))
    begun = [one for one in every if one.updates != 0] or every
    if left_out := ", ".join(str(one.folder) for one in every if one not in begun):
        log(f"left out, because training stopped before the first update: {left_out}")
    runs = sort_runs(begun, cfg.sort)
    for problem in (problem for one in runs for problem in one.problems):
        log(problem)
    if cfg.page:
        write_atomically(Path(cfg.page), page_of_runs(runs, cfg.sort, Path(cfg.page).parent))
    write_report(text_table(runs, cfg.sort), as_dict(runs), cfg.json)


def _show_languages(cfg: ShowConfig) -> None:
    if len(cfg.path) != 1:
        raise ConfigError("languages=true lists the languages of one model: set path=FOLDER")
    languages = _tokenizer(local_path(cfg.path[0])).languages
    if languages is None:
        raise ConfigError(f"path={cfg.path[0]}: the model has no languages to choose from")
    for code in languages.ids:
        print(printable(code))
    if languages.source_lang:
        log(f"generation.source_lang is {languages.source_lang} by default")


def _tokenizer(path: Path) -> Tokenizer:
    """The source tokenizer of a run or of a Hugging Face folder."""
    folder = run_folder(path)
    if folder is None:
        return load_pretrained_tokenizer(path)
    separate = folder / "source_tokenizer"
    return load_tokenizer(separate if separate.is_dir() else folder / "tokenizer")
