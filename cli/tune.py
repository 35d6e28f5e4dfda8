"""``seqgen-tune``: find the values of decoding keys that score best on a validation set."""

from __future__ import annotations

import dataclasses
import functools
import json
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from seqgen import __version__
from seqgen.checkpoints.loaders import LoadedModel
from seqgen.checkpoints.serialization import fingerprint
from seqgen.cli.command import Arguments, log, run, set_up_device
from seqgen.cli.generate import checked_input, input_lines, prefix_lines, split_references
from seqgen.cli.line_decoding import check_path_and_split, load_noted, settings_of_part
from seqgen.cli.record import models_fingerprint
from seqgen.config import (
    DebugConfig,
    DecodingCommonConfig,
    GenerateConfig,
    GenerateDatasetConfig,
    GenerationConfig,
    ReadingConfig,
    like,
    option,
)
from seqgen.config.compose import component_field, parse_component_value
from seqgen.config.keys import annotation_of, did_you_mean, known_keys
from seqgen.config.values import from_dict, given_settings, split_argument, to_dict
from seqgen.errors import CheckpointError, ConfigError, DataError, nearest
from seqgen.lab.tuning.decodes import RANKING, Decodes, OutputsFile, state_of
from seqgen.lab.tuning.search import (
    Dimension,
    Metric,
    Trials,
    arguments,
    dimensions,
    grid,
    search_coordinates,
    start_of,
)
from seqgen.metrics import METRICS, TextScore, score_with_interval
from seqgen.registry import DECODING_COMPONENTS
from seqgen.system.files import run_lock, write_atomically
from seqgen.text.translator import Translator

DESCRIPTION = """decodes a validation set with several values of decoding keys, and prints which ones score best.
tune.KEY=VALUES gives the values of a key; it may be given for several keys, and KEY=VALUE sets any other key for all
decodes. VALUES is A,B,C or FIRST:LAST:STEP; for a list (combination.weights) these are the values of each element,
[A,B],[C,D] are values of the whole list, and simplex:N are all lists of multiples of 1/N that sum to 1. The outputs are
kept in the folder output=; the same command continues an interrupted tuning."""

PREFIX = "tune"
TUNABLE = ("generation", *DECODING_COMPONENTS)
"""The groups whose keys can be tuned."""

KEPT = (*(f"{group}." for group in (*TUNABLE, "common", "reading", "debug")), "dataset.gen_source=")
"""The beginnings of the arguments that are repeated in the printed command."""

OUTPUTS, RESULT = "outputs.jsonl", "best.json"
"""The files in the output folder."""


@dataclass
class TuneDatasetConfig(GenerateDatasetConfig):
    """Which split of the task is decoded."""

    gen_subset: str = like(GenerateDatasetConfig, "gen_subset", "valid")


