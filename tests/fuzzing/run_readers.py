"""Run folders that somebody else made, and ``key=value`` arguments."""

from __future__ import annotations

import dataclasses
import json
import random
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from seqgen.checkpoints.loading import load_model
from seqgen.checkpoints.run_checkpoints import update_of
from seqgen.checkpoints.run_config import recorded_user_dirs, save_generation
from seqgen.cli.convert import ConvertConfig, run_config, write_run
from seqgen.config import GenerateConfig, GenerationConfig, TrainConfig
from seqgen.config.compose import compose
from seqgen.config.values import check_ranges, from_dict, to_dict
from seqgen.errors import UserError
from seqgen.registry import MODELS, SEARCHES, TASKS
from tests import fairseq_checkpoints
from tests.fuzzing.folder_readers import check_decoding
from tests.fuzzing.mutation import VALUES, change_bytes, change_json, change_safetensors, change_yaml
from tests.fuzzing.reader import Reader, link, replace
from tests.fuzzing.sandbox import Wrong
from tests.hostile import JSON, YAML, checksummed

CODE = ("evil.py", "config.py", "__init__.py", "model.py", "tokenizer/evil.py", "sitecustomize.py", "conftest.py")
"""Files with code that are put into a run folder."""


class Run(Reader):
    """A run folder of which files are changed, with code in it and keys that name the code."""

    name = "run"
    fast_cases = 12

    def __init__(self, scratch: Path):
        super().__init__(scratch)
        path = fairseq_checkpoints.write_random(scratch / "fairseq", fairseq_checkpoints.TRANSFORMER)
        self.original = scratch / "run"
        loaded = load_model(path)
        write_run(
            loaded,
            run_config(loaded, ConvertConfig(path=["model.pt"], source_lang="en", target_lang="de")),
            self.original,
        )
        check_decoding(load_model(self.original), "w1 w2")
        files = [path.relative_to(self.original) for path in self.original.rglob("*") if path.is_file()]
        self.files = sorted(path for path in files if (self.original / path).stat().st_size)

    def write(self, folder: Path, canary: Path, rng: random.Random) -> None:
        link(self.original, folder)
        for name in CODE:
            (folder / name).write_text(f"open({str(canary)!r}, 'w')\n")
        if rng.random() < 0.3:
            self._point_to_code(folder, canary, rng)
        names = [rng.choice(self.files)] * (rng.random() < 0.8) + [Path("config.yaml")] * (rng.random() < 0.3)
        for name in dict.fromkeys(names):
            replace(folder / name, _changed(folder / name, rng))
            if rng.random() < 0.7 and name.name != "SHA256SUMS" and name.parent.parent.name == "checkpoints":
                sums = folder / name.parent / "SHA256SUMS"
                replace(sums, sums.read_bytes())
                checksummed(folder / name.parent)
        if rng.random() < 0.1:
            name = rng.choice([".lock", "config.yaml", "cache", "checkpoints/last", "log.jsonl", "checksums.json"])
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(rng.choice([canary, self.scratch / "outside", "/dev/zero"]))
        if rng.random() < 0.6:  # as in runs of older versions
            (folder / "checksums.json").unlink(missing_ok=True)

    @staticmethod
    def _point_to_code(folder: Path, canary: Path, rng: random.Random) -> None:
        """Name the planted code wherever a configuration names files, modules or classes."""
        evil, path = str(folder / "evil.py"), folder / "config.yaml"
        tree = yaml.safe_load(path.read_bytes())
        tree["common"]["user_dir"] = rng.choice([[evil], evil, [str(folder)], ["run"], ["evil.py"]])
        tree["common"]["user_files"] = {"model.evil": evil, "search.evil": evil, "processor.evil": evil}
        group = rng.choice(["model", "task", "generation", "common"])
        deed = rng.randrange(5)
        if deed == 0 and isinstance(tree.get(group), dict):
            tree[group]["_target_"] = rng.choice(["os.system", "evil.main"])
        elif deed == 1:
            tree["model"]["_name"] = rng.choice(["evil", evil, "evil.Model", "../evil"])
        elif deed == 2:
            tree["generation"]["processors"] = ["evil"]
        elif deed == 3:
            tree["generation"]["search"] = "evil"
        content = yaml.safe_dump(tree, sort_keys=False)
        if deed == 4:
            tag = rng.choice(
                [f"apply:os.system ['touch {canary}']", "new:evil.X []", "module:evil ''", "name:evil.x ''"]
            )
            content = content.replace("user_files:", f"log_format: !!python/object/{tag}\n  user_files:", 1)
        replace(path, content.encode())

    def read(self, folder: Path) -> None:
        refused: list[UserError | OSError] = []
        readers: list[Callable[[], Any]] = [
            lambda: update_of(folder / "checkpoints" / "best"),
            lambda: recorded_user_dirs(folder),
            lambda: save_generation(folder, GenerationConfig(beam=3)),
            lambda: check_decoding(load_model(folder), "w1 w2"),
        ]
        for reader in readers:
            try:
                reader()
            except (UserError, OSError) as error:
                refused.append(error)
        if refused:
            raise refused[-1]


