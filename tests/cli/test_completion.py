"""Shell completion, in the shell itself."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from seqgen.cli.keys import every_key
from seqgen.config import TrainConfig
from tests.commands import command

BASH = r"""
source script.bash
COMP_LINE=$1 COMP_POINT=${#1} COMP_WORDBREAKS=$' \t\n"\'><=;|&(:'
compopt() { :; }
"_seqgen_$2"
printf '%s\n' "${COMPREPLY[@]}"
"""


@functools.cache
def script(name: str) -> str:
    return command(name, "--completion", "bash").out


@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed")
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("train run_dir=x optimization.l", ["optimization.lr="]),
        ("train run_dir=x common.device=", ["auto", "cpu", "cuda", "mps"]),
        ("train run_dir=x common.bf16=", ["false", "true"]),
        ("train run_dir=x model=transformer_t", ["transformer_tiny"]),
        ("train run_dir=x generation.search=div", ["diverse_beam", "diverse_siblings"]),
        ("train run_dir=runs/", ["runs/a", "runs/b"]),
        ("train config=runs/a/", ["runs/a/config.yaml"]),
        ("train finetune", []),
        ("train optimization.freeze=[a,", []),
        ("train path=[runs/a,runs/", []),
        ("train checkpoint.finetune_from=runs/", ["runs/a", "runs/b"]),
        ("train --help model.d_m", ["model.d_model"]),
        ("train --comp", ["--completion"]),
        ("train --completion ", ["bash"]),
        ("generate path=[runs/a,runs/", ["[runs/a,runs/a", "[runs/a,runs/b"]),
        ("show ru", ["runs", "runs/a", "runs/b"]),
        ("show sort=tok", ["tokens_per_second", "tokens/s"]),
        ("show scr", ["script.bash"]),
        ("diff oth", ["other="]),
        ("score metrics=[bleu,te", ["[bleu,ter"]),
    ],
)
def test_bash(typed: str, expected: Sequence[str], tmp_path: Path) -> None:
    for run in ("a", "b"):
        (tmp_path / "runs" / run).mkdir(parents=True)
        (tmp_path / "runs" / run / "config.yaml").touch()
    name = typed.split()[0]
    (tmp_path / "script.bash").write_text(script(name))
    words = ["bash", "-c", BASH, "bash", f"seqgen-{typed}", name]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    assert sorted({*done.stdout.split("\n")} - {""}) == sorted(expected)


def test_a_script_has_every_key() -> None:
    keys = every_key(TrainConfig)
    assert len(keys) > 200
    assert not [key.name for key in keys if f"{key.name}=" not in script("train")]