@dataclass
class TuneConfig:
    """The configuration of ``seqgen-tune``."""

    path: list[str] = option([], "model, as for seqgen-generate; [A,B] for an ensemble")
    input: str = option("", "text file of the validation set; empty for the split dataset.gen_subset")
    reference: str = option("", "text file with the reference outputs of input")
    prefix: str = like(GenerateConfig, "prefix")
    output: str = option("tuning", "folder for the outputs of all decodes and the result", names="output")
    method: str = option(
        "grid",
        "try all combinations of the values (grid), or tune one number after the other, in rounds (coordinate)",
        choices=("grid", "coordinate"),
    )
    rounds: int = option(
        0, "method=coordinate: maximum number of rounds; 0 to stop when a round improves nothing", minimum=0
    )
    metric: str = option("bleu", "score to maximize", choices=METRICS)
    lowercase: bool = option(False, "whether BLEU and chrF ignore case")
    tokenize: str = option("13a", "sacreBLEU's tokenizer for BLEU", choices=("13a", "intl", "char", "none", "zh"))
    dataset: TuneDatasetConfig = dataclasses.field(default_factory=TuneDatasetConfig)
    reading: ReadingConfig = dataclasses.field(default_factory=ReadingConfig)
    common: DecodingCommonConfig = dataclasses.field(default_factory=DecodingCommonConfig)
    generation: GenerationConfig = dataclasses.field(default_factory=GenerationConfig)
    debug: DebugConfig = dataclasses.field(default_factory=DebugConfig)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the command."""

    def work(cfg: TuneConfig, typed: Arguments) -> None:
        tune(cfg, typed.overrides, typed.own[PREFIX])

    run(TuneConfig, work, DESCRIPTION, argv, pass_arguments=True, prefixes=[PREFIX])


def tune(cfg: TuneConfig, shared: Sequence[str], tuned: Sequence[str]) -> None:
    """Decode the validation set with all settings of the search, and print and write the best one.

    Args:
        cfg: the configuration that all decodes share.
        shared: its ``key=value`` arguments.
        tuned: the arguments ``tune.KEY=VALUES``, without ``tune.``.

    Raises:
        UserError: a key, model or file cannot be used, or memory runs out.
    """
    pairs = list(map(split_argument, tuned))
    _check_keys(cfg, [key for key, _ in pairs])
    values = dict(pairs)
    references, _ = checked_input(_as_generate(cfg))
    loaded = load_noted(cfg, set_up_device(cfg.common))
    given = {**settings_of_part(cfg.dataset, loaded[0].task), **given_settings(cfg, shared)}
    named = _named(cfg.generation, loaded[0].generation, given)
    space = _space(named, values, len(loaded))
    with ExitStack() as stack:
        try:
            stack.enter_context(run_lock(Path(cfg.output)))
        except CheckpointError:
            raise ConfigError(
                f"output={cfg.output} is in use by another process; wait for it, or choose another"
            ) from None
        decodes, metric = _decoding(cfg, space, loaded, references)
        trials = Trials(space, _settings(cfg, named, given), decodes, cfg.metric, metric)
        try:
            _search(cfg, space, trials)
        except KeyboardInterrupt:
            log(f"{len(trials.trials)} settings are decoded and kept; the same command continues")
            raise
        _report(cfg, shared, trials)


def _check_keys(cfg: TuneConfig, keys: Sequence[str]) -> None:
    """Check before the models are loaded that no key is missing, misspelt or without effect."""
    check_path_and_split(cfg.path, cfg.input, cfg.dataset)
    if not keys:
        raise ConfigError("there is nothing to tune: give tune.KEY=VALUES, such as tune.generation.lenpen=0.6,1,1.4")
    if cfg.input and not cfg.reference:
        raise ConfigError("reference is missing: give reference=FILE, the correct outputs of input")
    if cfg.reference and not cfg.input:
        raise ConfigError(f"reference={cfg.reference} needs input=FILE; a split of the task has its own references")
    if cfg.rounds and cfg.method != "coordinate":
        raise ConfigError(f"rounds={cfg.rounds} has no effect with method={cfg.method}; set method=coordinate")
    if cfg.metric != "bleu" and cfg.tokenize != TuneConfig.tokenize:
        raise ConfigError(f"tokenize={cfg.tokenize} has no effect on metric={cfg.metric}; remove it")
    if cfg.metric == "exact_match" and cfg.lowercase:
        raise ConfigError("lowercase=true has no effect on metric=exact_match; remove it")
    for index, key in enumerate(keys):
        group = key.partition(".")[0]
        if key in keys[:index]:
            raise ConfigError(f"tune.{key} is given twice; give all its values at once")
        if group not in TUNABLE or "." not in key:
            known = [f"{PREFIX}.{name}" for name, _, _ in known_keys(cfg) if name.startswith("generation.")]
            raise ConfigError(
                f"tune.{key}: only keys of these groups can be tuned: {', '.join(TUNABLE)}"
                f"{nearest(group, TUNABLE) or did_you_mean(f'{PREFIX}.{key}', known)}"
            )
        if group == "generation":
            _check_numeric(key, annotation_of(cfg, key))


def _check_numeric(key: str, annotation: Any) -> None:
    """Refuse a key whose type is neither ``int`` or ``float`` nor a list of them; ``| None`` is allowed."""
    if not {annotation, *get_args(annotation)} & {int, float}:
        raise ConfigError(f"tune.{key}: only numbers and lists of numbers can be tuned, and this key is neither")


def _space(generation: GenerationConfig, values: Mapping[str, str], models: int) -> list[Dimension]:
    """The dimensions of the search; keys of ``RANKING`` come last, so that a grid changes them fastest.

    Args:
        generation: the user's settings; it names the components in use.
        values: the text of each tuned key's values.
        models: number of models.

    Returns:
        The dimensions.

    Raises:
        ConfigError: a key is unknown, or a value cannot be used.
    """
    space: list[Dimension] = []
    for key in sorted(values, key=lambda key: key.partition(".")[0] in RANKING):
        annotation, start = _key_type(generation, key), None
        _check_numeric(key, annotation)
        if get_origin(annotation) is list:
            start = [f"{item:.12g}" for item in _current(generation, key) or [1] * models]
        new = dimensions(key, values[key], start)
        for text in dict.fromkeys(text for dimension in new for text in dimension.values):
            _parse(generation, key, text if start is None or new[0].element is None else f"[{text}]")
        space += new
    return space


def _named(generation: GenerationConfig, own: Mapping[str, Any], given: Collection[str]) -> GenerationConfig:
    """The user's settings, with the components that the first model's own settings name where the user names none."""
    return dataclasses.replace(generation, **{key: own[key] for key in _CHOOSERS & set(own) - set(given)})


_CHOOSERS = {chooser for _, chooser in DECODING_COMPONENTS.values()}


def _key_type(generation: GenerationConfig, key: str) -> Any:
    """The type of a decoding key."""
    group, _, name = key.partition(".")
    return get_type_hints(GenerationConfig)[name] if group == "generation" else component_field(generation, key)[1]


def _current(generation: GenerationConfig, key: str) -> list[float]:
    """The value that a list has without tuning."""
    group, _, name = key.partition(".")
    if group == "generation":
        value = getattr(generation, name)
    else:
        value = generation.components.get(key, [])
    return list(parse_component_value(generation, key, value) if isinstance(value, str) else value)


def _parse(generation: GenerationConfig, key: str, text: str) -> Any:
    """Read a value, a number or a list of numbers, and check its type and range as ``seqgen-generate`` does."""
    group, _, name = key.partition(".")
    if group != "generation":
        return parse_component_value(generation, key, text)
    items = [float(item) if set(item) & set(".eE") else int(item) for item in text.strip("[]").split(",")]
    value = items if text.startswith("[") else items[0]
    from_dict(GenerationConfig, {name: value}, "tune.generation")
    return value


def _as_generate(cfg: TuneConfig) -> GenerateConfig:
    """The configuration of a ``seqgen-generate`` that reads the same text."""
    values = {key: getattr(cfg, key) for key in ("path", "input", "reference", "prefix", "dataset")}
    return GenerateConfig(**values)


def _check_lines(cfg: TuneConfig, lines: Sequence[str], references: Sequence[str] | None) -> None:
    if not lines:
        raise DataError(f"{cfg.input or cfg.dataset.gen_subset} has no lines; there is nothing to decode")
    if references is None:
        raise DataError(f"split {cfg.dataset.gen_subset} has no references; give input=FILE and reference=FILE")
    if len(references) != len(lines):
        raise DataError(
            f"input={cfg.input} has {len(lines)} lines but reference={cfg.reference} has {len(references)}; line n of "
            "the reference must belong to line n of the input"
        )
    if not cfg.input and cfg.dataset.gen_subset == "test":
        log("the split test is tuned on: its score is then no estimate of the quality on new text")


def _settings(
    cfg: TuneConfig, named: GenerationConfig, given: Mapping[str, Any]
) -> Callable[[Sequence[str]], dict[str, Any]]:
    """Make the function that turns the tuned ``key=value`` arguments into all settings of a decode."""
    parse = functools.cache(functools.partial(_parse, named))
    debug = {f"debug.{key}": value for key, value in to_dict(cfg.debug).items()}

    def settings(setting: Sequence[str]) -> dict[str, Any]:
        values = {key: parse(key, text) for key, text in map(split_argument, setting)}
        own = {key.removeprefix("generation."): value for key, value in values.items() if key.startswith("generation.")}
        components = {key: value for key, value in values.items() if not key.startswith("generation.")}
        return {**given, **own, **debug, "components": {**cfg.generation.components, **components}}

    return settings


def _decoding(
    cfg: TuneConfig, space: Sequence[Dimension], loaded: Sequence[LoadedModel], references: list[str] | None
) -> tuple[Decodes, Metric]:
    """Read the validation set, and prepare its decoding and scoring; the output folder is locked."""
    files, task = _as_generate(cfg), loaded[0].task
    lines = list(input_lines(files, task))
    if not cfg.input:
        references = split_references(files, task)
    prefixes = None if (found := prefix_lines(files)) is None else list(found)
    _check_lines(cfg, lines, references)
    reading = to_dict(cfg.reading)
    named = {path: state_of(Path(path)) for path in [*cfg.common.user_dir, *map(str, filter(None, reading.values()))]}
    inputs = fingerprint([__version__, models_fingerprint(cfg.path), reading, lines, prefixes, named])
    ranks = any(dimension.key.partition(".")[0] in RANKING for dimension in space)
    translator = Translator(loaded, dtype=cfg.generation.dtype)
    decodes = Decodes(translator, lines, prefixes, OutputsFile(Path(cfg.output) / OUTPUTS), inputs, ranks)

    def metric(outputs: Sequence[str]) -> tuple[TextScore, float | None]:
        return score_with_interval(cfg.metric, outputs, references or [], cfg.lowercase, cfg.tokenize)

    return decodes, metric


def _search(cfg: TuneConfig, space: Sequence[Dimension], trials: Trials) -> None:
    total = prod(len(dimension.values) for dimension in space)
    if cfg.method == "grid":
        log(f"{total} settings, and the one to compare them with")
        for point in (start_of(space), *grid(space)):
            trials.score(point)
    else:
        log(f"coordinate search in {len(space)} dimensions, whose grid has {total} settings")
        search_coordinates(space, trials.score, cfg.rounds)


def _report(cfg: TuneConfig, shared: Sequence[str], trials: Trials) -> None:
    """Print the table and the best setting, and write ``RESULT``."""
    ranked, place = trials.ranked(), Path(cfg.output) / RESULT
    best, tuned = ranked[0], {split_argument(argument)[0] for argument in ranked[0].setting}
    result = {
        "setting": dict(split_argument(argument) for argument in best.setting),
        "metric": cfg.metric,
        "score": best.score,
        "interval": best.interval,
        "signature": best.signature,
        "trials": [{"setting": t.setting, "score": t.score, "interval": t.interval} for t in ranked],
        "refused": [
            {"setting": arguments(trials.space, point), "reason": reason} for point, reason in trials.refused.items()
        ],
    }
    write_atomically(place, json.dumps(result, ensure_ascii=False, indent=1) + "\n")
    kept = [item for item in shared if split_argument(item)[0] not in tuned and item.startswith(KEPT)]
    models = f"path=[{','.join(cfg.path)}]" if len(cfg.path) > 1 else f"path={cfg.path[0]}"
    print(trials.table())
    print(f"best:   {best.name}" + (f"  ({best.signature})" if best.signature else ""))
    print(f"decode: {shlex.join(['seqgen-generate', models, 'input=FILE', *kept, *best.setting])}")
    print(f"{place} has all settings")


if __name__ == "__main__":
    main()
