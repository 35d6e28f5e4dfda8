"""What pages say about the code: quoted lines, layers, keys, switches, and what limits training on many GPUs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.scaling import main
from seqgen.cli.convert import ConvertConfig
from seqgen.config import GenerateConfig, TrainConfig, known_keys
from seqgen.registry import GROUPS, SEARCHES
from tests.repository.test_imports import LAYERS

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {page.name: page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")}


def quoted() -> list[tuple[str, str]]:
    """The file and the text of each block of code of a section; a block quotes the file of the last link before it."""
    section = PAGES["architecture.md"].partition("## One step, annotated\n")[2].partition("\n## ")[0]
    pairs, file = [], ""
    for found in re.finditer(r"\]\(\.\./(?P<file>[^)#]+\.py)\)|^```python\n(?P<code>.*?)^```", section, re.M | re.S):
        file = found["file"] or file
        if found["code"]:
            pairs.append((file, found["code"]))
    return pairs


def code_lines(text: str) -> list[str]:
    """The lines of some code without indentation, blank lines and comments."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize(("file", "code"), quoted())
def test_quoted_code_is_in_its_file(file: str, code: str) -> None:
    """The parts of a block, which lines ``...`` separate, occur in this order."""
    rest = code_lines((ROOT / file).read_text(encoding="utf-8"))
    for part in re.split(r"^\.\.\.$", code, flags=re.M):
        lines = code_lines(part)
        starts = [i for i in range(len(rest)) if rest[i : i + len(lines)] == lines]
        assert starts, f"{file} no longer has\n{part}"
        rest = rest[starts[0] + len(lines) :]


def test_layers_are_those_of_the_test_of_imports() -> None:
    """In the text, from below, and in the drawing, from above."""
    (order,) = re.findall(r"`(core < .*?)`", PAGES["architecture.md"], re.S)
    drawing = (ROOT / "docs" / "architecture.svg").read_text(encoding="utf-8")
    drawn = re.findall(r'font-weight="bold">([^<]+)<', drawing)
    for parts in (order.split("<"), drawn[::-1]):
        for part, layer in zip(parts, LAYERS, strict=True):
            names = set(re.findall(r"\w+", part))
            assert names, part
            assert names <= layer


def test_the_keys_that_are_named_exist() -> None:
    """On pages for users of other toolkits also those of models, tasks and criteria, which elsewhere are attributes."""
    known = {key for schema in (TrainConfig, GenerateConfig, ConvertConfig) for key, _, _ in known_keys(schema())}
    for group, registry in {**GROUPS, "search": SEARCHES}.items():
        for entry in registry.entries():
            known |= {key for key, _, _ in known_keys(entry.config(), f"{group}.")}
    groups = {key.split(".")[0] for key in known if "." in key} - {"search"}
    others = {"model.pt", "model.generate", "ray.io", "ray.de", "generation.token_reward"}  # the last: of an example
    count = 0
    for page, text in {**PAGES, "the README": README}.items():
        kinds = groups | {"search"} if page.startswith("from-") else groups - {"model", "task", "criterion"}
        named = set(re.findall(rf"\b((?:{'|'.join(sorted(kinds))})\.(?!(?:py|md)\b)[a-z_0-9]+)\b", text))
        assert named - known - others == set(), page
        count += len(named)
    assert count > 300


def test_the_page_says_what_limits_training_on_many_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    """With 8,192 tokens on each GPU computation, with 1,024 tokens on several communication; T5-11B needs ``fsdp``."""
    for tokens, limit in (("8192", "computation"), ("1024", "communication")):
        main(["table", "--tokens", tokens])
        rows = [row.strip("| ").split(" | ") for row in capsys.readouterr().out.splitlines()[2:]]
        assert {row[6] for row in rows if row[1] != "1"} == {limit, "memory"}
        assert {(row[0], row[2]) for row in rows if row[6] == "memory" and row[1] != "1"} == {("T5-11B", "ddp")}


@pytest.mark.nightly
@pytest.mark.parametrize("arguments", [("train", "--updates", "2", "--examples", "300"), ("decode", "--lines", "40")])
def test_the_measurements_of_scaling_run(arguments: tuple[str, ...], tmp_path: Path) -> None:
    python = [sys.executable, "-m", "benchmarks.scaling", *arguments, "--rounds", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    shown = subprocess.run(python, check=False, capture_output=True, env=environment, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr.decode()
