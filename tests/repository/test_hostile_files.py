"""Malicious and damaged files end in one sentence and exit code 2, soon, whatever they are."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import socket
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from seqgen.addons.mixtures.text_to_text import read_mixture
from seqgen.checkpoints.loading import load_model
from seqgen.checkpoints.run_checkpoints import STATE, update_of
from seqgen.checkpoints.torch_file import read_torch_file
from seqgen.core.errors import CheckpointError, DataError, UserError, shown
from seqgen.data.dictionary import Dictionary
from seqgen.data.records import read_object
from seqgen.data.token_store import DamagedStoreError, StoreMeta
from seqgen.data.tokenizers.fast import FastT5Tokenizer
from seqgen.data.tokenizers.files import TokenizerFiles
from seqgen.models.transformer import TransformerModel
from seqgen.system import reading
from seqgen.system.reading import MAX_DEPTH, parse_json, parse_yaml, read_bytes
from tests import fairseq_checkpoints
from tests.commands import SMALL_TRANSFORMER, command, corpus, training_arguments
from tests.covering import covering
from tests.hostile import (
    JSON,
    PICKLES,
    YAML,
    checksummed,
    compressed,
    copy_of,
    limited,
    old_file,
    replace_by,
    time_limit,
)
from tests.huggingface_t5 import tiny_folder

LINE = b"the dog sees a man\n"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a transformer after one update."""
    folder = tmp_path_factory.mktemp("run") / "run"
    arguments = [*training_arguments(data, folder), *SMALL_TRANSFORMER, "optimization.max_update=1"]
    outcome = command("train", *arguments, "common.tensorboard=false")
    assert outcome.code == 0, outcome.err
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A T5 in Hugging Face's layout whose tokenizer is a ``tokenizer.json``."""
    folder = tiny_folder(tmp_path_factory.mktemp("folder"), "t5")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    pipeline: Any = FastT5Tokenizer(TokenizerFiles.read(folder))._pipeline
    pipeline.save(str(folder / "tokenizer.json"))
    (folder / "spiece.model").unlink()
    config = {key: value for key, value in config.items() if key != "add_prefix_space"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "tokenizer_class": "T5TokenizerFast"}))
    return folder


@pytest.fixture
def fairseq(tmp_path: Path) -> Path:
    """A checkpoint of fairseq and its dictionary."""
    config = fairseq_checkpoints.TRANSFORMER
    model = fairseq_checkpoints.random_model(config)
    described = fairseq_checkpoints.in_args(fairseq_checkpoints.options_of(config))
    return fairseq_checkpoints.write(tmp_path / "fairseq", model, described)


def refused(path: Path, *words: str, seconds: float = 15) -> None:
    """Check that a model is refused in time, with one short sentence that says where."""
    with time_limit(seconds), pytest.raises(UserError) as error:
        load_model(path)
    message = str(error.value)
    assert len(message) < 1000
    for word in words:
        assert word in message


def test_the_files_are_readable_as_they_were(run: Path, folder: Path, fairseq: Path) -> None:
    for path in (run, folder, fairseq):
        assert limited("generate", f"path={path}", "input=-", stdin=LINE).code == 0


@pytest.mark.parametrize("kind", list(YAML)[::4])
def test_yaml_of_a_run(kind: str, run: Path, tmp_path: Path) -> None:
    broken = copy_of(run, tmp_path / "run")
    (broken / "config.yaml").write_bytes(YAML[kind].encode(errors="surrogateescape"))
    refused(broken, "config.yaml")


@pytest.mark.parametrize(
    ("value", "key"),
    covering(["1" + "0" * 50, "0x" + "f" * 60, "1e400", ".nan", "[[[[[1]]]]]", "{a: {b: [c]}}"], ["seed", "threads"]),
)
def test_values_of_a_run(value: str, key: str, run: Path, tmp_path: Path) -> None:
    broken = copy_of(run, tmp_path / "run")
    content = (broken / "config.yaml").read_text()
    changed = re.sub(rf"(?m)^  {key}: .*$", f"  {key}: {value}", content)
    assert changed != content
    (broken / "config.yaml").write_text(changed)
    refused(broken, "config.yaml")


@pytest.mark.parametrize("kind", [kind for kind in YAML if "Python" not in kind])
def test_yaml_of_a_mixture(kind: str) -> None:
    with time_limit(15), pytest.raises(UserError, match=r"mixture\.yaml") as error:
        read_mixture(YAML[kind].encode(errors="surrogateescape"), "mixture.yaml")
    assert len(str(error.value)) < 1000


