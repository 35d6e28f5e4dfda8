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
from seqgen.config.settings import given_settings
from seqgen.config.values import split_argument, value_text
from seqgen.data.text import count_lines, is_pipe, read_lines, stream_lines
from seqgen.errors import CheckpointError, ConfigError, DataError, nearest, printable
from seqgen.lab.compare.runs import as_dict, text_difference
from seqgen.lab.traces.difference import (
    HYPOTHESIS_SCORE,
    SCORE,
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
from seqgen.registry import DECODING_COMPONENTS
from seqgen.text.languages import TextModel
from seqgen.text.results import TextHypothesis

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

    runs: list[str] = option([], "two run folders to compare; runs= may be left out", role="input_path")
    json: str = option(
        "", "of two runs: file for the JSON form; - for standard output, not the table", role="output_path"
    )

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
    if first.models is other.models and first.settings == other.settings:
        log("both decodes have the same models and settings, so the other one is decoded without optimizations")
        switches = {f"debug.{key}": value for key, value in vars(DebugConfig.off()).items()}
        other = replace(other, settings=other.models.resolve({**sides[1][1], **switches}))
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
    """The configuration of one decode, and the settings that the user gave."""
    config = compose(DiffConfig, overrides)
    given = given_settings(config, overrides)
    if "generation.nbest" in given:
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
    decodes = [Decode(loaded, loaded.resolve(given)) for loaded, (_, given) in pairs]
    one, two = (decode.dictionary for decode in decodes)
    if one != two:
        raise CheckpointError(
            f"path and other have different target vocabularies ({len(one)} and {len(two)} tokens), so their steps "
            "cannot be compared; give models with the same target vocabulary"
        )
    return decodes


def _load(paths: Sequence[str], reading: ReadingConfig, device: torch.device) -> Sequence[TextModel]:
    loaded = load_models(paths, device, reading)
    for note in (note for item in loaded for note in item.notes):
        log(note)
    return loaded


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
    traces = [decode.models.decode(decode.settings.values, lines) for decode in (first, other)]
    for line in traces[0]:
        one, two = (found[line] for found in traces)
        if difference := first_difference(one, two, tolerance):
            return line, difference, explain(first, other, lines, line, difference, tolerance)
        for trace in (one, two):
            if trace.joined is not None and (found := nbest_difference(trace.hypotheses, trace.joined, tolerance)):
                return line, found, trace
    return None


OUTCOMES = {"C": "continues", "F": "finished", "B": "below the beam", "E": "ended, but ranks too low"}
ROWS = 10
"""Maximum number of candidates shown per step, if the difference is among them."""

TOKENS = 12
"""Maximum number of tokens shown per candidate: the newest ones."""


class Report:
    """Describes differences between two decodes.

    Args:
        first: the first decode.
        other: the other decode.
        tolerance: scores that differ by at most this value count as equal, in nats.
    """

    def __init__(self, first: Decode, other: Decode, tolerance: float):
        self.decodes, self.tolerance = {"first": first, "other": other}, tolerance
        self.dictionary = first.dictionary

    def text(self, lines: Lines, line: int, difference: Difference, why: Explanation | LineTrace) -> str:
        """The whole report about a line.

        Args:
            lines: the lines that were decoded together.
            line: number of the line that differs, from 0.
            difference: its first difference.
            why: the explanation; a trace if continuous batching changes the result of that decode.

        Returns:
            The report, without a newline at the end.
        """
        parts = [f"line {line + 1}: {lines.texts[line - lines.first]}"]
        first, other = self.decodes.values()
        differing = [self._key(key) for key in differing_keys(first.settings.values, other.settings.values)]
        if first.models is not other.models:
            differing.insert(0, "models")
        if differing:
            parts.append(f"different in the two decodes (first | other): {', '.join(differing)}")
        if isinstance(why, LineTrace):
            tie = "; it is a tie, so rounding decides" if difference.tie else ""
            how = f"the scores of the two lists differ by {difference.size:.3g} nats at this rank{tie}"
            parts += [_where(difference), *_nbest("without continuous batching", why.hypotheses)]
            parts += _nbest("with continuous batching", why.joined or [])
            return "\n".join([*parts, f"cause: debug.continuous_batching: {how}"])
        parts.append(_where(difference))
        if difference.step is not None:
            for side, trace in zip(self.decodes, why.traces, strict=True):
                parts += self._candidates(side, trace, difference.step, difference.rank)
            parts += self._forbidden(why, difference.step, difference.rank)
        for side, trace in zip(self.decodes, why.traces, strict=True):
            parts += _nbest(side, trace.hypotheses)
        return "\n".join([*parts, *self._cause(difference, why)])

    def _candidates(self, side: str, trace: LineTrace, step: int, rank: int) -> list[str]:
        """The candidates of a step, best first; ``>`` marks the rank of the difference."""
        if step >= len(trace.steps):
            return [f"{side}: the sentence was done before this step"]
        item = trace.steps[step]
        lines = [f"{side}: candidates of step {step} (the sentence is {'' if item.done else 'not '}done after it)"]
        lines.append(f"    {'rank':>4} {'beam':>4} {'score':>9} {'model':>9}  {'outcome':<24}  tokens")
        for row in range(min(len(item.tokens), max(ROWS, rank + 1))):
            letter = item.outcomes[row]
            if letter == "I":
                continue
            shown = OUTCOMES[letter] + (f" with {item.finished[row]:.4f}" if row in item.finished else "")
            model = "/".join(f"{member[row]:.4f}" for member in item.members) or "-"
            place = f"{'>' if row == rank else ' '} {row + 1:>4} {item.beams[row] + 1:>4}"
            text = self._tokens(trace.tokens(step, row))
            lines.append(f"  {place} {item.scores[row]:>9.4f} {model:>9}  {shown:<24}  {text}")
        return lines

    def _tokens(self, tokens: Sequence[int]) -> str:
        words = [self.dictionary.symbol(token) for token in tokens[-TOKENS:]]
        return ("... " if len(tokens) > TOKENS else "") + " ".join(words)

    def _forbidden(self, why: Explanation, step: int, rank: int) -> list[str]:
        """The processor of one decode that forbids the candidate of the other decode at this rank."""
        lines = []
        for side, trace, other in zip(self.decodes, why.traces, reversed(why.traces), strict=True):
            if step >= min(len(trace.steps), len(other.steps)) or rank >= len(other.steps[step].tokens):
                continue
            wanted = other.tokens(step, rank)
            for item in trace.steps[step].forbidden:
                if [*trace.history(step, item.beam), item.token] == wanted:
                    name = self.dictionary.symbol(item.token)
                    lines.append(f"{side}: {name} after beam {item.beam + 1} is forbidden by {item.by}")
        return lines

    def _cause(self, difference: Difference, why: Explanation) -> list[str]:
        lines = []
        same_models = self.decodes["first"].models is self.decodes["other"].models
        if why.model_gap == float("inf"):
            lines.append("the decodes have different numbers of models, or one forbids a token that the other allows")
        elif why.model_gap is not None:
            what = "largest difference between the models' log-probabilities of common candidates"
            lines.append(f"{what}: {why.model_gap:.3g} nats")
        if difference.size < float("inf"):
            lines.append(f"difference between the scores at this rank: {difference.size:.3g} nats")
        if difference.tie:
            lines.append(f"it is a tie: the scores are equal within tolerance={self.tolerance:g}, so rounding decides")
        if why.keys:
            lines.append(f"cause: {', '.join(self._key(key) for key in why.keys)}")
            values = "values of these keys" if len(why.keys) > 1 else "value of this key"
            lines.append(f"  with the other decode's {values}, the first decode agrees with it up to this difference")
            if all(key.startswith("debug.") for key in why.keys):
                lines.append(f"  {self._optimization(difference)}")
        elif not same_models and why.model_gap is not None:
            lines.append("cause: the models, whose log-probabilities differ")
        elif not same_models:
            lines.append("cause: probably the models, whose log-probabilities at this difference are not known")
        else:
            lines.append(
                "cause: not found; the decodes differ even if all their keys are equal, so one of them is not "
                "reproducible"
            )
        return lines

    def _key(self, key: str) -> str:
        """A key with both values, and whether they come from the model."""
        both = [decode.settings for decode in self.decodes.values()]
        values = (settings.values.get(key) for settings in both)
        one, two = ("not set" if value is None else value_text(value) or '""' for value in values)
        given = not key.startswith("generation.") or any(each.settings.origin(key) != "default" for each in both)
        return f"{key} ({one} | {two}{'' if given else ', taken from the model'})"

    def _optimization(self, difference: Difference) -> str:
        if difference.tie:
            return "the optimization changes rounding, which decides a tie"
        if difference.what in (SCORE, HYPOTHESIS_SCORE):
            return (
                f"the optimization changes a score by more than tolerance={self.tolerance:g}: because of rounding in a "
                "low-precision dtype, or because it has a bug"
            )
        return "the optimization changes the result by more than rounding, so it has a bug"


def _where(difference: Difference) -> str:
    if difference.step is None:
        return f"all steps agree; the n-best lists differ first at rank {difference.rank + 1}: {difference.what}"
    step, rank = difference.step, difference.rank + 1
    return f"first difference: step {step} (after {step} tokens), rank {rank}: {difference.what}"


def _nbest(side: str, hypotheses: Sequence[TextHypothesis]) -> list[str]:
    lines = [f"{side}: n-best list", f"    {'rank':>4} {'score':>9} {'model':>9}  text"]
    for rank, item in enumerate(hypotheses, start=1):
        model = "-" if item.model_score is None else f"{item.model_score:.4f}"
        lines.append(f"    {rank:>4} {item.score:>9.4f} {model:>9}  {item.text}")
    return lines


if __name__ == "__main__":
    main()
