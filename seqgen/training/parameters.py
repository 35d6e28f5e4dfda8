"""The parameters that are trained: found by name, divided into groups, and frozen, for good or for a while."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from seqgen.core.errors import ConfigError, nearest, shown
from seqgen.core.model import EncoderDecoderModel
from seqgen.decoding.building import name_key_in_errors
from seqgen.modules.inspection import num_parameters

Groups: TypeAlias = list[dict[str, Any]]
"""Groups of parameters: ``params``, their ``names``, and perhaps ``lr_scale`` and ``weight_decay``."""

_GROUP_KEYS = ("lr_scale", "weight_decay")


def parameter_groups(
    named: Mapping[str, Parameter], values: Mapping[str, Any], find: Callable[[list[str]], Iterable[str]]
) -> Groups:
    """Divide parameters into the groups of ``optimization.groups``, and one of all others.

    Args:
        named: the parameters by name.
        values: the values of each pattern of names; the first pattern that matches a name holds.
        find: finds the names that match patterns.

    Raises:
        ConfigError: a pattern matches no parameter, or its values are not numbers from 0 on of ``lr_scale`` and
            ``weight_decay``.
    """
    left, groups = dict(named), []
    for pattern, given in values.items():
        known = isinstance(given, Mapping) and given and not given.keys() - {*_GROUP_KEYS}
        if not known or any(type(value) not in (int, float) or not 0 <= value < math.inf for value in given.values()):
            raise ConfigError(f"{pattern!r} must have values such as {{lr_scale:0.1,weight_decay:0.0}}, not {given!r}")
        names = [name for name in find([pattern]) if name in left]
        if not names:
            raise ConfigError(f"{pattern!r} has only parameters of patterns before it; remove it, or put it first")
        ordered = [name for name in left if name in names]
        groups.append({"names": ordered, "params": [left.pop(name) for name in ordered], **given})
    groups.append({"names": [*left], "params": [*left.values()]})
    return [group for group in groups if group["params"]]


def names_like(modules: Mapping[str, nn.Module], patterns: Iterable[str]) -> dict[str, list[str]]:
    """Find the parameters of modules by patterns.

    Args:
        modules: the modules, by what the names of their parameters begin with.
        patterns: names of parameters, in which ``*`` matches anything, such as ``"encoder.*"`` or
            ``"*embed_tokens.weight"``. A tied parameter is found if any of its names matches.

    Returns:
        By pattern, the first name of each parameter.

    Raises:
        ConfigError: a pattern matches no parameter.
    """
    of_each = [module.named_parameters(prefix, remove_duplicate=False) for prefix, module in modules.items()]
    every, first = dict(itertools.chain(*of_each)), dict[int, str]()
    for name, param in every.items():
        first.setdefault(id(param), name)
    found = {}
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise ConfigError(f"{shown(pattern)} must be a name of parameters, such as 'encoder.*'")
        found[pattern] = list(dict.fromkeys(first[id(every[name])] for name in every if fnmatchcase(name, pattern)))
        if not found[pattern]:
            parts = {f"{name[:end]}.*" for name in every for end, letter in enumerate(name) if letter == "."}
            raise ConfigError(f"there is no parameter {pattern!r}{nearest(pattern, [*every, *sorted(parts)])}")
    return found


def freeze(model: EncoderDecoderModel, entries: Sequence[str]) -> list[tuple[int, list[str]]]:
    """Freeze the parameters that ``optimization.freeze`` names.

    Returns:
        Those that are frozen for a while: the number of updates, and their names.
    """
    until: dict[str, int] = {}
    parts = [entry.partition(":") for entry in entries]
    patterns = [pattern for pattern, *_ in parts]
    with name_key_in_errors("optimization.freeze"):
        for pattern, colon, updates in parts:
            if patterns.count(pattern) > 1:
                raise ConfigError(f"{pattern} is given twice; remove one")
            if colon and not (updates.isdecimal() and int(updates)):
                raise ConfigError(f"{updates!r} after {pattern}: must be a number of updates, such as {pattern}:1000")
            until |= {pattern: int(updates)} if colon else {}
        found = names_like({"": model}, patterns)
    named = dict(model.named_parameters())
    for pattern in found.keys() - until.keys():
        for name in found[pattern]:
            named[name].requires_grad_(False)
    for pattern in (one for one in until if not any(named[name].requires_grad for name in found[one])):
        raise ConfigError(f"optimization.freeze: {pattern} is frozen for good, too; remove {pattern}:{until[pattern]}")
    if not num_parameters(model, trainable_only=True):
        raise ConfigError(f"optimization.freeze=[{','.join(entries)}] leaves no parameter to train; remove a pattern")
    return [
        (updates, [name for name in found[pattern] if named[name].requires_grad]) for pattern, updates in until.items()
    ]


def untrained_rows(model: EncoderDecoderModel, start: int) -> list[tuple[Tensor, Tensor]]:
    """Embeddings in which the row of padding is that of the start token, as in Marian's models, where it is zero.

    As input the row has no gradient, but a tied output layer has one with label smoothing.

    Args:
        model: the model.
        start: its start token.

    Returns:
        Each weight ``(V, C)`` with a mask ``(V, 1)``, which is 0 for that row.
    """
    found = []
    for part in model.decoder.modules():
        if isinstance(part, nn.Embedding) and part.padding_idx == start:
            mask = torch.ones_like(part.weight[:, :1])
            mask[start] = 0
            found.append((part.weight, mask.detach()))
    return found