def test_aliases_that_stand_for_little_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    content = "a: &a {b: 1, c: [2, 3]}\nd: *a\ne: {<<: *a, b: 5}"
    assert parse_yaml(content.encode()) == {
        "a": {"b": 1, "c": [2, 3]},
        "d": {"b": 1, "c": [2, 3]},
        "e": {"b": 5, "c": [2, 3]},
    }
    monkeypatch.setattr(reading, "MAX_VALUES", 12)
    assert parse_yaml(b"a: &a [1, 2, 3]\nb: *a\n") == {"a": [1, 2, 3], "b": [1, 2, 3]}  # 11 values: a map, its keys ...
    with pytest.raises(ValueError, match="line 1 has more than 12 values, with its aliases expanded"):
        parse_yaml(b"a: &a [1, 2, 3]\nb: *a\nc: *a")


def test_json_up_to_the_limit_is_read() -> None:
    assert parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH) is not None
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))
    assert parse_json(b'\xef\xbb\xbf{"a": "\\ud83d\\ude00", "b": 340282366920938463463374607431768211455}') == {
        "a": "😀",
        "b": 2**128 - 1,
    }


HUGGINGFACE_JSON = ["config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json"]


@pytest.mark.parametrize(
    ("kind", "name"),
    covering(
        [kind for kind in JSON if kind not in ("a list", "nothing")],
        [*HUGGINGFACE_JSON, "special_tokens_map.json", "model.safetensors.index.json"],
        times=2,
    ),
)
def test_json_of_a_folder(kind: str, name: str, folder: Path, tmp_path: Path) -> None:
    broken = copy_of(folder, tmp_path / "folder")
    (broken / name).write_text(JSON[kind])
    if name == "special_tokens_map.json":
        config = json.loads((broken / "tokenizer_config.json").read_text())
        del config["added_tokens_decoder"]
        (broken / "tokenizer_config.json").write_text(json.dumps(config))
    if name.endswith(".index.json"):
        (broken / "model.safetensors").unlink()
    refused(broken, name)


@pytest.mark.parametrize("kind", JSON)
def test_json_of_a_run(kind: str, run: Path, data: Path, tmp_path: Path) -> None:
    broken = copy_of(run, tmp_path / "run")
    (broken / "tokenizer" / "tokenizer.json").write_text(JSON[kind])
    refused(broken, "tokenizer.json")
    last = broken / "checkpoints" / "last"
    (last / STATE).write_text(JSON[kind])
    checksummed(last)
    with time_limit(15), pytest.raises(CheckpointError, match=re.escape(STATE)):
        update_of(last)
    vocabulary = tmp_path / "vocabulary.json"
    vocabulary.write_text(JSON[kind])
    with time_limit(15), pytest.raises(DataError, match=r"vocabulary\.json"):
        Dictionary.load(vocabulary)
    with time_limit(15), pytest.raises(DamagedStoreError, match=r"meta\.json"):
        StoreMeta.from_json(JSON[kind].encode())
    if "digits" not in kind:  # a number of a record stays the text that it is
        with time_limit(15), pytest.raises(ValueError, match="JSON"):
            read_object(JSON[kind])


def only_last(run: Path) -> Path:
    """The checkpoint ``last`` of a run, whose other checkpoints, which training would use in its place, are deleted."""
    for path in (run / "checkpoints").iterdir():
        if path.name != "last":
            shutil.rmtree(path)
    return run / "checkpoints" / "last"


@pytest.mark.parametrize(
    "state", [{}, {"a": {"$tensor": "nothing"}}, {"a": {"$tensor": []}}, {"update": [1]}, {"update": "x"}]
)
def test_training_states_of_something_else(state: Any, run: Path, data: Path, tmp_path: Path) -> None:
    broken = copy_of(run, tmp_path / "run")
    last = only_last(broken)
    (last / STATE).write_text(json.dumps(state))
    checksummed(last)
    arguments = [*training_arguments(data, broken), *SMALL_TRANSFORMER, "optimization.max_update=2"]
    outcome = limited("train", *arguments, "common.tensorboard=false")
    assert outcome.code == 2
    assert str(last) in outcome.err


def test_pipes_folders_and_devices_in_place_of_files(run: Path, folder: Path, fairseq: Path, tmp_path: Path) -> None:
    known, kinds = [], itertools.cycle(["pipe", "folder", "device"])
    for given in (run, folder, fairseq.parent):
        for path in sorted(path.relative_to(given) for path in given.rglob("*") if path.is_file()):
            broken = copy_of(given, tmp_path / "broken")
            replace_by(broken / path, next(kinds))
            with time_limit(15):
                try:
                    load_model(broken / "model.pt" if given == fairseq.parent else broken)
                except (UserError, OSError):
                    known.append(path.name)
    assert {"config.yaml", "tokenizer.json", "sentencepiece.model", "model.safetensors", "config.json"} <= set(known)
    assert {"tokenizer_config.json", "model.pt", "dict.txt"} <= set(known)


