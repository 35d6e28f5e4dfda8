"""Runs as tables in text, JSON and a page: sorting, scores, and the keys whose values differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from seqgen.config.values import value_text
from seqgen.errors import ConfigError, nearest
from seqgen.lab.compare.document import Table, page_of, text_of
from seqgen.lab.compare.run import Run, defaults_of
from seqgen.registry import GROUPS
from seqgen.system.progress import clock
from seqgen.training.run_log import lower_is_better

MISSING = "-"
"""Stands for the value of a key that a run does not have, because its component has no such key."""
_IGNORED = ("common.user_files.",)


def differences(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """The keys whose values differ.

    A key of a component that not all runs use is listed only if a run has set it to another value than its default.

    Args:
        runs: the runs; those whose configuration cannot be read are left out.

    Returns:
        For each key, the value of each run, ``MISSING`` if it has none.
    """
    readable = [run.config for run in runs if run.config]
    keys = dict.fromkeys(key for config in readable for key in config if not key.startswith(_IGNORED))
    differing = [group for group in GROUPS if len({config.get(f"{group}._name") for config in readable}) > 1]
    defaults = [defaults_of(config) for config in readable]
    found = {}
    for key in keys:
        values = [config.get(key, MISSING) for config in readable]
        if all(value == values[0] for value in values):
            continue
        if key.partition(".")[0] in differing and MISSING in values and _are_defaults(key, readable, defaults):
            continue
        found[key] = [run.config.get(key, MISSING) for run in runs]
    return found


def _are_defaults(key: str, configs: Sequence[Mapping[str, Any]], defaults: Sequence[Mapping[str, Any]]) -> bool:
    pairs = zip(configs, defaults, strict=True)
    return all(key not in config or (key in default and config[key] == default[key]) for config, default in pairs)


def shown(value: Any) -> str:
    """A value as a user would type it."""
    return value_text(value) or "''"


VERSION = 1
"""Version of the JSON form."""
COLUMNS = ("name", "parameters", "updates", "epoch", "best_update", "tokens_per_second", "seconds")
"""The attributes of a run that it can be sorted by, besides its scores and keys."""
HEADINGS = {"name": "run", "tokens_per_second": "tokens/s", "seconds": "time"}
"""The headings of columns that do not have the column's name."""
SCORES = 4
"""Maximum number of scores in the text; the JSON and the page have all."""
_FIRST = ("bleu", "chrf", "exact_match", "loss", "ppl", "accuracy")


def sorted_runs(runs: Sequence[Run], by: str) -> list[Run]:
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
    columns = {name: getattr(run, name) for name in COLUMNS}
    headings = {heading: columns[name] for name, heading in HEADINGS.items()}
    scores = {name.lower(): value for name, value in run.best.items()}
    return {key_name(key): _sortable(value) for key, value in run.config.items()} | columns | headings | scores


def sort_names() -> list[str]:
    """Scores, columns and headings by which runs are often sorted."""
    return [*_FIRST, *COLUMNS, *HEADINGS.values()]


def _sortable(value: Any) -> Any:
    first = value[0] if isinstance(value, list) and len(value) == 1 else value
    return first if isinstance(first, int | float) else shown(first)


def score_names(runs: Sequence[Run]) -> list[str]:
    """The names of all scores that a run has."""
    return list(dict.fromkeys(name for run in runs for name in run.best))


def chosen_scores(runs: Sequence[Run], by: str) -> list[str]:
    """The scores of the text: the one that sorts, those that select checkpoints, and well-known ones."""
    names = {name.lower(): name for name in score_names(runs)}
    wanted = [by.lower(), *(run.metric.lower() for run in runs), *_FIRST]
    return list(dict.fromkeys(names[name] for name in wanted if name in names))[:SCORES]


def text_table(runs: Sequence[Run], by: str = "") -> str:
    """The scores of runs, and the keys that differ, as text.

    Args:
        runs: the runs, in their order.
        by: what they are sorted by.

    Returns:
        Lines of at most 80 columns, unless a value is longer.
    """
    return text_of(_tables(runs, chosen_scores(runs, by)))


