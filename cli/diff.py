"""``seqgen-diff``: how two runs differ; the first difference between two decodes of the same input, and its cause."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from seqgen.checkpoints.loading import load_models
from seqgen.cli.command import Arguments, log, run, set_up_device
from seqgen.cli.output import check_report, write_report
from seqgen.cli.show import runs_of
from seqgen.config import CommonConfig, DebugConfig, GenerationConfig, ReadingConfig, option
from seqgen.config.compose import compose
from seqgen.config.values import given_settings, split_argument
from seqgen.data.text import count_lines, is_pipe, read_lines, stream_lines
from seqgen.errors import CheckpointError, ConfigError, DataError, nearest, printable
from seqgen.lab.compare.runs import as_dict, text_difference
from seqgen.lab.traces.difference import (
    Decode,
    Difference,
    Explanation,
    InspectedModels,
    Lines,
    LineTrace,
    differing_keys,
    explain,
    first_difference,
    nbest_difference,
)
from seqgen.lab.traces.report import Report
from seqgen.registry import DECODING_COMPONENTS
from seqgen.text.languages import TextModel

DESCRIPTION = """shows how two runs differ: seqgen-diff RUN RUN prints keys and where their values come from, versions,
data, scores. With input=FILE it decodes the file twice and names the first line, step and beam at which the decodes
differ, the candidates of both there, and the key, optimization or model that causes it. The second decode has the
models of other=B. KEY=VALUE sets a key for both decodes, first.KEY=VALUE only for the first, other.KEY=VALUE only for
the second. If both have the same models and settings, the second decode turns all optimizations off (every debug key).
Exit code: 0 if the runs were shown or the decodes are the same, 1 if they differ."""

SIDES = ("first", "other")
"""The names of the two decodes; ``NAME.KEY=VALUE`` sets a key for one of them only."""

OF_ONE_SIDE = ("generation", "debug", "reading", *DECODING_COMPONENTS)
"""The groups whose keys can be set for one decode only."""

LINES = 256
"""Number of lines that are decoded and compared at a time if ``generation.buffer_size`` is 0."""


@dataclass
class DiffConfig:
    """The configuration of ``seqgen-diff``."""

    runs: list[str] = option([], "two run folders to compare; runs= may be left out")
    json: str = option("", "of two runs: file for the JSON form; - for standard output, not the table", names="output")

    path: list[str] = option([], "model of the first decode, as for seqgen-generate; [A,B] for an ensemble")
    other: list[str] = option([], "model of the other decode; empty for the model of path")
    input: str = option("", "text file to decode; - for standard input")
    prefix: str = option("", "text file whose line n is the forced beginning of output n")
    tolerance: float = option(1e-3, "scores that differ by at most this value count as equal, in nats", minimum=0)
    reading: ReadingConfig = field(default_factory=ReadingConfig)
    common: CommonConfig = field(default_factory=CommonConfig)
    generation: GenerationConfig = field(default_factory=GenerationConfig)
    debug: DebugConfig = field(default_factory=DebugConfig)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the command."""

    def work(cfg: DiffConfig, arguments: Arguments) -> int:
        prefixed = arguments.prefixed
        if cfg.runs:
            return diff_runs(
                cfg, [*arguments.overrides, *(f"{side}.{key}" for side in SIDES for key in prefixed[side])]
            )
        return diff_decodes(cfg, arguments.overrides, prefixed)

    run(DiffConfig, work, DESCRIPTION, argv, pass_arguments=True, words="runs", prefixes=SIDES)


def diff_runs(cfg: DiffConfig, arguments: Sequence[str]) -> int:
    """Show how two runs differ.

    Args:
        cfg: the whole configuration.
        arguments: all ``key=value`` arguments.

    Returns:
        The exit code.

    Raises:
        UserError: a folder or key cannot be used.
    """
    for key in (split_argument(argument)[0] for argument in arguments):
        if key not in ("runs", "json") and not key.startswith("common."):
            raise ConfigError(
                f"{cfg.runs[0]} is a run to compare with another, but {key} is a key of two decodes; give two run "
                "folders, or path=RUN other=RUN input=FILE"
            )
    check_report(cfg.json, "")
    runs = runs_of(cfg.runs, vars(cfg))
    if len(runs) != 2:
        names = ", ".join(run.name for run in runs)
        raise ConfigError(f"two different runs are needed, but these were given: {names}; give two run folders")
    write_report(text_difference(runs), as_dict(runs), cfg.json)
    return 0


