"""Units of a file: which are decoded, and what is written into them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from seqgen.extend import DataError, library_errors, read_bytes, reading_errors

MARK = "seqgen"
"""The author of comments, which are replaced when their unit is translated again."""


@dataclass
class Unit(ABC):
    """A unit of a file.

    Attributes:
        sources: the texts to decode: one, or a singular and a plural.
        finished: whether it is translated, and not fuzzy.
    """

    sources: Sequence[str]
    finished: bool

    @abstractmethod
    def fill(self, texts: Sequence[str], review: bool, why: list[str]) -> None:
        """Write the translation.

        Args:
            texts: those of ``sources``.
            review: whether a person should read it.
            why: the reasons, for a comment.
        """


class UnitFile(ABC):
    """A file of units.

    Args:
        path: the file.
        every: whether finished units are decoded, too.

    Attributes:
        texts: the lines to decode.

    Raises:
        DataError: the file cannot be read, has no units, or could not be written again.
    """

    def __init__(self, path: Path, every: bool):
        with reading_errors(path, DataError):
            self.path, self.content = path, read_bytes(path)
        with library_errors(f"{path} cannot be read"):
            units = list(self.read())
        if not units:
            raise DataError(f"{path} has no units to translate; is it the right file?")
        self.units = [unit for unit in units if every or not unit.finished]
        self.texts = [source.translate({9: " ", 10: " "}).strip() for unit in self.units for source in unit.sources]

    def filled(self, records: Iterable[Mapping[str, Any]]) -> bytes:
        """The file with the outputs of its first lines; a unit stays as it is if one of its outputs is empty.

        A person should read an output with notes, or if a line stage has added the extra ``review``: true, or reasons.

        Args:
            records: what ``format=json`` writes of each of these lines.
        """
        rest = iter(records)
        for unit in self.units:
            found = list(islice(rest, len(unit.sources)))
            texts = [" ".join(record["hypotheses"][0]["text"].split()) for record in found if record["hypotheses"]]
            if len(texts) < len(unit.sources) or not all(texts):
                continue
            signs = {sign for source in unit.sources for sign in source.strip()}
            lost = [f"the {name} are lost" for sign, name in (("\n", "line breaks"), ("\t", "tabs")) if sign in signs]
            marks = [record.get("review") or [] for record in found]
            given = [[mark] if isinstance(mark, str) else [] if mark is True else mark for mark in marks]
            notes = [note for record in found for note in record.get("notes", ())]
            why = list(dict.fromkeys([*lost, *chain.from_iterable(given), *notes]))
            review = bool(why) or any(marks)
            probabilities = [record["confidence"] for record in found if record.get("confidence") is not None]
            if review and probabilities:
                why.insert(0, f"probability {min(probabilities):.2f}")
            pairs = zip(unit.sources, texts, strict=True)  # the white space around a source is kept
            unit.fill([source.replace(source.strip(), text, 1) for source, text in pairs], review, why)
        return self.written()

    @abstractmethod
    def read(self) -> Iterable[Unit]:
        """The units of ``content`` that can be translated."""

    @abstractmethod
    def written(self) -> bytes:
        """The file with the units that were filled."""
