"""``seqgen-tune``: find the values of decoding keys that score best on a validation set."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from seqgen.cli.command import Arguments, log, run, set_up_device
from seqgen.cli.generate import checked_input, input_lines, prefix_lines, split_references
from seqgen.cli.line_decoding import check_path_and_split, load_noted, settings_of_part
from seqgen.cli.output import check_output
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
from seqgen.config.compose import compose
from seqgen.config.keys import did_you_mean, known_keys
from seqgen.config.settings import Settings, given_settings
from seqgen.config.values import split_argument
from seqgen.errors import ConfigError, DataError, nearest
from seqgen.lab.tuning import Dimension, Setting, Trials, grid, search_coordinates
from seqgen.metrics import METRICS, TextScore, score_with_interval
from seqgen.registry import DECODING_COMPONENTS
from seqgen.system.files import write_atomically
from seqgen.text.translator import Translator

DESCRIPTION = """decodes a validation set with several values of decoding keys, and prints which ones score best.
tune.KEY=VALUES gives the values of a key; it may be given for several keys, and KEY=VALUE sets any other key for all
decodes. VALUES is A,B,C or FIRST:LAST:STEP; for a list (combination.weights) [A,B],[C,D], or simplex:N for all lists of
multiples of 1/N that sum to 1, with an element for each model."""

PREFIX = "tune"
TUNABLE = ("generation", *DECODING_COMPONENTS)
"""The groups whose keys can be tuned."""


@dataclass
class TuneDatasetConfig(GenerateDatasetConfig):
    """The split of the task that is decoded."""

    gen_subset: str = like(GenerateDatasetConfig, "gen_subset", "valid")


@dataclass
class TuneConfig:
    """The configuration of ``seqgen-tune``."""

    path: list[str] = option([], "model, as for seqgen-generate; [A,B] for an ensemble", role="input_path")
    input: str = option(
        "", "text file of the validation set; empty for the split dataset.gen_subset", role="input_path"
    )
    reference: str = option("", "text file with the reference outputs of input", role="input_path")
    prefix: str = like(GenerateConfig, "prefix")
    output: str = option("tuning.json", "file for the scores of all settings", role="output_path")
    method: str = option(
        "grid",
        "try all combinations of the values (grid), or tune one key after the other, in rounds (coordinate)",
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
        tune(cfg, typed.overrides, typed.prefixed[PREFIX])

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
    given, values = given_settings(cfg, shared), dict[str, dict[str, Any]]()
    for argument in (each for dimension in _space(pairs, len(cfg.path)) for each in dimension.arguments()):
        # wrong types and ranges are refused before models are loaded
        values[argument] = given_settings(compose(TuneConfig, [*shared, argument]), [argument])
    references, _ = checked_input(cfg)
    loaded = load_noted(cfg, set_up_device(cfg.common))
    task = loaded[0].task
    lines = list(input_lines(cfg, task))
    references = references if cfg.input else split_references(cfg, task)
    _check_lines(cfg, lines, references)

    def settings(setting: Setting) -> dict[str, Any]:
        return {**given, **{key: value for argument in setting for key, value in values[argument].items()}}

    def metric(outputs: Sequence[str]) -> tuple[TextScore, float | None]:
        return score_with_interval(cfg.metric, outputs, references or [], cfg.lowercase, cfg.tokenize)

    prefixes = None if (found := prefix_lines(cfg)) is None else list(found)
    part = Settings().with_layer("part", settings_of_part(cfg.dataset, task))
    translator = Translator(loaded, settings=part, dtype=cfg.generation.dtype)
    trials = Trials(translator, settings, lines, prefixes, cfg.metric, metric)
    try:
        _search(cfg, _space(pairs, len(loaded)), trials)
    except KeyboardInterrupt:
        log(f"{len(trials.trials)} settings are decoded; {cfg.output} has their scores")
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
    check_output("output", cfg.output, cfg.input, cfg.reference, cfg.prefix)
    for index, key in enumerate(keys):
        group = key.partition(".")[0]
        if key in keys[:index]:
            raise ConfigError(f"tune.{key} is given twice; give all its values at once")
        if group not in TUNABLE or "." not in key:
            known = {f"{PREFIX}.{name}": () for name, _, _ in known_keys(cfg) if name.startswith("generation.")}
            raise ConfigError(
                f"tune.{key}: only keys of these groups can be tuned: {', '.join(TUNABLE)}"
                f"{nearest(group, TUNABLE) or did_you_mean(f'{PREFIX}.{key}', known)}"
            )


def _space(pairs: Sequence[tuple[str, str]], models: int) -> list[Dimension]:
    return [Dimension.of(key, text, models) for key, text in pairs]


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


def _search(cfg: TuneConfig, space: Sequence[Dimension], trials: Trials) -> None:
    """Score settings; the scores so far are written after each."""
    total = prod(len(dimension.values) for dimension in space)

    def score(setting: Setting) -> float:
        found = trials.score(setting)
        _write(cfg, trials)
        return found

    if cfg.method == "grid":
        log(f"{total} settings, and the one to compare them with")
        for setting in grid(space):
            score(setting)
    else:
        log(f"coordinate search over {len(space)} keys, whose grid has {total} settings")
        search_coordinates(space, score, cfg.rounds)


def _write(cfg: TuneConfig, trials: Trials) -> None:
    """Write the settings that were scored, best first."""
    ranked = trials.ranked()
    result = {
        "metric": cfg.metric,
        "trials": [{**vars(trial), "setting": dict(map(split_argument, trial.setting))} for trial in ranked],
        "refused": [{"setting": setting, "reason": reason} for setting, reason in trials.refused.items()],
    }
    write_atomically(Path(cfg.output), json.dumps(result, ensure_ascii=False, indent=1) + "\n")


def _report(cfg: TuneConfig, shared: Sequence[str], trials: Trials) -> None:
    """Print the table and the best setting.

    Raises:
        ConfigError: so many settings were refused that there is nothing to compare.
    """
    if trials.refused and len(trials.trials) < 2:
        raise ConfigError(f"fewer than two settings can be decoded: {list(trials.refused.values())[-1]}")
    best = trials.ranked()[0]
    left_out = {"dataset.gen_subset", *(split_argument(argument)[0] for argument in best.setting)}
    given = [(split_argument(item)[0], item) for item in shared]
    kept = [item for key, item in given if "." in key and key not in left_out]  # the keys of groups are about decoding
    models = f"path=[{','.join(cfg.path)}]" if len(cfg.path) > 1 else f"path={cfg.path[0]}"
    print(trials.table())
    print(f"best:   {best.name}" + (f"  ({best.signature})" if best.signature else ""))
    print(f"decode: {shlex.join(['seqgen-generate', models, 'input=FILE', *kept, *best.setting])}")
    print(f"{cfg.output} has all settings")


if __name__ == "__main__":
    main()
