"""Training runs: their configurations, logs and scores, as a table in text and as JSON, and what differs.

Damaged and missing files are noted, not refused.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from seqgen.addons.compare.document import WIDTH, table_text
from seqgen.cli.provenance import read_sessions, recorded_data
from seqgen.config import TrainConfig, value_text
from seqgen.extend import (
    GROUPS,
    ConfigError,
    DataError,
    clock,
    flatten,
    nearest,
    open_regular,
    parse_json,
    parse_yaml,
    read_bytes,
    similar_path,
    to_dict,
)
from seqgen.training.run_log import LOG, lower_is_better

CONFIG_FILE, CHECKPOINTS = "config.yaml", "checkpoints"
"""What training writes into a run folder, besides its log and its scores."""

DEPTH = 2
"""Depth of folders in which runs are looked for."""
_NOT_SCORES = ("event", "time", "update", "epoch")
_SAMPLE = ("source", "hypothesis", "reference")
_TRAINED = (LOG, CHECKPOINTS)
"""Files of a run whose training has begun; a command that failed earlier leaves a configuration only. A converted model
has no log."""


@dataclass
class Run:
    """A run.

    Attributes:
        folder: the run folder.
        name: how it is called in tables.
        config: the values of its configuration by key, with the defaults of keys that an older version did not have.
        parameters: number of parameters of the model.
        updates: number of updates made.
        epoch: the last epoch.
        tokens_per_second: the median of the speeds in the log.
        seconds: training time.
        stopped: the reason why training ended; empty if it did not end, or was killed.
        metric: the validation score that selects the best checkpoint.
        best: the validation scores at the best update, by name.
        best_update: that update.
        curves: by event and name, the values at each update.
        samples: decoded sentences of the best validation, with ``source``, ``hypothesis`` and ``reference``.
        sessions: the calls of ``seqgen-train``; empty if not known.
        problems: what could not be read.
    """

    folder: Path
    name: str
    config: dict[str, Any] = field(default_factory=dict)
    parameters: int | None = None
    updates: int | None = None
    epoch: int | None = None
    tokens_per_second: float | None = None
    seconds: float | None = None
    stopped: str = ""
    metric: str = "loss"
    best: dict[str, float] = field(default_factory=dict)
    best_update: int | None = None
    curves: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict)
    samples: list[dict[str, str]] = field(default_factory=list)
    sessions: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def data(self, split: str) -> str:
        """The hash of a split's files when training was started last; empty if not known."""
        return recorded_data(self.sessions, split)


def find_runs(folders: Sequence[str]) -> list[Path]:
    """The run folders among folders and in them.

    Args:
        folders: run folders, or folders that contain some, such as that of a sweep.

    Returns:
        The run folders, each once.

    Raises:
        ConfigError: a folder is no run and contains none.
    """
    found: dict[Path, Path] = {}
    for name in folders:
        folder = Path(name)
        if not folder.is_dir():
            raise ConfigError(
                f"{name}: there is no such folder{similar_path(folder)}; give run folders, or a folder with runs"
            )
        runs = list(_runs_in(folder, DEPTH))
        if not runs:
            raise ConfigError(
                f"{name} is not a run folder and contains none (to a depth of {DEPTH}), or training did not begin in "
                f"it: there is neither {LOG} nor {CHECKPOINTS}; give run folders, or the folder that contains them"
            )
        for run in runs:
            found.setdefault(run.resolve(), run)
    return list(found.values())