def diff_decodes(cfg: DiffConfig, shared: Sequence[str], prefixed: dict[str, list[str]]) -> int:
    """Compare two decodes.

    Args:
        cfg: the configuration that both decodes share.
        shared: the ``key=value`` arguments for both decodes.
        prefixed: the ``key=value`` arguments for one decode only, by the decode's name.

    Returns:
        The exit code: 0 without a difference, 1 with one.

    Raises:
        UserError: a key, model or file cannot be used, or the decodes cannot be compared.
    """
    if cfg.json:
        raise ConfigError(f"json={cfg.json} has no effect on two decodes; leave it out")
    if not cfg.path or not cfg.input:
        missing = "input is missing: give input=FILE" if cfg.path else "path is missing: give path=RUN_FOLDER"
        raise ConfigError(
            f"{missing}, and other=RUN_FOLDER or other.KEY=VALUE for the decode to "
            "compare it with; or give two run folders"
        )
    device = set_up_device(cfg.common)
    sides = [_side([*shared, *_of_one_side(side, prefixed[side])]) for side in SIDES]
    for path in (cfg.input, cfg.prefix):
        if path not in ("", "-") and not is_pipe(Path(path)):
            count_lines(Path(path))  # errors in it are reported before the models are loaded
    first, other = _decodes(sides, device)
    _check_vocabularies(first, other)
    if first.models is other.models and not differing_keys(first.settings, other.settings):
        log("both decodes have the same models and settings, so the other one is decoded without optimizations")
        other = replace(other, settings=other.models.resolve(other.given, DebugConfig.off()))
    report, count = Report(first, other, cfg.tolerance), 0
    for lines in _chunks(cfg):
        if found := _first_in(first, other, lines, cfg.tolerance):
            print(printable(report.text(lines, *found)))
            return 1
        count += len(lines.texts)
    equal = "tokens, beams and n-best lists are equal, scores within"
    print(f"no difference in {count} lines: {equal} {cfg.tolerance:g} nats")
    return 0


def _of_one_side(side: str, arguments: Sequence[str]) -> Sequence[str]:
    for argument in arguments:
        group = argument.partition("=")[0].partition(".")[0]
        if group not in OF_ONE_SIDE:
            raise ConfigError(
                f"{side}.{argument}: only keys of these groups can be set for one decode: {', '.join(OF_ONE_SIDE)}"
                f"{nearest(group, OF_ONE_SIDE)}"
            )
    return arguments


def _side(overrides: list[str]) -> tuple[DiffConfig, dict[str, Any]]:
    """The configuration of one decode, and the ``generation`` keys that the user gave."""
    config = compose(DiffConfig, overrides)
    given = given_settings(config, overrides)
    if "nbest" in given:
        raise ConfigError("generation.nbest has no effect, because whole n-best lists are compared; leave it out")
    if config.generation.input_split == "sentences":
        raise ConfigError(
            "generation.input_split=sentences cannot be compared step by step; give one sentence in each line"
        )
    return config, given


def _decodes(sides: Sequence[tuple[DiffConfig, dict[str, Any]]], device: torch.device) -> list[Decode]:
    """Load the models, only once if both decodes have the same ones."""
    (first, _), (other, _) = sides
    models = [InspectedModels(partial(_load, first.path, first.reading, device))]
    paths = other.other or first.path
    same = (paths, other.reading) == (first.path, first.reading)
    models.append(models[0] if same else InspectedModels(partial(_load, paths, other.reading, device)))
    pairs = zip(models, sides, strict=True)
    return [Decode(loaded, loaded.resolve(given, config.debug), given) for loaded, (config, given) in pairs]


def _load(paths: Sequence[str], reading: ReadingConfig, device: torch.device) -> Sequence[TextModel]:
    loaded = load_models(paths, device, reading)
    for note in (note for item in loaded for note in item.notes):
        log(note)
    return loaded


def _check_vocabularies(first: Decode, other: Decode) -> None:
    one, two = (decode.dictionary for decode in (first, other))
    if one != two:
        raise CheckpointError(
            f"path and other have different target vocabularies ({len(one)} and {len(two)} tokens), so their steps "
            "cannot be compared; give models with the same target vocabulary"
        )


def _chunks(cfg: DiffConfig) -> Iterator[Lines]:
    texts = stream_lines(sys.stdin.buffer, "standard input") if cfg.input == "-" else _read(cfg.input)
    prefixes = _read(cfg.prefix) if cfg.prefix else None
    size, first = cfg.generation.buffer_size or LINES, 0
    while chunk := list(itertools.islice(texts, size)):
        beginnings = None if prefixes is None else list(itertools.islice(prefixes, len(chunk)))
        if beginnings is not None and len(beginnings) < len(chunk):
            raise DataError(f"prefix={cfg.prefix} has fewer lines than input={cfg.input}; give one for each line")
        yield Lines(first, chunk, beginnings)
        first += len(chunk)
    if prefixes is not None and next(prefixes, None) is not None:
        raise DataError(f"prefix={cfg.prefix} has more lines than input={cfg.input}; give one for each line")


def _read(path: str) -> Iterator[str]:
    return read_lines(Path(path), pipes=True)


def _first_in(
    first: Decode, other: Decode, lines: Lines, tolerance: float
) -> tuple[int, Difference, Explanation | LineTrace] | None:
    """Find the first line whose decodes differ.

    Returns:
        The line's number, its first difference, and the explanation; ``None`` if no line differs. If continuous
        batching changes the result of a decode, the explanation is that decode's trace, because observers are not
        called with continuous batching.
    """
    traces = [decode.models.decode(decode.settings, lines) for decode in (first, other)]
    for line in traces[0]:
        one, two = (found[line] for found in traces)
        if difference := first_difference(one, two, tolerance):
            return line, difference, explain(first, other, lines, line, difference, tolerance)
        for trace in (one, two):
            if trace.joined is not None and (found := nbest_difference(trace.hypotheses, trace.joined, tolerance)):
                return line, found, trace
    return None


if __name__ == "__main__":
    main()