def test_a_socket_and_a_pipe_are_no_regular_files(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        with pytest.raises(OSError, match="not a regular file"):
            read_bytes(tmp_path / "socket")
    (tmp_path / "file").write_bytes(b"12345")
    assert read_bytes(tmp_path / "file", limit=5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_bytes(tmp_path / "file", limit=4)


def test_pipes_in_the_place_of_what_training_reads(run: Path, data: Path, tmp_path: Path) -> None:
    for name in ("config.yaml", "log.jsonl", "checkpoints/last/SHA256SUMS"):
        broken = copy_of(run, tmp_path / "run")
        only_last(broken)
        replace_by(broken / name, "pipe")
        arguments = [*training_arguments(data, broken), *SMALL_TRANSFORMER, "optimization.max_update=2"]
        assert limited("train", *arguments, "common.tensorboard=false").code == 2, name


def test_the_input_may_be_a_pipe(run: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "input")
    writer = threading.Thread(target=(tmp_path / "input").write_bytes, args=(LINE,), daemon=True)
    writer.start()
    outcome = limited("generate", f"path={run}", f"input={tmp_path}/input")
    assert outcome.code == 0
    assert outcome.out == limited("generate", f"path={run}", "input=-", stdin=LINE).out


@pytest.mark.parametrize("kind", PICKLES)
def test_pickles(kind: str, fairseq: Path) -> None:
    old_file(fairseq, PICKLES[kind])
    refused(fairseq, str(fairseq), seconds=20)


def test_archives_that_are_larger_than_their_file(tmp_path: Path) -> None:
    path = compressed(tmp_path / "model.pt")
    assert path.stat().st_size < 20_000
    with time_limit(1), pytest.raises(CheckpointError, match="compressed"):
        read_torch_file(path)


def test_a_compressed_archive_of_incompressible_numbers(tmp_path: Path) -> None:
    """Its content is not larger than its file, which is therefore no proof."""
    torch.save({"a": torch.ones(2)}, tmp_path / "stored.pt")
    with (
        zipfile.ZipFile(tmp_path / "stored.pt") as stored,
        zipfile.ZipFile(tmp_path / "model.pt", "w") as archive,
    ):
        for name in stored.namelist():
            kind = zipfile.ZIP_DEFLATED if name.endswith("data/0") else zipfile.ZIP_STORED
            archive.writestr(name, stored.read(name), kind)
    with pytest.raises(CheckpointError, match="compressed"):
        read_torch_file(tmp_path / "model.pt")


def test_weights_that_repeat_one_number(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1).expand(10**5, 10**5)}, tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match="'a' is larger than the file"):
        read_torch_file(tmp_path / "model.pt")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize(
    "make",
    [
        Tensor.to_sparse,
        lambda x: x.to(torch.complex64),
        lambda x: torch.nested.nested_tensor([x, x]),
        lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    ],
    ids=["sparse", "complex", "nested", "quantized"],
)
def test_weights_that_are_no_ordinary_tensors(make: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    torch.save({"a": make(torch.ones(2, 2))}, tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match="'a' is not an ordinary tensor"):
        read_torch_file(tmp_path / "model.pt")


def test_weights_without_dimensions(run: Path, data: Path, fairseq: Path, tmp_path: Path) -> None:
    """Of a run that is decoded, of one from which another starts, and of fairseq's new and old names."""
    broken, name = copy_of(run, tmp_path / "run"), "encoder.embed_tokens.weight"
    for checkpoint in (broken / "checkpoints").iterdir():
        weights = load_file(checkpoint / "model.safetensors")
        save_file({**weights, name: torch.tensor(1.0)}, checkpoint / "model.safetensors", {"format": "pt"})
        checksummed(checkpoint)
    refused(broken, f"{name} ((), here (")
    outcome = command("train", *training_arguments(data, tmp_path / "new"), f"checkpoint.finetune_from={broken}")
    assert (outcome.code, len(outcome.err.splitlines())) == (2, 1), outcome.err
    content = torch.load(fairseq, weights_only=False)
    for changed in (name, "decoder.layers.0.self_attn.k_proj.bias", "decoder.layers.0.encoder_attn.in_proj_weight"):
        torch.save({**content, "model": {**content["model"], changed: torch.tensor(1.0)}}, fairseq)
        refused(fairseq, "the weights are not those of this model")
    torch.save({**content, "model": {**content["model"], name: torch.ones(2, 2, dtype=torch.int8)}}, fairseq)
    refused(fairseq, f"{name} has no floating-point numbers")


@pytest.mark.parametrize("aliases", ['{"a": "nothing"}', "[]", '{"a": ["b"]}', "{", "[" * 100_000])
def test_an_alias_of_nothing(run: Path, tmp_path: Path, aliases: str) -> None:
    broken = copy_of(run, tmp_path / "run")
    for checkpoint in (broken / "checkpoints").iterdir():
        weights = load_file(checkpoint / "model.safetensors")
        save_file(weights, checkpoint / "model.safetensors", {"aliases": aliases})
        checksummed(checkpoint)
    refused(broken, "not a readable safetensors file")


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def nested(steps: list[Any], levels: int) -> Any:
    for _ in range(levels):
        steps = [{"type": "Sequence", "normalizers": steps}]
    return steps[0]


GROWING: dict[str, Callable[[dict[str, Any]], Any]] = {
    "normalizer": lambda _: {"type": "Sequence", "normalizers": [replace({"String": "e"}, "ee")] * 32},
    "nested": lambda _: nested([replace({"String": "e"}, "ee"), nested([replace({"Regex": ""}, "e")], 3)] * 20, 5),
    "pre_tokenizer": lambda _: {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}] * 40},
    "decoder": lambda _: {"type": "Sequence", "decoders": [replace({"String": "e"}, "ee")] * 32},
    "one": lambda _: replace({"String": "e"}, "e" * 10**6),
}


