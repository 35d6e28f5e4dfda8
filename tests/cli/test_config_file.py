"""``config=FILE.yaml``: keys of a file, beside those of the command line."""

import re
from pathlib import Path

import pytest
import yaml

from seqgen.cli.command import with_config_files
from seqgen.cli.keys import every_key
from seqgen.config.compose import compose
from seqgen.extend import TrainConfig, to_dict
from tests.cli.test_help import SCHEMAS
from tests.commands import command

NO_FILES = {"column", "source_lang", "target_lang", "pairs", "languages"}
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
    text = "model: transformer_tiny\nmodel.dropout: 0.3\noptimization:\n  lr: 1e-3\n  clip_norm: 2\n"
    key = written(tmp_path / "a.yaml", text)
    config = compose(TrainConfig, with_config_files(TrainConfig, [key, "optimization.clip_norm=5"]).overrides)
    assert config.model == compose(TrainConfig, ["model=transformer_tiny", "model.dropout=0.3"]).model
    assert (config.optimization.lr, config.optimization.clip_norm) == ([1e-3], 5)
    # another model removes the keys of the file's model
    key = written(tmp_path / "a.yaml", "model: {_name: t5, d_model: 64}\ncommon.seed: 3\n")
    read = with_config_files(TrainConfig, [key, "model=fconv_tiny"])
    assert read.overrides == ["common.seed=3", "model=fconv_tiny"]
    assert read.messages == [f"{key}: model.* is not used, because model=fconv_tiny is given"]
    # a later file overrides an earlier one
    files = [written(tmp_path / f"{n}.yaml", f"common: {{seed: {n}}}\n").partition("=")[2] for n in (1, 2)]
    assert with_config_files(TrainConfig, [f"config=[{','.join(files)}]"]).overrides == ["common.seed=2"]


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


def test_what_is_written_and_what_runs_code_is_declared() -> None:
    """In every command; a key that a file may set names an input, or no file at all."""
    keys = [key for schema in SCHEMAS.values() for key in every_key(schema)]
    files = re.compile(r"to write|written|append|the page|import|cache|\b(files?|folders?)\b")
    for key in keys:
        if "str" in str(key.annotation) and not key.role and not key.field.metadata.get("choices"):
            is_known = key.name.rpartition(".")[2] in NO_FILES
            assert is_known or not files.search(key.help), f"{key.name} ({key.help}): what does it name?"
    assert len([key for key in keys if key.role in ("output_path", "code")]) > 20
