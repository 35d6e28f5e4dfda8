"""``seqgen-diff``: the first difference between two decodes of the same input, and its cause."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from seqgen import load_models
from seqgen.addons.traces.difference import (
    Decode,
    Difference,
    InspectedModels,
    LineTrace,
    differing_keys,
    first_difference,
    keys_of_difference,
)
from seqgen.config import (
    INPUT,
    CommonConfig,
    FastConfig,
    GenerationConfig,
    ReadingConfig,
    keys_tagged,
    option,
    value_text,
)
from seqgen.extend import (
    DECODING_COMPONENTS,
    Arguments,
    CheckpointError,
    ConfigError,
    check_plain_text,
    compose_given,
    log,
    nearest,
    printable,
    read_lines,
    run,
    set_up_device,
    stream_lines,
    with_prefixes,
)

DESCRIPTION = """decodes a file twice and names the first line, step and beam at which the decodes differ, and the key,
optimization or model that causes it. The second decode has the models of other=B. KEY=VALUE sets a key for both
decodes, first.KEY=VALUE only for the first, other.KEY=VALUE only for the second. If both have the same models and
settings, the second decode turns all optimizations off (every fast key). Exit code: 0 if the decodes are the same, 1 if
they differ."""

SIDES = ("first", "other")
"""The names of the two decodes; ``NAME.KEY=VALUE`` sets a key for one of them only."""

OF_ONE_SIDE = ("generation", "fast", "reading", *DECODING_COMPONENTS)
"""The groups whose keys can be set for one decode only."""

LINES = 256
"""Number of lines that are decoded and compared at a time if ``generation.buffer_size`` is 0."""


@dataclass
class DiffConfig:
    """The configuration of ``seqgen-diff``."""

    path: list[str] = option(
        [], "model of the first decode, as for seqgen-generate; [A,B] for an ensemble", role="input_path"
    )
    other: list[str] = option([], "model of the other decode; empty for the model of path", role="input_path")
    input: str = option("", "text file to decode; - for standard input", role="input_path")
    prefix: str = option("", "text file whose line n is the forced beginning of output n", role="input_path")
    tolerance: float = option(1e-3, "scores that differ by at most this value count as equal, in nats", minimum=0)
    reading: ReadingConfig = field(default_factory=ReadingConfig)
    common: CommonConfig = field(default_factory=CommonConfig)
    generation: GenerationConfig = field(default_factory=GenerationConfig)
    fast: FastConfig = field(default_factory=FastConfig)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the command."""
    run(DiffConfig, diff, DESCRIPTION, argv, pass_arguments=True, prefixes=SIDES)


def diff(cfg: DiffConfig, arguments: Arguments) -> int:
    """Show how two decodes differ.

    Args:
        cfg: the configuration that both decodes share.
        arguments: its arguments, and those of one decode only.

    Returns:
        The exit code: 0 without a difference, 1 with one.

    Raises:
        UserError: a key, model, file or folder cannot be used, or the decodes cannot be compared.
    """
    if not cfg.path or not cfg.input:
        missing = "input is missing: set input=FILE" if cfg.path else "path is missing: set path=RUN_FOLDER"
        raise ConfigError(
            f"{missing}, and other=RUN_FOLDER or other.KEY=VALUE for the decode to compare it with; seqgen-show "
            "compares two run folders"
        )
    check_plain_text(input=[cfg.input], prefix=[cfg.prefix])
    device = set_up_device(cfg.common)
    sides = [_side([*arguments.overrides, *_of_one_side(side, arguments.prefixed[side])]) for side in SIDES]
    # errors in the files are reported before the models are loaded
    pairs = list(with_prefixes(_read(cfg.input), _read(cfg.prefix) if cfg.prefix else None))
    first, other = _decodes(sides, device)
    if first.models is other.models and first.settings == other.settings:
        log("both decodes have the same models and settings, so the other one is decoded without optimizations")
        switches = {f"fast.{key}": value for key, value in vars(FastConfig.off()).items()}
        other = replace(other, settings=other.models.resolve({**sides[1][1], **switches}))
    size = cfg.generation.buffer_size or LINES
    for start in range(0, len(pairs), size):
        lines = dict(enumerate(pairs[start : start + size], start))
        traces = [decode.models.decode(decode.settings.values, lines) for decode in (first, other)]
        for number in lines:
            one, two = (found[number] for found in traces)
            if difference := first_difference(one, two, cfg.tolerance):
                keys = keys_of_difference(first, other, lines, number, difference, cfg.tolerance)
                print(printable(f"line {number + 1}: {pairs[number][0]}"))
                print(printable(_report((first, other), (one, two), difference, keys, cfg.tolerance)))
                return 1
    equal = "tokens, beams and n-best lists are equal, scores within"
    print(f"no difference in {len(pairs)} lines: {equal} {cfg.tolerance:g} nats")
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
    """The configuration of one decode, and the settings that the user gave."""
    config, given = compose_given(DiffConfig, overrides)
    if "generation.nbest" in given:
        raise ConfigError("generation.nbest has no effect, because whole n-best lists are compared; remove it")
    for key in keys_tagged(INPUT):
        if value := getattr(config.generation, key):
            raise ConfigError(
                f"generation.{key}={value} cannot be compared step by step; give one sentence in each line"
            )
    return config, given


