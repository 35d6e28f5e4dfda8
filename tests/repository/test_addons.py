"""Without an add-on: which tests are left out, and what a user is told who asks for something of it."""

import importlib
from dataclasses import fields
from pathlib import Path

import pytest

from seqgen.config import GenerationConfig, from_dict
from seqgen.config.generation import KEYS_OF_ADDONS, OPTIONS, SWITCHES
from seqgen.registry import MissingAddonError
from tests.commands import MISSING, command
from tests.conftest import ROOT, addons_of, is_installed, pytest_ignore_collect

TESTS = ROOT / "tests"
EXAMPLES = ROOT / "examples"


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("addons/export/test_export", {"export", "checks", "huggingface", "marian"}),
        ("core/test_alone", set()),
        ("conftest", set()),
    ],
)
def test_the_addons_of_a_test(file: str, expected: set[str]) -> None:
    assert addons_of(TESTS / f"{file}.py") == expected


def test_imports_are_followed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Through modules of the tests and of the examples, also those that import each other, and inside functions."""
    monkeypatch.setattr("tests.conftest.ROOT", tmp_path)
    of_addons = f"{TESTS.name}/addons"
    for name, code in {
        f"{TESTS.name}/test_a.py": "from tests import b\n",
        f"{TESTS.name}/b.py": "def f():\n    import tests.c as c\n",
        f"{TESTS.name}/c.py": "import tests.b\nfrom examples.d import x\nfrom seqgen.addons.one.part import y\n",
        f"{EXAMPLES.name}/d.py": "from seqgen.addons import two\nimport seqgen.addons.three.part\n",
        f"{of_addons}/four/test_e.py": "import seqgen\n",
        f"{of_addons}/test_f.py": "import seqgen.addons\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(code)
    assert addons_of(tmp_path / TESTS.name / "test_a.py") == {"one", "two", "three"}
    assert addons_of(tmp_path / of_addons / "four/test_e.py") == {"four"}
    assert addons_of(tmp_path / of_addons / "test_f.py") == set()
    monkeypatch.setattr("tests.conftest.is_installed", lambda addon: addon != "two")
    assert pytest_ignore_collect(tmp_path / TESTS.name / "test_a.py")
    assert pytest_ignore_collect(tmp_path / TESTS.name / "c.py") is None  # no test
    assert pytest_ignore_collect(tmp_path / of_addons / "four/test_e.py") is None


def test_each_addon_has_tests() -> None:
    for addon in (ROOT / "addons").glob("*/__init__.py"):
        assert any((TESTS / "addons" / addon.parent.name).glob("test_*.py")), addon


def test_the_first_line_of_an_addon_names_its_page() -> None:
    for file in (ROOT / "addons").glob("*/__init__.py"):
        first = file.read_text(encoding="utf-8").partition("\n")[0]
        page = first.rpartition("; ")[2].removesuffix('."""')
        assert page.startswith("docs/"), first
        assert (ROOT / page).is_file(), first


def test_the_table_of_keys_is_what_the_addons_declare() -> None:
    declared = {}
    for module, name in (*OPTIONS, *SWITCHES):
        addon = module.removeprefix("seqgen.addons.").partition(".")[0]
        if module.startswith("seqgen.addons.") and is_installed(addon):
            keys = fields(getattr(importlib.import_module(module), name))
            defaults = vars(getattr(importlib.import_module(module), name)())
            declared |= {field.name: (addon, defaults[field.name]) for field in keys}
    assert declared == {key: found for key, found in KEYS_OF_ADDONS.items() if is_installed(found[0])}


def test_keys_of_a_missing_addon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorded default is passed over; another value, and a key that is given, name the add-on."""
    monkeypatch.setitem(KEYS_OF_ADDONS, "absent_key", ("absent", ""))
    assert from_dict(GenerationConfig, {"beam": 3, "absent_key": ""}, "a run") == GenerationConfig(beam=3)
    with pytest.raises(MissingAddonError, match=MISSING):
        from_dict(GenerationConfig, {"absent_key": "a"}, "a run")
    with pytest.raises(MissingAddonError, match=MISSING):
        command("generate", "path=a", "generation.absent_key=")
