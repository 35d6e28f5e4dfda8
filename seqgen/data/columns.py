"""Columns: values of examples besides source and target, which keys declare, such as features of an image."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from seqgen.core.errors import ConfigError, DataError, shown
from seqgen.data.parquet import check_text
from seqgen.data.tokenizers.base import Tokenizer
from seqgen.system.reading import parse_json


@dataclass
class Column:
    """A column, of which each example has a value.

    Attributes:
        name: its name.
        kind: ``text``; ``id``, a whole number from 0; ``ids``, several; ``number``; or a list, the shape of an array.
        tokenizer: that of a text; ``None`` before it is loaded.
        longest: maximum tokens of a text, whose last ones are used; 0 for no limit.
        shape: the shape of an array; empty for other kinds.
        pad: the id of padding; ``None`` if values are not padded.

    Raises:
        ConfigError: the name or kind cannot be used.
    """

    name: str
    kind: Any
    tokenizer: Tokenizer | None = None
    longest: int = 0

    def __post_init__(self) -> None:
        self.pad = self.tokenizer.dictionary.pad() if self.tokenizer else {"ids": 0}.get(str(self.kind))
        self.shape = tuple(self.kind) if isinstance(self.kind, list) else ()
        sizes = [size for size in self.shape if type(size) is int and size > 0]
        named = re.fullmatch(r"(?!src_|segments$)[^\W\d]\w*(?<!_lengths)", self.name)
        if not named or sizes != [*self.shape] or not (sizes or self.kind in ("text", "id", "ids", "number")):
            raise ConfigError(
                f"task.columns={{{self.name}:{self.kind}}}: a name must be a word that does not begin with src_ or end "
                "with _lengths, and a kind text, id, ids, number, or the shape of an array, such as [512]"
            )

    def read(self, value: Any, where: str) -> Any:
        """Convert a value.

        Args:
            value: a text, which may be a JSON list, or an array.
            where: its file and line, for the message.

        Returns:
            ``(length,)`` int64 ids, an int64 number, or float32 of ``shape``.

        Raises:
            DataError: the value is not of this kind.
        """
        if self.tokenizer is not None:
            return np.array(self.tokenizer.encode_source(check_text(value, self.name, where))[-self.longest :])
        is_whole, problem = self.kind in ("id", "ids"), f"is {shown(value)}"
        with suppress(ValueError, TypeError, OverflowError), np.errstate(over="ignore"):
            given = value.split() if isinstance(value, str) and not value.startswith("[") else value
            found = np.atleast_1d(parse_json(given) if isinstance(given, str) else given)
            casting: Any = "unsafe" if found.dtype.kind in "US" else "same_kind"  # text is parsed, 1.5 is no id
            found = found.astype(np.int64 if is_whole else np.float32, casting=casting, copy=False)
            if found.shape != (self.shape or (found.size if self.kind == "ids" else 1,)):
                problem = f"has the shape {[*found.shape]}"
            elif not np.isfinite(found).all():
                problem = "has values that are not finite or too large for float32"
            elif not (is_whole and (found < 0).any()):
                return found if self.kind == "ids" else found.reshape(self.shape)
        raise DataError(f"{where}: {self.name} {problem}, and task.columns declares {self.kind}")
