"""Reads a run folder: its configuration, log and scores. Damaged and missing files are noted, not refused."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from seqgen.checkpoints.run_checkpoints import FOLDER as CHECKPOINTS
from seqgen.checkpoints.run_config import CONFIG_FILE, flatten
from seqgen.config import TrainConfig
from seqgen.config.values import to_dict
from seqgen.errors import ConfigError, DataError
from seqgen.lab.compare.provenance import read_provenance, recorded_data, recorded_origin
from seqgen.registry import GROUPS
from seqgen.system.reading import open_regular, parse_json, parse_yaml, read_bytes, similar_path
from seqgen.training.run_log import LOG, SCORES, lower_is_better

DEPTH = 2
"""How many folders deep runs are looked for."""
_NOT_SCORES = ("event", "time", "update", "epoch")
_TRAINED = (LOG, CHECKPOINTS)
"""What a run folder has once training has begun; a command that failed earlier leaves a configuration only. A converted
model has no log."""


@dataclass
class Run:
    """A run.

    Attributes:
        folder: the run folder.
        name: how it is called in tables.
        config: the values of its configuration by key, with the defaults of keys that an older version did not have.
        log: the records of its log, in order.
        metric: the validation score that selects the best checkpoint.
        best: the validation scores at the best update, by name.
        best_update: that update.
        provenance: where values come from; empty if not known.
        problems: what could not be read.
    """

    folder: Path
    name: str
    config: dict[str, Any] = field(default_factory=dict)
    log: list[dict[str, Any]] = field(default_factory=list)
    metric: str = "loss"
    best: dict[str, float] = field(default_factory=dict)
    best_update: int | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def origin(self, key: str) -> str:
        """Where the value of a key comes from; empty if not known."""
        return recorded_origin(self.provenance, key, self.config.get(key))

    def data(self, split: str) -> str:
        """The hash of a split's files; see ``recorded_data``."""
        return recorded_data(self.provenance, split)

    def curve(self, event: str, name: str) -> list[tuple[int, float]]:
        """The values of a curve by update, such as the ``loss`` of ``valid``."""
        return [(int(record["update"]), float(record[name])) for record in self._records(event, "update", name)]

    def values(self, event: str) -> list[str]:
        """The names of the curves of ``train`` or ``valid``."""
        names = {name: None for record in self._records(event) for name, value in record.items() if _is_number(value)}
        return [name for name in names if name not in _NOT_SCORES]

    def _records(self, event: str, *names: str) -> list[dict[str, Any]]:
        """The records of an event, or of all events for an empty one, in which all these values are numbers."""
        own = [record for record in self.log if event in ("", record.get("event"))]
        return [record for record in own if all(_is_number(record.get(name)) for name in names)]

    def _numbers(self, name: str, event: str = "") -> list[float]:
        return [float(record[name]) for record in self._records(event, name)]

    @property
    def parameters(self) -> int | None:
        """Number of parameters of the model."""
        found = self._numbers("parameters")
        return int(found[-1]) if found else None

    @property
    def updates(self) -> int | None:
        """Number of updates made."""
        return max(map(int, self._numbers("update")), default=None)

    @property
    def epoch(self) -> int | None:
        """The last epoch."""
        return max(map(int, self._numbers("epoch")), default=None)

    @property
    def tokens_per_second(self) -> float | None:
        """The median of the speeds that the log has."""
        speeds = [value for _, value in self.curve("train", "tokens_per_second")]
        return statistics.median(speeds) if speeds else None

    @property
    def seconds(self) -> float | None:
        """Training time: the one at the end of the log, or else the time between the first and the last record."""
        if ended := self._numbers("seconds", "stop"):
            return ended[-1]  # it includes the time before training was resumed
        times = [time for record in self.log if (time := _time(record.get("time")))]
        return (max(times) - min(times)).total_seconds() if len(times) > 1 else None

    @property
    def stopped(self) -> str:
        """Why training ended; empty if it did not end, or was killed."""
        return str(self.log[-1].get("reason", "")) if self.log and self.log[-1].get("event") == "stop" else ""


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
    run.log = _log(run)
    run.provenance = read_provenance(folder)
    run.metric = str(run.config.get("checkpoint.best_checkpoint_metric", "loss")).lower()
    _read_scores(run)
    return run


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The records of a run's log; incomplete lines, such as the last one of a killed run, are left out.

    Raises:
        OSError: there is no log, or it cannot be read.
    """
    found = []
    with open_regular(folder / LOG) as file:
        for line in file:
            try:
                record = parse_json(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                found.append(record)
    return found


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
    try:
        return read_log(run.folder)
    except FileNotFoundError:
        return []  # a converted model
    except OSError as error:
        run.problems.append(f"{run.folder / LOG} cannot be read: {error.strerror}")
        return []


def _read_scores(run: Run) -> None:
    """Read the best scores from ``scores.json``; if it is missing or damaged, find them in the log."""
    try:
        content = parse_json(read_bytes(run.folder / SCORES))
        best, metric = content["best"], content["metric"]
        run.best = {str(name): float(value) for name, value in best["scores"].items() if _is_number(value)}
        run.best_update, run.metric = int(best["update"]), str(metric)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        curve = next((run.curve("valid", name) for name in run.values("valid") if name.lower() == run.metric), [])
        if curve:
            choose = min if lower_is_better(run.metric) else max
            run.best_update, _ = choose(curve, key=lambda point: point[1])
            curves = {name: dict(run.curve("valid", name)) for name in run.values("valid")}
            run.best = {name: points[run.best_update] for name, points in curves.items() if run.best_update in points}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _time(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except (ValueError, TypeError):
        return None
