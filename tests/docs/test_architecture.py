"""docs/architecture.md agrees with the code: quoted lines, layers, number of files to read."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from seqgen.config import FastConfig
from tests.conftest import of_installed
from tests.repository.test_imports import LAYERS

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## One step, annotated\n")[2].partition("\n## ")[0]
QUOTES = [
    (found["file"] or "", found["code"] or "")
    for found in re.finditer(r"\]\(\.\./(?P<file>[^)#]+\.py)\)|^```python\n(?P<code>.*?)^```", SECTION, re.M | re.S)
]
"""Links to files and blocks of code, in their order; a block quotes the file of the last link before it."""


def quoted() -> list[tuple[str, str]]:
    """The file and the text of each block."""
    pairs, file = [], ""
    for name, code in QUOTES:
        file = name or file
        if code:
            pairs.append((file, code))
    return pairs


def code_lines(text: str) -> list[str]:
    """The lines of some code without indentation, blank lines and comments."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def occurs(code: str, source: str) -> bool:
    """True if the parts of a block, which lines ``...`` separate, occur in this order in the source."""
    rest = code_lines(source)
    for part in re.split(r"^\.\.\.$", code, flags=re.M):
        lines = code_lines(part)
        starts = [i for i in range(len(rest)) if rest[i : i + len(lines)] == lines]
        if not starts:
            return False
        rest = rest[starts[0] + len(lines) :]
    return True


@pytest.mark.parametrize(("file", "code"), quoted())
def test_quoted_code_is_in_its_file(file: str, code: str) -> None:
    assert occurs(code, (ROOT / file).read_text(encoding="utf-8")), f"{file} no longer has\n{code}"


def test_the_core_in_the_readme() -> None:
    """The files of the tree exist, and their lines of code are those of the tree to within a tenth."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (tree,) = re.findall(r"^```\n(seqgen/\n.*?)^```", readme, re.M | re.S)
    folders, counts = [""], []
    for line in tree.splitlines():
        found = re.fullmatch(r"( *)([\w/]+(?:/|\.py))(?: +(\d+) {3}.*)?", line)
        assert found, line
        folders = [*folders[: len(found[1]) // 2 + 1], found[2]]
        if found[3]:
            text = re.sub(r'""".*?"""', "", (ROOT / "".join(folders)).read_text(encoding="utf-8"), flags=re.S)
            counts.append(len(code_lines(text)))
            assert abs(counts[-1] - int(found[3])) <= max(3, counts[-1] / 10), f"{line}: {counts[-1]}"
    files, lines = re.findall(r"These (\d+) files, ([\d,]+) lines", readme)[0]
    assert len(counts) == int(files)
    assert abs(sum(counts) - int(lines.replace(",", ""))) <= sum(counts) / 20, sum(counts)


def test_layers_are_those_of_the_test_of_imports() -> None:
    (order,) = re.findall(r"`(core < .*?)`", PAGE, re.S)
    parts = [set(re.findall(r"\w+", layer)) for layer in order.split("<")]
    assert len(parts) == len(LAYERS)
    for named, layer in zip(parts, LAYERS, strict=True):
        assert named, order
        assert named <= layer


def test_the_drawing_has_the_layers() -> None:
    drawing = (ROOT / "docs" / "architecture.svg").read_text(encoding="utf-8")
    names = re.findall(r'font-weight="bold">([^<]+)<', drawing)
    drawn = [set(re.findall(r"\w+", name)) for name in names]
    assert len(drawn) == len(LAYERS)
    for named, layer in zip(reversed(drawn), LAYERS, strict=True):
        assert named <= layer


def test_the_page_on_speed_has_every_switch() -> None:
    page = (ROOT / "docs" / "fast-decoding.md").read_text(encoding="utf-8")
    assert {field.name for field in fields(FastConfig)} == of_installed(re.findall(r"`fast\.(\w+)=", page))
