"""``--help``: examples, groups, single keys; the messages about options of other toolkits."""

import functools
import pkgutil
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import seqgen
from seqgen.cli.commands import COMMANDS, installed
from seqgen.cli.convert import ConvertConfig
from seqgen.cli.help import COMMON_KEYS, EXAMPLES
from seqgen.cli.keys import every_key
from seqgen.cli.score import ScoreConfig
from seqgen.cli.start import check_keys, in_red
from seqgen.config import GenerateConfig, TrainConfig
from seqgen.config.compose import compose
from tests.commands import command, done

ROOT = Path(__file__).parent.parent.parent
ADDONS = {
    "seqgen-tune": "seqgen.cli.referenced_text:ReferencedTextConfig",
    "seqgen-show": "seqgen.addons.compare.command:ShowConfig",
    "seqgen-calibrate": "seqgen.addons.confidence.command:CalibrateConfig",
    "seqgen-diff": "seqgen.addons.traces.command:DiffConfig",
    "seqgen-check": "seqgen.addons.checks.kinds:ModelCheckConfig",
}
SCHEMAS: dict[str, type] = {
    "seqgen-train": TrainConfig,
    "seqgen-generate": GenerateConfig,
    "seqgen-score": ScoreConfig,
    "seqgen-convert": ConvertConfig,
    **{program: pkgutil.resolve_name(name) for program, name in ADDONS.items() if program in installed()},
}
"""The configuration of each command that is installed."""


@pytest.mark.parametrize(("program", "line"), [(name, line) for name in SCHEMAS for _, line in EXAMPLES[name]])
def test_examples_have_keys_and_values_that_exist(program: str, line: str) -> None:
    words = shlex.split(line.replace("\\\n", ""))
    arguments = [word for word in words[len(program.split()) :] if not word.startswith(("tune.", "config="))]
    assert words[: len(program.split())] == program.split()
    if "-m" not in arguments:
        compose(SCHEMAS[program], arguments)
    assert all(len(part) <= 78 for part in line.splitlines())


def test_every_command_has_examples() -> None:
    assert COMMANDS.keys() == EXAMPLES.keys() >= installed().keys() == SCHEMAS.keys()
    assert "Examples\n  # decode a file" in command("generate", "--help", "all").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["seqgen-train", "--version"], f"seqgen-train {seqgen.__version__}"),
        (["seqgen-generate", "path=x", "beem=3"], "unknown key 'beem' (did you mean 'generation.beam'?)"),
    ],
)
def test_some_answers_need_no_pytorch(arguments: list[str], said: str) -> None:
    code = """
import atexit, sys
from seqgen.cli.start import main
sys.argv = sys.argv[1:]
atexit.register(lambda: print([name for name in ("torch", "numpy", "rich") if name in sys.modules]))
main()
"""
    words = [sys.executable, "-c", code, *arguments]
    ended = subprocess.run(words, check=False, capture_output=True, text=True, cwd=ROOT)
    assert said in ended.stdout + ended.stderr
    assert ended.stdout.endswith("[]\n")


def test_the_first_check_of_keys_refuses_no_key_that_exists() -> None:
    check_keys([f"{key.name}=x" for key in every_key(GenerateConfig)] + ["config=x", "search.nothing=x"])
    check_keys(["--help", "nothing"])


def test_every_key_has_a_help_text() -> None:
    assert [key.name for schema in SCHEMAS.values() for key in every_key(schema) if not key.help] == []


def test_the_package_names_its_commands(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["seqgen", "trian"])
    with pytest.raises(SystemExit):
        runpy.run_module("seqgen", run_name="__main__")
    assert "there is no command 'trian' (did you mean 'seqgen-train'?); give a command" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["seqgen"])
    with pytest.raises(SystemExit):
        runpy.run_module("seqgen", run_name="__main__")
    scripts = re.findall(r"(seqgen-\w+) = seqgen.cli.start:main", (ROOT / "setup.py").read_text(encoding="utf-8"))
    assert set(scripts) == set(COMMANDS)
    shown = re.findall(r"seqgen-\w+", capsys.readouterr().err)
    assert shown == [name for name in scripts if name in SCHEMAS]


def test_common_keys_exist_and_have_defaults() -> None:
    for program in COMMON_KEYS.keys() & SCHEMAS.keys():
        text = command(program.removeprefix("seqgen-"), "--help").out
        shown = [line.split("=")[0].strip() for line in text.splitlines() if re.match(r"  \w[\w.]*=", line)]
        assert shown == list(COMMON_KEYS[program])
        assert f"{program} --help all lists all" in " ".join(text.split())
        assert "docs/words.md" in text.splitlines()[-1]


@pytest.mark.parametrize(
    ("topics", "shown", "hidden"),
    [
        (["optimizer"], ["optimizer=adam (default)", "optimizer.adam_betas=", "optimizer.momentum="], ["dataset."]),
        (["transformer_tiny"], ["model=transformer_tiny", "model.encoder_embed_dim=128"], ["model.d_model"]),
        (["optimization.lr"], ["learning rate per epoch", "a list of numbers", "default: [0.005]"], ["clip_norm"]),
        (["adam_betas"], ["[0.9,0.98]", "of: adam\n", "[0.9,0.999]", "of: adamw"], []),
        (["lr", "dataset"], ["optimization.lr", "dataset.max_tokens="], []),
    ],
)
def test_topics(topics: Sequence[str], shown: Sequence[str], hidden: Sequence[str]) -> None:
    outcome = done("train", "--help", *topics)
    for words in shown:
        assert words in outcome.out
    for words in hidden:
        assert words not in outcome.out


@pytest.mark.parametrize(
    ("terminal", "no_color", "term", "red"),
    [(False, "", "xterm", False), (True, "", "xterm", True), (True, "1", "xterm", False), (True, "", "dumb", False)],
)
def test_errors_are_red_on_a_terminal_only(
    terminal: bool, no_color: str, term: str, red: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    assert in_red("x") == ("\x1b[1;31mx\x1b[0m" if red else "x")


# --- completion, in the shell itself


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
