"""Shell completion, in the shell itself."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

import seqgen.models
import seqgen.tasks  # noqa: F401  # declares the built-in tasks
from seqgen.cli.completion import completion_script
from seqgen.cli.keys import every_key
from seqgen.config import GenerateConfig, TrainConfig
from tests.commands import command

CASES = [
    ("optimization.l", ["optimization.lr="]),
    ("common.device=", ["auto", "cpu", "cuda", "mps"]),
    ("common.bf16=", ["false", "true"]),
    ("model=transformer_t", ["transformer_tiny"]),
    ("generation.search=div", ["diverse_beam", "diverse_siblings"]),
    ("run_dir=runs/", ["runs/a", "runs/b"]),
    ("config=runs/a/", ["runs/a/config.yaml"]),
]
BASH = r"""
source "$1"
COMP_LINE=$2 COMP_POINT=${#2} COMP_WORDBREAKS=$' \t\n"\'><=;|&(:'
compopt() { :; }
_seqgen_train
printf '%s\n' "${COMPREPLY[@]}"
"""


@functools.cache
def script() -> str:
    return completion_script(TrainConfig, "seqgen-train", "bash")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for run in ("a", "b"):
        (tmp_path / "runs" / run).mkdir(parents=True)
        (tmp_path / "runs" / run / "config.yaml").touch()
    (tmp_path / "script.bash").write_text(script())
    return tmp_path


def completed(folder: Path, *words: str) -> list[str]:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed")
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        *CASES,
        ("finetune", []),
        ("optimization.freeze=[a,", []),
        ("path=[runs/a,runs/", []),
        ("checkpoint.finetune_from=runs/", ["runs/a", "runs/b"]),
        ("--help model.d_m", ["model.d_model"]),
        ("--comp", ["--completion"]),
        ("--completion ", ["bash"]),
    ],
)
def test_bash(typed: str, expected: Sequence[str], folder: Path) -> None:
    found = completed(folder, "bash", "-c", BASH, "bash", "script.bash", f"seqgen-train run_dir=x {typed}")
    assert sorted({*found} - {""}) == sorted(expected)


@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed")
def test_a_list_of_runs_is_completed_item_by_item(folder: Path) -> None:
    (folder / "generate").write_text(completion_script(GenerateConfig, "seqgen-train", "bash"))
    found = completed(folder, "bash", "-c", BASH, "bash", "generate", "seqgen-train path=[runs/a,runs/")
    assert sorted({*found}) == ["[runs/a,runs/a", "[runs/a,runs/b"]


WORDS = [
    ("show ru", ["runs", "runs/a", "runs/b"]),
    ("diff oth", ["other="]),
    ("show sort=tok", ["tokens_per_second", "tokens/s"]),
    ("score metrics=[bleu,te", ["ter"]),
    ("show scr", ["script.bash"]),
]


@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed")
@pytest.mark.parametrize(("typed", "expected"), WORDS)
def test_words(typed: str, expected: Sequence[str], folder: Path) -> None:
    name = typed.split()[0]
    (folder / "s").write_text(command(name, "--completion", "bash").out)
    text = BASH.replace("_seqgen_train", f"_seqgen_{name}")
    found = completed(folder, "bash", "-c", text, "bash", "s", f"seqgen-{typed}")
    assert sorted({item.removeprefix("[bleu,") for item in found} - {""}) == sorted(expected)


def test_a_script_has_every_key() -> None:
    keys = every_key(TrainConfig)
    text = script()
    assert len(keys) > 200
    assert not [key.name for key in keys if f"{key.name}=" not in text]