def _read(path: str) -> Iterator[str]:
    if path == "-":
        return stream_lines(sys.stdin.buffer, "standard input")
    return read_lines(Path(path), pipes=True)


def _decodes(sides: Sequence[tuple[DiffConfig, dict[str, Any]]], device: torch.device) -> list[Decode]:
    """Load the models, only once if both decodes have the same ones."""
    (first, _), (other, _) = sides
    models = [InspectedModels(partial(load_models, first.path, device, first.reading, note=log))]
    paths = other.other or first.path
    same = (paths, other.reading) == (first.path, first.reading)
    models.append(models[0] if same else InspectedModels(partial(load_models, paths, device, other.reading, note=log)))
    pairs = zip(models, sides, strict=True)
    decodes = [Decode(loaded, loaded.resolve(given)) for loaded, (_, given) in pairs]
    one, two = (decode.dictionary for decode in decodes)
    if one != two:
        raise CheckpointError(
            f"path and other have different target vocabularies ({len(one)} and {len(two)} tokens), so their steps "
            "cannot be compared; give models with the same target vocabulary"
        )
    return decodes


OUTCOMES = {
    "C": "continues",
    "F": "finished",
    "B": "below the beam",
    "E": "ended, but ranks too low",
    "I": "impossible",
}

TOKENS = 12
"""Maximum number of tokens shown of a candidate: the newest ones."""


def _report(
    decodes: tuple[Decode, Decode],
    traces: tuple[LineTrace, LineTrace],
    found: Difference,
    keys: Sequence[str],
    tolerance: float,
) -> str:
    """The report about a line whose decodes differ: where, both n-best lists, and the cause.

    Args:
        decodes: the two decodes.
        traces: their traces of the line.
        found: the first difference of the line.
        keys: what ``keys_of_difference`` returned.
        tolerance: scores that differ by at most this value count as equal, in nats.
    """
    first, other = decodes
    differing = [_key(key, decodes) for key in differing_keys(first.settings.values, other.settings.values)]
    if first.models is not other.models:
        differing.insert(0, "models")
    parts = [f"different in the two decodes (first | other): {', '.join(differing)}"]
    if found.step is None:
        parts.append(f"all steps agree; the n-best lists differ first at rank {found.rank + 1}: {found.what}")
    else:
        place = f"step {found.step} (after {found.step} tokens), rank {found.rank + 1}"
        parts.append(f"first difference: {place}: {found.what}")
        sides = zip(SIDES, decodes, traces, strict=True)
        parts += [f"{side}: {_candidate(decode, trace, found.step, found.rank)}" for side, decode, trace in sides]
    for side, trace in zip(SIDES, traces, strict=True):
        parts.append(f"{side}: n-best list")
        parts += [f"    {rank:>4} {item.score:>9.4f}  {item.text}" for rank, item in enumerate(trace.hypotheses, 1)]
    if found.size < float("inf"):
        parts.append(f"difference between the scores at this rank: {found.size:.3g} nats")
    if found.tie:
        parts.append(f"it is a tie: the scores are equal within tolerance={tolerance:g}, so rounding decides")
    return "\n".join([*parts, *_cause(decodes, found, keys)])


def _candidate(decode: Decode, trace: LineTrace, step: int, rank: int) -> str:
    """The candidate of a decode at a step and rank: its tokens, score and outcome."""
    if step >= len(trace.steps):
        return "the sentence was done before this step"
    item = trace.steps[step]
    if rank >= len(item.tokens):
        return "no candidate at this rank"
    tokens = " ".join(map(decode.dictionary.symbol, trace.tokens(step, rank)[-TOKENS:]))
    final = f" with {item.finished[rank]:.4f}" if rank in item.finished else ""
    return (
        f"{'... ' if step >= TOKENS else ''}{tokens}  ({item.scores[rank]:.4f}, {OUTCOMES[item.outcomes[rank]]}{final})"
    )


def _cause(decodes: tuple[Decode, Decode], found: Difference, keys: Sequence[str]) -> list[str]:
    if keys:
        values = "values of these keys" if len(keys) > 1 else "value of this key"
        lines = [
            f"cause: {', '.join(_key(key, decodes) for key in keys)}",
            f"  with the other decode's {values}, the first decode agrees with it up to this difference",
        ]
        if all(key.startswith("fast.") for key in keys) and not found.tie:
            lines.append("  an optimization changes rounding only, so it has a bug, unless the dtype is low-precision")
        return lines
    if decodes[0].models is not decodes[1].models:
        return ["cause: the models; with all keys of the other decode, the first models still differ from its models"]
    return ["cause: not found; with all keys equal the decodes still differ, so one of them is not reproducible"]


def _key(key: str, decodes: tuple[Decode, Decode]) -> str:
    """A key with both values, and whether they come from the model."""
    both = [decode.settings for decode in decodes]
    values = (settings.values.get(key) for settings in both)
    one, two = ("not set" if value is None else value_text(value) or '""' for value in values)
    given = not key.startswith("generation.") or any(each.settings.layer_of(key) != "default" for each in both)
    return f"{key} ({one} | {two}{'' if given else ', taken from the model'})"
