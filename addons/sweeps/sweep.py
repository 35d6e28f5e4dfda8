"""``seqgen-train -m``: Hydra's sweeper chooses the values, its launcher runs ``seqgen-train`` with them.

Hydra sees its own keys and those with several values. All other arguments go to each run as they were typed, whatever
characters they contain.
"""

from __future__ import annotations

import gc
import hashlib
import os
import sys
import traceback
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from hydra import initialize
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException
from omegaconf import OmegaConf

from seqgen.cli.train import main
from seqgen.config import TrainConfig, takes_text, value_text
from seqgen.extend import GROUPS, ConfigError, UserError, compose_given, end_with, log, parse_json, read_bytes, run_lock
from seqgen.training.run_log import SCORES, lower_is_better

CONFIG = "seqgen_sweep"
"""Name of Hydra's primary configuration."""

NAME = "._name"
"""Ends the name of a key in Hydra's configuration if it begins other keys, as ``model`` begins ``model.dropout``."""

LONGEST = 60
"""Maximum number of characters of a folder's name, of four bytes each; the names of files have at most 255 bytes."""

MOST = 10_000
"""Maximum number of values of a key, unless it takes any text."""

Failure = tuple[str, int]
"""The name of a run that failed, and its exit code."""


@dataclass
class Job:
    """What a launcher calls for each run, also in other processes.

    Attributes:
        fixed: the ``key=value`` arguments that all runs have.
        swept: the keys with several values, in the order in which they were typed.
        folder: the folder of the sweep.
        metric: the validation score that a sweeper optimizes; empty if it tries all combinations.
        process: the process of the command, with which its own processes end.
    """

    fixed: list[str]
    swept: list[str]
    folder: Path
    metric: str
    process: int = field(default_factory=os.getpid)

    def __call__(self, _: Any) -> float | Failure | None:
        """Train a run with the values that Hydra chose, or resume it.

        Returns:
            The best validation score; if there is nothing to optimize, the failure of the run, if it failed.

        Raises:
            ConfigError: the sweeper needs the score of the run, which failed or has none.
            SystemExit: a signal stopped the run, and stops the sweep.
        """
        values, code = _pairs(HydraConfig.get().overrides.task), 1
        name = self.name(values)
        log(f"run {HydraConfig.get().job.num + 1}: {name}")
        if os.getppid() == self.process:
            end_with(self.process)
        sys.argv[0] = "seqgen-train"  # for messages: in a launcher's process it has another name
        gc.collect()  # the models of earlier runs, which starting a command would keep forever
        try:
            main([*self.fixed, *(f"{key}={value}" for key, value in values), f"run_dir={self.folder / name}"])
        except SystemExit as ended:
            code = int(ended.code or 0)
        except Exception:
            traceback.print_exc()
        if code >= 128:
            raise SystemExit(code)
        if not self.metric:
            return (name, code) if code else None
        with suppress(OSError, TypeError, KeyError):  # no file, or no best score in it
            if not code:
                scores = parse_json(read_bytes(self.folder / name / SCORES))["best"]["scores"]
                return float({score.lower(): value for score, value in scores.items()}[self.metric.lower()])
        why = f"failed with exit code {code}" if code else f"has no valid {self.metric}"
        raise ConfigError(f"the run {name} {why}; with hydra.sweeper.max_failure_rate=1, Optuna continues without it")

    def name(self, values: Iterable[tuple[str, str]]) -> str:
        """The name of a run's folder, from the values of the swept keys."""
        ordered = dict.fromkeys(self.swept, "") | dict(values)
        name = ",".join(f"{key}={value}" for key, value in ordered.items()).replace("/", "_") or "job"
        encoded = name.encode()
        return name if len(encoded) <= 4 * LONGEST else f"{name[:LONGEST]}-{hashlib.sha256(encoded).hexdigest()[:8]}"


