"""Shell completion, in the shells themselves."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import pytest

import seqgen.models
import seqgen.tasks  # noqa: F401  # declares the built-in tasks
from seqgen.cli.completion import completion_script
from seqgen.cli.keys import INPUTS, every_key
from seqgen.config import GenerateConfig, TrainConfig
from tests.commands import command

CASES = [
    ("optimization.l", ["optimization.lr="]),
    ("common.device=", ["auto", "cpu", "cuda", "mps"]),
    ("dataset.pack=t", ["true"]),
    ("model=transformer_t", ["transformer_tiny"]),
    ("optimizer=ada", ["adafactor", "adam", "adamw"]),
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
def script(shell: str) -> str:
    return completion_script(TrainConfig, "seqgen-train", shell)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for run in ("a", "b"):
        (tmp_path / "runs" / run).mkdir(parents=True)
        (tmp_path / "runs" / run / "config.yaml").touch()
    for shell in ("bash", "zsh", "fish"):
        (tmp_path / f"script.{shell}").write_text(script(shell))
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
        ("--completion ", ["bash", "zsh", "fish"]),
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
    ("show pa", ["path=", "page="]),
    ("diff oth", ["other="]),
    ("diff runs=runs/", ["runs/a", "runs/b"]),
    ("show sort=tok", ["tokens_per_second", "tokens/s"]),
    ("score metrics=[bleu,te", ["ter"]),
    ("show path=scr", ["script.bash", "script.fish", "script.zsh"]),
    ("show scr", ["script.bash", "script.fish", "script.zsh"]),
]


@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed")
@pytest.mark.parametrize(("typed", "expected"), WORDS)
def test_words(typed: str, expected: Sequence[str], folder: Path) -> None:
    name = typed.split()[0]
    (folder / "s").write_text(command(name, "--completion", "bash").out)
    text = BASH.replace("_seqgen_train", f"_seqgen_{name}")
    found = completed(folder, "bash", "-c", text, "bash", "s", f"seqgen-{typed}")
    assert sorted({item.removeprefix("[bleu,") for item in found} - {""}) == sorted(expected)


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
@pytest.mark.parametrize(("typed", "expected"), [case for case in WORDS if "=" not in case[0]])
def test_words_in_fish(typed: str, expected: Sequence[str], folder: Path) -> None:
    (folder / "s").write_text(command(typed.split()[0], "--completion", "fish").out)
    found = completed(folder, "fish", "--no-config", "-c", f"source s; complete -C 'seqgen-{typed}'")
    assert {line.partition("\t")[0].rstrip("/") for line in found} >= {*expected} - {"runs/a", "runs/b"}


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
@pytest.mark.parametrize(("typed", "expected"), CASES)
def test_fish(typed: str, expected: Sequence[str], folder: Path) -> None:
    found = completed(folder, "fish", "--no-config", "-c", f"source script.fish; complete -C 'seqgen-train {typed}'")
    key = typed.partition("=")[0] + "=" if "=" in typed else ""
    assert sorted(line.partition("\t")[0].rstrip("/") for line in found) == sorted(key + item for item in expected)


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed")
def test_zsh_reads_the_script(folder: Path) -> None:
    text = "autoload -Uz compinit; compinit -u -D; source ./script.zsh; print $_comps[seqgen-train]"
    assert completed(folder, "zsh", "-f", "-c", text) == ["_seqgen_train"]
    (folder / "script.zsh").write_text(command("show", "--completion", "zsh").out)
    assert completed(folder, "zsh", "-f", "-c", text.replace("train", "show")) == ["_seqgen_show"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_has_every_key(shell: str) -> None:
    keys = every_key(TrainConfig)
    text = script(shell)
    assert len(keys) > 200
    assert not [key.name for key in keys if f"{key.name}=" not in text]


def test_no_file_is_completed_for_a_key_that_does_not_exist() -> None:
    assert {"input", "reference", "path"} < {*INPUTS}
    assert "hypothesis" not in script("bash")


def test_the_command_prints_it() -> None:
    with mock.patch("seqgen.cli.completion.completion_script", lambda schema, program, shell: f"{program} {shell}"):
        assert command("convert", "--completion", "bash").out == "seqgen-convert bash\n"
    assert "bash, zsh, fish" in command("convert", "--completion", "tcsh").err
    assert command("convert", "--completion").code == 2
    assert "complete -F _seqgen_show seqgen-show" in command("show", "--completion", "bash").out
