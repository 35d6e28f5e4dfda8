"""Keys of a configuration that are misspelt, of another type, outside their limits, or without a place."""

from pathlib import Path
from typing import Any

import yaml

from seqgen.cli.command import with_config_files
from seqgen.cli.score import ScoreConfig
from seqgen.config import GenerateConfig, GenerationConfig, TrainConfig, from_dict, to_dict
from seqgen.config.compose import component_of_key, compose
from tests.refusals import Row, refusals


def of_file(text: str, *words: str, schema: type = TrainConfig) -> Row:
    """A configuration file with a text; the sentence names the file."""

    def read(tmp_path: Path) -> None:
        (tmp_path / "x.yaml").write_text(text)
        compose(schema, with_config_files(schema, [f"config={tmp_path}/x.yaml"]).overrides)

    return read, "x.yaml", *words


def plain(values: dict[str, Any]) -> Row:
    """The plain values of a configuration, as a run has them in ``config.yaml``."""
    return lambda: from_dict(TrainConfig, values, "config.yaml"), "config.yaml"


def key(override: str, *words: str) -> Row:
    return lambda: compose(TrainConfig, [override]), *words


test_keys = refusals(
    key("optimization.max_updates=3", "optimization.max_updates", "did you mean 'optimization.max_update'"),
    key("generation.beem=3", "generation.beem", "did you mean 'generation.beam'"),
    key("model=fconv_tinny", "fconv_tinny", "did you mean 'fconv_tiny'", "--help model lists all"),
    key("model=xyz", "choose one of: ", "fconv", "t5", "transformer_lm"),
    key("model.no_such=1", "model.no_such"),
    key("generation.beam=2.5", "generation.beam=2.5"),
    key("generation.temperature=nan", "generation.temperature=nan", "finite"),
    key("optimization.lr=[1e-3,nan]", "optimization.lr=nan", "finite"),
    key("optimization.lr=[1e-3", "optimization.lr=[1e-3", "a list of numbers, such as"),
    key("optimization.lr=1e-3,2e-3", "a list of numbers", "write optimization.lr=[1e-3,2e-3]"),
    key("optimization.clip_norm=1,2", "a number; seqgen-train -m"),
    key("optimization.freeze=a,b", "write optimization.freeze=[a,b]", 'optimization.freeze=["a,b"] for one'),
    key("optimization.update_freq=abc", "update_freq=abc", "a list of whole numbers"),
    key("dataset.max_tokens=abc", "a whole number, or null"),
    key("generation.beam=1000000000", "is above its maximum, 65536"),
    key("generation.unkpen=-1e39", "is too large for float32"),
    key("dataset.pack=maybe", "true or false"),
    key("batch_size=4", "'dataset.batch_size' or 'generation.batch_size'"),
    key("arch=x", "did you mean 'model'"),
    key("common.device=gpu", "common.device=gpu", "cpu, cuda", "did you mean 'cuda'"),
    key("+common.seed=3", "+common.seed"),
    key("hydra.run.dir=x", "hydra"),
    key("generation=3", "generation.KEY=VALUE"),
    key("nonsense", "key=value"),
    key(f"generation.beam={'[' * 1000}{']' * 1000}", "generation.beam=[[[", "a whole number"),
    key("common.seed=1,2", "common.seed=1,2"),
    key("optimization.lr=0,001", "such as [0.1,0.2]; write optimization.lr=0.001"),
    key("optimization.clip_norm=0,5", "a number; write optimization.clip_norm=0.5"),
    key("epochs=3", "did you mean 'optimization.max_epoch'"),
    key("model=fconv_tiny,transformer_tiny", "has several names; seqgen-train -m trains one run with each"),
    key("task.train=x", "task=number_names", "add task=translation, task.source_lang, task.target_lang"),
    key("model_name_or_paths=x", "unknown key 'model_name_or_paths'; --help lists the keys"),
    key(f"common.seed={2**63}", "does not fit into 64 bits"),
    key("common.user_files={a: b}", "'common.user_files' cannot be set as a whole"),
    key("generation.components={search.groups: 3}", "'generation.components' cannot be set as a whole"),
    key("generation.typical_p=" + "9" * 400, "cannot be used"),
    key("common.seed=inf", "cannot be used"),
    (lambda: compose(ScoreConfig, ["search.groups=2"]), "unknown key 'search.groups'"),
    (lambda: component_of_key(GenerationConfig(processors=["a"]), "processor.b.x"), "'processor.b.x' has no effect"),
)

test_files = refusals(
    (lambda: with_config_files(TrainConfig, ["config=nothere.yaml"]), "config=nothere.yaml", "there is no such file"),
    of_file("- a\n- b\n", "must contain keys and values"),
    of_file("", "must contain keys and values"),
    of_file("a: [", "not a YAML file: there is an error in line 1, column 5"),
    of_file("a: '\0'", "not a YAML file: it has the character U+0000"),
    of_file("a: !!python/object:os.system {}\n", "not a YAML file"),
    of_file("common:\n  seed: 1\n  seed: 2\n", "the key seed in line 3 is already in line 2; remove one"),
    of_file("common: {seed: 1}\ncommon.seed: 2\n", "common.seed is given twice, in two spellings"),
    of_file('{"format": "seqgen-comparison"}', "this is a seqgen-comparison file, not keys or a record"),
    of_file('{"format": "seqgen-record", "version": 2}', "a record of version 2; this seqgen reads version 1"),
    of_file('{"format": "seqgen-record", "version": 1}', "the record has no keys"),
    of_file('{"format": "seqgen-record", "version": 1, "keys": {}}', "which is for seqgen-generate"),
    of_file(yaml.safe_dump(to_dict(compose(TrainConfig, []))), "configuration of a training", schema=GenerateConfig),
)  # fmt: skip

USER_FILES = (3, None, [], {"model.x": 3}, {"nothing": "a.py"}, {"": "a.py"})
test_values = refusals(
    plain({"common": {"sed": 1}}),
    plain({"common": 3}),
    plain({"model": {"_name": "nothere"}}),
    plain({"model": {"dropout": 1}}),
    plain({"nothere": 1}),
    plain({"common": {"seed": True}}),
    plain({"model": {"_name": "transformer", "dropout": float("nan")}}),
    *(plain({"common": {"user_files": files}, "model": {"_name": "x"}}) for files in USER_FILES),
)
