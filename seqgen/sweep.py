"""Sweeps (``-m``): one command that is run with several configurations."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from seqgen.arguments import split_argument
from seqgen.compose import compose, wrong_value
from seqgen.config_keys import annotation_of, is_group, locate
from seqgen.config_values import is_text
from seqgen.errors import ConfigError


def expand_sweep(schema: type, overrides: Sequence[str]) -> Iterator[tuple[list[str], str]]:
    """Expand overrides with several values (``model=a,b common.seed=1,2``) into their product.

    The value of a string-typed key without choices is one value, even if it contains commas.

    Args:
        schema: the root dataclass.
        overrides: ``key=value`` arguments.

    Yields:
        The overrides of each job, and a folder name made of the overrides that differ between jobs.

    Raises:
        ConfigError: a key is unknown, or a value cannot be read.
    """
    pairs = [split_argument(override) for override in overrides]
    first = {key: value.split(",")[0] for key, value in pairs if is_group(schema, key)}
    defaults: Any = compose(schema, [f"{key}={value}" for key, value in first.items()])
    alternatives = []
    for key, value in pairs:
        if is_group(schema, key) or locate(defaults, key)[1].metadata.get("choices"):
            alternatives.append([f"{key}={part}" for part in value.split(",")])
        elif is_text(annotation_of(defaults, key)):
            alternatives.append([f"{key}={value}"])
        else:
            alternatives.append(_sweep_values(key, value, annotation_of(defaults, key)))
    swept = [len(options) > 1 for options in alternatives]
    for job in itertools.product(*alternatives):
        label = ",".join(override for override, varies in zip(job, swept, strict=True) if varies)
        yield list(job), label.replace("/", "_") or "job"


def _sweep_values(key: str, value: str, annotation: Any) -> list[str]:
    """The overrides of one value each that an override with several values stands for."""
    override = f"{key}={value}"
    try:
        parsed = OverridesParser.create().parse_override(override)
        if not parsed.is_sweep_override():
            return [override]
        return [f"{parsed.key_or_group}={item}" for item in parsed.sweep_string_iterator()]
    except HydraException:
        raise ConfigError(wrong_value(key, value, annotation)) from None