def _runs_in(folder: Path, depth: int) -> Iterator[Path]:
    if any((folder / name).exists() for name in _TRAINED):
        yield folder
    elif depth:
        for inner in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
            yield from _runs_in(inner, depth - 1)


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Read run folders.

    Args:
        folders: the folders.

    Returns:
        The runs, in the same order. Their names are those of the folders, with parent folders if needed to differ.
    """
    parts = [folder.resolve().parts for folder in folders]
    length = 1
    while len({path[-length:] for path in parts}) < len(parts) and length < max(map(len, parts)):
        length += 1
    return [read_run(folder, str(Path(*path[-length:]))) for folder, path in zip(folders, parts, strict=True)]


def read_run(folder: Path, name: str = "") -> Run:
    """Read a run folder.

    Args:
        folder: the folder.
        name: how to call it; that of the folder by default.
    """
    run = Run(folder, name or folder.resolve().name)
    run.config = _config(run)
    run.sessions = read_sessions(folder)
    run.metric = str(run.config.get("checkpoint.best_checkpoint_metric", "loss")).lower()
    log = _log(run)
    _summarize(run, log)
    _find_best(run)
    samples = {str(row.get("update")): row["samples"] for row in log if isinstance(row.get("samples"), list)}
    chosen: list[Any] = samples.get(str(run.best_update)) or next(reversed(samples.values()), [])
    run.samples = [{name: str(one.get(name, "")) for name in _SAMPLE} for one in chosen if isinstance(one, dict)]
    return run


def _config(run: Run) -> dict[str, Any]:
    try:
        plain = parse_yaml(read_bytes(run.folder / CONFIG_FILE))
        if not isinstance(plain, Mapping):
            raise DataError("it has no keys and values")
    except (OSError, ValueError, DataError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        run.problems.append(f"{run.folder / CONFIG_FILE} cannot be read: {reason}")
        return {}
    values = dict(flatten(plain))
    return {**values, **{key: value for key, value in defaults_of(values).items() if key not in values}}


def defaults_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of a configuration with the same components; those of unknown components are left out.

    Args:
        values: the values by key.
    """
    found = dict(flatten(to_dict(TrainConfig())))
    del found["run_dir"], found["prepare_only"]
    for group in GROUPS:
        found.pop(group, None)
        found |= _presets(group, values)[0]
    return found


