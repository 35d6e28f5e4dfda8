"""``seqgen-check diff``: where two decodes of the same input differ first, and why."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch

from seqgen.arguments import given_values
from seqgen.checkpoints.loading import load_models
from seqgen.cli.command import log, run, set_up_device
from seqgen.cli.diff_report import Report
from seqgen.compose import compose
from seqgen.config import CommonConfig, DebugConfig, GenerationConfig, ReadingConfig, option
from seqgen.data.text import read_lines, stream_lines
from seqgen.errors import CheckpointError, ConfigError, DataError, nearest
from seqgen.inspection.cause import Decode, Explanation, explain
from seqgen.inspection.decoding import UNOPTIMIZED, InspectedModels, Lines
from seqgen.inspection.difference import Difference, first_difference, nbest_difference
from seqgen.inspection.trace import LineTrace
from seqgen.registry import DECODING_COMPONENTS
from seqgen.text.text_model import TextModel

DESCRIPTION = """decodes input=FILE twice and names the first line, step and beam at which the two decodes differ,
what each had there, and which key, optimization or model causes it. The second decode has the models of other=B, and
the keys that are given as other.KEY=VALUE; first.KEY=VALUE sets a key of the first one alone, and KEY=VALUE sets it for
both. If both have the same models and settings, the second is decoded without optimizations (every debug key off). Exit
code: 0 without a difference, 1 with one."""

SIDES = ("first", "other")
"""The two decodes: what keys begin with that are for one of them."""

OF_ONE_SIDE = ("generation", "debug", "reading", *DECODING_COMPONENTS)
"""The groups of which each decode may have keys of its own."""

LINES = 256
"""Lines that are decoded and compared at a time, where ``generation.buffer_size`` is not set."""


@dataclass
class DiffConfig:
    """Everything that ``seqgen-check diff`` is told."""

    path: list[str] = option([], "model of the first decode: what seqgen-generate takes; [A,B] is an ensemble")
    other: list[str] = option([], "model of the other decode; empty for the same")
    input: str = option("", "text file to decode, - for standard input")
    prefix: str = option("", "text file whose line n is what output n begins with")
    tolerance: float = option(1e-3, "scores that differ by no more are equal, in nats", minimum=0)
    reading: ReadingConfig = field(default_factory=ReadingConfig)
    common: CommonConfig = field(default_factory=CommonConfig)
    generation: GenerationConfig = field(default_factory=GenerationConfig)
    debug: DebugConfig = field(default_factory=DebugConfig)


def main(argv: Sequence[str]) -> NoReturn:
    """Entry point of the sub-command.

    Args:
        argv: the arguments after its name.
    """
    shared = [argument for argument in argv if argument.partition(".")[0] not in SIDES]
    own = {side: [a.removeprefix(f"{side}.") for a in argv if a.startswith(f"{side}.")] for side in SIDES}
    overrides = [argument for argument in shared if "=" in argument]
    run(DiffConfig, lambda cfg: diff(cfg, overrides, own), DESCRIPTION, shared, subcommand="diff")


def diff(cfg: DiffConfig, shared: Sequence[str], own: dict[str, list[str]]) -> int:
    """Compare two decodes.

    Args:
        cfg: the configuration without the keys of one side.
        shared: its ``key=value`` arguments.
        own: those of each side.

    Returns:
        The exit code: 0 without a difference, 1 with one.
    """
    if not cfg.path or not cfg.input:
        missing = "input is missing: give input=FILE" if cfg.path else "path is missing: give path=RUN_FOLDER"
        raise ConfigError(f"{missing}, and other=RUN_FOLDER or other.KEY=VALUE for what is to be compared with it")
    device = set_up_device(cfg.common)
    sides = [_side(cfg, [*shared, *_of_one_side(side, own[side])]) for side in SIDES]
    first, other = _decodes(sides, device)
    _check_vocabularies(first, other)
    if first.models is other.models and not first.settings.differing(other.settings):
        log("both decodes have the same models and settings: the other one is decoded without optimizations")
        other = replace(other, settings=other.models.resolve(sides[1].given, UNOPTIMIZED))
    report, count = Report(first, other, [side.given for side in sides], cfg.tolerance), 0
    for lines in _chunks(cfg):
        if found := _first_in(first, other, lines, cfg.tolerance):
            print(report.text(lines, *found))
            return 1
        count += len(lines.texts)
    print(f"no difference in {count} lines: tokens, beams and n-best lists are equal, scores within {cfg.tolerance:g}")
    return 0


@dataclass(frozen=True)
class _Side:
    """One decode as the user describes it."""

    config: DiffConfig
    paths: list[str]
    given: dict[str, Any]


def _of_one_side(side: str, arguments: Sequence[str]) -> Sequence[str]:
    for argument in arguments:
        group = argument.partition("=")[0].partition(".")[0]
        if group not in OF_ONE_SIDE:
            raise ConfigError(
                f"{side}.{argument}: a decode can have keys of its own of: {', '.join(OF_ONE_SIDE)}"
                f"{nearest(group, OF_ONE_SIDE)}"
            )
    return arguments


def _side(cfg: DiffConfig, overrides: list[str]) -> _Side:
    config = compose(DiffConfig, overrides)
    given = given_values(config, "generation", overrides)
    if "nbest" in given:
        raise ConfigError("generation.nbest has no effect, since whole n-best lists are compared; leave it out")
    return _Side(config, cfg.path, given)


def _decodes(sides: Sequence[_Side], device: torch.device) -> list[Decode]:
    """Load the models, once where both decodes have the same."""
    first, other = sides[0], replace(sides[1], paths=sides[1].config.other or sides[1].paths)
    models: list[InspectedModels] = []
    for side in (first, other):
        same = models and (side.paths, side.config.reading) == (first.paths, first.config.reading)
        models.append(models[0] if same else InspectedModels(partial(_load, side, device)))
    return [
        Decode(own, own.resolve(side.given, side.config.debug))
        for own, side in zip(models, (first, other), strict=True)
    ]


def _load(side: _Side, device: torch.device) -> Sequence[TextModel]:
    loaded = load_models(side.paths, device, side.config.reading)
    for note in (note for item in loaded for note in item.notes):
        log(note)
    return loaded


def _check_vocabularies(first: Decode, other: Decode) -> None:
    one, two = (decode.dictionary for decode in (first, other))
    if one != two:
        raise CheckpointError(
            f"path and other write different target vocabularies ({len(one)} and {len(two)} tokens), so that their "
            "steps cannot be compared; give models that were trained with the same one"
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
    """The first line that differs, its first difference, and what explains it.

    Where continuous batching changes a decode, which observers cannot follow, the explanation is that decode's trace.
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