def page(runs: Sequence[Run], title: str = "Runs") -> str:
    """The scores of runs, and the keys that differ, as an HTML page."""
    return page_of(title, _tables(runs, score_names(runs)))


def _tables(runs: Sequence[Run], scores: Sequence[str]) -> Iterable[Table | str]:
    rows = [[str(n), *row] for n, row in enumerate(score_rows(runs, scores), start=1)]
    yield Table(["", *score_head(scores)], rows, texts=(1,))
    yield ""
    if found := differences(runs):
        yield Table(["differs", "value", "runs"], _grouped(found), texts=(0, 1, 2), whole=(0,))
    elif len(runs) > 1:
        yield _equal(runs, "configurations")


def score_head(scores: Sequence[str]) -> list[str]:
    """The headings of ``score_rows``."""
    return [HEADINGS["name"], "updates", *scores, HEADINGS["tokens_per_second"], HEADINGS["seconds"]]


def score_rows(runs: Sequence[Run], scores: Sequence[str]) -> Iterable[list[str]]:
    """For each run its name, updates, scores, speed and time, as text."""
    for run in runs:
        values = [f"{run.best[name]:.4g}" if name in run.best else MISSING for name in scores]
        speed = MISSING if run.tokens_per_second is None else f"{run.tokens_per_second:.0f}"
        time = MISSING if run.seconds is None else clock(run.seconds)
        yield [run.name, MISSING if run.updates is None else str(run.updates), *values, speed, time]


def _grouped(found: dict[str, list[Any]]) -> Iterable[list[str]]:
    """For each key and each of its values, the numbers of the runs with this value."""
    for key, values in found.items():
        groups: dict[str, list[str]] = {}
        for number, value in enumerate(values, start=1):
            groups.setdefault(shown(value), []).append(str(number))
        for place, (value, numbers) in enumerate(groups.items()):
            yield ["" if place else key_name(key), value, " ".join(numbers)]


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
                "origins": {key_name(key): run.origin(key) for key in found},
                "sessions": run.provenance.get("sessions", []),
            }
            for number, run in enumerate(runs)
        ],
    }


def text_difference(runs: Sequence[Run]) -> str:
    """The differences of two runs: keys with their origins, versions, data and scores.

    Args:
        runs: the two runs.
    """
    head, parts = ["", *(run.name for run in runs)], list[Table | str]()
    for rows in filter(None, (_differing_keys(runs), _differing_sessions(runs), _differing_scores(runs))):
        parts += [Table(head, rows, texts=(0, 1, 2), whole=(0,)), ""]
    return text_of(parts) or _equal(runs, "runs")


def _equal(runs: Sequence[Run], what: str) -> str:
    """The sentence on runs without a known difference."""
    unread = ", ".join(run.name for run in runs if not run.config)
    return (
        f"what differs is not known: the configuration of {unread} cannot be read"
        if unread
        else f"the {what} are equal"
    )


def _differing_keys(runs: Sequence[Run]) -> list[list[str]]:
    rows = []
    for key, values in differences(runs).items():
        origins = [f" ({origin})" if (origin := run.origin(key)) else "" for run in runs]
        cells = [shown(value) + origin for value, origin in zip(values, origins, strict=True)]
        rows.append([key_name(key), *cells])
    return rows


def _differing_sessions(runs: Sequence[Run]) -> list[list[str]]:
    last = [run.provenance["sessions"][-1] if run.provenance.get("sessions") else {} for run in runs]
    rows = [[name, *(str(one.get(name, MISSING)) for one in last)] for name in ("seqgen", "torch", "python")]
    for split in ("train", "valid", "test"):
        rows.append([f"data of {split}", *(run.data(split)[:12] or MISSING for run in runs)])
    return [row for row in rows if len(set(row[1:])) > 1]


def _differing_scores(runs: Sequence[Run]) -> list[list[str]]:
    scores = score_names(runs)
    names = score_head(scores)[1:]
    columns = [row[1:] for row in score_rows(runs, scores)]
    return [[name, *cells] for name, *cells in zip(names, *columns, strict=True) if set(cells) != {MISSING}]
