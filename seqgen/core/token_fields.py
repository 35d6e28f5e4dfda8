"""Fields: the values that components give to the tokens of hypotheses; see ``Component.token_fields``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from seqgen.core.backpointers import CONTINUATION
from seqgen.core.candidates import Candidates
from seqgen.core.component import Component, flattened
from seqgen.core.contract import returned, returned_tensor
from seqgen.core.errors import ConfigError, DecodingError


def with_fields(components: Iterable[Component]) -> list[Component]:
    """The components, and parts of composites, that have fields."""
    return [one for one in flattened(components) if type(one).token_fields is not Component.token_fields]


def fields_of(
    components: Iterable[Component], candidates: Candidates, context: Any, known: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The fields of candidates, with what they return checked.

    Args:
        components: see ``Component.token_fields``.
        candidates: see ``Component.token_fields``.
        context: see ``Component.token_fields``.
        known: the fields of earlier steps, ``(live, steps, K, ...)`` by name; empty at the first step.

    Raises:
        ContractError: a component returns something else, or other fields than at earlier steps.
        ConfigError: two components have a field of the same name.
    """
    found: dict[str, Tensor] = {}
    for one in with_fields(components):
        fields: Mapping[str, Tensor] = returned(one, "token_fields", one.token_fields(candidates, context), Mapping)
        for name, value in fields.items():
            if name in found:
                raise ConfigError(f"{type(one).__name__} and another component have a field {name!r}; leave out one")
            like = known[name][:, 0] if name in known else returned(one, "token_fields", value, Tensor)
            shape, device = (*candidates.tokens.shape, *like.shape[2:]), candidates.tokens.device
            found[name] = returned_tensor(one, "token_fields", value, shape, like.dtype, device, f"{name} ")
    if known and (other := sorted({*found} ^ {*known} - {CONTINUATION})):
        raise DecodingError(f"the field {other[0]!r} is missing at some steps; its token_fields must always return it")
    return found
