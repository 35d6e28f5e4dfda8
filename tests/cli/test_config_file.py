"""``config=FILE.yaml``: keys of a file, beside those of the command line."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import seqgen.models
import seqgen.tasks  # noqa: F401  # declares the built-in tasks
from seqgen.cli.command import with_config_files
from seqgen.cli.keys import every_key
from seqgen.config import TrainConfig
from seqgen.config.compose import compose
from seqgen.config.values import to_dict
from tests.cli.test_help import SCHEMAS
from tests.commands import command

ROOT = Path(__file__).parent.parent.parent
NO_FILES = {"user_files", "column", "source_lang", "target_lang", "pairs", "languages", "ignore",
    "dictionary", "sentencepiece", "title", "file"}  # fmt: skip
"""Keys whose help speaks of files, but whose values name none that is written."""


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return f"config={path}"


def test_a_configuration_goes_through_a_file_unchanged(tmp_path: Path) -> None:
    given = [
        "model=t5_tiny", "model.d_ff=96", "optimizer=adamw", "optimizer.adam_betas=[0.8,0.9]", "task=translation",
        "task.train=it's, a=[x]", "optimization.freeze=[a b,c*]", "dataset.batch_size=7", "dataset.max_tokens=null",
        "common.user_dir=[]", "generation.search=diverse_beam", "search.groups=2", "optimization.lr=[1e-30]",
        "generation.stop_strings=[\"\\n\",\"a,b\"]", "common.bf16=true",
    ]  # fmt: skip
    config = compose(TrainConfig, given)
    key = written(tmp_path / "config.yaml", yaml.safe_dump(to_dict(config)))
    read = with_config_files(TrainConfig, [key])
    assert compose(TrainConfig, read.overrides) == config
    assert read.messages == []


def test_a_file_written_by_hand_and_the_command_line(tmp_path: Path) -> None:
    key = written(
        tmp_path / "a.yaml", "model: transformer_tiny\nmodel.dropout: 0.3\noptimization:\n  lr: 1e-3\n  clip_norm: 2\n"
    )
    read = with_config_files(TrainConfig, [key, "optimization.clip_norm=5"])
    config = compose(TrainConfig, read.overrides)
    assert type(config.model).__name__ == "TransformerConfig"
    assert config.model.encoder_embed_dim == compose(TrainConfig, ["model=transformer_tiny"]).model.encoder_embed_dim
    assert (config.model.dropout, config.optimization.lr, config.optimization.clip_norm) == (0.3, [1e-3], 5)


def test_another_model_on_the_command_line_removes_the_keys_of_the_files_model(tmp_path: Path) -> None:
    key = written(tmp_path / "a.yaml", "model: {_name: t5, d_model: 64}\ncommon.seed: 3\n")
    read = with_config_files(TrainConfig, [key, "model=fconv_tiny"])
    assert read.overrides == ["common.seed=3", "model=fconv_tiny"]
    assert read.messages == [f"{key}: model.* is not used, because model=fconv_tiny is given"]


def test_later_files_override_earlier_ones(tmp_path: Path) -> None:
    first, second = (written(tmp_path / f"{n}.yaml", f"common: {{seed: {n}}}\n") for n in (1, 2))
    both = f"config=[{first.partition('=')[2]},{second.partition('=')[2]}]"
    assert with_config_files(TrainConfig, [both]).overrides == ["common.seed=2"]


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("generate", "output"), ("generate", "trace"), ("generate", "record"), ("generate", "job.folder"),
        ("train", "run_dir"), ("train", "task.cache_dir"), ("tune", "json"), ("score", "json"), ("show", "page"),
        ("convert", "output"), ("show", "path"),
    ],
)  # fmt: skip
def test_a_file_names_nothing_that_is_written(name: str, key: str, tmp_path: Path) -> None:
    value = tmp_path / "mine.html"
    value.write_text("mine")
    file = written(tmp_path / "a.yaml", f"{key}: {value}\n")
    refused = command(name, file)
    assert f"{file} sets {key}={value}, a path that is written; a file may not set it: type {key}=" in refused.err
    assert (refused.code, value.read_text(), len([*tmp_path.iterdir()])) == (2, "mine", 2)
    schema = SCHEMAS[f"seqgen-{name}"]
    with_config_files(schema, [file, f"{key}={tmp_path}/other"]).check_trusted(schema)


@pytest.mark.parametrize(
    "content",
    [
        "common.user_dir: {evil}", "common: {{user_dir: [{evil}]}}", '"common.user_dir={evil} #": x',
        "generation: {{components: {{common.user_dir: {evil}}}}}",
        '{{format: seqgen-record, version: 1, keys: {{common.user_dir: {evil}}}}}',
    ],
)  # fmt: skip
def test_a_file_imports_nothing(content: str, tmp_path: Path) -> None:
    evil, canary = tmp_path / "evil.py", tmp_path / "canary"
    evil.write_text(f"open({str(canary)!r}, 'w')\n")
    file = written(tmp_path / "a.yaml", content.format(evil=evil))
    outcome = command("generate", file)
    assert (outcome.code, outcome.err.count("\n"), canary.exists()) == (2, 1, False), outcome.err
    command("generate", file, f"common.user_dir={evil}")
    assert canary.exists() != ("=" in content)


def options() -> Iterator[tuple[str, str, bool]]:
    """The key and the help of each option whose values are free text, and whether it is one of the examples."""
    for top in ("seqgen", "cli", "tasks", "models", "examples"):
        for text in (path.read_text("utf-8") for path in (ROOT / top).rglob("*.py")):
            for node in ast.walk(ast.parse(text)) if "= option(" in text else ():
                match node:
                    case ast.AnnAssign(ast.Name(key), kind, ast.Call(ast.Name("option"), [_, shown, *_], keywords)):
                        is_declared = {"role", "choices"} & {word.arg for word in keywords}
                        if "str" in ast.unparse(kind) and not is_declared:
                            yield key, ast.unparse(shown), top == "examples"


def test_what_is_written_and_what_runs_code_is_declared() -> None:
    """In every command; a key that a file may set names an input, or no file at all."""
    for key, shown, is_example in options():
        is_written = re.search(r"to write|written|append|output file|(file|folder) for|the page|import|cache", shown)
        is_file = not is_example and re.search(r"\b(files?|folders?)\b", shown)
        assert key in NO_FILES or not (is_written or is_file), f"{key} ({shown}): what does it name?"
    keys = [key for schema in SCHEMAS.values() for key in every_key(schema) if key.role in ("output_path", "code")]
    assert len(keys) > 20