def _presets(group: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The defaults of a configuration's component, and its presets; one without values if it is not registered.

    Args:
        group: the component's group.
        values: the values of the configuration by key.
    """
    name = str(values.get(f"{group}._name"))
    try:
        entry = GROUPS[group].entry(name)
    except ConfigError:
        return [{}]
    presets = {name: entry.config(), **entry.presets}
    return [{**dict(flatten(to_dict(one), f"{group}.")), f"{group}._name": name} for name, one in presets.items()]


def _log(run: Run) -> list[dict[str, Any]]:
    """The records of the log; incomplete lines, such as the last one of a killed run, are left out."""
    found = []
    try:
        with open_regular(run.folder / LOG) as file:
            for line in file:
                with suppress(ValueError):
                    found.append(parse_json(line))
    except FileNotFoundError:
        pass  # a converted model
    except OSError as error:
        run.problems.append(f"{run.folder / LOG} cannot be read: {error.strerror}")
    return [record for record in found if isinstance(record, dict)]


def _summarize(run: Run, log: Sequence[Mapping[str, Any]]) -> None:
    """Fill the fields that come from the log."""

    def numbers(name: str) -> list[float]:
        return [float(record[name]) for record in log if _is_number(record.get(name))]

    for record in log:
        for name, value in record.items() if _is_number(record.get("update")) else ():
            if _is_number(value) and name not in _NOT_SCORES:
                run.curves.setdefault((str(record.get("event")), name), {})[int(record["update"])] = float(value)
    run.parameters = next(map(int, reversed(numbers("parameters"))), None)
    run.updates, run.epoch = (max(map(int, numbers(name)), default=None) for name in ("update", "epoch"))
    if speeds := run.curves.get(("train", "tokens_per_second")):
        run.tokens_per_second = statistics.median(speeds.values())
    times = []
    for record in log:
        with suppress(ValueError, TypeError):
            times.append(datetime.fromisoformat(record.get("time")))  # type: ignore[arg-type]
    if ended := run.curves.get(("stop", "seconds")):
        run.seconds = [*ended.values()][-1]  # it includes the time before training was resumed
    elif len(times) > 1:
        run.seconds = (max(times) - min(times)).total_seconds()
    if log and log[-1].get("event") == "stop":
        run.stopped = str(log[-1].get("reason", ""))


def _find_best(run: Run) -> None:
    """Find the best scores, which ``scores.json`` has too, since it is made from the log."""
    scores = {name: curve for (event, name), curve in run.curves.items() if event == "valid"}
    if curve := next((curve for name, curve in scores.items() if name.lower() == run.metric), {}):
        run.best_update = (min if lower_is_better(run.metric) else max)(curve, key=curve.__getitem__)
        run.best = {name: curve[run.best_update] for name, curve in scores.items() if run.best_update in curve}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


MISSING = "-"
"""Stands for the value of a key that a run does not have, because its component has no such key."""
_IGNORED = ("common.user_files.",)
SPLITS = ("train", "valid", "test")


def differences(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """The keys whose values differ.

    A component is called by the preset that it is most like. Its keys are left out if that says it all: each run has
    the value of its preset, or no such key. Presets of components that are not registered are not known.

    Args:
        runs: the runs; those whose configuration cannot be read are left out.

    Returns:
        For each key, the value of each run, ``MISSING`` if it has none.
    """
    presets, found = [_nearest_presets(run.config) for run in runs], dict[str, list[Any]]()
    named = [{name: value for name, value in preset.items() if name.endswith("._name")} for preset in presets]
    configs = [{**run.config, **names} for run, names in zip(runs, named, strict=True)]
    for key in dict.fromkeys(key for config in configs for key in config if not key.startswith(_IGNORED)):
        values = [config.get(key, MISSING) for config in configs]
        readable = [value for value, config in zip(values, configs, strict=True) if config]
        group = key.partition(".")[0]
        names = [config.get(f"{group}._name") for config in configs]
        first = dict(zip(reversed(names), reversed(values), strict=True))  # of the first run with a component
        usual = [preset.get(key, first[name]) for preset, name in zip(presets, names, strict=True)]
        are_usual = all(value in (MISSING, other) for value, other in zip(values, usual, strict=True))
        is_named = group in GROUPS and not key.endswith("._name") and are_usual
        if not is_named and any(value != readable[0] for value in readable):
            found[key] = values
    return found


def _nearest_presets(config: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the presets that the components of a configuration are most like, with their names."""
    found: dict[str, Any] = {}
    for group in GROUPS:
        best: dict[str, Any] = max(_presets(group, config), key=lambda one: sum(config.get(k) == one[k] for k in one))
        found |= best
    return found


def shown(value: Any) -> str:
    """A value as a user would type it."""
    return value_text(value) or "''"


VERSION = 1
"""Version of the JSON form."""
COLUMNS = ("name", "parameters", "updates", "epoch", "best_update", "tokens_per_second", "seconds")
"""The attributes of a run that it can be sorted by, besides its scores and keys."""
HEADINGS = {"name": "run", "tokens_per_second": "tokens/s", "seconds": "time"}
"""The headings of columns that do not have the column's name."""
_MOST_SCORES = 4
"""Maximum number of scores in the text; the JSON has all."""
_FIRST = ("bleu", "chrf", "exact_match", "loss", "ppl", "accuracy")


def sort_runs(runs: Sequence[Run], by: str) -> list[Run]:
    """Sort runs.

    Args:
        runs: the runs.
        by: a validation score (the best run first), a column or its heading, or a key of the configuration; empty to
            keep the order. Runs without the value come last.

    Raises:
        ConfigError: no run has such a value.
    """
    if not by:
        return list(runs)
    name, scores = key_name(by.lower()), score_names(runs)
    values = [_sortable_values(run) for run in runs]
    if not any(name in known for known in values):
        every = dict.fromkeys([*scores, *(key for known in values for key in known)])
        raise ConfigError(
            f"sort={by}: no run has such a score, column or key{nearest(by, every)}; the scores are "
            f"{', '.join(scores) or 'none'}, the columns {', '.join(COLUMNS)}"
        )
    found = [known.get(name) for known in values]
    is_score = name in map(str.lower, scores)
    highest_first = not lower_is_better(name) if is_score else name in ("tokens_per_second", "tokens/s")
    as_text, sign = any(isinstance(value, str) for value in found), -1 if highest_first else 1
    ranks = [(value is None, str(value) if as_text else sign * (value or 0)) for value in found]
    return [runs[place] for place in sorted(range(len(runs)), key=ranks.__getitem__)]


def _sortable_values(run: Run) -> dict[str, Any]:
    """All values of a run by key, column, heading and score."""
    found: dict[str, Any] = {}
    for key, value in run.config.items():
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
        found[key_name(key)] = value if isinstance(value, int | float) else shown(value)
    found |= {name: getattr(run, name) for name in COLUMNS}
    found |= {heading: found[name] for name, heading in HEADINGS.items()}
    return found | {name.lower(): value for name, value in run.best.items()}


def sort_names() -> list[str]:
    """Scores, columns and headings by which runs are often sorted."""
    return [*_FIRST, *COLUMNS, *HEADINGS.values()]


def score_names(runs: Sequence[Run]) -> list[str]:
    """The names of all scores that a run has."""
    return list(dict.fromkeys(name for run in runs for name in run.best))


def highest_first(runs: Sequence[Run]) -> list[str]:
    """The names of the scores of which high values are good."""
    return [name for name in score_names(runs) if not lower_is_better(name)]


def choose_scores(runs: Sequence[Run], by: str) -> list[str]:
    """The scores of the text: the one that sorts, those that select checkpoints, and well-known ones."""
    names = {name.lower(): name for name in score_names(runs)}
    wanted = [by.lower(), *(run.metric.lower() for run in runs), *_FIRST]
    return list(dict.fromkeys(names[name] for name in wanted if name in names))[:_MOST_SCORES]


def text_table(runs: Sequence[Run], by: str = "", width: int = WIDTH) -> str:
    """The scores of runs, and what differs: keys, versions and data.

    Args:
        runs: the runs, in their order.
        by: what they are sorted by.
        width: maximum number of columns, unless a value is longer.

    Returns:
        The lines.
    """
    columns = {"": [str(number) for number in range(1, len(runs) + 1)], **score_columns(runs, by)}
    parts = [table_text([*columns], zip(*columns.values(), strict=True), texts=(1,), width=width)]
    if found := _grouped(differing_columns(runs)):
        parts.append(table_text(["differs", "value", "runs"], found, texts=(0, 1, 2), whole=(0,), width=width))
    elif unread := ", ".join(run.name for run in runs if not run.config and len(runs) > 1):
        parts.append(f"what differs is not known: the configuration of {unread} cannot be read")
    elif len(runs) > 1:
        parts.append("the configurations are equal")
    return "\n\n".join(parts)


def score_columns(runs: Sequence[Run], by: str = "") -> dict[str, list[str]]:
    """By heading the name, updates, scores, speed and time of each run, as text.

    Args:
        runs: the runs.
        by: what they are sorted by.
    """
    scores = choose_scores(runs, by)
    columns = {HEADINGS["name"]: [run.name for run in runs]}
    columns["updates"] = [MISSING if run.updates is None else str(run.updates) for run in runs]
    columns |= {name: [f"{run.best[name]:.4g}" if name in run.best else MISSING for run in runs] for name in scores}
    speeds = [run.tokens_per_second for run in runs]
    columns[HEADINGS["tokens_per_second"]] = [MISSING if speed is None else f"{speed:.0f}" for speed in speeds]
    columns[HEADINGS["seconds"]] = [MISSING if run.seconds is None else clock(run.seconds) for run in runs]
    return columns


def differing_columns(runs: Sequence[Run]) -> dict[str, list[str]]:
    """By key, version and split of the data that differs, what each run has, as text."""
    differing = {key_name(key): list(map(shown, values)) for key, values in differences(runs).items()}
    return differing | _differing_sessions(runs)


def _differing_sessions(runs: Sequence[Run]) -> dict[str, list[str]]:
    """The versions and the hashes of the data that differ, of the last session of each run."""
    last = [run.sessions[-1] if run.sessions else {} for run in runs]
    found = {name: [str(one.get(name, MISSING)) for one in last] for name in ("seqgen", "torch", "python")}
    for split in SPLITS:
        found[f"data of {split}"] = [run.data(split)[:12] or MISSING for run in runs]
    return {name: values for name, values in found.items() if len({*values} - {MISSING}) > 1}


def _grouped(found: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """For each name and each of its values, the numbers of the runs with this value."""
    rows = []
    for name, values in found.items():
        groups: dict[str, list[str]] = {}
        for number, value in enumerate(values, start=1):
            groups.setdefault(value, []).append(str(number))
        rows += [["" if place else name, value, " ".join(groups[value])] for place, value in enumerate(groups)]
    return rows


def key_name(key: str) -> str:
    """A key as a user gives it: ``model._name`` is ``model``."""
    return key.removesuffix("._name")


def as_dict(runs: Sequence[Run]) -> dict[str, Any]:
    """The JSON form of the table."""
    found = differences(runs)
    return {
        "format": "seqgen-runs",
        "version": VERSION,
        "runs": [
            {
                **{name: getattr(run, name) for name in COLUMNS},
                "folder": str(run.folder),
                "metric": run.metric,
                "best": run.best,
                "stopped": run.stopped or None,
                "problems": run.problems,
                "differs": {key_name(key): values[number] for key, values in found.items()},
                "sessions": run.sessions,
            }
            for number, run in enumerate(runs)
        ],
    }


def table_by_score(folders: Sequence[Path], metric: str) -> str:
    """A table of runs, the best first if they have the score ``metric``, else in their order."""
    runs = read_runs(folders)
    by = metric if metric.lower() in map(str.lower, score_names(runs)) else ""
    return text_table(sort_runs(runs, by), by)