def sweep(overrides: Sequence[str], of_hydra: Sequence[str], folder: Path, metric: str) -> list[Failure]:
    """Train the runs of a sweep, or continue it.

    Args:
        overrides: ``key=value`` arguments, some with several values as Hydra writes them.
        of_hydra: arguments that begin with ``hydra.`` or ``hydra/``.
        folder: the folder of the sweep.
        metric: the validation score that selects checkpoints, and that a sweeper optimizes.

    Returns:
        The runs that failed, if all combinations are tried.

    Raises:
        UserError: an argument cannot be used, a plugin of Hydra is not installed or raises an error, or a run failed
            whose score the sweeper needs.
    """
    fixed, swept = split([text for text in overrides if not text.startswith("run_dir=")])
    given = dict(text.partition("=")[::2] for text in of_hydra)
    sweeper, launcher = (given.get(f"hydra/{kind}", "basic") for kind in ("sweeper", "launcher"))
    if wrong := next((key for key in given if key.startswith(("hydra.sweep.", "hydra.run."))), ""):
        raise ConfigError(f"{wrong}: the folder of a sweep is run_dir=FOLDER; those of runs are named by their values")
    if os.environ.get("WORLD_SIZE", "1") != "1" and (sweeper, launcher) != ("basic", "basic"):
        raise ConfigError("under torchrun, a sweep has the sweeper basic and the launcher basic; remove the others")
    job = Job([*map("=".join, fixed.items())], [*swept], folder.absolute(), "" if sweeper == "basic" else metric)
    keys = {key + NAME * any(k.startswith(f"{key}.") for k in swept): value for key, value in swept.items()}
    try:
        found = _of_optuna(given, job) if sweeper == "optuna" else {}
        place = {"dir": str(folder).replace("${", r"\${"), "subdir": "."}
        quiet = [{f"override hydra/{kind}_logging": "none"} for kind in ("job", "hydra")]
        hydra = {"sweep": place, "output_subdir": None, "sweeper": found}
        config = OmegaConf.create({"defaults": [*quiet, "_self_"], "hydra": hydra})
        for key in keys:
            OmegaConf.update(config, key, None, force_add=True)
        ConfigStore.instance().store(CONFIG, config)
        with initialize(version_base="1.3", config_path=None, job_name="seqgen-train"):
            typed = [*of_hydra, *map("=".join, keys.items())]
            results = GlobalHydra.instance().hydra.multirun(CONFIG, job, typed)  # type: ignore[union-attr]
    except UserError:
        raise
    except Exception as error:  # of any class: plugins, and the libraries that they use, check Hydra's keys
        said = " ".join(str(error).partition("Config search path")[0].split())
        if isinstance(error, MissingConfigException | ImportError):
            said += (
                "; in a checkout, pip install -c constraints.txt '.[sweeps]' adds those for Optuna, joblib and Slurm"
            )
        raise ConfigError(f"Hydra: {type(error).__name__}: {said}") from error
    return [result.return_value for batch in results or () for result in batch if result.return_value]


def split(overrides: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Separate the keys with one value from those with several, and check the values.

    The value of a text key without choices is one value, whatever it contains.

    Args:
        overrides: ``key=value`` arguments.

    Returns:
        The values as they were typed, by key: of keys with one value, of keys with several.

    Raises:
        ConfigError: a key is unknown, or a value cannot be used.
    """
    typed = dict(text.partition("=")[::2] for text in overrides)
    values = {key: found for key, text in typed.items() if (found := _values(key, text))}
    first = typed | {key: found[0] for key, found in values.items()}
    config, _ = compose_given(TrainConfig, [f"{key}={first[key]}" for key in typed if key in GROUPS])
    for key in [*values]:
        with suppress(ConfigError):  # a group, a key of a decoding component, or an unknown one
            if takes_text(config, key):
                del values[key]
                first[key] = typed[key]
    for job in [first, *(first | {key: value} for key in values for value in values[key][1:])]:
        compose_given(TrainConfig, [*map("=".join, job.items())])
    return {key: typed[key] for key in typed if key not in values}, {key: typed[key] for key in values}


def _values(key: str, text: str) -> list[str]:
    """The values that a text in Hydra's grammar stands for, of an interval its ends; none if it is one value."""
    try:
        item = OverridesParser.create().parse_override(f"{key}={text}")
        if item.is_interval_sweep():
            return [str(item.value().start), str(item.value().end)]  # type: ignore[union-attr]
        parts = [*islice(item.sweep_string_iterator(), MOST + 1)] if item.is_sweep_override() else []
    except (HydraException, ValueError, ArithmeticError):
        return []  # ``compose_given`` says what is wrong with it
    if len(parts) > MOST:
        raise ConfigError(f"{key}={text} has more than {MOST} values; give fewer")
    return [value for _, value in _pairs([f"{key}={part}" for part in parts])]


def _pairs(overrides: Sequence[str]) -> list[tuple[str, str]]:
    """Keys and values that Hydra has written, as a user would type them."""
    items = OverridesParser.create().parse_overrides([*overrides])
    return [(item.key_or_group.removesuffix(NAME), value_text(item.value())) for item in items]


def _of_optuna(given: Mapping[str, str], job: Job) -> dict[str, Any]:
    """Find what Optuna's sweeper is told unless the user says otherwise, and let a stored study resume its runs.

    A study that is not stored has a seed: started again, it chooses the same values, whose runs have ended already.

    Args:
        given: Hydra's keys and values, as they were typed.
        job: has the score that is optimized, and names the runs.

    Raises:
        ConfigError: the user gives a direction that does not fit the score.
    """
    direction, better = ("minimize", "lower") if lower_is_better(job.metric) else ("maximize", "higher")
    wanted = f"Optuna optimizes the best valid {job.metric}, {better} is better"
    if (asked := given.get("hydra.sweeper.direction", direction)) != direction:
        raise ConfigError(
            f"hydra.sweeper.direction={asked}: {wanted}; remove it, or choose another checkpoint.best_checkpoint_metric"
        )
    log(wanted)
    if not (storage := given.get("hydra.sweeper.storage")):
        has_seed = given.get("hydra/sweeper/sampler") != "grid"
        return {"direction": direction, **({"sampler": {"seed": 1}} if has_seed else {})}
    import optuna

    name = given.get("hydra.sweeper.study_name", str(job.folder))
    with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
        study = optuna.create_study(storage=storage, study_name=name, direction=direction, load_if_exists=True)
        for trial in study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):
            folder = job.folder / job.name(_pairs([f"{key}={value}" for key, value in trial.params.items()]))
            with suppress(UserError), run_lock(folder):  # a run that is being trained is locked
                study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
                study.enqueue_trial(trial.params)
    return {"direction": direction, "study_name": name}
