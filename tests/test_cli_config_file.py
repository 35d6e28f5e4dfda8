"""``config=FILE.yaml``: keys of a file, beside those of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import seqgen.models
import seqgen.tasks  # noqa: F401  # declares the built-in tasks
from seqgen.cli.config_file import with_config_files
from seqgen.compose import compose
from seqgen.config import GenerateConfig, TrainConfig
from seqgen.config_dicts import to_dict
from seqgen.errors import ConfigError
from tests.commands import command


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


def test_the_configuration_of_a_run_is_for_training(tmp_path: Path) -> None:
    """What it says about the model and the data of the run would be ignored elsewhere."""
    key = written(tmp_path / "config.yaml", yaml.safe_dump(to_dict(compose(TrainConfig, ["generation.beam=3"]))))
    with pytest.raises(ConfigError, match=r"config.yaml: this is the configuration of a training run.* path=RUN uses"):
        with_config_files(GenerateConfig, [key])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "there is no such file"),
        ("- a\n- b\n", "must contain keys and values"),
        ("", "must contain keys and values"),
        ("a: [", "not a YAML file: there is an error in line 1, column 5$"),
        ("a: '\0'", "not a YAML file: it has the character U\\+0000"),
        ('{"format": "seqgen-comparison"}', "this is a seqgen-comparison file, not keys or a record"),
        ('{"format": "seqgen-record", "version": 2}', "this is a record of version 2; this seqgen reads version 1"),
        ('{"format": "seqgen-record", "version": 1}', "the record has no keys"),
        ('{"format": "seqgen-record", "version": 1, "keys": {}}', "which is for seqgen-generate"),
        ("a: !!python/object:os.system {}\n", "not a YAML file"),
    ],
)
def test_files_that_cannot_be_used(text: str | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        with_config_files(TrainConfig, [f"config={path}"])
    assert f"config={path}" in str(caught.value)


@pytest.mark.parametrize("content", ["lr: 3\n", "dataset: {max_tokens: abc}\n", "model: {_name: nothere}\n"])
def test_a_message_names_the_file(content: str, tmp_path: Path) -> None:
    outcome = command("train", written(tmp_path / "x.yaml", content))
    assert outcome.code == 2
    assert "Traceback" not in outcome.err
    if "nothere" not in content:
        assert f"the key is in config={tmp_path}/x.yaml" in outcome.err
