"""The commands: what each is for, and which add-on it belongs to."""

from __future__ import annotations

from importlib.metadata import entry_points
from importlib.util import find_spec

COMMANDS = {
    "seqgen-train": "trains or fine-tunes a model, and resumes training",
    "seqgen-generate": "decodes text with a model or an ensemble, also in jobs",
    "seqgen-score": "scores outputs, compares systems, scores by a model",
    "seqgen-convert": "averages, exports and converts models",
    "seqgen-tune": "finds weights and settings of decoding on a validation text",
    "seqgen-calibrate": "fits the probability that an output is good enough",
    "seqgen-check": "tests your own components and models",
    "seqgen-diff": "finds what differs between two decodes",
    "seqgen-show": "shows runs as a table, a trace of a search as a page",
}
"""What each command is for, by its name."""

OF_ADDONS = {"calibrate": "confidence", "check": "checks", "diff": "traces", "show": "compare", "tune": "tuning"}
"""The add-on that a command belongs to, by the name of the command without ``seqgen-``."""


def installed() -> dict[str, str]:
    """What each installed command is for, by name, with the commands of other packages."""
    found = {name: purpose for name, purpose in COMMANDS.items() if _is_installed(name.removeprefix("seqgen-"))}
    for entry in entry_points(group="seqgen.commands"):
        found[f"seqgen-{entry.name}"] = f"of {entry.dist.name if entry.dist else entry.value}"
    return found


def commands() -> str:
    """The installed commands, one on each line."""
    return "\n".join(f"  {name:<17}{purpose}" for name, purpose in installed().items())


def _is_installed(name: str) -> bool:
    return name not in OF_ADDONS or find_spec(f"seqgen.addons.{OF_ADDONS[name]}") is not None