def _changed(path: Path, rng: random.Random) -> bytes:
    content = path.read_bytes()
    if rng.random() < 0.3:
        return change_bytes(content, rng)
    samples = {".yaml": YAML, ".json": JSON}.get(path.suffix)
    if samples and rng.random() < 0.1:
        return rng.choice(list(samples.values())).encode(errors="surrogateescape")
    try:
        if path.suffix == ".yaml":
            return change_yaml(content, rng)
        if path.suffix == ".json":
            return change_json(content, rng)
        if path.suffix == ".safetensors":
            return change_safetensors(content, rng)
    except (ValueError, yaml.YAMLError):
        pass  # it has been changed already
    return change_bytes(content, rng)


class Overrides(Reader):
    """Arguments of ``seqgen-generate`` and ``seqgen-train``."""

    name = "overrides"
    fast_cases = 4

    def __init__(self, scratch: Path):
        super().__init__(scratch)
        self.keys = {schema: sorted(_keys(schema)) for schema in (GenerateConfig, TrainConfig)}
        compose(GenerateConfig, [])

    def write(self, folder: Path, canary: Path, rng: random.Random) -> None:
        schema = rng.choice([GenerateConfig, TrainConfig])
        arguments = [self._argument(schema, canary, rng) for _ in range(rng.choice([1, 1, 2, 4]))]
        (folder / "arguments.json").write_text(json.dumps([schema.__name__, arguments]))

    def _argument(self, schema: type, canary: Path, rng: random.Random) -> str:
        groups = {"model": MODELS.names(), "task": TASKS.names(), "generation.search": SEARCHES.names()}
        if rng.random() < 0.2:
            key = rng.choice(sorted(groups))
            return f"{key}={rng.choice([*groups[key], 'x', '../x', 'os.system'])}"
        key = rng.choice([*self.keys[schema], *(f"model.{name}" for name in ("encoder_layers", "dropout", "x"))])
        code = f"__import__('os').system('touch {canary}')"
        values: list[Any] = [*VALUES, code, f"${{eval:{code}}}", f"!!python/object/apply:os.system [touch {canary}]"]
        values += [
            "${oc.decode:1}",
            "${x}",
            "${common}",
            "[(16, 3)] * 10**9",
            "[(16, 3)] * 2",
            "null",
            "true",
            "1e-3",
            "[1,2]",
        ]
        values += [
            "${oc.create:{_target_:os.system}}",
            "{_target_: os.system}",
            "glob(*)",
            "range(1,10**9)",
            "choice(1,2)",
        ]
        override = f"{key}={rng.choice(values)}"
        if rng.random() < 0.15:
            override = rng.choice(["+", "~", "++", "hydra.", "hydra/", "@", ""]) + override
        if rng.random() < 0.2:
            override = change_bytes(override.encode(errors="replace"), rng).decode(errors="replace")
        return override

    def read(self, folder: Path) -> None:
        name, arguments = json.loads((folder / "arguments.json").read_text())
        schema: type[Any] = {"GenerateConfig": GenerateConfig, "TrainConfig": TrainConfig}[name]
        config = compose(schema, arguments)
        check_ranges(config)
        if from_dict(schema, to_dict(config), "copy") != config and "nan" not in repr(config):
            raise Wrong("written and read, the configuration differs")


def _keys(schema: Any, prefix: str = "") -> typing.Iterator[str]:
    hints = typing.get_type_hints(schema)
    for field in dataclasses.fields(schema):
        if dataclasses.is_dataclass(hints[field.name]):
            yield from _keys(hints[field.name], f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}"


READERS: list[type[Reader]] = [Run, Overrides]
