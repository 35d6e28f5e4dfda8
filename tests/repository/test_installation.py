"""An ordinary installation has every file of the checkout, and runs from any folder without the tools for tests."""

import importlib.metadata
import os
import runpy
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from tests.commands import SMALL_TRANSFORMER

ROOT = Path(__file__).parent.parent.parent
FOLDERS = {"seqgen": "seqgen", **{name: f"seqgen/{name}" for name in ("models", "tasks", "cli", "addons")}}
"""The folders of the checkout that are installed, and where they are in the installation."""

EVERY_MODULE_AND_HELP = """
import contextlib, importlib, importlib.metadata, io, pkgutil, sys
import seqgen

for module in pkgutil.walk_packages(seqgen.__path__, "seqgen."):
    importlib.import_module(module.name)
for script in importlib.metadata.distribution("seqgen-torch").entry_points:
    sys.argv = [script.name, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        script.load()()
    assert script.name in shown.getvalue(), script
"""

COMMANDS = (
    f"seqgen-train run_dir=run task.train_size=100 optimization.max_update=1 {' '.join(SMALL_TRANSFORMER)}",
    "seqgen-generate path=run input=numbers output=outputs trace=trace.jsonl generation.max_len_b=5",
    "seqgen-check path=run",
    "seqgen-score hypothesis=[outputs,numbers] reference=numbers json=comparison.json compare.tests=none",
    "seqgen-show trace.jsonl page=trace.html",
    "seqgen-show run",
)


def files_on_disk() -> dict[str, Path]:
    """The installed name of each file of the checkout."""
    return {
        f"{installed}/{path.relative_to(ROOT / folder).as_posix()}": path
        for folder, installed in FOLDERS.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }


def test_setup_lists_every_file_of_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    setuptools = pytest.importorskip("setuptools")
    monkeypatch.chdir(ROOT)
    with mock.patch("setuptools.setup") as setup:
        runpy.run_path("setup.py")
    build = setuptools.Distribution({**setup.call_args.kwargs, "script_name": "setup.py"}).get_command_obj("build_py")
    build.ensure_finalized()
    listed = {Path(target).relative_to(build.build_lib).as_posix() for target in build.get_output_mapping()}
    assert listed == {*files_on_disk()}


def required(requirement: str) -> Iterator[importlib.metadata.Distribution]:
    """The distribution that a requirement names, and those that it requires in turn, as they are installed here."""
    from packaging.requirements import Requirement

    waiting, seen = [Requirement(requirement)], set()
    while waiting:
        one = waiting.pop()
        for extra in ("", *one.extras):
            if (one.name, extra) not in seen:
                seen.add((one.name, extra))
                distribution = importlib.metadata.distribution(one.name)
                yield distribution
                needed = [Requirement(text) for text in distribution.requires or ()]
                waiting += [each for each in needed if not each.marker or each.marker.evaluate({"extra": extra})]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the checkout."""
    checkout = tmp_path_factory.mktemp("checkout")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, checkout / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, checkout)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--wheel-dir", "dist", "."], cwd=checkout, check=True)
    (file,) = (checkout / "dist").iterdir()
    return file


@pytest.fixture(scope="module")
def scripts(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the commands, installed from the wheel with nothing but what ``install_requires`` names."""
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, symlinks=True)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    (metadata,) = importlib.metadata.distributions(path=[str(site)])
    dependencies = environment / "dependencies"
    dependencies.mkdir()
    (site / "dependencies.pth").write_text(f"{dependencies}\n")
    for requirement in metadata.requires or ():
        if "extra ==" not in requirement:
            for distribution in required(requirement):
                for name in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
                    if not (dependencies / name).exists():
                        (dependencies / name).symlink_to(Path(str(distribution.locate_file(name))))
    return python.parent


@pytest.mark.slow
def test_the_wheel_has_the_files_of_the_checkout(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
    assert contents == {name: path.read_bytes() for name, path in files_on_disk().items()}


@pytest.mark.slow
def test_the_installation_works_outside_the_checkout(scripts: Path, tmp_path: Path) -> None:
    def run(*words: str) -> str:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}\n{done.stderr}"
        return done.stdout

    python = str(scripts / "python")
    assert "No module" in run(python, "-c", "try: import pytest\nexcept ImportError as error: print(error)")
    run(python, "-c", EVERY_MODULE_AND_HELP)
    (tmp_path / "numbers").write_text("12\n7\n")
    for line in COMMANDS:
        name, *arguments = line.split()
        run(str(scripts / name), *arguments)
    assert "<style>" in (tmp_path / "trace.html").read_text(encoding="utf-8")
