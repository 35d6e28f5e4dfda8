"""Build a typed configuration from ``key=value`` arguments.

The dataclasses of ``seqgen.config`` hold the configurations of the chosen components (``model=fconv_tiny``). Values are
read by ``parse_value``: that of a string-typed key is used literally, whatever characters it contains. Every key must
exist; keys cannot be added or deleted.

Sweeps (``-m``): one command that is run with several configurations.
"""

from __future__ import annotations

import itertools
import re
import typing
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, TypeVar

from seqgen.config import TrainConfig
from seqgen.config.component_keys import UnparsedText, is_component_key, may_come_from_a_model, parse_component_value
from seqgen.config.keys import annotation_of, is_group, locate
from seqgen.config.values import check_ranges, describe, is_text, parse_value, split_argument
from seqgen.errors import ConfigError
from seqgen.registry import GROUPS

R = TypeVar("R")

NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
"""A number in a sweep."""

MAX_VALUES = 10_000
"""Maximum number of values of one key in a sweep."""

DEFAULT_COMPONENTS = {
    "task": "number_names",
    "model": "fconv_tiny",
    "criterion": "label_smoothed_cross_entropy",
    "optimizer": "adam",
    "lr_scheduler": "inverse_sqrt",
}
"""The components of a training that the user does not choose."""


def compose(schema: type[R], overrides: Sequence[str]) -> R:
    """Build a configuration from its defaults and the user's overrides.

    Args:
        schema: the root dataclass.
        overrides: ``key=value`` arguments, such as ``model=fconv_tiny`` or ``dataset.max_tokens=4096``.

    Returns:
        An instance of ``schema`` in which every component group holds an instance of its own configuration class.

    Raises:
        ConfigError: a key or name does not exist, or a value has the wrong type or is out of its range.
    """
    pairs = [split_argument(override) for override in overrides]
    of_components = [(key, value) for key, value in pairs if is_component_key(schema, key)]
    config: Any = schema()
    for group, name in chosen_components(schema, overrides).items():
        setattr(config, group, GROUPS[group].config(name))
    for key, value in pairs:
        if not is_group(schema, key) and (key, value) not in of_components:
            owner, field = locate(config, key)
            setattr(owner, field.name, _parsed(config, key, value))
    for key, value in of_components:
        unknown = may_come_from_a_model(config, key)
        parsed = UnparsedText(value) if unknown else parse_component_value(config.generation, key, value)
        config.generation.components[key] = parsed
    check_ranges(config)
    return typing.cast(R, config)


def chosen_components(schema: type, overrides: Sequence[str]) -> dict[str, str]:
    """The name that is chosen in each component group, by the user or by default: ``{"model": "fconv_tiny", ...}``.

    Args:
        schema: the root dataclass.
        overrides: ``key=value`` arguments.
    """
    defaults = DEFAULT_COMPONENTS if schema is TrainConfig else {}
    pairs = map(split_argument, overrides)
    return {**defaults, **{key: value for key, value in pairs if is_group(schema, key)}}


def _parsed(config: Any, key: str, value: str) -> Any:
    """Read the value of a key.

    Raises:
        ConfigError: it does not fit; the message names the key and says what values it takes.
    """
    annotation = annotation_of(config, key)
    if typing.get_origin(annotation) is dict:
        raise ConfigError(f"{key!r} cannot be set as a whole; --help lists the keys")
    try:
        return parse_value(key, value, annotation)
    except ValueError:
        wrong = f"'{key}={value}' cannot be used: the value should be {describe(annotation)}"
        raise ConfigError(wrong + _advice(config, key, value, annotation)) from None


def _advice(config: Any, key: str, value: str, annotation: Any) -> str:
    """How to give several values, such as ``1,2``."""
    if "," not in value or value.startswith(("[", "{")):
        return ""
    if typing.get_origin(annotation) is list:
        return f"; write {key}=[{value}]"
    if isinstance(config, TrainConfig):
        return "; seqgen-train -m trains with each of several values"
    return f"; seqgen-tune tune.{key}={value} decodes with each value" if key.startswith("generation.") else ""


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
            alternatives.append([f"{key}={part}" for part in sweep_values(key, value)])
    swept = [len(options) > 1 for options in alternatives]
    for job in itertools.product(*alternatives):
        label = ",".join(override for override, varies in zip(job, swept, strict=True) if varies)
        yield list(job), label.replace("/", "_") or "job"


def sweep_values(key: str, text: str) -> list[str]:
    """The values that ``A,B,C``, ``FIRST:LAST:STEP`` (both included) or ``[A,B],[C,D]`` stand for, as they are typed.

    Args:
        key: the key, for messages.
        text: what the user typed.

    Raises:
        ConfigError: a range cannot be read, or has more than ``MAX_VALUES`` values.
    """
    if text.startswith("["):
        lists = re.findall(r"\[[^\[\]]*\]", text)
        return lists if ",".join(lists) == text else [text]
    parts = ([part.strip()] if ":" not in part else _range(key, part) for part in text.split(","))
    return list(itertools.chain.from_iterable(parts))


def _range(key: str, text: str) -> list[str]:
    """The numbers of ``FIRST:LAST:STEP``: ``0:1:0.5`` gives 0, 0.5 and 1."""
    parts = [part.strip() for part in text.split(":")]
    numbers = [Decimal(part) for part in parts if NUMBER.fullmatch(part)]
    if not len(numbers) == len(parts) == 3 or numbers[2] <= 0 or numbers[1] < numbers[0]:
        raise ConfigError(f"{key}={text}: a range is FIRST:LAST:STEP with a step above 0 and FIRST below LAST")
    first, last, step = numbers
    steps = (last - first) / step
    if steps >= MAX_VALUES:
        raise too_many(key, text, int(steps) + 1)
    found = (format(first + index * step, "f") for index in range(int(steps) + 1))
    return [number.rstrip("0").rstrip(".") if "." in number else number for number in found]


def too_many(key: str, text: str, count: int) -> ConfigError:
    """The error for values that stand for more than ``MAX_VALUES`` values."""
    return ConfigError(f"{key}={text} has {count} values, but the maximum is {MAX_VALUES}; choose larger steps")
