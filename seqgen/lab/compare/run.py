"""Reads a run folder: its configuration, log and scores. Damaged and missing files are noted, not refused."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from seqgen.checkpoints.run_checkpoints import FOLDER as CHECKPOINTS
from seqgen.checkpoints.run_config import CONFIG_FILE
from seqgen.checkpoints.run_record import flatten
from seqgen.config import TrainConfig
from seqgen.config.values import to_dict
from seqgen.errors import ConfigError, DataError
from seqgen.lab.compare.provenance import read_provenance, recorded_data, recorded_origin
from seqgen.registry import GROUPS
from seqgen.system.reading import open_regular, parse_json, parse_yaml, read_bytes, similar_path
from seqgen.training.run_log import LOG, SCORES, lower_is_better

DEPTH = 2
"""Depth of folders in which runs are looked for."""
_NOT_SCORES = ("event", "time", "update", "epoch")
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
        provenance: where values come from; empty if not known.
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
    provenance: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def origin(self, key: str) -> str:
        """The origin of the value of a key; empty if not known."""
        return recorded_origin(self.provenance, key, self.config.get(key))

    def data(self, split: str) -> str:
        """The hash of a split's files; see ``recorded_data``."""
        return recorded_data(self.provenance, split)


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
    run.provenance = read_provenance(folder)
    run.metric = str(run.config.get("checkpoint.best_checkpoint_metric", "loss")).lower()
    log = _log(run)
    _summarize(run, log)
    _read_scores(run, log)
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
    for group, registry in GROUPS.items():
        found.pop(group, None)
        name = values.get(f"{group}._name")
        try:
            found |= flatten(to_dict(registry.entry(str(name)).config()), f"{group}.") if name else {}
        except ConfigError:
            continue
    return found


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

    def numbers(name: str, event: str = "") -> list[float]:
        found = [record.get(name) for record in log if event in ("", record.get("event"))]
        return [float(value) for value in found if _is_number(value)]

    run.parameters = next(map(int, reversed(numbers("parameters"))), None)
    run.updates, run.epoch = (max(map(int, numbers(name)), default=None) for name in ("update", "epoch"))
    if speeds := numbers("tokens_per_second", "train"):
        run.tokens_per_second = statistics.median(speeds)
    times = [time for record in log if (time := _time(record.get("time")))]
    if ended := numbers("seconds", "stop"):
        run.seconds = ended[-1]  # it includes the time before training was resumed
    elif len(times) > 1:
        run.seconds = (max(times) - min(times)).total_seconds()
    if log and log[-1].get("event") == "stop":
        run.stopped = str(log[-1].get("reason", ""))


def _read_scores(run: Run, log: Sequence[Mapping[str, Any]]) -> None:
    """Read the best scores from ``scores.json``; if it is missing or damaged, find them in the log."""
    try:
        content = parse_json(read_bytes(run.folder / SCORES))
        best, metric = content["best"], content["metric"]
        run.best = {str(name): float(value) for name, value in best["scores"].items() if _is_number(value)}
        run.best_update, run.metric = int(best["update"]), str(metric)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        scores: dict[int, dict[str, float]] = {}  # by update
        for record in log:
            if record.get("event") == "valid" and _is_number(record.get("update")):
                found = {name: float(value) for name, value in record.items() if _is_number(value)}
                scores.setdefault(int(found["update"]), {}).update(found)
        by_update = {u: value for u, row in scores.items() for name, value in row.items() if name.lower() == run.metric}
        if by_update:
            choose = min if lower_is_better(run.metric) else max
            run.best_update = choose(by_update, key=by_update.__getitem__)
            run.best = {name: value for name, value in scores[run.best_update].items() if name not in _NOT_SCORES}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _time(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except (ValueError, TypeError):
        return None