@pytest.mark.parametrize("kind", GROWING)
def test_steps_of_a_tokenizer_that_blow_up_a_text(kind: str, folder: Path, tmp_path: Path) -> None:
    broken = copy_of(folder, tmp_path / "folder")
    pipeline = json.loads((broken / "tokenizer.json").read_text())
    pipeline[kind if kind in pipeline else "normalizer"] = GROWING[kind](pipeline)
    (broken / "tokenizer.json").write_text(json.dumps(pipeline))
    refused(broken, "tokenizer.json has steps")


@pytest.mark.parametrize("kind", ["normalizer", "pre_tokenizer"])
def test_a_regular_expression_that_takes_forever(kind: str, folder: Path, tmp_path: Path) -> None:
    pattern = {"Regex": "(e+)+b"}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    broken = copy_of(folder, tmp_path / "folder")
    pipeline = json.loads((broken / "tokenizer.json").read_text())
    pipeline[kind] = replace(pattern, "x") if kind == "normalizer" else split
    (broken / "tokenizer.json").write_text(json.dumps(pipeline))
    outcome = limited("generate", f"path={broken}", "input=-", stdin=b"e" * 50 + b"\n", seconds=10)
    assert outcome.code == 2
    assert "cannot encode the line" in outcome.err


def test_messages_show_little_of_large_values() -> None:
    value: Any = "x" * 1000
    for _ in range(30):
        value = [value] * 30
    with time_limit(1):
        assert len(shown(value)) < 20_000
    assert "too long" in shown(16**5000)
    assert shown({"a": [1, "b"]}) == "{'a': [1, 'b']}"


SIZES = [
    *("encoder_layers", "decoder_layers", "encoder_embed_dim", "decoder_ffn_embed_dim"),
    *("max_source_positions", "max_target_positions", "encoder_attention_heads"),
]


@pytest.mark.parametrize(("key", "number"), covering(SIZES, [10**9, 2**31, 10**18]))
def test_sizes_of_a_run_that_nobody_has_memory_for(key: str, number: int, run: Path, tmp_path: Path) -> None:
    broken = copy_of(run, tmp_path / "run")
    content = (broken / "config.yaml").read_text()
    changed = re.sub(rf"(?m)^  {key}: .*$", f"  {key}: {number}", content)
    assert changed != content
    (broken / "config.yaml").write_text(changed)
    refused(broken)


@pytest.mark.parametrize("key", ["encoder_layers", "encoder_ffn_embed_dim", "max_source_positions"])
def test_sizes_of_a_checkpoint_that_nobody_has_memory_for(key: str, fairseq: Path) -> None:
    content = torch.load(fairseq, weights_only=False)
    setattr(content["args"], key, 10**9)
    torch.save(content, fairseq)
    refused(fairseq, str(fairseq))


def test_a_model_that_needs_memory_to_be_built_is_loaded(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = TransformerModel.build_model
    built: list[str] = []

    def careful(cfg: Any, task: Any) -> Any:
        model = build(cfg, task)
        built.append(next(model.parameters()).device.type)
        next(model.parameters()).sum().item()  # which a tensor on the meta device does not have
        return model

    monkeypatch.setattr(TransformerModel, "build_model", careful)
    load_model(run)
    assert built == ["meta", "cpu"]
